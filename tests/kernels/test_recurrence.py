"""The operator of linear recurrences: in C++ and step by step, its gradients, its layouts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from pypm.kernels import recurrence
from pypm.kernels.recurrence import compute, linear_recurrence, reference
from pypm.kernels.support import native
from pypm.timing import on_threads
from tests.kernels.calls import SMALL

torch.set_num_threads(1)

PIECE, GROUP = 1024, 8
"""Elements of a row, and rows of fewer elements, that the kernel computes at a time."""

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}


def normal(*shape: int) -> Tensor:
    made = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=made, dtype=torch.float64)


def operands() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Rows that are long, many, single, empty; steps in the middle; factors that are expanded."""
    for shape in ((5, 3, 4), (3, PIECE + 7), (4, GROUP + 1, 2, 3), (3,), (2, 1, 1), (0, 2), (2, 0)):
        yield normal(*shape).sigmoid(), normal(*shape), normal(*shape[1:])
    a, b, h = normal(2, 3, 6, 4).sigmoid(), normal(2, 6, 3, 4), normal(2, 3, 4)
    yield a.movedim(2, 0), b.movedim(1, 0), h
    yield a.movedim(2, 0)[..., :1].expand(6, 2, 3, 4), b.movedim(1, 0).flip(-1), h
    yield a[0, 0, 0, 0].expand(6, 2, 3, 4), b.mT.movedim(1, 0).mT, h.mT.contiguous().mT
    yield a.movedim(2, 0).mT, b.movedim(1, 0).mT, h.mT
    yield a.movedim(2, 0)[::2], b.movedim(1, 0)[1::2], h


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("reverse", [False, True])
def test_the_kernel(dtype: torch.dtype, reverse: bool) -> None:
    assert native.library(recurrence.SOURCE) is not None
    tolerance = TOLERANCES[dtype]
    for a, b, h in operands():
        ours = compute(a.to(dtype), b.to(dtype), h.to(dtype), reverse)
        exact = reference(a, b, h, reverse)
        assert ours.is_contiguous() and ours.dtype == dtype
        torch.testing.assert_close(ours.double(), exact, rtol=tolerance, atol=tolerance)


def test_the_reference() -> None:
    a, b, h = next(operands())
    states = reference(a, b, h, False)
    backwards = reference(a, b, h, True)
    for t in range(len(b)):
        torch.testing.assert_close(states[t], a[t] * (states[t - 1] if t else h) + b[t])
        after = backwards[t + 1] if t + 1 < len(b) else h
        torch.testing.assert_close(backwards[t], a[t] * after + b[t])


def test_in_threads() -> None:
    a, b, h = normal(9, 40, 100).sigmoid(), normal(9, 40, 100), normal(40, 100)
    for x, y, z in ((a, b, h), (a.mT.contiguous().mT, b, h)):
        one = compute(x, y, z, False)
        with on_threads(3):
            several = compute(x, y, z, False)
        assert b.numel() > SMALL and torch.equal(one, several)


def test_other_types() -> None:
    """Float16 and bfloat16 are computed step by step, and each state is rounded."""
    for dtype in (torch.float16, torch.bfloat16):
        a, b, h = (x.to(dtype) for x in next(operands()))
        assert torch.equal(linear_recurrence(a, b, h, False), reference(a, b, h, False))


@pytest.mark.parametrize("reverse", [False, True])
def test_it_is_a_proper_operator(reverse: bool) -> None:
    a, b, h = (x.requires_grad_() for x in next(operands()))

    def operator(a: Tensor, b: Tensor, h: Tensor) -> Tensor:
        return linear_recurrence(a, b, h, reverse)

    torch.library.opcheck(linear_recurrence, (a, b, h, reverse))
    assert torch.autograd.gradcheck(operator, (a, b, h))
    assert torch.autograd.gradgradcheck(operator, (a, b, h))
    factor = normal(3, 4).sigmoid().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x, b, h: operator(x.expand(5, 3, 4), b, h), (factor, b, h)
    )
