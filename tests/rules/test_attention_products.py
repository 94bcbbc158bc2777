"""Attention as two products: the rules for choices alone fire, agree, and hold back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from pypm.fx import INDUCTOR, Report, every, first, rewrite
from pypm.kernels.attention import products, reference
from pypm.rules.attention.rules import attention_by_products, called_attention_by_products
from tests.axes import axes

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}


def operands(
    heads: int = 4, groups: int = 2, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, ...]:
    sizes = (2, heads, 5, 8), (2, groups, 7, 8), (2, groups, 7, 8)
    return tuple(torch.randn(size, dtype=torch.float64).to(dtype) for size in sizes)


MASKS: dict[str, Callable[[torch.dtype], Tensor | None]] = {
    "none": lambda dtype: None,
    "of all heads": lambda dtype: torch.randn(2, 1, 5, 7).to(dtype),
    "of each head": lambda dtype: torch.randn(1, 4, 1, 7).to(dtype),
    "rows that see nothing": lambda dtype: torch.full((1, 1, 5, 1), -torch.inf, dtype=dtype),
}


@axes(dtype=TOLERANCES, groups=[1, 2, 4], mask=MASKS)
def test_the_products(mask: str, groups: int, dtype: torch.dtype) -> None:
    q, k, v = operands(4, groups, dtype)
    m = MASKS[mask](dtype)
    found = products(q, k, v, m, scale=0.3)
    expected = F.scaled_dot_product_attention(q, k, v, m, scale=0.3, enable_gqa=groups != 4)
    assert found.dtype == dtype and found.shape == q.shape
    assert (found - expected).abs().max() <= TOLERANCES[dtype]
    if mask != "rows that see nothing":
        assert torch.allclose(found, reference(q, k, v, m, scale=0.3), atol=TOLERANCES[dtype])


def test_the_products_from_the_first_key_on() -> None:
    q, k, v = operands()
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert torch.allclose(products(q, k, v, causal=True), expected, atol=1e-12)


def repeated(q: Tensor, k: Tensor, v: Tensor, *mask: Tensor) -> Tensor:
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-2, -1) * 0.3
    return torch.softmax(scores + mask[0] if mask else scores, -1) @ v


@pytest.mark.parametrize(
    ("groups", "has_mask", "count"), [(2, False, 1), (2, True, 1), (4, False, 1), (4, True, 0)]
)
@pytest.mark.parametrize("decomposed", [False, True])
def test_attention_by_products(groups: int, has_mask: bool, count: int, decomposed: bool) -> None:
    """With keys of its own for each head and a mask, the products are those that there are."""
    inputs = [*operands(4, groups), *([torch.randn(2, 1, 5, 7).double()] if has_mask else [])]
    gm = make_fx(repeated, tracing_mode="fake", pre_dispatch=not decomposed)(*inputs)
    dialect = INDUCTOR if decomposed else None
    report = rewrite(gm, attention_by_products, choose=every, dialect=dialect)
    assert len(report) == count
    assert torch.allclose(gm(*inputs), repeated(*inputs), atol=1e-12)


Call = Callable[[Tensor, Tensor, Tensor], Tensor]
CALLS: dict[str, tuple[Call, int]] = {
    "plain": (F.scaled_dot_product_attention, 1),
    "scaled": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=2.0), 1),
    "causal": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), 1),
    "a mask": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, k[..., 0][:, :, None]), 1),
    "truth values": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, k[0, :1, :, 0] > 0),
        1,
    ),
    "causal and turned round": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=-2.0),
        0,
    ),
    "three dimensions": (lambda q, k, v: F.scaled_dot_product_attention(q[0], k[0], v[0]), 0),
    "narrow": (
        lambda q, k, v: F.scaled_dot_product_attention(q.bfloat16(), k.bfloat16(), v.bfloat16()),
        0,
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_of_the_kernel(name: str) -> None:
    call, count = CALLS[name]
    inputs = operands(4, 4)
    gm = make_fx(call, tracing_mode="fake", pre_dispatch=True)(*inputs)
    assert len(applied(gm)) == count
    found, expected = gm(*inputs), call(*inputs)
    assert torch.allclose(found, expected, atol=1e-12, equal_nan=True)


def test_calls_in_a_graph_of_torch_functions() -> None:
    """There, a body gets proxies."""

    def call(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask)

    inputs = *operands(4, 4), torch.ones(5, 7, dtype=torch.bool).tril()
    gm = fx.symbolic_trace(call)
    FakeTensorProp(gm).propagate(*inputs)
    assert len(applied(gm)) == 1
    torch.testing.assert_close(gm(*inputs), call(*inputs), atol=1e-12, rtol=0)


def applied(gm: torch.fx.GraphModule) -> Report:
    return rewrite(gm, called_attention_by_products, choose=every)


def test_dropout_is_left_alone() -> None:
    gm = make_fx(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.5),
        tracing_mode="fake",
        pre_dispatch=True,
    )(*operands(4, 4))
    assert not len(applied(gm))


def test_they_are_for_choices_alone() -> None:
    inputs = operands()
    gm = make_fx(repeated, tracing_mode="fake")(*inputs)
    assert not len(rewrite(gm, attention_by_products, choose=first))
