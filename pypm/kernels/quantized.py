"""RMSNorm, also of a sum, quantized to eight bits in the same pass: float8 (e4m3) and int8.

The kernels are bound by memory. Separate kernels for norm and quantization of a sum read two rows
more and write one more. Bytes moved for each element in bfloat16:

    scale              sum   this kernel   separate kernels   torch.compile
    of the tensor       no             5                  9               7
    of rows or groups  yes             7                 13

The scale is given, or that of a row, of groups of a row, or of the whole tensor. The last needs two
passes: the first finds the scale and writes only the sum, the second computes the norm again. On
CPUs the norm of a sum to int8, with a scale for each row, is computed in C++ where there is a
compiler; else `reference` runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from pypm.fx import same_size
from pypm.kernels.norm import normalized, summed
from pypm.kernels.norm import reference as norm_reference
from pypm.kernels.support import native
from pypm.kernels.support.registration import custom_operator
from pypm.kernels.support.triton import blocks, jit, tl
from pypm.kernels.support.triton import unsupported as unsupported_rows

__all__ = [
    "compute", "eight_bits", "empty_scales", "in_steps", "kernel", "largest_kernel", "launch",
    "no_groups", "quantized", "quantized_norm", "reference", "triton_types", "unsupported",
    "unsupported_on_cpus",
]  # fmt: skip

EIGHT_BITS: Final = (torch.float8_e4m3fn, torch.int8)


def unsupported(group: int, dtype: torch.dtype, x: Tensor, *others: Tensor | None) -> str | None:
    """Return why the kernel does not take rows of `x` in groups of `group` elements; or None."""
    return no_groups(group, dtype, x.shape[-1]) or unsupported_rows(x, *others)


def unsupported_on_cpus(
    x: Tensor,
    y: Tensor | None,
    weight: Tensor | None,
    scale: Tensor | None,
    middle: torch.dtype,
    group: int,
    dtype: torch.dtype,
) -> str | None:
    """Return why the kernel in C++ does not take these arguments of `reference`; or None."""
    operands = [n for n in (x, y, weight) if n is not None]
    by_rows = group != 0 and same_size(group, x.shape[-1])
    if y is None or scale is not None or not by_rows or dtype != torch.int8:
        return "the kernel in C++ is for sums, to int8, with a scale for each row"
    if x.dtype not in NATIVE or middle != x.dtype or any(n.dtype != x.dtype for n in operands):
        return "the kernel in C++ is for float32 and float64"
    if any(n.device.type != "cpu" for n in operands) or native.library(SOURCE) is None:
        return "the kernel in C++ is for CPUs, and needs a compiler"
    return None


def no_groups(group: int, dtype: torch.dtype, columns: int) -> str | None:
    """Return why kernels do not quantize rows of `columns` elements in such groups to `dtype`; or
    None.
    """
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
    """Return the scale for magnitudes up to `largest`; NaN for NaN, as in torch."""
    return larger(largest, low) / top


@jit
def largest_bits(n, axis: tl.constexpr):
    """Return the largest magnitude as the bits of a float32, which sort alike, with NaN on top."""
    return tl.max(tl.abs(n).to(tl.int32, bitcast=True), axis)


@jit
def in_steps(n, scales, at, count, top, low):
    """Return [groups, group] divided by the groups' steps, which are stored to `scales`."""
    step = step_of(largest_bits(n, 1).to(tl.float32, bitcast=True), top, low)
    tl.store(scales + at, step, mask=at < count)
    return step[:, None]


@jit
def eight_bits(q, least, most, rounds: tl.constexpr):
    """Return q in [least, most], for int8 to nearest: float32 has no fractions there."""
    q = tl.minimum(larger(q, least), most, propagate_nan=tl.PropagateNan.ALL)
    return (q + 12582912.0) - 12582912.0 if rounds else q


@jit
def kernel(
    x, y, weight, scale, largest, out, scales, total, columns, eps, offset, top, low, least, most,
    middle: tl.constexpr, rounds: tl.constexpr, group: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Compute one row for each program."""
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
    """Store the largest magnitude of all rows, as bits."""
    row = tl.program_id(0).to(tl.int64) * columns
    at = tl.arange(0, block)
    inside = at < columns
    s = summed(x, y, total, at, inside, row)
    n = normalized(s, weight, None, at, inside, columns, eps, offset, False)
    tl.atomic_max(largest, largest_bits(n.to(middle).to(tl.float32), 0))


def triton_types() -> dict[torch.dtype, object]:
    """Return Triton's names of the types in which kernels compute."""
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
    """Return what `reference` returns, by the kernel."""
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
    """Return an uninitialized tensor for the scales: of each `group` of a row of x, or with 0 of
    all.
    """
    if scale is not None:
        shape: tuple[int, ...] = (0,)
    else:
        shape = (*x.shape[:-1], x.shape[-1] // group) if group else (1,)
    return torch.empty(shape, dtype=torch.float32, device=x.device)


# --- on CPUs -------------------------------------------------------------------------------------

SOURCE: Final = Path(__file__).with_suffix(".cpp")
NATIVE: Final = {torch.float32: "add_norm_float32", torch.float64: "add_norm_float64"}
"""Functions of the library by the type."""


def compute(
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
    """Return what `reference` returns, in C++ where it can be."""
    if y is None or unsupported_on_cpus(x, y, weight, scale, middle, group, dtype) is not None:
        return reference(
            x, y, weight, scale, eps, offset, middle, group, top, low, least, most, dtype
        )
    out, scales, total = empty(x, y, scale, group, dtype)
    library, columns = native.library(SOURCE), x.shape[-1]
    assert library is not None
    kernel = library[NATIVE[x.dtype]]
    w = x.new_full((columns,), 1.0 - offset) if weight is None else weight.contiguous()
    x, y = x.contiguous(), y.contiguous()
    numbers = [float(n) for n in (eps, offset, top, low, least, most)]
    given = native.arguments((x, y, w, out, scales, total, *numbers, columns))

    def work(first: int, after: int) -> None:
        kernel(*given, *native.arguments((first, after)))

    native.in_parts(work, scales.numel(), x.numel())
    return out, scales, total


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
    """Return the RMSNorm n of x + y (of x without y) in steps of a scale, the scales, and x + y.

    Arguments:
        x: [..., columns].
        y: of the shape of x, or None.
        weight: [columns], or None for ones.
        scale: one element; if None, the scales are computed.
        eps: added to the mean square.
        offset: added to the weight.
        middle: the type to which n is rounded.
        group: elements of a row that share a scale; 0 for one scale of all rows.
        top: the largest value in steps; a computed scale is max(largest magnitude, low) / top.
        low: the smallest magnitude for which a scale is computed.
        least: the lowest value in steps.
        most: the highest value in steps.
        dtype: the type of the result: float8_e4m3fn or int8.

    n is that of `pypm.kernels.norm.reference`. The result has the shape of x: n / scale, clamped to
    [least, most] and rounded to `dtype`. Computed scales are float32 [..., groups], or [1] if
    `group` is 0. Scales that are given, and x + y without y, are returned empty.
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
    """Return n in steps of a scale, and the scales, as `reference` describes them."""
    z = n.to(torch.promote_types(n.dtype, torch.float32)).unflatten(-1, (-1, group or n.shape[-1]))
    if scale is None:
        largest = z.abs().amax(-1, keepdim=True) if group else z.abs().amax()
        step = largest.clamp(min=low) / top
        scales = step.squeeze(-1) if group else step.reshape(1)
    else:
        step, scales = scale.to(z).reshape(()), n.new_empty(0)
    q = (z / step).clamp(least, most)
    q = (q if dtype.is_floating_point else q.round()).to(dtype)
    return q.flatten(-2), scales.to(torch.float32)


def misfit(x: Tensor, scale: Tensor | None, group: int, dtype: torch.dtype) -> str | None:
    """Return why no rows of x are quantized in such groups, or None."""
    columns = x.shape[-1]
    if dtype not in EIGHT_BITS:
        return f"`dtype` is {dtype}; it must be {' or '.join(map(str, EIGHT_BITS))}"
    if not columns or group < 0 or (group and columns % group):
        return f"`group` is {group} and `x` has {columns} columns; it must divide them, or be 0"
    if scale is None and not group and not x.numel():
        return "`x` is empty, so that it has no largest element; give `scale`, or `group` above 0"
    if scale is not None and scale.numel() != 1:
        return f"`scale` has the sizes {list(scale.shape)}; it must have one element"
    return None


quantized_norm = custom_operator(
    "pypm::quantized_norm",
    compute,
    outputs=empty,
    operands={
        "x": "[*rows, columns] float",
        "y": "[*rows, columns] float?",
        "weight": "[columns] float?",
        "scale": "[*] float?",
    },
    requires=misfit,
    launch=launch,
    reference=reference,
)
