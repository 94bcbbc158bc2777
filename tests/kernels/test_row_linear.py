"""Linear layers of a few rows: in C++ for several processors, by torch, and special values."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from pypm.kernels import row_linear
from pypm.kernels.row_linear import ROWS, compute, reference, unsupported
from pypm.kernels.support import native
from pypm.timing import on_threads
from tests.kernels.calls import SMALL
from tests.kernels.test_rows import NEEDS, compiled

torch.set_num_threads(1)

TOLERANCES = {torch.float32: 2e-6, torch.bfloat16: 2**-8}


def operands(rows: int, size: int, out: int, dtype: torch.dtype) -> list[Tensor]:
    """x [rows, size], a weight [out, size] by which results are about 1, and a bias."""
    made = torch.Generator().manual_seed(rows * size * out)
    shapes = (rows, size), (out, size), (out,)
    x, weight, bias = (torch.randn(n, generator=made, dtype=torch.float64) for n in shapes)
    return [y.to(dtype) for y in (x, weight / max(size, 1) ** 0.5, bias)]


def agrees(args: list[Any], found: Tensor) -> None:
    """The result is that of float64, rounded once, but for what a sum in float32 loses."""
    dtype = args[0].dtype
    exact = reference(*(y if y is None else y.double() for y in args))
    assert found.dtype == dtype and found.is_contiguous()
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(found.double(), exact, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("kind", NEEDS)
def test_any_number_of_rows_and_elements(
    monkeypatch: pytest.MonkeyPatch, kind: str, dtype: torch.dtype
) -> None:
    compiled(monkeypatch, kind, row_linear.SOURCE)
    for rows, size, out in product(range(1, ROWS + 1), (1, 7, 16, 33, 320), (1, 5, 16, 50)):
        x, weight, bias = operands(rows, size, out, dtype)
        assert unsupported(x, weight) is None
        for given in (bias, None):
            agrees([x, weight, given], compute(x, weight, given))


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_it_rounds_once(dtype: torch.dtype) -> None:
    """A sum that was rounded before the bias is added would be another one."""
    x, weight = torch.ones(1, 2, dtype=dtype), torch.tensor([[256.0, 1.0]], dtype=dtype)
    bias = torch.tensor([-256.0], dtype=dtype)
    assert compute(x, weight, bias).item() == 1


def test_in_threads() -> None:
    args = operands(2, 300, 257, torch.float32)
    assert args[1].numel() > SMALL
    with on_threads(3):
        agrees(args, compute(*args))


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("operand", range(3))
@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan"), 3e38])
def test_values_that_are_not_finite(value: float, operand: int, dtype: torch.dtype) -> None:
    """Each stays what it is, in vectors and behind the last one."""
    for place in (0, -1):
        args = operands(3, 37, 19, dtype)
        args[operand].view(-1)[place] = value
        expected = reference(*(y.float() for y in args)).to(dtype)
        found = compute(*args)
        assert expected.isfinite().logical_not().any() or value == 3e38
        torch.testing.assert_close(found, expected, equal_nan=True, atol=2**-7, rtol=2**-7)


OTHERS = {
    "more rows": (operands(ROWS + 1, 8, 5, torch.float32), "not known to be 1 to 4"),
    "no row": (operands(0, 8, 5, torch.float32), "not known to be 1 to 4"),
    "another type": (operands(2, 8, 5, torch.float64), "is for float32 and bfloat16"),
    "columns": ([y.mT.contiguous().mT for y in operands(2, 8, 5, torch.float32)[:2]], "weight"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_torch_computes(name: str) -> None:
    (x, weight, *_), reason = OTHERS[name]
    assert reason in (unsupported(x, weight) or "")
    assert torch.equal(compute(x, weight, None), reference(x, weight, None))


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    args = operands(2, 8, 5, torch.float32)
    monkeypatch.setattr(native, "library", lambda source: None)
    assert "needs a compiler" in (unsupported(*args[:2]) or "")
    assert torch.equal(compute(*args), reference(*args))


@pytest.mark.parametrize("shape", [(37,), (1, 37), (2, 1, 37), (1, 2, 2, 37)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_it_is_a_proper_operator(shape: tuple[int, ...], has_bias: bool) -> None:
    _, weight, bias = operands(1, 37, 19, torch.float32)
    args = [torch.randn(shape), weight, bias if has_bias else None]
    agrees(args, row_linear.row_linear(*args))
    torch.library.opcheck(row_linear.row_linear, args)
    for arg in args:
        if arg is not None:
            arg.requires_grad_()
    torch.library.opcheck(row_linear.row_linear, args)
