"""The rotary kernel in C++, and its operator."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest
import torch
from torch import Tensor

from pypm.kernels import rotary
from pypm.kernels.support import native
from tests.kernels.triton_checks import agree

torch.set_num_threads(1)

TOLERANCES = {torch.float32: 2e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}
B, H, G, S, D = 2, 4, 2, 5, 12


def inputs(turned: int, dtype: torch.dtype) -> tuple[list[Tensor], ...]:
    """Query [B, H, S, D] and key [B, G, S, D] laid out by token; cosine and sine [1, 1, S, .]."""
    made = torch.Generator().manual_seed(turned)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=made, dtype=torch.float64).to(dtype)

    xs = [normal(B, S, heads, D).transpose(1, 2) for heads in (H, G)]
    return xs, [normal(1, 1, S, turned), normal(1, 1, S, turned)]


Case = tuple[list[Tensor], Tensor, Tensor, bool]


def cases() -> Iterator[Case]:
    """One tensor and two, whole rows and first elements, other layouts, angles and types."""
    for interleaved, dtype in product((False, True), TOLERANCES):
        xs, (cos, sin) = inputs(D, dtype)
        yield xs, cos, sin, interleaved
    for interleaved, turned in ((False, 6), (True, 2)):
        xs, (cos, sin) = inputs(turned, torch.float32)
        yield xs[:1], cos, sin, interleaved
        yield [x.transpose(1, 2) for x in xs], cos.transpose(1, 2), sin.transpose(1, 2), interleaved
        yield [x[0] for x in xs], cos[0, 0].float(), sin[0, 0].float(), interleaved
        yield (
            [xs[0].contiguous()],
            cos.expand(B, H, S, -1),
            sin.contiguous().expand(B, H, S, -1),
            interleaved,
        )
        yield [xs[0].mT.contiguous().mT], cos.mT.contiguous().mT, sin, interleaved
        yield [x[:, :, :0] for x in xs], cos[:, :, :0], sin[:, :, :0], interleaved


def test_in_cpp() -> None:
    for dtype, tolerance in {**TOLERANCES, torch.float64: 1e-14}.items():
        for xs, cos, sin, interleaved in cases():
            xs = [x.to(dtype) for x in xs]
            exact = rotary.reference(
                [x.double() for x in xs], cos.double(), sin.double(), interleaved
            )
            is_native = rotary.unsupported(xs, cos, sin) is None
            assert is_native == (dtype != torch.float16)
            found = rotary.compute(xs, cos, sin, interleaved)
            for ours, wide, x in zip(found, exact, xs, strict=True):
                assert ours.stride() == rotary.empty(x).stride()
                agree(ours, wide, dtype, tolerance)


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "library", lambda source: None)
    xs, (cos, sin) = inputs(D, torch.float32)
    assert "needs a compiler" in str(rotary.unsupported(xs, cos, sin))
    found = rotary.rotary(xs, cos, sin, False)
    assert all(map(torch.equal, found, rotary.reference(xs, cos, sin, False)))


def test_angles_of_a_conjugate_and_threads() -> None:
    xs, (cos, sin) = inputs(D, torch.float32)
    xs = [x.repeat(64, 8, 1, 1) for x in xs]
    angles = torch.complex(cos, sin).conj()
    torch.set_num_threads(2)
    try:
        found = rotary.rotary(xs, angles.real, angles.imag, True)
    finally:
        torch.set_num_threads(1)
    for ours, wide in zip(found, rotary.reference(xs, cos, -sin, True), strict=True):
        torch.testing.assert_close(ours, wide)


# --- the operator --------------------------------------------------------------------------------


@pytest.mark.parametrize("turned", [D, 6])
@pytest.mark.parametrize("interleaved", [False, True])
def test_it_is_a_proper_operator(interleaved: bool, turned: int) -> None:
    (q, k), (cos, sin) = inputs(turned, torch.float64)
    leaves = tuple(x.requires_grad_() for x in (q, k, cos, sin))
    if interleaved:
        torch.library.opcheck(rotary.rotary, ([q, k], cos, sin, interleaved))
        torch.library.opcheck(rotary.rotary, ([q.detach()], cos.detach(), sin.detach(), True))

    def both(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        return tuple(rotary.rotary([q, k], cos, sin, interleaved))

    assert torch.autograd.gradcheck(both, leaves, fast_mode=True)


@pytest.mark.parametrize("learned", range(4))
def test_gradient_of_one_operand(learned: int) -> None:
    operands = [x for group in inputs(D, torch.float64) for x in group]
    leaf = operands[learned].requires_grad_()
    q, k, cos, sin = operands
    found, expected = (
        torch.autograd.grad(torch.stack([y.square().sum() for y in ys]).sum(), leaf)
        for ys in (
            rotary.rotary([q, k], cos, sin, False),
            rotary.reference([q, k], cos, sin, False),
        )
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("shape", "angle", "reason"),
    [
        ((B, H, S, D), (1, 1, S, D), None),
        ((B, H, S, D), (S, D), None),
        ((H, S, D), (1, S, 4), None),
        ((B, H, S, D), (1, 1, S, D + 2), "more dimensions"),
        ((S, D), (1, 1, S, D), "more dimensions"),
        ((1, B, H, S, D), (S, D), "more dimensions"),
        ((B, H, S, D), (1, H, D), "do not broadcast"),
        ((B, H, S, D), (1, 1, S, 3), "half a pair"),
    ],
)
def test_where_it_applies(
    shape: tuple[int, ...], angle: tuple[int, ...], reason: str | None
) -> None:
    x, cos = torch.zeros(shape), torch.zeros(angle)
    found = rotary.misfit([x], cos, cos)
    assert found is None if reason is None else found is not None and reason in found
    if reason is None:
        assert rotary.unsupported([x], cos, cos) is None
        rotary.rotary([x], cos, cos, False)
