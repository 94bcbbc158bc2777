"""RMSNorm and LayerNorm over the last dimension, also of a sum: each row is read once.

The kernels are bound by memory. For each element of a sum:

    kernel            reads   writes
    plain operators       4        3
    this one              2        2

torch.compile generates the same fusion for a GPU, except for rows too long for its persistent
reductions; `benchmarks/kernels.py` times both. On CPUs there is no kernel, and `reference` runs.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from pypm.kernels.support.registration import Gradients, custom_operator
from pypm.kernels.support.triton import blocks, jit, tl

__all__ = ["add_norm", "kernel", "launch", "norm", "reference"]


# --- on GPUs -------------------------------------------------------------------------------------


@jit
def normalized(s, weight, bias, at, inside, columns, eps, offset, centered: tl.constexpr):
    """Return (s - mean) / sqrt(var + eps) * (weight + offset) + bias of one row in float32."""
    if centered:
        s = tl.where(inside, s - tl.sum(s, 0) / columns, 0.0)
    y = s * tl.rsqrt(tl.sum(s * s, 0) / columns + eps)
    if weight is not None:
        y *= tl.load(weight + at, mask=inside, other=0.0).to(tl.float32) + offset
    if bias is not None:
        y += tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    return y


@jit
def summed(x, y, total, at, inside, row):
    """Return a row of x + y, rounded as it is stored to `total`; without y, a row of x."""
    s = tl.load(x + row + at, mask=inside, other=0.0).to(tl.float32)
    if y is not None:
        s += tl.load(y + row + at, mask=inside, other=0.0).to(tl.float32)
        s = s.to(total.dtype.element_ty)
        tl.store(total + row + at, s, mask=inside)
        s = s.to(tl.float32)
    return s


@jit
def kernel(
    x, y, weight, bias, out, total, columns, eps, offset,
    centered: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Compute one row for each program."""
    row = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, block)
    inside = at < columns
    s = summed(x, y, total, at, inside, row)
    n = normalized(s, weight, bias, at, inside, columns, eps, offset, centered)
    tl.store(out + row + at, n, mask=inside)


def launch(
    x: Tensor,
    y: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    offset: float,
    centered: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return what `reference` returns, by the kernel."""
    columns, out, total = x.shape[-1], empty(x, dtype), x
    if y is not None:
        y, total = y.contiguous(), empty(x, torch.promote_types(x.dtype, y.dtype))
    if x.numel():
        kernel[(x.numel() // columns,)](
            x.contiguous(), y, weight, bias, out, total, columns, eps, offset, centered,
            **blocks(columns),
        )  # fmt: skip
    return out, total


# --- the operators -------------------------------------------------------------------------------


def reference(
    x: Tensor,
    y: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    offset: float,
    centered: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return the norm of x + y, and x + y; without y, the norm of x, and x.

    Arguments:
        x: [..., columns].
        y: of the shape of x, or None.
        weight: [columns], or None for ones.
        bias: [columns], or None for zeros.
        eps: added to the variance.
        offset: added to the weight: 1 for weights that are stored as their difference from 1.
        centered: True for LayerNorm; False replaces the mean by 0, as RMSNorm does.
        dtype: the type of the norm.

    With s = x + y, the norm is (s - mean s) / sqrt(var s + eps) * (weight + offset) + bias over the
    last dimension, computed in float32 or wider and rounded once.
    """
    total = x if y is None else x + y
    n, _ = _standardized(total, eps, centered)
    n = n if weight is None else n * (_wide(weight) + offset)
    n = n if bias is None else n + bias
    return n.to(dtype).contiguous(), total.contiguous()


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _standardized(s: Tensor, eps: float, centered: bool) -> tuple[Tensor, Tensor]:
    """Return each row divided by its deviation, and the inverse of that deviation."""
    s = _wide(s)
    s = s - s.mean(-1, keepdim=True) if centered else s
    inverse = torch.rsqrt(s.square().mean(-1, keepdim=True) + eps)
    return s * inverse, inverse


def reference_of_one(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    offset: float,
    centered: bool,
    dtype: torch.dtype,
) -> Tensor:
    """Return the norm of x, as `reference` computes it."""
    return reference(x, None, weight, bias, eps, offset, centered, dtype)[0]


def reference_of_sum(
    x: Tensor,
    y: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    offset: float,
    centered: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return the norm of x + y, and x + y, as `reference` computes them."""
    return reference(x, y, weight, bias, eps, offset, centered, dtype)


def empty(x: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty(x.shape, dtype=dtype, device=x.device)


def empty_with_sum(x: Tensor, y: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return empty(x, dtype), empty(x, torch.promote_types(x.dtype, y.dtype))


# --- gradients -----------------------------------------------------------------------------------


def saves(
    inputs: tuple[object, ...], output: Tensor | tuple[Tensor, Tensor], needed: object
) -> tuple[object, ...]:
    """Return the normalized values, and the types of the gradients."""
    *summands, weight, bias, eps, offset, centered, _ = inputs
    s = summands[0] if isinstance(output, Tensor) else output[1]
    types = [x.dtype for x in summands if isinstance(x, Tensor)]
    bias_type = bias.dtype if isinstance(bias, Tensor) else None
    return s, weight, types, bias_type, eps, offset, centered


def backward(
    s: Tensor,
    weight: Tensor | None,
    types: list[torch.dtype],
    bias_type: torch.dtype | None,
    eps: float,
    offset: float,
    centered: bool,
    grad: Tensor,
    to_total: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """Return the gradients: with n the standardized row, g the gradient that arrives at n, and d
    the deviation, that of the row is (g - mean g - n mean(g n)) / d.

    Without the term `mean g` if the norm is not centered.
    """
    n, inverse = _standardized(s, eps, centered)
    g = grad.to(n.dtype)
    columns = g.shape[-1:]
    to_bias = None if bias_type is None else g.sum_to_size(columns).to(bias_type)
    to_weight = None if weight is None else (g * n).sum_to_size(columns).to(weight.dtype)
    g = g if weight is None else g * (_wide(weight) + offset)
    to_s = g - n * (g * n).mean(-1, keepdim=True)
    to_s = to_s - g.mean(-1, keepdim=True) if centered else to_s
    to_s = to_s * inverse if to_total is None else to_s * inverse + to_total
    return *(to_s.to(kind) for kind in types), to_weight, to_bias, None, None, None, None


ROWS: Final = "[*rows, columns] float"
SCALES: Final = {"weight": "[columns] float?", "bias": "[columns] float?"}

norm = custom_operator(
    "pypm::norm",
    reference_of_one,
    outputs=empty,
    operands={"x": ROWS, **SCALES},
    launch=lambda x, *rest: launch(x, None, *rest)[0],
    gradients=Gradients(backward, saves),
)
add_norm = custom_operator(
    "pypm::add_norm",
    reference_of_sum,
    outputs=empty_with_sum,
    operands={"x": ROWS, "y": ROWS, **SCALES},
    launch=launch,
    gradients=Gradients(backward, saves),
)
