"""The gated kernel: interpreted, built for Hopper, on a GPU; its operator on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from pypm.kernels import gated
from pypm.kernels.support.activations import ACTIVATIONS
from pypm.kernels.support.pointwise import activation as in_triton
from tests.kernels.triton_checks import agree, built, launches, needs_triton

torch.set_num_threads(1)

TOLERANCES = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 3e-2}


def normal(*shape: int, dtype: torch.dtype = torch.float64, device: str = "cpu") -> Tensor:
    made = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=made, dtype=torch.float64).mul(2).to(device, dtype)


def cases(device: str) -> Iterator[tuple[Tensor, Tensor, str]]:
    """Halves of one projection, whole tensors, rows that are not packed, and nothing."""
    for dtype in TOLERANCES:
        x = normal(2, 3, 140, dtype=dtype, device=device)
        yield x, x.flip(0), "silu"
    x = x.float()
    for name in ACTIVATIONS:
        yield *x.chunk(2, -1), name
    yield x[0, :, :4].t(), x[1, :, :4].t(), "silu"
    x = normal(1, 2 * gated.BLOCK + 1, dtype=torch.float16, device=device)
    yield x, x, "silu"
    yield x[:0], x[:0], "silu"


def check(device: str) -> None:
    for gate, up, name in cases(device):
        ours = gated.launch(gate, up, name)
        exact = gated.reference(gate.double(), up.double(), name)
        assert ours.is_contiguous()
        agree(ours, exact, gate.dtype, TOLERANCES[gate.dtype])


test_in_the_interpreter, test_on_a_gpu = launches(check, cases, gated.gated, gated.launch)


@needs_triton
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_builds_for_hopper(activation: str) -> None:
    types = dict.fromkeys(("gate", "up", "out"), "*bf16")
    numbers = dict.fromkeys(("columns", "gate_stride", "up_stride"), "i32")
    arguments = {**types, **numbers, "block": gated.BLOCK}
    built(gated.kernel, {**arguments, "activation": in_triton(activation)}, 4)


# --- the operator --------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_it_is_a_proper_operator(activation: str) -> None:
    gate, up = (x.requires_grad_() for x in (normal(3, 5), normal(3, 5).flip(0)))
    if activation == "silu":
        torch.library.opcheck(gated.gated, (gate, up, activation))
        halves = normal(3, 10).chunk(2, -1)
        torch.library.opcheck(gated.gated, (*halves, activation))
    assert torch.autograd.gradcheck(lambda a, b: gated.gated(a, b, activation), (gate, up))


def test_where_it_applies() -> None:
    x = normal(3, 5).float()
    assert gated.unsupported(x, x) == "the kernel is for GPUs"
    assert gated.unsupported(x, x[:, :1]) == "gate and up differ in shape or type"
    assert gated.unsupported(x, x.half()) == "gate and up differ in shape or type"
    assert "not in torch.float64" in str(gated.unsupported(x.double(), x.double()))
