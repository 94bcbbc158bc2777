"""Attention at its edges: every rule keeps the graph's value, or the one that is stated."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.core.rules import Rule
from pypm.fx import every, rewrite
from pypm.kernels import attention_gradients, paged
from pypm.kernels.attention import block_sparse, dense, unsuited
from pypm.rules.attention import RULES
from pypm.rules.attention import block_sparse as by_blocks
from pypm.rules.attention.rules import sdpa_with_dropout
from tests.axes import axes
from tests.rules.capture import traced
from tests.rules.test_block_attention import AsReference

torch.set_num_threads(1)

NAMED: Final[dict[str, Rule]] = {rule.name: rule for rule in RULES}


@dataclass(frozen=True)
class Edge:
    batch: int = 2
    rows: int = 5
    keys: int = 7
    scale: float = 0.4
    low: float = -math.inf
    sees_all: bool = True
    """False if the first query sees no key."""


EDGES: Final = {
    "nothing special": Edge(),
    "one key": Edge(keys=1),
    "one query, one key": Edge(rows=1, keys=1),
    "no keys": Edge(keys=0),
    "no queries": Edge(rows=0),
    "batch 0": Edge(batch=0),
    "a negative scale": Edge(scale=-0.7),
    "a row hidden by -inf": Edge(sees_all=False),
    "a row hidden by a number": Edge(sees_all=False, low=-1e9),
}
Attend = Callable[[Edge, Tensor, Tensor, Tensor], Tensor]


def seen(edge: Edge) -> Tensor:
    """A window of three keys, aligned to the right; the first query may see no key."""
    q, k = torch.arange(edge.rows)[:, None] + edge.keys - edge.rows, torch.arange(edge.keys)
    found = (k <= q) & (q - k < 3) | (k == 0)
    return found if edge.sees_all else found & (torch.arange(edge.rows)[:, None] > 0)


def weights(edge: Edge, q: Tensor, k: Tensor) -> Tensor:
    scores = q @ k.transpose(-2, -1) * edge.scale
    return torch.softmax(scores.masked_fill(~seen(edge), edge.low), -1)


def written(edge: Edge, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return weights(edge, q, k) @ v


def grouped(edge: Edge, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return written(edge, q, *(x[:, :2].repeat_interleave(2, 1) for x in (k, v)))


def called(edge: Edge, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    mask = torch.zeros(edge.rows, edge.keys, dtype=q.dtype).masked_fill(~seen(edge), edge.low)
    return F.scaled_dot_product_attention(q, k, v, mask, scale=edge.scale)


def unmasked(edge: Edge, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    k, v = (x[:, :2].repeat_interleave(2, 1) for x in (k, v))
    return torch.softmax(q @ k.transpose(-2, -1) * edge.scale, -1) @ v


def called_unmasked(edge: Edge, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, scale=edge.scale)


def beside_sinks(edge: Edge, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = (q @ k.transpose(-2, -1) * edge.scale).masked_fill(~seen(edge), edge.low)
    joined = torch.cat([scores, torch.ones_like(q[..., :1])], -1)
    return torch.softmax(joined, -1)[..., :-1] @ v


def differential(edge: Edge, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    (a, b), (c, d) = q.chunk(2, 1), k.chunk(2, 1)
    return (weights(edge, a, c) - 0.5 * weights(edge, b, d)) @ v[:, :2]


def stacked(edge: Edge, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    a, b = weights(edge, q, k).chunk(2, 1)
    return (a - 0.5 * b) @ v[:, :2]


CASES: Final[dict[str, tuple[Attend, int]]] = {
    "sdpa": (written, 8),
    "sdpa_with_sinks": (beside_sinks, 8),
    "sdpa_of_two_widths": (written, 4),
    "called_sdpa_of_two_widths": (called, 4),
    "differential_attention": (differential, 8),
    "stacked_differential_attention": (stacked, 8),
    "attention_by_products": (grouped, 8),
    "attention_by_blocks": (written, 8),
    "called_attention_by_products": (called, 8),
    "called_attention_by_blocks": (called, 8),
    "decoding": (grouped, 8),
    "decoding_without_mask": (unmasked, 8),
    "called_decoding": (called, 8),
    "called_decoding_without_mask": (called_unmasked, 8),
}
"""By the rule: attention that it takes, and the width of the values."""
EMPTY: Final = ("no keys", "no queries", "batch 0")
LEFT: Final = {
    **{("no keys", name): "there are no keys" for name in CASES if "products" in name},
    **{
        (edge, name): "without elements" if name == "sdpa_with_sinks" else "nothing to attend to"
        for edge in EMPTY
        for name in CASES
        if name == "sdpa_with_sinks" or "blocks" in name
    },
    ("a row hidden by a number", "called_attention_by_blocks"): "a row may be masked everywhere",
}
"""Where a rule declines, with a part of the reason; elsewhere it fires."""


def test_every_rule_is_here() -> None:
    assert CASES.keys() == NAMED.keys()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("edge", EDGES)
def test_edges(edge: str, name: str) -> None:
    of, (attend, width) = EDGES[edge], CASES[name]
    if "without_mask" in name and not of.sees_all:
        pytest.skip("there is no mask to hide a row")
    dtype = torch.float32 if "blocks" in name else torch.float64
    shapes = (of.batch, 4, of.rows, 8), (of.batch, 4, of.keys, 8), (of.batch, 4, of.keys, width)
    args = [torch.randn(shape, dtype=dtype) for shape in shapes]

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(of, q, k, v)

    gm = make_fx(function, tracing_mode="fake", pre_dispatch=True)(*args)
    eager: Any = copy.deepcopy(gm)
    with mock.patch.multiple(by_blocks, FEWEST=0, FEW_SCORES=0, MOST=1.0):
        report = rewrite(gm, NAMED[name], choose=every)
    reason = LEFT.get((edge, name))
    assert len(report) == (reason is None)
    assert reason is None or any(reason in refusal.reason for refusal in report.refusals)
    found, expected = AsReference(gm).run(*args), eager(*args)
    if edge == "a row hidden by -inf" and len(report):
        assert (found[:, :, 0] == 0).all()
        expected = expected.nan_to_num(0.0)
    tolerance = 3e-6 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance, equal_nan=True)


def along(k: Tensor) -> Callable[[Tensor], Tensor]:
    """Weights of queries that are multiplied with a vector: one for each query."""
    return lambda q: torch.softmax(torch.matmul(q, k.transpose(0, 0)), -1)


def usual(q: Tensor, k: Tensor) -> Tensor:
    return torch.softmax(torch.matmul(q[:, :, 0], k.transpose(-2, -1)), -1)


VECTORS: Final[dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]] = {
    **dict.fromkeys(
        (
            "sdpa",
            "sdpa_of_two_widths",
            "attention_by_products",
            "attention_by_blocks",
            "decoding",
            "decoding_without_mask",
        ),
        lambda q, k, v: along(k[0, 0])(q) @ v,
    ),
    "sdpa_with_dropout": lambda q, k, v: torch.dropout(along(k[0, 0])(q), 1e-12, True) @ v,
    "sdpa_with_sinks": lambda q, k, v: (
        torch.softmax(
            torch.cat([torch.matmul(q, k[0, 0].transpose(0, 0)), q[:, :, :1, 0]], -1), -1
        )[..., :-1]
        @ v
    ),
    "differential_attention": lambda q, k, v: (along(k[0, 0])(q) - 0.5 * usual(q, k)) @ v,
    "differential_attention, the other": lambda q, k, v: (
        (usual(q, k) - 0.5 * along(k[0, 0])(q)) @ v
    ),
}
"""By the rule: a product with a vector in the place of that with keys."""


@pytest.mark.parametrize("name", VECTORS)
def test_keys_of_one_dimension(name: str) -> None:
    rules = {**NAMED, "sdpa_with_dropout": sdpa_with_dropout}
    shapes = (2, 4, 5, 8), (2, 5, 8), (2, 5, 8)
    args = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    function = VECTORS[name]
    report, found = traced(function, args, rules[name.partition(",")[0]], choose=every)
    assert len(report) == 0
    torch.testing.assert_close(found, function(*args), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("ranks", [(3, 4, 4), (3, 3, 4), (3, 3, 3)])
@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("called")])
def test_calls_of_other_ranks(name: str, ranks: tuple[int, ...]) -> None:
    attend, width = CASES[name]
    sizes = zip(ranks, (5, 7, 7), (8, 8, width), strict=True)
    args = [torch.randn((*(2, 4)[4 - rank :], *size), dtype=torch.float64) for rank, *size in sizes]
    gm = make_fx(partial(attend, Edge()), tracing_mode="fake", pre_dispatch=True)(*args)
    with mock.patch.multiple(by_blocks, FEWEST=0, FEW_SCORES=0, MOST=1.0):
        assert len(rewrite(gm, NAMED[name], choose=every)) == 0


LOWEST: Final = torch.finfo(torch.float32).min


def later(value: float, dtype: torch.dtype) -> Tensor:
    """A value for the keys behind each query."""
    return torch.full((5, 5), value, dtype=dtype).triu(1)


COVERED: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "filled": lambda x: x.masked_fill(torch.ones(5, 5).triu() > 0, LOWEST),
    "added": lambda x: x + torch.full((5, 5), LOWEST, dtype=x.dtype).triu(),
}
UNCOVERED: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "added": lambda x: x + torch.where(later(1, x.dtype) > 0, -LOWEST, 0.0).to(x.dtype),
    "subtracted": lambda x: x - torch.zeros_like(x).masked_fill(later(1, x.dtype) > 0, LOWEST),
    "in a sum": lambda x: x + (torch.where(later(1, x.dtype) > 0, -LOWEST, 0.0)[None] + x.dim()),
}


@axes(first_mask=COVERED, how=UNCOVERED, way=["fake", "symbolic"])
def test_a_mask_that_undoes_another(first_mask: str, how: str, way: str) -> None:
    """The graph's sum of both is no score; a kernel adds the sum of the masks to the score."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = COVERED[first_mask](q @ k.transpose(-2, -1))
        return torch.softmax(UNCOVERED[how](scores), -1) @ v

    args = [torch.randn(2, 4, 5, 8, dtype=torch.float64) for _ in "qkv"]
    gm = make_fx(function, tracing_mode=way, pre_dispatch=True)(*args)
    for rules in (RULES, *RULES):
        assert len(rewrite(gm, rules, choose=every)) == 0


def test_heads_that_do_not_divide() -> None:
    """Eager has no such attention; every kernel declines it."""
    q, k = torch.zeros(2, 4, 5, 8), torch.zeros(2, 3, 7, 8)
    mask = torch.zeros(1, 1, 5, 7)
    pages = torch.zeros(6, 16, 3, 8)
    reasons = [
        dense.unsupported(q, k, k, mask),
        dense.unsupported(q, k, k[..., :4], mask, two_widths=True),
        block_sparse.unsupported(q, k, k),
        unsuited(q, k, k, mask),
        attention_gradients.unsupported(q, k, k, mask),
        paged.unsupported(q[0].transpose(0, 1), pages, pages),
    ]
    assert all(reasons), reasons
    with pytest.raises(RuntimeError):
        F.scaled_dot_product_attention(q, k, k, enable_gqa=True)


@pytest.mark.parametrize("way", ["fake", "symbolic"])
def test_torch_gives_no_gradient_to_a_mask_without_elements(way: str) -> None:
    """Eager has an empty one. Torch's own attention has none, and so do graphs that call it."""

    def function(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-2, -1) + mask, -1) @ v

    def called(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, scale=1.0)

    def made(rows: int) -> list[Tensor]:
        shapes = (2, 2, rows, 8), (2, 2, 5, 8), (2, 2, 5, 8), (rows, 5)
        return [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]

    traced = [x.detach() for x in made(4 if way == "symbolic" else 0)]
    gm = make_fx(function, tracing_mode=way, pre_dispatch=True)(*traced)
    assert len(rewrite(gm, RULES)) == 1
    for run, has_one in ((function, True), (called, False), (gm, False)):
        args = made(0)
        gradients = torch.autograd.grad(run(*args).sum(), args, allow_unused=True)
        assert [x is not None for x in gradients] == [True, True, True, has_one]
