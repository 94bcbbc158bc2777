"""RMSNorm, also of a sum, quantized to eight bits in the same pass: float8 (e4m3) and int8.

Bound by memory: of a sum in bfloat16, two rows read, one and a half written; separate kernels for
norm and quantization read two rows more and write one more. The scale is that of a row, of groups
of a row, or given. On CPUs there is no kernel: `reference` is what runs there.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from pypm.kernels.gpu import blocks, jit, tl
from pypm.kernels.gpu import unsupported as unsupported_rows
from pypm.kernels.norm import normalized, summed
from pypm.kernels.norm import reference as norm_reference

__all__ = ["EIGHT_BITS", "kernel", "launch", "quantized_norm", "reference", "unsupported"]

EIGHT_BITS: Final = (torch.float8_e4m3fn, torch.int8)


def unsupported(group: int, dtype: torch.dtype, x: Tensor, *others: Tensor | None) -> str | None:
    """Why the kernel does not take rows of `x` in such groups, with what else it reads; or None."""
    if dtype not in EIGHT_BITS:
        return f"the kernel has no {dtype}"
    if group != x.shape[-1] and (group & (group - 1) or x.shape[-1] % group):
        return "the kernel has groups of a power of two"
    return unsupported_rows(x, *others)


# --- on GPUs -------------------------------------------------------------------------------------


@jit
def kernel(
    x, y, weight, scale, out, scales, total, columns, eps, offset, top, low, least, most,
    middle: tl.constexpr, rounds: tl.constexpr, group: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One program a row."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    inside = at < columns
    s = summed(x, y, total, at, inside, row * columns)
    n = normalized(s, weight, None, at, inside, columns, eps, offset, False)
    n = tl.reshape(n.to(middle).to(tl.float32), (block // group, group))
    if scale is None:
        step = tl.maximum(tl.max(tl.abs(n), 1), low) / top
        count = (columns + group - 1) // group
        groups = tl.arange(0, block // group)
        tl.store(scales + row * count + groups, step, mask=groups < count)
        step = step[:, None]
    else:
        step = tl.load(scale).to(tl.float32)
    q = tl.minimum(tl.maximum(n / step, least), most)
    if rounds:
        q = (q + 12582912.0) - 12582912.0  # to the nearest: float32 has no fractions there
    tl.store(out + row * columns + at, tl.reshape(q, (block,)).to(out.dtype.element_ty), inside)


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
    out, scales, total = _empty(x, y, scale, group, dtype)
    columns = x.shape[-1]
    types = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
    held = blocks(columns)
    if x.numel():
        with torch.cuda.device_of(x):
            kernel[(x.numel() // columns,)](
                x.contiguous(), None if y is None else y.contiguous(), weight, scale,
                out, scales, total, columns, eps, offset, top, low, least, most,
                middle=types[middle], rounds=not dtype.is_floating_point,
                group=held["block"] if group == columns else group, **held,
            )  # fmt: skip
    return out, scales, total


def _empty(
    x: Tensor, y: Tensor | None, scale: Tensor | None, group: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    groups = (*x.shape[:-1], x.shape[-1] // group) if scale is None else (0,)
    kind = x.dtype if y is None else torch.promote_types(x.dtype, y.dtype)
    return (
        torch.empty(x.shape, dtype=dtype, device=x.device),
        torch.empty(groups, dtype=torch.float32, device=x.device),
        torch.empty((0,) if y is None else x.shape, dtype=kind, device=x.device),
    )


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
    [..., groups]. What is not asked for is empty.
    """
    n, total = norm_reference(x, y, weight, None, eps, offset, False, middle)
    z = n.to(torch.promote_types(middle, torch.float32)).unflatten(-1, (-1, group))
    step = z.abs().amax(-1, keepdim=True).clamp(min=low) / top if scale is None else scale.to(z)
    q = (z / step).clamp(least, most)
    q = (q if dtype.is_floating_point else q.round()).to(dtype).flatten(-2)
    scales = x.new_empty(0) if scale is not None else step.squeeze(-1)
    return q, scales.to(torch.float32), x.new_empty(0, dtype=total.dtype) if y is None else total


@torch.library.custom_op("pypm::quantized_norm", mutates_args=())
def quantized_norm(
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
    """As `reference`."""
    return reference(x, y, weight, scale, eps, offset, middle, group, top, low, least, most, dtype)


quantized_norm.register_kernel("cuda")(launch)


@quantized_norm.register_fake
def _(
    x: Tensor, y: Tensor | None, weight: Tensor | None, scale: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty(x, y, scale, rest[3], rest[-1])
