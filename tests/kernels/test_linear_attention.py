"""Linear attention as one operator: against its reference, and gradients by differences."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from pypm.kernels import linear_attention as kernel
from pypm.kernels.support import native
from pypm.timing import on_threads
from tests.kernels.calls import SMALL

STEPS, ROWS, N, M = 5, 3, 4, 6

Given = list[Tensor | None]


def given(
    *, read: bool = True, kind: str = "plain", dtype: torch.dtype = torch.float64, m: int = M
) -> Given:
    """The arguments of the operator; `kind` is plain, delta or rates."""
    made = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=made, dtype=torch.float64).to(dtype)

    by_key, by_value = (STEPS, ROWS, N), (STEPS, ROWS, m)
    return [
        normal(*by_key).sigmoid(),
        normal(*by_key),
        normal(*by_value),
        normal(*by_key) if read else None,
        normal(*by_key) / N if kind in ("delta", "rates") else None,
        normal(*by_value).sigmoid() if kind == "rates" else None,
        normal(ROWS, N, m),
    ]


CASES = list(itertools.product([True, False], ["plain", "delta", "rates"]))


def by_hand(arguments: Given) -> tuple[Tensor, Tensor]:
    """By sums over products, one row at a time."""
    decay, keys, values, queries, removed, rates, state = arguments
    results = torch.zeros(STEPS, ROWS, state.shape[-1], dtype=state.dtype)
    last = state.clone()
    for row, t in itertools.product(range(ROWS), range(STEPS)):
        s = last[row]
        k, v = keys[t, row], values[t, row]
        s = torch.diag(decay[t, row]) @ s
        if removed is not None:
            v = v - s.T @ removed[t, row]
            v = v if rates is None else v * rates[t, row]
        last[row] = s = s + torch.outer(k, v)
        if queries is not None:
            results[t, row] = s.T @ queries[t, row]
    return results if queries is not None else results[:0], last


@pytest.mark.parametrize(("read", "kind"), CASES)
def test_results(read: bool, kind: str) -> None:
    arguments = given(read=read, kind=kind)
    assert native.library(kernel.SOURCE) is not None
    for found in (kernel.reference(*arguments), kernel.compute(*arguments)):
        for one, other in zip(found, by_hand(arguments), strict=True):
            torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_types(dtype: torch.dtype) -> None:
    arguments = given(kind="rates", dtype=dtype)
    exact = by_hand([None if x is None else x.double() for x in arguments])
    for one, other in zip(kernel.compute(*arguments), exact, strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one.double(), other, atol=0.2, rtol=0.2)


def test_layouts_and_empty_batches() -> None:
    arguments = given(kind="rates")
    turned = [
        x if x is None else x.transpose(0, -1).contiguous().transpose(0, -1) for x in arguments
    ]
    expanded = [arguments[0][:1, :, :1].expand(STEPS, ROWS, N), *turned[1:]]
    for one, other in zip(kernel.compute(*expanded), by_hand(expanded), strict=True):
        torch.testing.assert_close(one, other)
    none = [x if x is None else x[:, :0] for x in arguments[:-1]]
    results, last = kernel.compute(*none, arguments[-1][:0])
    assert results.shape == (STEPS, 0, M) and last.shape == (0, N, M)


def test_threads() -> None:
    arguments = given(kind="delta", m=700)
    assert STEPS * arguments[-1].numel() > SMALL
    with on_threads(2):
        for one, other in zip(kernel.compute(*arguments), by_hand(arguments), strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize(("read", "kind"), CASES)
def test_gradients(read: bool, kind: str) -> None:
    arguments = given(read=read, kind=kind)
    tensors = [x.requires_grad_() for x in arguments if x is not None]

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        found = iter(tensors)
        return kernel.linear_attention(*[None if x is None else next(found) for x in arguments])

    assert torch.autograd.gradcheck(function, tensors)
    torch.library.opcheck(torch.ops.pypm.linear_attention.default, arguments)


def test_no_steps_give_the_state_in_memory_of_its_own() -> None:
    *_, state = given()
    none = [x if x is None else x[:0] for x in given()[:-1]]
    results, last = kernel.compute(*none, state)
    assert len(results) == 0 and torch.equal(last, state)
    assert last.data_ptr() != state.data_ptr()


def test_results_that_are_not_read_share_no_memory() -> None:
    arguments = given(read=False, dtype=torch.bfloat16)
    results, _ = kernel.compute(*arguments)
    values = arguments[2]
    assert results.shape == (0, ROWS, M)
    assert results.untyped_storage().data_ptr() != values.untyped_storage().data_ptr()
