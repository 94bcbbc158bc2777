"""Causal masks that the graph itself proves become the kernel's own; all others stay masks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor
from torch._inductor.decomposition import select_decomp_table
from torch.func import functionalize
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.fx import INDUCTOR, rewrite
from pypm.rules import attention
from tests.rules.spellings import B, D, H, S, T, normal

torch.set_num_threads(1)


def rows(n: int = S, start: int = 0) -> Tensor:
    return torch.arange(start, start + n)[:, None]


def columns(start: int = 0, step: int = 1) -> Tensor:
    return torch.arange(start, start + step * T, step)[None]


def later(dtype: torch.dtype, x: Tensor) -> Tensor:
    """Keys after their query, by differences of counts of a type."""
    queries, keys = (torch.arange(n, dtype=dtype) for n in x.shape[-2:])
    return keys[None] - queries[:, None] >= 1


CAUSAL: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "later": lambda x: x.masked_fill(columns() > rows(), -1e9),
    "turned over": lambda x: torch.where(rows() < columns(), -math.inf, x),
    "four dimensions": lambda x: x.masked_fill(
        columns()[None, None] > rows()[None, None], torch.finfo(x.dtype).min
    ),
    "difference": lambda x: x.masked_fill(columns() - rows() >= 1, -1e9),
    "kept": lambda x: torch.where(columns() <= rows(), x, -math.inf),
    "kept, turned over": lambda x: torch.where(rows() >= columns(), x, -1e9),
    "scaled before": lambda x: (x / 3.0).masked_fill(columns() > rows(), -1e9),
    "counted in fewer bits": lambda x: x.masked_fill(later(torch.int32, x), -1e9),
    "turned before": lambda x: (x * -0.3).masked_fill(columns() > rows(), -math.inf),
}
OTHERS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "diagonal too": lambda x: x.masked_fill((columns() >= rows() + 1) & (columns() > 0), -1e9),
    "earlier": lambda x: x.masked_fill(columns() < rows(), -1e9),
    "keys from one": lambda x: x.masked_fill(columns(1) > rows(), -1e9),
    "queries from two": lambda x: x.masked_fill(columns() > rows(start=2), -1e9),
    "every other": lambda x: x.masked_fill(columns(0, 2) > rows(), -1e9),
    "one row for all": lambda x: x.masked_fill(columns() > rows(1), -1e9),
    "one key for all": lambda x: x.masked_fill(torch.arange(1)[None] > rows(), -1e9),
    "kept, one key for all": lambda x: torch.where(torch.arange(1)[None] <= rows(), x, -1e9),
    "one more": lambda x: x.masked_fill(columns() - rows() >= 2, -1e9),
    "kept before": lambda x: torch.where(columns() < rows().clamp(min=1), x, -1e9),
    "kept later": lambda x: torch.where(columns() >= rows(), x, -1e9),
    "counts that wrap": lambda x: x.masked_fill(later(torch.uint8, x), -1e9),
    "scores that are large": lambda x: (x * 1e6).masked_fill(columns() > rows(), -1e6),
    "a scale for each key": lambda x: (x * (1.5 + columns())).masked_fill(columns() > rows(), -1e9),
    "a divisor for each key": lambda x: (x / (1.5 + columns())).masked_fill(
        columns() > rows(), -1e9
    ),
    "another mask": lambda x: (x + 0.1 * columns()).masked_fill(columns() > rows(), -3e38),
}  # fmt: skip


def heads() -> Tensor:
    return torch.arange(H)[:, None, None]


def traced(
    mask: Callable[[Tensor], Tensor], queries: int = S
) -> tuple[GraphModule, list[Tensor], Tensor]:
    """Attention as Inductor has it, its inputs, and eager's result."""
    made = torch.Generator().manual_seed(0)
    args = [normal(B, H, n, D)(made, torch.float64) for n in (queries, T, T)]

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(mask(q @ k.transpose(-2, -1)), -1) @ v

    module = make_fx(functionalize(attend), select_decomp_table(), tracing_mode="fake")(*args)
    module.graph.eliminate_dead_code()
    return module, args, attend(*args)


def rewritten(
    mask: Callable[[Tensor], Tensor], queries: int = S
) -> tuple[list[Any], Tensor, Tensor]:
    """The fused calls, the result and eager's."""
    module, args, eager = traced(mask, queries)
    rewrite(module, attention.RULES, dialect=INDUCTOR)
    target = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    calls = module.graph.find_nodes(op="call_function", target=target)
    return calls, module(*args), eager


def is_causal(call: Any) -> bool:
    return len(call.args) > 4 and call.args[4] is True


@pytest.mark.parametrize("name", CAUSAL)
def test_causal_masks_are_the_kernels(name: str) -> None:
    calls, ours, eager = rewritten(CAUSAL[name])
    assert [is_causal(call) for call in calls] == [True]
    assert calls[0].kwargs.get("attn_mask") is None
    torch.testing.assert_close(ours, eager, atol=1e-12, rtol=1e-12)


def assert_stays(mask: Callable[[Tensor], Tensor], queries: int = S) -> None:
    """No fused call is causal, and the result is eager's."""
    calls, ours, eager = rewritten(mask, queries)
    assert not any(map(is_causal, calls))
    torch.testing.assert_close(ours, eager, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay_masks(name: str) -> None:
    assert_stays(OTHERS[name])


@pytest.mark.parametrize(
    "mask",
    [
        lambda x: x.masked_fill(columns() > heads(), -1e9),
        lambda x: torch.where(columns() <= heads(), x, -1e9),
    ],
)
def test_a_count_of_heads_for_one_query_stays_a_mask(mask: Callable[[Tensor], Tensor]) -> None:
    assert_stays(mask, queries=1)


@pytest.mark.parametrize(
    "mask",
    [
        lambda x: x.masked_fill(columns() > rows(), -100.0),
        lambda x: torch.where(columns() <= rows(), x, -100.0),
        lambda x: x.masked_fill(columns() < rows(), -100.0),
        lambda x: torch.where(columns() >= rows(), x, -100.0),
    ],
)
def test_what_is_not_low_is_no_mask(mask: Callable[[Tensor], Tensor]) -> None:
    report = rewrite(traced(mask)[0], attention.sdpa, dialect=INDUCTOR)
    assert not len(report) and not report.refusals


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16])
def test_counts_of_few_bits_are_no_causal_mask(dtype: torch.dtype) -> None:
    """200 keys are more than int8 counts; what `arange` makes of it is the graph's mask."""

    def attend(q: Tensor) -> Tensor:
        scores = q @ q.transpose(-2, -1)
        places = torch.arange(200, dtype=dtype)
        filled = scores.masked_fill(places[None] > places[:, None], -1e9)
        return torch.softmax(filled.masked_fill(later(dtype, scores), -1e9), -1) @ q

    q = torch.randn(1, 1, 200, 4, dtype=torch.float64)
    module = make_fx(functionalize(attend), select_decomp_table(), tracing_mode="fake")(q)
    rewrite(module, attention.RULES, dialect=INDUCTOR)
    torch.testing.assert_close(module(q), attend(q), atol=1e-12, rtol=1e-12)
