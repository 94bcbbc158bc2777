"""Activations, gated or not, quantized to eight bits in the same pass: float8 (e4m3) and int8.

The kernel is bound by memory: for each element of a gate in bfloat16, it reads two values and
writes half of one. Separate kernels write one more and read it, twice if the scale is that of a row
or of groups. Gate and up may be halves of one projection, without a copy. On CPUs there is no
kernel, and `reference` runs.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from pypm.kernels.gated import unknown
from pypm.kernels.gated import unsupported as unsupported_operands
from pypm.kernels.quantized import (
    eight_bits,
    empty_scales,
    in_steps,
    no_groups,
    quantized,
    triton_types,
)
from pypm.kernels.quantized import misfit as misfit_of_rows
from pypm.kernels.support import pointwise
from pypm.kernels.support.activations import ACTIVATIONS
from pypm.kernels.support.layouts import rows
from pypm.kernels.support.registration import custom_operator
from pypm.kernels.support.triton import LONGEST_ROW, jit, missing, tl, triton

__all__ = ["BLOCK", "held", "kernel", "launch", "quantized_activation", "reference", "unsupported"]

BLOCK: Final = 1024
"""Elements of a row that one program holds, unless a group is longer."""


def unsupported(
    group: int, dtype: torch.dtype, gate: Tensor, up: Tensor | None, scale: Tensor | None
) -> str | None:
    """Return why the kernel does not take these operands in groups of `group` elements; or None.

    The length of a row must be known.
    """
    if not gate.shape[-1]:
        return "the rows have no elements"
    if scale is None and not 0 < group <= LONGEST_ROW:
        return f"the kernel has groups of up to {LONGEST_ROW} elements"
    reason = no_groups(group, dtype, gate.shape[-1])
    return reason or unsupported_operands(gate, gate if up is None else up) or missing(scale)


# --- on GPUs -------------------------------------------------------------------------------------


@jit
def kernel(
    gate, up, scale, out, scales, columns, gate_stride, up_stride, top, low, least, most,
    activation: tl.constexpr, middle: tl.constexpr, rounds: tl.constexpr, group: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """Compute a row, or a block of it that consists of whole groups, for each program."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * block + tl.arange(0, block)
    inside = at < columns
    n = tl.load(gate + row * gate_stride + at, mask=inside, other=0.0).to(tl.float32)
    n = activation(n)
    if up is not None:
        n *= tl.load(up + row * up_stride + at, mask=inside, other=0.0).to(tl.float32)
    n = tl.reshape(n.to(middle).to(tl.float32), (block // group, group))
    if scale is not None:
        step = tl.load(scale).to(tl.float32)
    else:
        count = (columns + group - 1) // group
        groups = tl.program_id(1) * (block // group) + tl.arange(0, block // group)
        step = in_steps(n, scales + row * count, groups, count, top, low)
    q = eight_bits(n / step, least, most, rounds)
    tl.store(out + row * columns + at, tl.reshape(q, (block,)).to(out.dtype.element_ty), inside)


def held(columns: int, group: int, given: bool) -> dict[str, int]:
    """Return the sizes of a group and of a program's block, and the number of warps."""
    if given:
        group = BLOCK
    elif group == columns:
        group = triton.next_power_of_2(columns)
    block = max(group, BLOCK)
    return {"group": group, "block": block, "num_warps": min(max(block // 512, 4), 16)}


def launch(
    gate: Tensor,
    up: Tensor | None,
    scale: Tensor | None,
    activation: str,
    middle: torch.dtype,
    group: int,
    top: float,
    low: float,
    least: float,
    most: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return what `reference` returns, by the kernel."""
    out, scales = empty(gate, scale, group, dtype)
    columns = gate.shape[-1]
    if not out.numel():
        return out, scales
    gate, up = rows(gate), None if up is None else rows(up)
    sizes, function = held(columns, group, scale is not None), pointwise.activation(activation)
    kernel[(gate.shape[0], -(-columns // sizes["block"]))](
        gate, up, scale, out, scales, columns, gate.stride(0),
        0 if up is None else up.stride(0), top, low, least, most, activation=function,
        middle=triton_types()[middle], rounds=not dtype.is_floating_point, **sizes,
    )  # fmt: skip
    return out, scales


def empty(
    gate: Tensor, scale: Tensor | None, group: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    out = torch.empty(gate.shape, dtype=dtype, device=gate.device)
    return out, empty_scales(gate, scale, group)


# --- the operator --------------------------------------------------------------------------------


def reference(
    gate: Tensor,
    up: Tensor | None,
    scale: Tensor | None,
    activation: str,
    middle: torch.dtype,
    group: int,
    top: float,
    low: float,
    least: float,
    most: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Return activation(gate), times up if it is given, in steps of a scale; and the scales.

    Gate and up are [..., columns]; their product is computed in float32 or wider and rounded to
    `middle`. `pypm.kernels.quantized.reference` describes the other arguments; `group` is above 0.
    """
    wide = torch.promote_types(gate.dtype, torch.float32)
    n = ACTIVATIONS[activation].torch(gate.to(wide))
    n = n if up is None else n * up.to(wide)
    q, scales = quantized(n.to(middle), scale, group, top, low, least, most, dtype)
    return q.contiguous(), scales.contiguous()


def misfit(
    gate: Tensor, scale: Tensor | None, activation: str, group: int, dtype: torch.dtype
) -> str | None:
    """Return why no rows of an activation are quantized in such groups, or None."""
    if group <= 0:
        return f"`group` is {group}; it must be above 0, and divide the columns"
    return unknown(activation) or misfit_of_rows(gate, scale, group, dtype)


quantized_activation = custom_operator(
    "pypm::quantized_activation",
    reference,
    outputs=empty,
    operands={
        "gate": "[*rows, columns] T",
        "up": "[*rows, columns] T?",
        "scale": "[*] float?",
    },
    requires=misfit,
    launch=launch,
)
