"""RWKV-4's time mixing as one operator: against sums of weights, and gradients by differences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pypm.kernels import wkv as kernel
from pypm.kernels.support import native
from pypm.timing import on_threads
from tests.kernels.calls import SMALL

ROWS, STEPS, SIZE = 2, 5, 3
PIECE = 256  # channels that the kernel computes at a time


def given(
    steps: int = STEPS, size: int = SIZE, dtype: torch.dtype = torch.float64, scale: float = 1.0
) -> list[Tensor]:
    """The arguments of the operator: decay, boost, keys, values, and the states."""
    made = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return (scale * torch.randn(shape, generator=made, dtype=torch.float64)).to(dtype)

    of_all, of_one = (ROWS, steps, size), (ROWS, size)
    return [
        -normal(size).exp(),
        normal(size),
        normal(*of_all),
        normal(*of_all),
        normal(*of_one),
        normal(*of_one).abs(),
        normal(*of_one),
    ]


def by_hand(arguments: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Averages, and the sums after the last step, without what keeps these from overflowing."""
    decay, boost, keys, values, num, den, top = arguments
    num, den = num * top.exp(), den * top.exp()
    averages = []
    for t in range(keys.shape[1]):
        weight = (keys[:, t] + boost).exp()
        averages.append((num + weight * values[:, t]) / (den + weight))
        num = decay.exp() * num + keys[:, t].exp() * values[:, t]
        den = decay.exp() * den + keys[:, t].exp()
    return torch.stack(averages, 1), num, den


@pytest.mark.parametrize("size", [SIZE, PIECE + 5])
def test_results(size: int) -> None:
    arguments = given(size=size)
    assert native.library(kernel.SOURCE) is not None
    expected = by_hand(arguments)
    for found in (kernel.reference(*arguments), kernel.compute(*arguments)):
        averages, num, den, top = found
        sums = averages, num * top.exp(), den * top.exp()
        torch.testing.assert_close(sums, expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_narrow_types(dtype: torch.dtype) -> None:
    arguments = given(size=40, dtype=dtype)
    exact = kernel.reference(*(x.double() for x in arguments))
    bound = 16 * torch.finfo(dtype).eps
    for one, other in zip(kernel.compute(*arguments), exact, strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one.double(), other, atol=bound, rtol=bound)


SPECIAL = (torch.inf, -torch.inf, torch.nan, -0.0, 1e38, -1e38, 3e38, -90.0, -100.0, -103.0, -104.0)


@pytest.mark.parametrize("states", ["any", "none", "zeros"])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
def test_infinities_and_what_underflows(share: float, states: str) -> None:
    """A weight that underflows counts where it is the only one."""
    made = torch.Generator().manual_seed(0)
    arguments = given(size=400, dtype=torch.float32, scale=30)
    for x in arguments:
        hit = torch.rand(x.shape, generator=made) < share
        drawn = torch.randint(len(SPECIAL), x.shape, generator=made)
        x.copy_(torch.where(hit, torch.tensor(SPECIAL)[drawn], x))
    if states != "any":
        num, den, top = arguments[4:]
        num.zero_(), den.zero_(), top.fill_(0.0 if states == "zeros" else -1e38)
    found, expected = kernel.compute(*arguments), kernel.reference(*arguments)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4, equal_nan=True)
    assert found[0].isnan().any() and found[0].isfinite().any()


def test_layouts_and_empty_batches() -> None:
    arguments = given()
    expected = kernel.reference(*arguments)
    turned = [x.transpose(0, -1).contiguous().transpose(0, -1) for x in arguments]
    torch.testing.assert_close(kernel.compute(*turned), expected)
    by_step = [x.transpose(0, 1).contiguous().transpose(0, 1) for x in arguments[2:4]]
    torch.testing.assert_close(kernel.compute(*arguments[:2], *by_step, *arguments[4:]), expected)
    one = [x[:1].expand_as(x) for x in arguments]
    torch.testing.assert_close(kernel.compute(*one), kernel.reference(*one))
    none = kernel.compute(*arguments[:2], *(x[:0] for x in arguments[2:]))
    assert none[0].shape == (0, STEPS, SIZE) and none[1].shape == (0, SIZE)


def test_no_steps_give_the_states_in_memory_of_their_own() -> None:
    arguments = given(steps=0)
    averages, *last = kernel.compute(*arguments)
    assert averages.shape == (ROWS, 0, SIZE)
    for one, other in zip(last, arguments[4:], strict=True):
        assert torch.equal(one, other) and one.data_ptr() != other.data_ptr()


def test_threads() -> None:
    arguments = given(size=13 * PIECE + 1)
    assert arguments[2].numel() > SMALL
    with on_threads(2):
        torch.testing.assert_close(kernel.compute(*arguments), kernel.reference(*arguments))


@pytest.mark.parametrize("steps", [1, STEPS])
def test_gradients(steps: int) -> None:
    arguments = [x.requires_grad_() for x in given(steps=steps)]
    assert torch.autograd.gradcheck(kernel.wkv, arguments)
    torch.library.opcheck(torch.ops.pypm.wkv.default, arguments)


def test_gradients_are_those_of_the_steps_also_where_exponents_are_equal() -> None:
    arguments = given()
    arguments[2].zero_(), arguments[0].zero_(), arguments[6].zero_()
    leaves = [x.requires_grad_() for x in arguments]

    def stepwise(*given: Tensor) -> list[Tensor]:
        decay, boost, keys, values, num, den, top = given
        averages = []
        for t in range(STEPS):
            old, new, _ = kernel._weights(top, keys[:, t] + boost)
            averages.append((old * num + new * values[:, t]) / (old * den + new))
            num, den, top = kernel._advanced(decay, keys[:, t], values[:, t], num, den, top)
        return [torch.stack(averages, 1), num, den, top]

    ours, theirs = (
        torch.autograd.grad(sum(x.cos().sum() for x in function(*leaves)), leaves)
        for function in (kernel.wkv, stepwise)
    )
    torch.testing.assert_close(ours, theirs)


def test_gradients_of_no_elements() -> None:
    leaves = [x.requires_grad_() for x in given(steps=0)]
    ours = torch.autograd.grad(sum(x.sum() for x in kernel.wkv(*leaves)), leaves)
    assert all(x.eq(1).all() for x in ours[4:]) and not any(x.any() for x in ours[:4])
