"""Differential attention in every spelling, and sigmoid attention, which no kernel takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
import torch
from torch import Tensor
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.fx import INDUCTOR, Report, every, explain, first, rewrite
from pypm.rules.attention import RULES
from pypm.rules.attention.differential import (
    differential_attention,
    stacked_differential_attention,
)
from tests.axes import axes
from tests.rules.gradients import assert_gradients_agree

torch.set_num_threads(1)

B, H, S, T, D = 2, 3, 5, 7, 8
BOTH: Final = (differential_attention, stacked_differential_attention)
SHARES: Final = ((), (H, 1, 1), (B, H, S, 1), (1, 1, S, 1))
Function = Callable[..., Tensor]


def operands(share: tuple[int, ...] = (), width: int = 2 * D) -> list[Tensor]:
    """Queries and keys of both softmaxes, values, and the share of the second."""
    shapes = (B, H, S, D), (B, H, T, D), (B, H, S, D), (B, H, T, D), (B, H, T, width), share
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def weights(q: Tensor, k: Tensor) -> Tensor:
    """The first key is hidden from every query."""
    return torch.softmax((q @ k.mT * 0.3).masked_fill(torch.arange(T) < 1, -math.inf), -1)


def two_softmaxes(q: Tensor, k: Tensor, r: Tensor, m: Tensor, v: Tensor, share: Tensor) -> Tensor:
    return (weights(q, k) - share * weights(r, m)) @ v


def by_einsum(q: Tensor, k: Tensor, r: Tensor, m: Tensor, v: Tensor, share: Tensor) -> Tensor:
    a, b = (torch.softmax(torch.einsum("bhsd,bhtd->bhst", *x), -1) for x in ((q, k), (r, m)))
    return torch.einsum("bhst,bhte->bshe", a - b * share, v)


def one_keeps_all(q: Tensor, k: Tensor, r: Tensor, m: Tensor, v: Tensor, share: Tensor) -> Tensor:
    """Steps of their own for each softmax."""
    a = torch.softmax(q @ k.mT / 4, -1)
    return torch.matmul(a - share * weights(r * 0.5, m), v)


def in_pairs(q: Tensor, k: Tensor, r: Tensor, m: Tensor, v: Tensor, share: Tensor) -> Tensor:
    """As in the paper's code: heads of both kinds take turns."""
    q, k = (torch.stack(x, 2).flatten(1, 2) for x in ((q, r), (k, m)))
    w = weights(q, k).view(B, H, 2, S, T)
    return (w[:, :, 0] - share * w[:, :, 1]) @ v


def in_halves(q: Tensor, k: Tensor, r: Tensor, m: Tensor, v: Tensor, share: Tensor) -> Tensor:
    q, k = (torch.cat(x, 1) for x in ((q, r), (k, m)))
    a, b = weights(q, k).chunk(2, 1)
    return (a - share * b) @ v


def stacked(q: Tensor, k: Tensor, r: Tensor, m: Tensor, v: Tensor, share: Tensor) -> Tensor:
    q, k = (torch.stack(x, 1) for x in ((q, r), (k, m)))
    a, b = weights(q, k).unbind(1)
    return (a - share * b) @ v


SPELLINGS: Final = (two_softmaxes, by_einsum, one_keeps_all, in_pairs, in_halves, stacked)


def rewritten(
    function: Function, args: list[Tensor], way: str = "export", rules: Any = BOTH, **options: Any
) -> tuple[Report, Any]:
    is_low = way == "decomposed"
    table = select_decomp_table() if is_low else None
    gm = make_fx(function, table, tracing_mode="fake", pre_dispatch=not is_low)(*args)
    options = {"choose": every, "dialect": INDUCTOR if is_low else None, **options}
    return rewrite(gm, rules, **options), gm


@axes(spelling=SPELLINGS, share=SHARES, way=["export", "decomposed"])
def test_every_spelling(spelling: Function, share: tuple[int, ...], way: str) -> None:
    args = operands(share)
    if spelling is by_einsum and way == "export" and len(share) == 4:
        args[5] = args[5][:1]
    report, gm = rewritten(spelling, args, way)
    assert (len(report), report.unchecked) == (1, 0), report
    torch.testing.assert_close(gm(*args), spelling(*args), atol=1e-12, rtol=1e-9)


@axes(spelling=SPELLINGS, width=[4, D, 2 * D])
def test_gradients(spelling: Function, width: int) -> None:
    args = operands((H, 1, 1), width)
    report, gm = rewritten(spelling, args)
    assert len(report) == 1
    assert_gradients_agree(gm, spelling, args, atol=1e-11, rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("spelling", [two_softmaxes, in_pairs])
def test_narrow_types(spelling: Function, dtype: torch.dtype) -> None:
    args = [x.to(dtype) for x in operands((H, 1, 1))]
    report, gm = rewritten(spelling, args)
    assert len(report) == 1
    exact = spelling(*(x.double() for x in args))
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(gm(*args).double(), exact, atol=tolerance, rtol=tolerance)


def in_float32(q: Tensor, k: Tensor, r: Tensor, m: Tensor, v: Tensor, share: Tensor) -> Tensor:
    return (weights(q, k) - share.float() * weights(r, m)).to(v.dtype) @ v


def test_a_share_of_a_wider_type() -> None:
    args = [x.bfloat16() for x in operands((H, 1, 1))]
    report, gm = rewritten(in_float32, args)
    assert len(report) == 1
    exact = in_float32(*(x.double() for x in args))
    torch.testing.assert_close(gm(*args).double(), exact, atol=4e-2, rtol=4e-2)
    assert gm(*args).dtype == torch.bfloat16


def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """As in the paper's code: heads of keys and of values are repeated alike."""
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    w = torch.softmax(q @ k.mT * 0.3, -1).view(B, 4, 2, S, T)
    return (w[:, :, 0] - 0.25 * w[:, :, 1]) @ v


@pytest.mark.parametrize("way", ["export", "decomposed"])
def test_heads_in_groups(way: str) -> None:
    shapes = (B, 8, S, D), (B, 4, T, D), (B, 2, T, 2 * D)
    args = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    report, gm = rewritten(grouped, args, way)
    assert len(report) == 1, report
    torch.testing.assert_close(gm(*args), grouped(*args), atol=1e-12, rtol=1e-9)


def varies_over_keys(
    q: Tensor, k: Tensor, r: Tensor, m: Tensor, v: Tensor, share: Tensor
) -> Tensor:
    return (weights(q, k) - v[..., 0][:, :, None] * weights(r, m)) @ v


def twice_the_first(q: Tensor, k: Tensor, r: Tensor, m: Tensor, v: Tensor, share: Tensor) -> Tensor:
    w = torch.cat([weights(q, k), weights(r, m)], 1)
    a, b = weights(torch.cat([q, r], 1), torch.cat([k, m], 1)).chunk(2, 1)
    return (a - share * a) @ v + 0 * (b @ v) + 0 * w.sum()


def turned_around(q: Tensor, k: Tensor, r: Tensor, m: Tensor, v: Tensor, share: Tensor) -> Tensor:
    """The second half less a share of the first."""
    a, b = weights(torch.cat([q, r], 1), torch.cat([k, m], 1)).chunk(2, 1)
    return (b - share * a) @ v


def weights_are_returned(
    q: Tensor, k: Tensor, r: Tensor, m: Tensor, v: Tensor, share: Tensor
) -> list[Tensor]:
    w = weights(q, k) - share * weights(r, m)
    return [w @ v, w]


def halves_of_queries(
    q: Tensor, k: Tensor, r: Tensor, m: Tensor, v: Tensor, share: Tensor
) -> Tensor:
    w = torch.softmax(torch.cat([q, r], 2) @ k.mT, -1).view(B, H, 2, S, T).unbind(2)
    return (w[0] - share * w[1]) @ v


MISSES: Final = (varies_over_keys, twice_the_first, turned_around, halves_of_queries)


@axes(miss=[*MISSES, weights_are_returned], way=["decomposed", "export"])
def test_near_misses(miss: Any, way: str) -> None:
    args = operands()
    report, gm = rewritten(miss, args, way)
    assert len(report) == 0
    torch.testing.assert_close(gm(*args), miss(*args), atol=1e-12, rtol=1e-12)


def of(q: list[Tensor], k: list[Tensor], dim: int) -> Tensor:
    """Weights of queries and keys that are joined along a dimension."""
    return weights(torch.cat(q, dim), torch.cat(k, dim))


HALVES: Final[dict[str, Callable[..., Sequence[Tensor]]]] = {
    "three dimensions": lambda q, k, r, m: weights(q[:, :2], k[:, :2]).unbind(1),
    "queries, three dimensions": lambda q, k, r, m: weights(
        torch.cat([q, r], 2)[:, 0], k[:, 0]
    ).chunk(2, 1),
    "batches": lambda q, k, r, m: of([q, r], [k, m], 0).view(2, B, H, S, T).unbind(0),
    "queries in pairs": lambda q, k, r, m: (
        weights(torch.stack([q, r], 3).flatten(2, 3), k).view(B, H, S, 2, T).unbind(3)
    ),
    "two of three": lambda q, k, r, m: (
        of([q, r, q], [k, m, k], 1).view(B, 3, H, S, T).unbind(1)[:2]
    ),
    "two pieces of three": lambda q, k, r, m: of([q, r, q], [k, m, k], 1).split(H, 1)[:2],
    "the first twice": lambda q, k, r, m: 2 * of([q, r], [k, m], 1).chunk(2, 1)[:1],
    "the second twice": lambda q, k, r, m: 2 * of([q, r], [k, m], 1).chunk(2, 1)[1:],
    "one head for all": lambda q, k, r, m: (weights(q[:, :1], k[:, :1]), weights(r, m)),
    "one other head for all": lambda q, k, r, m: (weights(q, k), weights(r[:, :1], m[:, :1])),
}


@pytest.mark.parametrize("name", HALVES)
def test_halves_that_are_none(name: str) -> None:
    def function(q: Tensor, k: Tensor, r: Tensor, m: Tensor, v: Tensor, share: Tensor) -> Tensor:
        a, b = HALVES[name](q, k, r, m)
        return (a - share * b) @ (v if a.dim() > 3 else v[:, 0])

    args = operands()
    report, gm = rewritten(function, args)
    assert len(report) == 0
    torch.testing.assert_close(gm(*args), function(*args), atol=1e-12, rtol=1e-12)


def test_it_is_for_choices_alone() -> None:
    report, _ = rewritten(two_softmaxes, operands(), rules=RULES, choose=first)
    assert not len(report)


# --- sigmoids -------------------------------------------------------------------------------------


def by_sigmoid(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT * 0.3 - math.log(T)
    hidden = torch.arange(T) > torch.arange(S)[:, None]
    return torch.sigmoid(scores.masked_fill(hidden, -math.inf)) @ v


@pytest.mark.parametrize("way", ["export", "decomposed"])
def test_sigmoids_are_declined_with_the_reason(way: str) -> None:
    args = operands(width=D)[2:5]
    report, gm = rewritten(by_sigmoid, args, way, RULES)
    assert len(report) == 0
    reasons = {refusal.reason for refusal in report.refusals if refusal.kind == "declined"}
    assert reasons == {
        "the kernel computes a softmax, and these weights are sigmoids of the scores",
        "no kernel takes `sigmoid` on scores",
    }
    products = [n for n in gm.graph.nodes if "matmul" in str(n.target) or "bmm" in str(n.target)]
    last = products[-1] if way == "export" else products[-1].next
    dialect = INDUCTOR if way == "decomposed" else None
    told = str(explain(gm, RULES, last, dialect=dialect, choose=every))
    assert "sigmoid" in told, told
