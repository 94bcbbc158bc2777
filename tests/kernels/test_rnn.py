"""The operator of a plain recurrent layer: in C++ and by torch, and values that are not finite."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pypm.kernels import rnn
from pypm.kernels.cells import ROWS
from pypm.kernels.rnn import compute, reference
from pypm.kernels.support import native

torch.set_num_threads(1)

TOLERANCES = {torch.float64: 1e-13, torch.float32: 2e-6}
SIZES = [(4, 1, 1), (3, 2, 5), (5, 4, 16), (2, 7, 11), (2, ROWS, 33)]
BY_TORCH = [(2, ROWS + 1, 8), (2, 0, 4), (2, 2, 0), (0, 2, 4)]
NOT_FINITE = float("nan"), float("inf"), -float("inf"), 1e30, -1e30


def operands(steps: int, rows: int, size: int) -> list[Tensor]:
    """The inputs [steps, rows, size], a weight and the state before, none of them contiguous."""
    made = torch.Generator().manual_seed(size)
    x, u, h = (
        torch.randn(shape, generator=made, dtype=torch.float64) / 2
        for shape in ((rows, steps, size), (size, size), (size, rows))
    )
    return [x.transpose(0, 1), u.t(), h.t()]


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("sizes", [*SIZES, *BY_TORCH])
def test_the_kernel(sizes: tuple[int, int, int], dtype: torch.dtype, relu: bool) -> None:
    assert native.library(rnn.SOURCE) is not None
    args = operands(*sizes)
    ours, exact = compute(*(y.to(dtype) for y in args), relu), reference(*args, relu)
    assert ours.is_contiguous() and ours.dtype == dtype and ours.shape == exact.shape
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(ours.double(), exact, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("operand", range(3))
@pytest.mark.parametrize("value", NOT_FINITE)
def test_values_that_are_large_or_not_finite(
    value: float, operand: int, dtype: torch.dtype, relu: bool
) -> None:
    for place in range(4):
        args = [y.to(dtype).contiguous() for y in operands(4, 5, 6)]
        args[operand].view(-1)[place] = value
        ours, theirs = compute(*args, relu), reference(*args, relu)
        torch.testing.assert_close(ours, theirs, equal_nan=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_values_that_are_small(dtype: torch.dtype) -> None:
    """Small states are exact by their own size."""
    x, u, h = operands(9, 5, 6)
    args = [1e-6 * x, u, 1e-6 * h]
    ours, exact = compute(*(y.to(dtype) for y in args), False), reference(*args, False)
    tolerance = TOLERANCES[dtype] * exact.abs().max()
    torch.testing.assert_close(ours.double(), exact, rtol=0, atol=float(tolerance))


@pytest.mark.parametrize("relu", [False, True])
def test_the_reference_is_torch_s_layer(relu: bool) -> None:
    x, u, h = operands(3, 2, 5)
    layer = torch.rnn_relu if relu else torch.rnn_tanh
    one = torch.eye(5, dtype=torch.float64)
    states, _ = layer(x, h[None], [one, u], False, 1, 0.0, False, False, False)
    torch.testing.assert_close(reference(x, u, h, relu), states)


@pytest.mark.parametrize("relu", [False, True])
def test_gradients_where_a_state_is_not_a_number(relu: bool) -> None:
    x, u, h = operands(3, 2, 5)
    x[1, 0, 2] = float("nan")
    found = []
    for function in (rnn.rnn, reference):
        args = [y.clone().requires_grad_() for y in (x, u, h)]
        found.append(torch.autograd.grad(function(*args, relu).square().sum(), args))
    torch.testing.assert_close(*found, equal_nan=True)


def test_other_types_and_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    args = operands(3, 2, 5)
    narrow = [y.bfloat16() for y in args]
    assert torch.equal(compute(*narrow, False), reference(*narrow, False))
    with pytest.raises(RuntimeError):
        compute(*args[:-1], args[-1].float(), False)
    monkeypatch.setattr(native, "library", lambda source: None)
    assert torch.equal(compute(*args, True), reference(*args, True))
