"""Gated activations, activation(gate) * up: each operand is read once, as float32.

The kernel is bound by memory: it reads two values and writes one for each element, where two
operators read three and write two. Gate and up may be halves of one projection, without a copy.
torch.compile generates the same fusion for a GPU; here any caller has it. On CPUs there is no
kernel, and `reference` runs.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from pypm.fx import same_shape
from pypm.kernels.support import pointwise
from pypm.kernels.support.activations import ACTIVATIONS
from pypm.kernels.support.layouts import rows
from pypm.kernels.support.registration import Gradients, custom_operator
from pypm.kernels.support.triton import jit, missing, tl

__all__ = ["gated", "launch", "reference", "unsupported"]


def unsupported(gate: Tensor, up: Tensor) -> str | None:
    """Return why the kernel does not take these operands, or None."""
    if gate.dim() == 0 or not same_shape(gate.shape, up.shape) or gate.dtype != up.dtype:
        return "gate and up differ in shape or type"
    return missing(gate, up)


# --- on GPUs -------------------------------------------------------------------------------------

BLOCK: Final = 1024


@jit
def kernel(
    gate, up, out, columns, gate_stride, up_stride, activation: tl.constexpr, block: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < columns
    x = tl.load(gate + row * gate_stride + at, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(up + row * up_stride + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * columns + at, activation(x) * y, mask=inside)


def launch(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """Return what `reference` returns, by the kernel."""
    out, columns = empty(gate), gate.shape[-1]
    if not out.numel():
        return out
    gate, up = rows(gate), rows(up)
    grid = (gate.shape[0], -(-columns // BLOCK))
    function = pointwise.activation(activation)
    kernel[grid](gate, up, out, columns, gate.stride(0), up.stride(0), function, BLOCK)
    return out


def empty(gate: Tensor) -> Tensor:
    return torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)


# --- the operator --------------------------------------------------------------------------------


def reference(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """Return activation(gate) * up, both [..., columns], in float32 or wider and rounded once.

    `activation` is a key of `pypm.kernels.support.activations.ACTIVATIONS`.
    """
    wide = torch.promote_types(gate.dtype, torch.float32)
    product = ACTIVATIONS[activation].torch(gate.to(wide)) * up.to(wide)
    return product.to(gate.dtype).contiguous()


def backward(gate: Tensor, up: Tensor, activation: str, grad: Tensor) -> tuple[Tensor | None, ...]:
    apply = ACTIVATIONS[activation]
    return apply.backward(grad * up, gate), grad * apply.torch(gate), None


def unknown(activation: str) -> str | None:
    """Return that there is no activation of this name, or None."""
    known = ", ".join(ACTIVATIONS)
    return None if activation in ACTIVATIONS else f"`activation` is {activation!r}, none of {known}"


gated = custom_operator(
    "pypm::gated",
    reference,
    outputs=empty,
    operands={"gate": "[*rows, columns] T", "up": "[*rows, columns] T"},
    requires=unknown,
    launch=launch,
    gradients=Gradients(backward),
)
