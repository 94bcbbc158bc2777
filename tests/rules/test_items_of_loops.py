"""Items of the steps of a loop, in the spellings that models have: each is rolled up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from pypm.rules import loops
from tests.axes import axes
from tests.rules.capture import WAYS_AND_HOOKS, fired
from tests.rules.loops import L, normal

torch.set_num_threads(1)

pytestmark = pytest.mark.usefixtures("short_loops")

ITEMS: Final[dict[str, Callable[[Tensor], Sequence[Tensor]]]] = {
    "index": lambda x: [x[:, t] for t in range(L)],
    "index of the last": lambda x: [x.mT.contiguous()[:, :, t] for t in range(L)],
    "select": lambda x: [x.select(1, t) for t in range(L)],
    "narrow": lambda x: [x.narrow(1, t, 1).squeeze(1) for t in range(L)],
    "slice": lambda x: [x[:, t : t + 1].squeeze(1) for t in range(L)],
    "unbind": lambda x: x.unbind(1),
    "steps first": lambda x: [*x.transpose(0, 1)],
    "chunk": lambda x: [y.squeeze(1) for y in x.chunk(L, 1)],
    "split": lambda x: [y.squeeze(1) for y in x.split(1, 1)],
    "split of sizes": lambda x: [y.squeeze(1) for y in x.split([1] * L, 1)],
    "tensor_split": lambda x: [y.squeeze(1) for y in x.tensor_split(L, 1)],
    "of a slice": lambda x: [x[:, t, :2] for t in range(L)],
    "of a slice, by itself": lambda x: [x[:, t][..., 1:] for t in range(L)],
    "half of an item": lambda x: [torch.cat((x, x), -1)[:, t].chunk(2, -1)[1] for t in range(L)],
    "double": lambda x: [x[:, t].to(torch.float64) for t in range(L)],
}
"""Items [2, n] of a tensor [2, L, 3]."""


def loop(items: Callable[[Tensor], Sequence[Tensor]]) -> Callable[..., Any]:
    def function(a: Tensor, b: Tensor) -> Tensor:
        h, results = 0.0, []
        for x, y in zip(items(a), items(b), strict=True):
            h = x * h + y
            results.append(h)
        return torch.stack(results, 1)

    return function


@axes(name=ITEMS, way=["decomposed", "joint", "export", "pre_grad"])
def test_items(name: str, way: str) -> None:
    function, args = loop(ITEMS[name]), [normal(2, L, 3).sigmoid(), normal(2, L, 3).cos()]
    with torch.no_grad():
        report, result = WAYS_AND_HOOKS[way](function, args, loops.RULES)
    assert fired(report) == ["loop"], str(report)
    torch.testing.assert_close(result, function(*args), atol=1e-9, rtol=1e-9)


OTHERS: Final[dict[str, Callable[[Tensor], Sequence[Tensor]]]] = {
    "another slice once": lambda x: [x[:, t, t == 3 : 2 + (t == 3)] for t in range(L)],
    "another slice in each step": lambda x: [x[:, t, t % 2 : t % 2 + 2] for t in range(L)],
    "two of an item": lambda x: [x[:, t - 1 : t + 1].sum(1) for t in range(1, L)],
    "backwards, of a slice": lambda x: [x[:, L - 1 - t, :2] for t in range(L)],
    "pieces of two": lambda x: [y[:, 0] for y in torch.cat((x, x), 1).chunk(L, 1)],
}


@axes(name=OTHERS, way=["decomposed", "joint", "export", "pre_grad"])
def test_near_misses(name: str, way: str) -> None:
    function, args = loop(OTHERS[name]), [normal(2, L, 3).sigmoid(), normal(2, L, 3).cos()]
    with torch.no_grad():
        report, result = WAYS_AND_HOOKS[way](function, args, loops.RULES)
    assert not fired(report), str(report)
    torch.testing.assert_close(result, function(*args), atol=1e-9, rtol=1e-9)
