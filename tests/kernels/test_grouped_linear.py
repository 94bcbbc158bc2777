"""The operator of products with one of several matrices for each row, and its gradients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from pypm.kernels.grouped_linear import compute, grouped_linear, grouped_outer, reference

torch.set_num_threads(1)


def operands(dtype: torch.dtype = torch.float64) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Matrices with many rows, one, none; ids from the end, int32; strides; nothing at all."""
    made = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=made, dtype=torch.float64).to(dtype)

    x, weights = normal(7, 3), normal(4, 3, 5)
    yield x, weights, torch.tensor([2, 0, 2, 2, 3, 0, 2])
    yield x, weights, torch.tensor([-1, 0, 3, -4, 1, -2, 2], dtype=torch.int32)
    yield normal(3, 7).t(), normal(4, 5, 3).mT, torch.arange(14)[::2] % 4
    yield x[:1].expand(7, 3), weights[::2], torch.tensor([1, 0, 1, 1, 0, 0, 1])
    yield x[:1], weights, torch.tensor([1])
    yield x[:0], weights, torch.tensor([], dtype=torch.int64)
    yield x[:, :0], weights[:, :0], torch.tensor([2, 0, 2, 2, 3, 0, 2])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_values(dtype: torch.dtype) -> None:
    tolerance = 8 * torch.finfo(dtype).eps
    for x, weights, ids in operands(dtype):
        exact = reference(x.double(), weights.double(), ids)
        found = grouped_linear(x, weights, ids)
        assert found.dtype == dtype and found.is_contiguous()
        torch.testing.assert_close(found.double(), exact, atol=tolerance, rtol=tolerance)


def test_gradients() -> None:
    for x, weights, ids in operands():
        given = [t.clone().requires_grad_() for t in (x, weights)]
        ours, theirs = (
            torch.autograd.grad(f(*given, ids).cos().sum(), given)
            for f in (grouped_linear, reference)
        )
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)


def test_gradients_of_gradients() -> None:
    x, weights, ids = next(operands())
    given = x.requires_grad_(), weights.requires_grad_()
    assert torch.autograd.gradgradcheck(lambda *t: grouped_linear(*t, ids), given)


@pytest.mark.parametrize("wrong", [4, -5])
def test_a_matrix_that_does_not_exist(wrong: int) -> None:
    x, weights, _ = next(operands())
    ids = torch.tensor([0, 1, 2, 3, wrong, 0, 0])
    for function in (reference, compute):
        with pytest.raises(IndexError, match=f"index {wrong} is out of bounds"):
            function(x, weights, ids)


def test_as_torch_checks_operators() -> None:
    x, weights, ids = next(operands())
    torch.library.opcheck(grouped_linear, (x.requires_grad_(), weights.requires_grad_(), ids))
    y = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    torch.library.opcheck(grouped_outer, (x, y, ids, 4))


def test_floating_point_operations() -> None:
    x, weights, ids = next(operands())
    given = x.requires_grad_(), weights.requires_grad_()
    counts = []
    for function in (reference, grouped_linear):
        with FlopCounterMode(display=False) as counter:
            function(*given, ids).sum().backward()
        counts.append(counter.get_total_flops())
    assert counts[0] == counts[1] > 0
