"""RMSNorm, also of a sum, quantized to eight bits in the same pass: float8 (e4m3) and int8.

Bound by memory: of a sum in bfloat16, two rows read, one and a half written; separate kernels for
norm and quantization read two rows more and write one more. The scale is that of a row, of groups
of a row, or given. That of the whole tensor takes two passes: the first finds it and writes the
sum alone, the second computes the norm again, five bytes an element without a sum, where separate
kernels move nine, and torch.compile seven, for it reads the input once more. On CPUs there is no
kernel: `reference` is what runs there.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from pypm.kernels.norm import normalized, summed
from pypm.kernels.norm import reference as norm_reference
from pypm.kernels.support.registration import custom_operator
from pypm.kernels.support.triton import blocks, jit, tl
from pypm.kernels.support.triton import unsupported as unsupported_rows

__all__ = [
    "EIGHT_BITS", "eight_bits", "empty_scales", "in_steps", "kernel", "largest_kernel", "launch",
    "no_groups", "quantized", "quantized_norm", "reference", "triton_types", "unsupported",
]  # fmt: skip

EIGHT_BITS: Final = (torch.float8_e4m3fn, torch.int8)


def unsupported(group: int, dtype: torch.dtype, x: Tensor, *others: Tensor | None) -> str | None:
    """Why the kernel does not take rows of `x` in such groups, with what else it reads; or None."""
    return no_groups(group, dtype, x.shape[-1]) or unsupported_rows(x, *others)


def no_groups(group: int, dtype: torch.dtype, columns: int) -> str | None:
    """Why kernels do not quantize such groups of a row, to such a type; or None."""
    if dtype not in EIGHT_BITS:
        return f"the kernel has no {dtype}"
    if group not in (0, columns) and (group & (group - 1) or columns % group):
        return "the kernel has groups of a power of two"
    return None


# --- on GPUs -------------------------------------------------------------------------------------


@jit
def larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@jit
def step_of(largest, top, low):
    """The scale of magnitudes up to `largest`; NaN of NaN, as in torch."""
    return larger(largest, low) / top


@jit
def largest_bits(n, axis: tl.constexpr):
    """The largest magnitude, as the bits of a float32: they are ordered alike, with NaN on top."""
    return tl.max(tl.abs(n).to(tl.int32, bitcast=True), axis)


@jit
def in_steps(n, scales, at, count, top, low):
    """[groups, group] and the steps of the groups, stored to `scales`."""
    step = step_of(largest_bits(n, 1).to(tl.float32, bitcast=True), top, low)
    tl.store(scales + at, step, mask=at < count)
    return step[:, None]


@jit
def eight_bits(q, least, most, rounds: tl.constexpr):
    """q between `least` and `most`, for int8 to the nearest: float32 has no fractions there."""
    q = tl.minimum(larger(q, least), most, propagate_nan=tl.PropagateNan.ALL)
    return (q + 12582912.0) - 12582912.0 if rounds else q


@jit
def kernel(
    x, y, weight, scale, largest, out, scales, total, columns, eps, offset, top, low, least, most,
    middle: tl.constexpr, rounds: tl.constexpr, group: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One program a row."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    inside = at < columns
    s = summed(x, y, total, at, inside, row * columns)
    n = normalized(s, weight, None, at, inside, columns, eps, offset, False)
    n = tl.reshape(n.to(middle).to(tl.float32), (block // group, group))
    if scale is not None:
        step = tl.load(scale).to(tl.float32)
    elif largest is not None:
        step = step_of(tl.load(largest), top, low)
        tl.store(scales, step, mask=row == 0)
    else:
        count = (columns + group - 1) // group
        groups = tl.arange(0, block // group)
        step = in_steps(n, scales + row * count, groups, count, top, low)
    q = eight_bits(n / step, least, most, rounds)
    tl.store(out + row * columns + at, tl.reshape(q, (block,)).to(out.dtype.element_ty), inside)


@jit
def largest_kernel(
    x, y, weight, largest, total, columns, eps, offset, middle: tl.constexpr, block: tl.constexpr
):
    """The largest magnitude of all rows, as bits."""
    row = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, block)
    inside = at < columns
    s = summed(x, y, total, at, inside, row)
    n = normalized(s, weight, None, at, inside, columns, eps, offset, False)
    tl.atomic_max(largest, largest_bits(n.to(middle).to(tl.float32), 0))


def triton_types() -> dict[torch.dtype, Any]:
    """What kernels call the types that they compute from."""
    return {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}


def launch(
    x: Tensor,
    y: Tensor | None,
    weight: Tensor | None,
    scale: Tensor | None,
    eps: float,
    offset: float,
    middle: torch.dtype,
    group: int,
    top: float,
    low: float,
    least: float,
    most: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `reference`, by the kernel."""
    out, scales, total = empty(x, y, scale, group, dtype)
    columns = x.shape[-1]
    if not x.numel():
        return out, scales, total
    held, kind = blocks(columns), triton_types()[middle]
    rows = (x.numel() // columns,)
    x, y, largest = x.contiguous(), None if y is None else y.contiguous(), None
    if scale is None and not group:
        bits = torch.zeros(1, dtype=torch.int32, device=x.device)
        largest_kernel[rows](x, y, weight, bits, total, columns, eps, offset, middle=kind, **held)
        x, y, largest = x if y is None else total, None, bits.view(torch.float32)
    kernel[rows](
        x, y, weight, scale, largest, out, scales, total, columns, eps, offset, top, low,
        least, most, middle=kind, rounds=not dtype.is_floating_point,
        group=held["block"] if group in (0, columns) else group, **held,
    )  # fmt: skip
    return out, scales, total


def empty(
    x: Tensor, y: Tensor | None, scale: Tensor | None, group: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    kind = x.dtype if y is None else torch.promote_types(x.dtype, y.dtype)
    return (
        torch.empty(x.shape, dtype=dtype, device=x.device),
        empty_scales(x, scale, group),
        torch.empty((0,) if y is None else x.shape, dtype=kind, device=x.device),
    )


def empty_scales(x: Tensor, scale: Tensor | None, group: int) -> Tensor:
    """Room for the scales that are not given: of each `group` of a row of x, or with 0 of all."""
    if scale is not None:
        shape: tuple[int, ...] = (0,)
    else:
        shape = (*x.shape[:-1], x.shape[-1] // group) if group else (1,)
    return torch.empty(shape, dtype=torch.float32, device=x.device)


# --- the operator --------------------------------------------------------------------------------


def reference(
    x: Tensor,
    y: Tensor | None,
    weight: Tensor | None,
    scale: Tensor | None,
    eps: float,
    offset: float,
    middle: torch.dtype,
    group: int,
    top: float,
    low: float,
    least: float,
    most: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """The RMSNorm n of x, or of x + y, in steps of a scale; the scales; and x + y.

    n is that of `pypm.kernels.norm.reference`, rounded to `middle`. The result, of x's shape, is
    n / scale between `least` and `most`, rounded to `dtype`. Where no `scale` of one element is
    given, that of each `group` in a row is max(largest magnitude, low) / top, in float32
    [..., groups]; with 0 for the group it is that of all rows, [1]. What is not asked for is empty.
    """
    n, total = norm_reference(x, y, weight, None, eps, offset, False, middle)
    q, scales = quantized(n, scale, group, top, low, least, most, dtype)
    return q, scales, x.new_empty(0, dtype=total.dtype) if y is None else total


def quantized(
    n: Tensor,
    scale: Tensor | None,
    group: int,
    top: float,
    low: float,
    least: float,
    most: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """What `reference` says of n: n in steps of a scale, and the scales."""
    z = n.to(torch.promote_types(n.dtype, torch.float32)).unflatten(-1, (-1, group or n.shape[-1]))
    if scale is None:
        largest = z.abs().amax(-1, keepdim=True) if group else z.abs().amax()
        step = largest.clamp(min=low) / top
        scales = step.squeeze(-1) if group else step.reshape(1)
    else:
        step, scales = scale.to(z), n.new_empty(0)
    q = (z / step).clamp(least, most)
    q = (q if dtype.is_floating_point else q.round()).to(dtype)
    return q.flatten(-2), scales.to(torch.float32)


quantized_norm = custom_operator("pypm::quantized_norm", reference, outputs=empty, launch=launch)
