"""The scan as one operator: against its reference, its layouts, and gradients by differences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pypm.kernels import scan as kernel
from pypm.kernels.support import native
from pypm.timing import on_threads
from tests.kernels.calls import SMALL

STEPS, BATCH = 5, 3
GROUP = 4  # rows that the kernel computes at a time
SIZES = [(2 * GROUP, 16), (GROUP + 1, 13), (1, 1), (GROUP, 3), (3, 8)]
"""Rows and elements of a row: whole groups and vectors, and some more."""


def given(rows: int, n: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    made = torch.Generator().manual_seed(rows + n)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=made, dtype=torch.float64).to(dtype)

    states = BATCH, rows, n
    a, b, c = normal(STEPS, *states).sigmoid(), normal(STEPS, *states), normal(STEPS, BATCH, n)
    return [a, b, c, normal(*states)]


def by_hand(a: Tensor, b: Tensor, c: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    results = []
    for t in range(len(a)):
        h = a[t] * h + b[t]
        results.append((h * c[t].unsqueeze(1)).sum(-1))
    return torch.stack(results), h


def assert_same(found: tuple[Tensor, Tensor], arguments: list[Tensor], tolerance: float) -> None:
    exact = by_hand(*[x.double() for x in arguments])
    for one, other, like in zip(found, exact, arguments[1::2], strict=True):
        assert one.dtype == like.dtype and one.is_contiguous()
        torch.testing.assert_close(one.double(), other, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("rows", "n"), SIZES)
def test_results(rows: int, n: int) -> None:
    assert native.library(kernel.SOURCE) is not None
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-4)):
        arguments = given(rows, n, dtype)
        assert_same(kernel.compute(*arguments), arguments, tolerance)
        assert_same(kernel.reference(*arguments), arguments, tolerance)


def test_other_types() -> None:
    arguments = given(3, 8, torch.bfloat16)
    assert_same(kernel.compute(*arguments), arguments, 0.2)


def test_layouts() -> None:
    a, b, c, h = given(GROUP + 1, 9)
    steps_inside = [x.movedim(0, -2).contiguous().movedim(-2, 0) for x in (a, b)]
    turned = [x.mT.contiguous().mT for x in (a, b, c, h)]
    expanded = [a[:1, :1, :, :1].expand(b.shape), b[:, :1].expand(b.shape), c, h]
    backwards = [*(x.flip(0)[::2] for x in (a, b, c)), h]
    for arguments in ([*steps_inside, c, h], turned, expanded, backwards):
        assert_same(kernel.compute(*arguments), arguments, 1e-12)


def test_nothing_to_compute() -> None:
    a, b, c, h = given(3, 4)
    results, last = kernel.compute(a[:0], b[:0], c[:0], h)
    assert results.shape == (0, BATCH, 3) and torch.equal(last, h)
    assert last.data_ptr() != h.data_ptr()
    results, last = kernel.compute(a[..., :0], b[..., :0], c[..., :0], h[..., :0])
    assert results.eq(0).all() and last.numel() == 0


@pytest.mark.parametrize("special", [float("inf"), -float("inf"), float("nan")])
@pytest.mark.parametrize("operand", range(4))
def test_what_is_not_finite(special: float, operand: int) -> None:
    arguments = given(GROUP + 1, 17)
    x = arguments[operand]
    (x if operand == 3 else x[1]).view(-1)[[0, -1]] = special
    found, exact = kernel.compute(*arguments), by_hand(*arguments)
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


def test_threads() -> None:
    arguments = given(GROUP + 1, 500)
    assert arguments[0].numel() > SMALL
    with on_threads(2):
        assert_same(kernel.compute(*arguments), arguments, 1e-12)


def test_gradients() -> None:
    arguments = [x[:3] for x in given(2, 3)]
    tensors = [x.requires_grad_() for x in arguments]
    assert torch.autograd.gradcheck(kernel.scan, tensors)
    torch.library.opcheck(torch.ops.pypm.scan.default, arguments)
