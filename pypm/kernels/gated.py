"""Gated activations, activation(gate) * up: each operand is read once, as float32.

Bound by memory: two values read and one written for each element, where the product of two
operators reads three and writes two. Gate and up may be halves of one projection, which are not
copied. torch.compile fuses the same for a GPU where it makes the code around it; here it is one
kernel for any caller. On CPUs there is no kernel: `reference` is what runs there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from pypm.kernels.gpu import jit, missing, tl

__all__ = ["ACTIVATIONS", "gated", "launch", "reference", "unsupported"]

QUICK: Final = 1.702
"""Of quick-GELU, x sigmoid(1.702 x)."""

ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(QUICK * x),
}


def unsupported(gate: Tensor, up: Tensor) -> str | None:
    """Why the kernel does not take these operands, or None."""
    if gate.dim() == 0 or gate.shape != up.shape or gate.dtype != up.dtype:
        return "gate and up differ in shape or type"
    return missing(gate, up)


# --- on GPUs -------------------------------------------------------------------------------------

BLOCK: Final = 1024


@jit
def activated(x, activation: tl.constexpr):
    """An activation of float32; with 1 + tanh(y) as 2 sigmoid(2 y)."""
    if activation == "gelu":
        return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    if activation == "gelu_tanh":
        return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    if activation == "quick_gelu":
        return x * tl.sigmoid(1.702 * x)
    return x * tl.sigmoid(x)


@jit
def kernel(
    gate, up, out, columns, gate_stride, up_stride, activation: tl.constexpr, block: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < columns
    x = tl.load(gate + row * gate_stride + at, mask=inside, other=0.0).to(tl.float32)
    y = tl.load(up + row * up_stride + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * columns + at, activated(x, activation) * y, mask=inside)


def launch(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """As `reference`, by the kernel."""
    columns = gate.shape[-1]
    out = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    if not out.numel():
        return out
    gate, up = rows(gate), rows(up)
    grid = (gate.shape[0], -(-columns // BLOCK))
    with torch.cuda.device_of(gate):
        kernel[grid](gate, up, out, columns, gate.stride(0), up.stride(0), activation, BLOCK)
    return out


def rows(x: Tensor) -> Tensor:
    """[..., columns] as [rows, columns] with packed rows; a copy only where strides ask for it."""
    x = x.reshape(-1, x.shape[-1])
    return x if x.stride(1) == 1 else x.contiguous()


# --- the operator --------------------------------------------------------------------------------


def reference(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """activation(gate) * up, both [..., columns], in float32 or wider and rounded once."""
    wide = torch.promote_types(gate.dtype, torch.float32)
    product = ACTIVATIONS[activation](gate.to(wide)) * up.to(wide)
    return product.to(gate.dtype).contiguous()


@torch.library.custom_op("pypm::gated", mutates_args=())
def gated(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    """As `reference`."""
    return reference(gate, up, activation)


gated.register_kernel("cuda")(launch)


@gated.register_fake
def _(gate: Tensor, up: Tensor, activation: str) -> Tensor:
    return torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    gate, up, ctx.activation = inputs
    ctx.save_for_backward(gate, up)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    gate, up = ctx.saved_tensors
    name, through = ctx.activation, grad * up
    aten = torch.ops.aten
    if name == "quick_gelu":  # silu(1.702 x) / 1.702
        to_gate = aten.silu_backward(through, QUICK * gate)
    elif name == "silu":
        to_gate = aten.silu_backward(through, gate)
    else:
        approximate = "tanh" if name == "gelu_tanh" else "none"
        to_gate = aten.gelu_backward(through, gate, approximate=approximate)
    return to_gate, grad * ACTIVATIONS[name](gate), None


gated.register_autograd(_backward, setup_context=_save)
