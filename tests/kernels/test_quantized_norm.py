"""The quantizing norm of a sum: in C++, and its operator."""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pypm.kernels import quantized_norm
from pypm.kernels.support import native

torch.set_num_threads(1)

COLUMNS: Final = 96
TYPES: Final = (torch.float64, torch.float32, torch.bfloat16)


def inputs(dtype: torch.dtype) -> tuple[Tensor, ...]:
    made = torch.Generator().manual_seed(0)
    shapes = ((2, 2, COLUMNS), (2, 2, COLUMNS), (COLUMNS,))
    x, y, w = (torch.randn(*s, generator=made).to(dtype) for s in shapes)
    return x, y, w


@pytest.mark.parametrize("columns", [1, 16, 37, COLUMNS])
@pytest.mark.parametrize("dtype", quantized_norm.NATIVE, ids=str)
def test_in_cpp(dtype: torch.dtype, columns: int) -> None:
    """Weights that are given or not; zeros, infinity, NaN in a row and in a weight."""
    x, y, w = inputs(dtype)
    x, y, w = x[..., :columns].clone(), y[..., :columns].clone(), w[:columns].clone()
    x[0, 0] = y[0, 0] = 0
    torch.set_num_threads(2)
    for row, value in ((None, 0.0), ((1, 1, 0), torch.nan), ((0, 1, 0), -torch.inf)):
        if row is not None:
            x[row] = value
        for weight in (w, None):
            repeated = [n.repeat(1, 300, 1) for n in (x, y)]
            args: Any = (*repeated, weight, 1e-5, 127.0, 1e-2, -100.0, 120.0)
            assert quantized_norm.unsupported(*args[:3]) is None
            same(quantized_norm.quantized_norm(*args), quantized_norm.reference(*args))
    w[-1] = torch.nan
    args = (x, y, w, 1e-5, 127.0, 1e-2, -127.0, 127.0)
    same(quantized_norm.quantized_norm(*args), quantized_norm.reference(*args))
    torch.set_num_threads(1)


def same(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    for mine, other in zip(ours[1:], theirs[1:], strict=True):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
        torch.testing.assert_close(mine, other, equal_nan=True, atol=1e-6, rtol=1e-6)
    away = (ours[0].int() - theirs[0].int()).abs()
    assert away.max() <= 1
    assert away.double().mean() < 1e-3


@pytest.mark.parametrize("change", ["type", "compiler"])
def test_what_the_kernel_in_cpp_does_not_take(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, w = inputs(torch.float16 if change == "type" else torch.float32)
    if change == "compiler":
        monkeypatch.setattr(native, "library", lambda source: None)
    assert quantized_norm.unsupported(x, y, w) is not None
    args = (x, y, w, 1e-5, 127.0, 1e-2, -127.0, 127.0)
    found, expected = quantized_norm.compute(*args), quantized_norm.reference(*args)
    for mine, other in zip(found, expected, strict=True):
        assert torch.equal(mine, other)


# --- the operator --------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_it_is_a_proper_operator(dtype: torch.dtype, weighted: bool) -> None:
    x, y, w = inputs(dtype)
    args = (x, y, w if weighted else None, 1e-5, 127.0, 1e-2, -127.0, 127.0)
    torch.library.opcheck(quantized_norm.quantized_norm, args)


def test_the_reference_is_what_it_says() -> None:
    x, y, w = inputs(torch.float32)
    n = F.rms_norm(x + y, (COLUMNS,), w, 1e-5)
    q, scales, total = quantized_norm.reference(x, y, w, 1e-5, 127.0, 0.0, -127.0, 127.0)
    assert torch.equal(total, x + y)
    torch.testing.assert_close(scales, n.abs().amax(-1, keepdim=True) / 127)
    assert ((q * scales - n).abs() <= 0.501 * scales).all()
