"""Attention with sinks: one more score for each query, which belongs to no key."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.fx import rewrite
from pypm.kernels.attention import attention_with_sinks
from pypm.rules.attention import sdpa_with_sinks
from tests.axes import axes

torch.set_num_threads(1)

B, H, G, S, T, D = 2, 4, 2, 5, 7, 8
Function = Callable[..., Tensor]


def operands(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    shapes = (B, H, S, D), (B, G, T, D), (B, G, T, D), (H,)
    return [torch.randn(shape).to(dtype) for shape in shapes]


def spelled(weigh: Callable[[Tensor, Tensor], Tensor], steps: Callable[..., Any]) -> Function:
    """Return attention; `weigh` gives weights of scores [B, H, S, T] and sinks [B, H, S, 1]."""

    def attend(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, *given: Tensor) -> Tensor:
        k, v = (x[:, :, None].expand(-1, -1, H // G, -1, -1).flatten(1, 2) for x in (k, v))
        scores = steps(q @ k.transpose(2, 3) * 0.3, *given)
        return weigh(scores, sinks.reshape(1, -1, 1, 1).expand(B, -1, S, -1)).to(v.dtype) @ v

    return attend


def as_gpt_oss(x: Tensor, sinks: Tensor) -> Tensor:
    x = torch.cat([x, sinks], -1)
    x = x - x.max(-1, keepdim=True).values
    return F.dropout(F.softmax(x, -1, dtype=x.dtype)[..., :-1], 0.1, False)


def in_front(x: Tensor, sinks: Tensor) -> Tensor:
    return torch.softmax(torch.cat([sinks, x], -1), -1)[..., 1:]


def widened(x: Tensor, sinks: Tensor) -> Tensor:
    joined = torch.cat([x, sinks], -1).double()
    return torch.softmax(joined - joined.amax(-1, keepdim=True), -1)[..., : x.shape[-1]]


SPELLINGS: Final = (as_gpt_oss, in_front, widened)
LOW: Final = torch.finfo(torch.float64).min


def hidden(low: float) -> Tensor:
    """A causal mask of which the first query sees nothing."""
    return torch.zeros(B, 1, S, T, dtype=torch.float64).masked_fill(
        torch.arange(T) >= torch.arange(S)[:, None], low
    )


def rewritten(way: str, function: Function, args: list[Tensor]) -> tuple[Any, Any]:
    table = select_decomp_table() if way == "decomposed" else None
    is_early = way == "export"
    gm = make_fx(function, table, tracing_mode="fake", pre_dispatch=is_early)(*args)
    return rewrite(gm, sdpa_with_sinks), gm


@axes(low=[None, -math.inf, LOW], spelling=SPELLINGS, way=["export", "decomposed"])
def test_every_spelling(way: str, spelling: Any, low: float | None) -> None:
    args = operands() if low is None else [*operands(), hidden(low)]
    function = spelled(spelling, lambda x, *masks: x + masks[0] if masks else x)
    report, gm = rewritten(way, function, args)
    assert len(report) == 1
    expected, found = function(*args), gm(*args)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
    assert low is None or (found[:, :, 0] == 0).all()


@axes(
    dtype=[torch.bfloat16, torch.float16, torch.float32],
    spelling=SPELLINGS,
    way=["export", "decomposed"],
)
def test_narrow_types(dtype: torch.dtype, spelling: Any, way: str) -> None:
    args = operands(dtype)
    function = spelled(spelling, lambda x: x)
    report, gm = rewritten(way, function, args)
    assert len(report) == 1
    exact = function(*(x.double() for x in args))
    tolerance = 8 * torch.finfo(dtype).eps
    torch.testing.assert_close(gm(*args).double(), exact, atol=tolerance, rtol=tolerance)


def test_sinks_that_have_nothing_but_their_scores() -> None:
    """A very low sink takes nothing, a very high one all."""
    q, k, v, _ = operands()
    plain = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    low, high = (torch.full((B, H, S, 1), x, dtype=q.dtype) for x in (-1e4, 1e4))
    torch.testing.assert_close(attention_with_sinks(q, k, v, low), plain)
    assert (attention_with_sinks(q, k, v, high) == 0).all()


def sink_kept(x: Tensor, sinks: Tensor) -> Tensor:
    return torch.softmax(torch.cat([x, sinks], -1), -1)[..., 1:]


def two_sinks(x: Tensor, sinks: Tensor) -> Tensor:
    return torch.softmax(torch.cat([x, sinks, sinks], -1), -1)[..., :-2]


def sinks_joined(x: Tensor, sinks: Tensor) -> Tensor:
    return torch.softmax(torch.cat([x, torch.cat([sinks, sinks], -1)], -1), -1)[..., :-2]


def sinks_joined_in_front(x: Tensor, sinks: Tensor) -> Tensor:
    """The weight of the second sink is among those that are left, and that of the last key not."""
    return torch.softmax(torch.cat([torch.cat([sinks, sinks], -1), x], -1), -1)[..., 1:-1]


def another_lowered(x: Tensor, sinks: Tensor) -> Tensor:
    x = torch.cat([x - x.amax(-1, keepdim=True), sinks], -1)
    return torch.softmax(x, -1)[..., :-1]


def every_other(x: Tensor, sinks: Tensor) -> Tensor:
    return torch.softmax(torch.cat([x, sinks], -1), -1)[..., ::2]


@pytest.mark.parametrize("way", ["export", "decomposed"])
def test_every_other_of_two_keys_and_a_sink(way: str) -> None:
    """The first key and the sink, as many as there are keys."""
    q, k, v, sinks = operands()
    args = [q, k[:, :, :2], v[:, :, :2], sinks]
    assert len(rewritten(way, spelled(every_other, lambda x: x), args)[0]) == 0


@axes(empty=["queries", "keys"], way=["export", "decomposed"])
def test_nothing_to_attend(way: str, empty: str) -> None:
    """Torch's kernel, called by itself, ends the process."""
    q, k, v, sinks = (torch.randn(B, H, n, D) for n in (S, T, T, S))
    sinks = sinks[..., :1]
    if empty == "queries":
        q, sinks = q[:, :, :0], sinks[:, :, :0]
    else:
        k, v = k[:, :, :0], v[:, :, :0]

    def attend(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor) -> Tensor:
        return as_gpt_oss(q @ k.transpose(2, 3), sinks) @ v

    report, _ = rewritten(way, attend, [q, k, v, sinks])
    assert len(report) == 0


@pytest.mark.parametrize(
    ("weigh", "steps", "reason"),
    [
        (sink_kept, lambda x: x, ""),
        (two_sinks, lambda x: x, ""),
        (sinks_joined, lambda x: x, ""),
        (sinks_joined_in_front, lambda x: x, ""),
        (another_lowered, lambda x: x, "added to every score but the sink"),
        (as_gpt_oss, lambda x: x + 3.0, "added to every score but the sink"),
        (as_gpt_oss, torch.tanh, "caps no scores"),
    ],
)
@pytest.mark.parametrize("way", ["export", "decomposed"])
def test_near_misses(way: str, weigh: Any, steps: Any, reason: str) -> None:
    report, _ = rewritten(way, spelled(weigh, steps), operands())
    assert len(report) == 0
    reasons = [refusal.reason for refusal in report.refusals]
    assert any(reason in each for each in reasons) if reason else not reasons


@pytest.mark.parametrize("is_trained", [False, True])
def test_programs_of_parameters(is_trained: bool) -> None:
    """Metadata says of the parameters alone that they need gradients; the kernel's other result,
    by which sinks are weighed, has none.
    """

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((D,), 2.0).double(), is_trained)

        def forward(self, q: Tensor, *others: Tensor) -> Tensor:
            return spelled(as_gpt_oss, lambda x: x)(q * self.weight, *others)

    module = torch.export.export(Model(), (*operands(),)).module()
    report = rewrite(module, sdpa_with_sinks)
    assert len(report) == (not is_trained)
    reasons = [refusal.reason for refusal in report.refusals]
    assert reasons == ["the kernel has no gradient for sinks"] * is_trained


def test_what_is_trained_is_left() -> None:
    function = spelled(as_gpt_oss, lambda x: x)
    gm = make_fx(function, tracing_mode="fake", pre_dispatch=True)(*operands())
    gm.graph.output_node().all_input_nodes[0].meta["val"].requires_grad_()
    report = rewrite(gm, sdpa_with_sinks)
    assert [refusal.reason for refusal in report.refusals] == [
        "the kernel has no gradient for sinks"
    ]
