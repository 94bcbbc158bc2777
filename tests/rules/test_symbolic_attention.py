"""Attention of unknown sizes: no error, no guard, and replaced where sizes surely agree."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.fx import INDUCTOR, PRE_GRAD, known_to_hold, rewrite, same_shape, same_size
from pypm.rules import attention


def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) * 0.3, -1) @ v


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    m = torch.arange(q.shape[-2])[:, None] * 0.1 + torch.arange(k.shape[-2]) * 0.2
    return torch.softmax(q @ k.transpose(-2, -1) * 0.3 + m, -1) @ v


def folded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # heads in the batch, a mask for each
    batch, heads, rows, size = q.shape
    m = q.sum(-1, keepdim=True).expand(batch, heads, rows, k.shape[2])
    q, k, v = (x.reshape(batch * heads, -1, size) for x in (q, k, v))
    scores = ((q * 0.3) @ k.transpose(-2, -1)).view(batch, heads, rows, -1) + m
    weights = torch.softmax(scores.view(batch * heads, rows, -1), -1)
    return (weights @ v).view(batch, heads, rows, size)


def broadcast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # sizes that may be one
    return torch.softmax(q @ k.transpose(-2, -1) + k.sum((-1, -2), keepdim=True), -1) @ v


def operands(batch: int, heads: int, rows: int, keys: int) -> list[Tensor]:
    made = torch.Generator().manual_seed(0)
    sizes = (rows, keys, keys)
    return [torch.randn(batch, heads, n, 16, dtype=torch.float64, generator=made) for n in sizes]


@pytest.mark.parametrize("function", [plain, masked, folded, broadcast])
def test_before_autograd(function: Callable[..., Tensor]) -> None:
    """One graph for all sizes, as torch.compile captures it."""
    counts: list[int] = []

    def backend(module: fx.GraphModule, inputs: Any) -> Any:
        counts.append(len(rewrite(module, attention.RULES, dialect=PRE_GRAD)))
        return module

    torch._dynamo.reset()
    compiled = torch.compile(function, dynamic=True, backend=backend)
    for sizes in ((2, 4, 10, 12), (3, 5, 9, 14), (4, 7, 11, 8)):
        args = operands(*sizes)
        torch.testing.assert_close(compiled(*args), function(*args), atol=1e-12, rtol=1e-12)
    assert counts == [1]


@pytest.mark.parametrize("function", [plain, masked, folded, broadcast])
def test_no_guard_is_added(function: Callable[..., Tensor]) -> None:
    args = operands(2, 4, 10, 12)
    module = make_fx(function, tracing_mode="symbolic")(*args)
    (environment,) = {
        n.meta["val"].fake_mode.shape_env for n in module.graph.find_nodes(op="placeholder")
    }
    before = len(environment.guards)
    rewrite(module, attention.RULES, dialect=INDUCTOR)
    assert len(environment.guards) == before
    torch.testing.assert_close(module(*args), function(*args), atol=1e-12, rtol=1e-12)


def test_heads_that_may_not_agree_stay() -> None:
    """Groups of query heads are asked for where their number is known to divide."""

    def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(n, 1) for x in (k, v))
        return plain(q, k, v)

    q, k, v = operands(2, 4, 6, 6)
    args = [q, k[:, :2].contiguous(), v[:, :2].contiguous()]
    module = make_fx(grouped, tracing_mode="symbolic")(*args)
    rewrite(module, attention.RULES)
    torch.testing.assert_close(module(*args), grouped(*args), atol=1e-12, rtol=1e-12)


def test_sizes_that_are_known() -> None:
    module = make_fx(lambda x: x.relu(), tracing_mode="symbolic")(torch.ones(3, 5))
    (x,) = module.graph.find_nodes(op="placeholder")
    s, t = x.meta["val"].shape
    assert same_size(s, s) and same_size(s * t, t * s) and same_shape((s, 2), (s, 2))
    assert not same_size(s, t) and not same_size(s, 3) and not same_shape((s,), (s, t))
    assert known_to_hold(operator.lt, 2, 3) and not known_to_hold(operator.lt, s, t)
    assert not same_size(None, None)
