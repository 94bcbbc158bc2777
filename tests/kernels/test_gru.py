"""The operator of a GRU's layer: in C++ and by torch, its sizes, and values that are not finite."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pypm.kernels import gru
from pypm.kernels.cells import ROWS
from pypm.kernels.gru import compute, reference
from pypm.kernels.support import native

torch.set_num_threads(1)

TOLERANCES = {torch.float64: 1e-13, torch.float32: 2e-6}
SIZES = [(4, 1, 1, 1), (3, 2, 3, 5), (5, 4, 3, 16), (2, 7, 2, 11), (2, ROWS, 3, 8)]
BY_TORCH = [(2, ROWS + 1, 3, 8), (2, 0, 3, 4), (2, 2, 3, 0)]


def operands(steps: int, rows: int, width: int, size: int) -> list[Tensor]:
    made = torch.Generator().manual_seed(size)
    shapes = ((rows, steps, width), (width, 3 * size), (size, 3 * size), 3 * size, 3 * size)
    x, w, u, b, d, h = (
        torch.randn(shape, generator=made, dtype=torch.float64) / 2
        for shape in (*(s if isinstance(s, tuple) else (s,) for s in shapes), (size, rows))
    )
    return [x.transpose(0, 1), w.t(), u.t(), b, d, h.t()]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("sizes", [*SIZES, *BY_TORCH])
def test_the_kernel(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    assert native.library(gru.SOURCE) is not None
    args = operands(*sizes)
    ours, exact = compute(*(y.to(dtype) for y in args)), reference(*args)
    assert ours.is_contiguous() and ours.dtype == dtype and ours.shape == exact.shape
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(ours.double(), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_values_that_are_large_or_not_finite(dtype: torch.dtype) -> None:
    args = [y.to(dtype) for y in operands(9, 5, 3, 6)]
    for row, value in enumerate((float("nan"), float("inf"), -float("inf"), 1e30, -1e30)):
        args[0][3, row, row % 3] = value
    ours, theirs = compute(*args), reference(*args)
    torch.testing.assert_close(ours, theirs, equal_nan=True)
    assert ours.isnan().any() and not ours.isnan().all()


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("operand", range(6))
@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_any_operand_that_is_not_finite(value: float, operand: int, dtype: torch.dtype) -> None:
    """A gate that is shut is 0, by which an infinite state is NaN."""
    for place in range(6):
        args = [y.to(dtype).contiguous() for y in operands(4, 5, 3, 6)]
        args[operand].view(-1)[place] = value
        torch.testing.assert_close(compute(*args), reference(*args), equal_nan=True)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_values_that_are_small(dtype: torch.dtype) -> None:
    """Small states are exact by their own size."""
    x, w, u, _, _, h = operands(9, 5, 3, 6)
    args = [1e-6 * x, w, u, torch.zeros(18), torch.zeros(18), 1e-6 * h]
    ours, exact = compute(*(y.to(dtype) for y in args)), reference(*(y.double() for y in args))
    tolerance = TOLERANCES[dtype] * exact.abs().max()
    torch.testing.assert_close(ours.double(), exact, rtol=0, atol=float(tolerance))


def test_the_reference() -> None:
    x, w, u, b, d, h = operands(3, 2, 4, 5)
    states = reference(x, w, u, b, d, h)
    for step, state in zip(x, states, strict=True):
        i, k = (step @ w.t() + b).chunk(3, -1), (h @ u.t() + d).chunk(3, -1)
        r, z = (i[0] + k[0]).sigmoid(), (i[1] + k[1]).sigmoid()
        h = (1 - z) * (i[2] + r * k[2]).tanh() + z * h
        torch.testing.assert_close(state, h)


def test_where_autocast_is_on() -> None:
    """The library's own product of the inputs is in the type that autocast makes of it."""
    args = [y.float() for y in operands(3, 2, 4, 5)]
    with torch.autocast("cpu", torch.bfloat16):
        found = compute(*args)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, reference(*args), atol=0.05, rtol=0.05)


def test_other_types_and_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    args = operands(3, 2, 4, 5)
    narrow = [y.bfloat16() for y in args]
    assert torch.equal(compute(*narrow), reference(*narrow))
    with pytest.raises(RuntimeError):
        compute(*args[:-1], args[-1].float())
    monkeypatch.setattr(native, "library", lambda source: None)
    assert torch.equal(compute(*args), reference(*args))
