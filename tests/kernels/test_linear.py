"""The linear kernels: oneDNN's against its reference, and regions in float32."""

from __future__ import annotations

import platform
import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.kernels.linear import (
    ONEDNN,
    has_fast_bfloat16,
    in_float32,
    linear_in_float32,
    linear_pointwise,
    reference,
)

torch.set_num_threads(1)

CASES = [(True, False, a) for a in ONEDNN] + [
    (False, False, "gelu"),
    (True, True, "none"),
    (False, True, "none"),
]


def inputs(dtype: torch.dtype, *, bias: bool, other: bool) -> list[Any]:
    made = torch.Generator().manual_seed(0)
    shapes = {"x": (6, 16), "weight": (12, 16), "bias": (12,), "other": (6, 12)}
    x, weight, b, o = (torch.randn(*s, generator=made).to(dtype) for s in shapes.values())
    return [x, weight, b if bias else None, o if other else None]


@pytest.mark.parametrize(("bias", "other", "activation"), CASES)
def test_it_is_its_reference(bias: bool, other: bool, activation: str) -> None:
    args = inputs(torch.float32, bias=bias, other=other)
    ours, theirs = linear_pointwise(*args, activation), reference(*args, activation)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("bias", "other", "activation"), CASES)
def test_what_is_no_number_stays_none(bias: bool, other: bool, activation: str) -> None:
    args = inputs(torch.float32, bias=bias, other=other)
    args[0][0, 0] = torch.nan
    ours, theirs = linear_pointwise(*args, activation), reference(*args, activation)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("what", ["x", "weight", "bias", "other"])
def test_strides_count(what: str) -> None:
    args = inputs(torch.float32, bias=True, other=True)
    index = ["x", "weight", "bias", "other"].index(what)
    args[index] = torch.stack([args[index], torch.ones_like(args[index])], -1)[..., 0]
    ours, theirs = linear_pointwise(*args, "none"), reference(*args, "none")
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.skipif(not has_fast_bfloat16(), reason="no instructions for bfloat16")
@pytest.mark.parametrize(("bias", "other", "activation"), CASES)
def test_bfloat16(bias: bool, other: bool, activation: str) -> None:
    args = inputs(torch.bfloat16, bias=bias, other=other)
    wide = [None if a is None else a.float() for a in args]
    theirs = reference(*wide, activation)
    ours = linear_pointwise(*args, activation)
    assert ours.dtype == torch.bfloat16
    torch.testing.assert_close(ours.float(), theirs, atol=5e-2, rtol=2e-2)


@pytest.mark.parametrize(("bias", "other", "activation"), CASES)
def test_it_is_a_proper_operator(bias: bool, other: bool, activation: str) -> None:
    args = inputs(torch.float32, bias=bias, other=other)
    torch.library.opcheck(linear_pointwise, (*args, activation))
    for arg in args:
        if arg is not None:
            arg.requires_grad_()
    torch.library.opcheck(linear_pointwise, (*args, activation))


@pytest.mark.parametrize(("bias", "other", "activation"), CASES)
def test_gradients(bias: bool, other: bool, activation: str) -> None:
    def gradients(function: Any) -> list[Tensor]:
        args = inputs(torch.float32, bias=bias, other=other)
        leaves = [a.requires_grad_() for a in args if a is not None]
        result = function(*args, activation)
        return list(torch.autograd.grad((result * result.detach().cos()).sum(), leaves))

    for ours, theirs in zip(gradients(linear_pointwise), gradients(reference), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_the_capability_is_the_processors() -> None:
    assert isinstance(has_fast_bfloat16(), bool)
    if platform.machine() == "x86_64" and sys.platform == "linux":
        with open("/proc/cpuinfo") as file:
            flags = file.read()
        if "avx512f" not in flags:  # less than oneDNN's bfloat16 needs
            assert not has_fast_bfloat16()


def test_a_region_in_float32_rounds_once() -> None:
    def region(x: Tensor, w: Tensor) -> Tensor:
        y = x @ w
        for _ in range(3):
            y = (y.float() * 1.01).to(torch.bfloat16) + 0.01
        return F.gelu(y)

    x, w, _, _ = inputs(torch.bfloat16, bias=False, other=False)
    w = w.t().contiguous()
    exact = region_in_double(x, w)
    ours = in_float32(make_fx(region, tracing_mode="fake")(x, w), [x, w])
    assert ours.dtype == torch.bfloat16
    once = (exact.to(torch.bfloat16).double() - exact).abs().max()
    assert (ours.double() - exact).abs().max() <= 1.01 * once + 1e-4
    assert (region(x, w).double() - exact).abs().max() > once


def region_in_double(x: Tensor, w: Tensor) -> Tensor:
    y = x.double() @ w.double()
    for _ in range(3):
        y = y * 1.01 + 0.01
    return F.gelu(y)


@pytest.mark.parametrize("rounds", [True, False])
@pytest.mark.parametrize("bias", [12, 1, None])
@pytest.mark.parametrize("shape", [(6, 16), (2, 3, 16), (16,), (0, 16)])
def test_the_product_in_float32(shape: tuple[int, ...], bias: int | None, rounds: bool) -> None:
    x, weight, b = product_operands(shape, bias)
    ours = linear_in_float32(x, weight, b, rounds)
    assert ours.dtype == (torch.bfloat16 if rounds else torch.float32)
    exact = F.linear(x.double(), weight.double(), None if b is None else b.double().expand(12))
    theirs = exact.to(torch.bfloat16) if rounds else exact.float()
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-2 if rounds else 1e-5)


@pytest.mark.parametrize("rounds", [True, False])
@pytest.mark.parametrize("bias", [12, 1, None])
def test_the_product_in_float32_is_a_proper_operator(bias: int | None, rounds: bool) -> None:
    args = product_operands((2, 3, 16), bias)
    torch.library.opcheck(linear_in_float32, (*args, rounds))
    for arg in args:
        if arg is not None:
            arg.requires_grad_()
    torch.library.opcheck(linear_in_float32, (*args, rounds))


@pytest.mark.parametrize("bias", [12, 1, None])
def test_gradients_of_the_product_in_float32(bias: int | None) -> None:
    def gradients(function: Any, dtype: torch.dtype) -> list[Tensor]:
        given = [a if a is None else a.to(dtype) for a in product_operands((2, 3, 16), bias)]
        leaves = [a.requires_grad_() for a in given if a is not None]
        return list(torch.autograd.grad(function(*given).square().sum(), leaves))

    def exact(x: Tensor, weight: Tensor, b: Tensor | None) -> Tensor:
        return F.linear(x, weight, None if b is None else b.expand(12))

    ours = gradients(lambda *args: linear_in_float32(*args, False), torch.bfloat16)
    for found, theirs in zip(ours, gradients(exact, torch.float64), strict=True):
        assert found.dtype == torch.bfloat16
        torch.testing.assert_close(found.double(), theirs, atol=1e-2, rtol=1e-2)


def product_operands(shape: tuple[int, ...], bias: int | None) -> list[Any]:
    made = torch.Generator().manual_seed(0)
    shapes = (shape, (12, 16), None if bias is None else (bias,))
    return [s and torch.randn(*s, generator=made).to(torch.bfloat16) for s in shapes]
