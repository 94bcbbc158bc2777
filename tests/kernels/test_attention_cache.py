"""Attention over a cache: spans of visible keys, and results for every mask beside eager torch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pypm.kernels.attention import attention_over_cache, unsuited
from pypm.kernels.attention.decoding import FEW_QUERIES, STEP, visible
from pypm.kernels.support import native
from tests.axes import axes

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}
KEYS = 3 * STEP + 5
LOW = torch.finfo(torch.float32).min


def operands(
    batch: int = 2,
    groups: int = 2,
    queries: int = 1,
    dtype: torch.dtype = torch.float64,
    size: int = 8,
    values: int = 6,
) -> list[Tensor]:
    made = torch.Generator().manual_seed(0)
    sizes = (batch, 4, queries, size), (batch, groups, KEYS, size), (batch, groups, KEYS, values)
    return [torch.randn(*size, generator=made, dtype=torch.float64).to(dtype) for size in sizes]


def of_spans(*spans: tuple[int, int], low: float = -torch.inf) -> Tensor:
    """A mask [B, 1, 1, T] that leaves a span of keys in each row."""
    at = torch.arange(KEYS)
    rows = [torch.where((at >= first) & (at < after), 0.0, low) for first, after in spans]
    return torch.stack(rows)[:, None, None]


def causal(queries: int, filled: int) -> Tensor:
    at = torch.arange(KEYS)
    mine = filled - queries + torch.arange(queries)[:, None]
    return torch.where(at <= mine, 0.0, LOW)[None, None]


def with_holes() -> Tensor:
    mask = of_spans((3, 150), (70, 90))
    mask[:, :, :, 75] = -torch.inf
    return mask


MASKS: dict[str, Tensor] = {
    "one span": of_spans((0, 20)),
    "one key": of_spans((0, 1)),
    "the last key": of_spans((KEYS - 1, KEYS)),
    "a window": of_spans((STEP, STEP + 9)),
    "the whole": of_spans((0, KEYS)),
    "rows of different lengths": of_spans((0, 3), (STEP, KEYS)),
    "a row that sees nothing": of_spans((0, 0), (5, 9), low=LOW),
    "the lowest number": of_spans((0, 20), (2, 30), low=LOW),
    "both": torch.minimum(of_spans((0, 9), low=LOW), of_spans((0, 80))),
    "holes": with_holes(),
    "a bias beside it": of_spans((0, 99)) - 0.3 * torch.arange(KEYS),
    "of each head": torch.cat([of_spans((2, 5)), of_spans((4, 99))] * 2, 1),
    "nothing hidden": torch.linspace(-9e5, 0, KEYS)[None, None, None],
}  # fmt: skip


@axes(mask=MASKS, groups=[1, 2, 4])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_it_is_attention(mask: str, groups: int, dtype: torch.dtype) -> None:
    q, k, v = operands(groups=groups, dtype=dtype)
    m = MASKS[mask].to(torch.float32 if dtype == torch.bfloat16 else dtype)
    wide = [x.double() for x in (q, k, v, m)]
    expected = F.scaled_dot_product_attention(*wide, scale=0.3, enable_gqa=True)
    found = attention_over_cache(q, k, v, m, 0.3, True)
    assert found.dtype == dtype and found.shape == expected.shape
    assert (found - expected).abs().max() <= TOLERANCES[dtype]


def by_each_kernel(monkeypatch: pytest.MonkeyPatch, threads: int, *args: Any) -> list[Tensor]:
    """In C++, and by products where no compiler is found."""
    torch.set_num_threads(threads)
    try:
        found = [attention_over_cache(*args)]
    finally:
        torch.set_num_threads(1)
    monkeypatch.setattr(native, "library", lambda source: None)
    return [*found, attention_over_cache(*args)]


@axes(sizes=[(1, 3, 64), (2, 1, 128), (4, 2, 20)], threads=[1, 3], rounds=[False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mask", MASKS)
def test_every_kernel(
    monkeypatch: pytest.MonkeyPatch,
    mask: str,
    dtype: torch.dtype,
    sizes: tuple[int, int, int],
    threads: int,
    rounds: bool,
) -> None:
    """For some numbers of groups and queries, and sizes of heads."""
    groups, queries, size = sizes
    q, k, v = operands(2, groups, queries, dtype, size, size)
    m = MASKS[mask].float()
    wide = [x.double() for x in (q, k, v, m)]
    expected = F.scaled_dot_product_attention(*wide, scale=0.1, enable_gqa=True)
    for result in by_each_kernel(monkeypatch, threads, q, k, v, m, 0.1, rounds):
        assert result.dtype == dtype and result.shape == q.shape
        assert (result - expected).abs().max() <= (3e-2 if rounds else 1e-2) or dtype.itemsize > 2
        assert dtype.itemsize == 2 or (result - expected).abs().max() <= 1e-5


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("groups", "queries", "size"), [(1, 3, 64), (2, 1, 128), (4, 2, 20)])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_without_a_mask(
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    groups: int,
    queries: int,
    size: int,
    threads: int,
) -> None:
    q, k, v = operands(2, groups, queries, dtype, size, size)
    wide = [x.double() for x in (q, k, v)]
    expected = F.scaled_dot_product_attention(*wide, scale=0.1, enable_gqa=True)
    for result in by_each_kernel(monkeypatch, threads, q, k, v, None, 0.1, False):
        assert result.dtype == dtype and result.shape == q.shape
        assert (result - expected).abs().max() <= TOLERANCES[dtype]


@pytest.mark.parametrize(("keys", "values"), [(72, 64), (20, 3), (5, 64)])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_values_of_another_width(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, keys: int, values: int
) -> None:
    q, k, v = operands(2, 1, 2, dtype, keys, values)
    m = MASKS["holes"].to(dtype)
    expected = F.scaled_dot_product_attention(
        *(x.double() for x in (q, k, v, m)), scale=0.1, enable_gqa=True
    )
    for result in by_each_kernel(monkeypatch, 1, q, k, v, m, 0.1, False):
        assert result.dtype == dtype and result.shape == (*q.shape[:3], values)
        assert (result - expected).abs().max() <= TOLERANCES[dtype]


def test_scores_that_may_not_be_rounded() -> None:
    """Large scores in bfloat16: rounded, they differ in the second digit."""
    q, k, v = operands(2, 1, 1, torch.bfloat16, 64, 64)
    q, mask = q * 8, of_spans((0, KEYS))
    wide = [x.double() for x in (q, k, v, mask)]
    expected = F.scaled_dot_product_attention(*wide, scale=0.3, enable_gqa=True)
    found = attention_over_cache(q, k, v, mask, 0.3, False)
    assert (found - expected).abs().max() <= 1e-2


@pytest.mark.parametrize("filled", [3, STEP, KEYS])
def test_several_queries(filled: int) -> None:
    q, k, v = operands(queries=3)
    mask = causal(3, filled).double()
    expected = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    assert torch.allclose(attention_over_cache(q, k, v, mask, 8**-0.5, True), expected, atol=1e-12)


def test_the_span_that_any_query_sees() -> None:
    assert visible(of_spans((0, 3), (70, 90)), 2) == [(0, 3), (70, 90)]
    assert visible(of_spans((0, 3), low=LOW), 3) == [(0, 3)] * 3
    assert visible(of_spans((0, 0), low=LOW), 1) == visible(of_spans((0, 0)), 1) == [(0, KEYS)]
    assert visible(causal(3, 20), 1) == [(0, 20)]
    assert visible(torch.cat([of_spans((2, 5)), of_spans((4, 9))], 1), 1) == [(2, 9)]
    assert visible(of_spans((0, 9)).bfloat16(), 1) == [(0, 9)]


def test_a_number_that_is_none_hides_nothing() -> None:
    mask = of_spans((0, 3))
    mask[..., 1] = torch.nan
    assert visible(mask, 1) == [(0, KEYS)]


def test_a_query_that_sees_nothing_is_zero_as_in_the_fused_kernel() -> None:
    q, k, v = operands()
    mask = of_spans((0, 0), (0, 4)).double()
    found = attention_over_cache(q, k, v, mask, 0.3, True)
    assert not found[0].any()
    assert torch.allclose(
        found, F.scaled_dot_product_attention(q, k, v, mask, scale=0.3, enable_gqa=True)
    )


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_read_does_not_show(value: float) -> None:
    q, k, v = operands()
    mask = of_spans((0, 20)).double()
    expected = attention_over_cache(q, k, v, mask, 0.3, True)
    k[:, :, STEP:] = value
    v[:, :, STEP:] = value
    assert torch.equal(attention_over_cache(q, k, v, mask, 0.3, True), expected)
    k[:, :, 3] = torch.nan
    assert attention_over_cache(q, k, v, mask, 0.3, True).isnan().all()


def test_keys_by_position() -> None:
    """[B, T, G, D] as [B, G, T, D]: the rows of a batch do not lie one after the other."""
    q, k, v = operands()
    mask = of_spans((0, 20), (3, 30)).double()
    expected = attention_over_cache(q, k, v, mask, 0.3, True)
    k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v))
    assert torch.allclose(attention_over_cache(q, k, v, mask, 0.3, True), expected, atol=1e-12)


@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_operands_in_any_order_of_memory(dtype: torch.dtype, groups: int) -> None:
    q, k, v = operands(groups=groups, queries=3, dtype=dtype, values=8)
    mask = causal(3, 70).to(dtype)
    expected = attention_over_cache(q, k, v, mask, 0.3, False)
    for order in itertools.permutations(range(4)):
        back = [order.index(dim) for dim in range(4)]
        given = [x.permute(order).contiguous().permute(back) for x in (q, k, v)]
        found = attention_over_cache(*given, mask, 0.3, False)
        assert (found - expected).abs().max() <= (1e-6 if dtype == torch.float32 else 1e-2), order


def test_nothing_at_all() -> None:
    q, k, v = operands()
    mask = of_spans((0, 20)).double()
    assert attention_over_cache(q[:0], k[:0], v[:0], mask, 0.3, True).shape == (0, 4, 1, 6)
    none = attention_over_cache(q, k[:, :, :0], v[:, :, :0], mask[..., :0], 0.3, True)
    assert none.shape == (2, 4, 1, 6) and not none.any()


def test_the_operator() -> None:
    q, k, v = operands()
    for mask in (of_spans((0, 20)).double(), None):
        torch.library.opcheck(attention_over_cache, (q, k, v, mask, 0.3, True))


def test_what_it_is_not_for() -> None:
    q, k, v = operands()
    k = k[..., :6]
    q = q[..., :6]
    mask = of_spans((0, 20)).double()
    assert unsuited(q, k, v, mask) is unsuited(q, k, v, None) is None
    cases: list[tuple[Any, str]] = [
        ((q, k, v, mask[..., :1]), "the same for every key"),
        ((q.expand(2, 4, FEW_QUERIES + 1, 6), k, v, mask), "more than"),
        ((q.to("meta"), k, v, mask), "no kernel for meta"),
        ((q, k, v, mask.long()), "does not go with"),
        ((q[:, :3], k, v, mask), "do not divide"),
    ]
    for inputs, reason in cases:
        assert reason in str(unsuited(*inputs))


def test_gradients_of_no_keys() -> None:
    q, k = torch.ones(1, 4, 2, 3, requires_grad=True), torch.ones(1, 2, 0, 3)
    attention_over_cache(q, k, k, None, 1.0, False).sum().backward()
    assert q.grad is not None and not q.grad.any()
