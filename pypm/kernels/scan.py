"""Linear recurrences h = a_t * h + b_t over rows, each state read by a vector, as one operator.

Mamba's selective scan is one: factors and summands differ in each element of a state, so that
`pypm::linear_attention` does not compute it, and only products of the states are used. Float32 and
float64 are computed in C++ on CPUs, float32 and narrower types by one kernel on GPUs: they write no
states but the last one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor

from pypm.fx import known_to_hold
from pypm.kernels import recurrence
from pypm.kernels.support import native
from pypm.kernels.support.devices import on_cpu
from pypm.kernels.support.registration import Gradients, custom_operator
from pypm.kernels.support.steps import States, over_steps
from pypm.kernels.support.triton import agree, jit, launcher, missing, nothing, tl, triton

__all__ = ["ScanBlock", "block", "compute", "kernel", "launch", "reference", "scan", "unsupported"]

SOURCE: Final = Path(__file__).with_suffix(".cpp")
NATIVE: Final = (torch.float32, torch.float64)
"""Types of the kernel in C++."""


def reference(a: Tensor, b: Tensor, c: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Return the results `h_t @ c_t`, [steps, batch, rows], and the last state, for all steps.

    Arguments:
        a: the factors of the states before, [steps, batch, rows, n]; may be expanded.
        b: the summands, of the same shape.
        c: the vectors that read the states, [steps, batch, n].
        h: the state before the first step, [batch, rows, n].
    """

    def step(states: States, a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, States]:
        after = torch.addcmul(b, a, states[0])
        return _read(after, c), (after,)

    results, (last,) = over_steps(step, (h,), a, b, c)
    return results if b.shape[0] else b.new_zeros(b.shape[:-1]), last.clone()


def _read(states: Tensor, vectors: Tensor) -> Tensor:
    return (states @ vectors.unsqueeze(-1)).squeeze(-1)


def compute(a: Tensor, b: Tensor, c: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `reference` returns, in C++ where there is a compiler and the type is known."""
    if not_native(b) is not None:
        return reference(a, b, c, h)
    found: tuple[Tensor, Tensor] = native.operator(SOURCE, "scan_native")(a, b, c, h)
    return found


def not_native(b: Tensor) -> str | None:
    """Return why the kernel in C++ does not take the operands, or None."""
    return native.unsupported(SOURCE, NATIVE, b)


# --- on GPUs -------------------------------------------------------------------------------------

WIDEST: Final = 128
"""Most elements of a row that a program keeps in registers."""


def unsupported(b: Tensor, n: int | torch.SymInt) -> str | None:
    """Return why rows of `n` elements, of the type and the device of b, have no kernel; or None."""
    if on_cpu(b):
        return None if b.dtype in NATIVE else "the kernel for CPUs takes float32 and float64"
    if not known_to_hold(operator.le, n, WIDEST):
        return f"the kernel for GPUs takes rows of up to {WIDEST} elements"
    return missing(b)


class ScanBlock(NamedTuple):
    """The rows of a program, elements of a row with those that are masked, steps loaded at once."""

    rows: int
    width: int
    unroll: int


def block(rows: int, n: int) -> ScanBlock:
    """Return the block for so many rows of n elements: four elements a thread, if they have them.

    It is built for Hopper without spilled registers.
    """
    width = triton.next_power_of_2(n)
    most = triton.next_power_of_2(rows)
    return ScanBlock(min(max(128 // width, 1), most), width, 8)


@jit
def kernel(
    a, b, c, h, results, last, steps, batch, rows, n, a_step, a_batch, a_row, a_column,
    b_step, b_batch, b_row, b_column, c_step, c_batch, c_column,
    block: tl.constexpr, width: tl.constexpr, unroll: tl.constexpr,
):  # fmt: skip
    """Compute `block` rows through all steps; what `unroll` steps read is loaded at once.

    Each row loads the vector that reads it for itself, so that nothing moves between threads.
    """
    blocks = tl.cdiv(rows, block)
    group = (tl.program_id(0) // blocks).to(tl.int64)
    row = (tl.program_id(0) % blocks).to(tl.int64) * block + tl.arange(0, block)
    column = tl.arange(0, width)
    in_rows = row < rows
    inside = in_rows[:, None] & (column < n)[None, :]
    a += group * a_batch + row[:, None] * a_row + column[None, :] * a_column
    b += group * b_batch + row[:, None] * b_row + column[None, :] * b_column
    c += group * c_batch + tl.broadcast_to(column[None, :] * c_column, (block, width))
    place = group * rows + row
    places = place[:, None] * n + column[None, :]
    state = tl.load(h + places, inside, 0.0).to(tl.float32)
    for start in range(0, steps, unroll):
        factors, summands, vectors = nothing(), nothing(), nothing()
        for i in tl.static_range(unroll):
            t = tl.cast(start + i, tl.int64)
            known = inside & (t < steps)
            factors += (tl.load(a + t * a_step, known, 1.0),)
            summands += (tl.load(b + t * b_step, known, 0.0),)
            vectors += (tl.load(c + t * c_step, known, 0.0),)
        for i in tl.static_range(unroll):
            t = tl.cast(start + i, tl.int64)
            state = factors[i].to(tl.float32) * state + summands[i].to(tl.float32)
            sums = tl.sum(state * vectors[i].to(tl.float32), 1)
            tl.store(results + t * batch * rows + place, sums, in_rows & (t < steps))
    tl.store(last + places, state, inside)


def launches(b: Tensor) -> bool:
    """Return whether the kernel takes the operands."""
    return agree(b) and b.numel() > 0 and b.shape[-1] <= WIDEST


def launch(a: Tensor, b: Tensor, c: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `reference` returns, by the kernel; what it does not take, by `reference`.

    The states are kept in float32.
    """
    steps, batch, rows, n = b.shape
    if not launches(b):
        return reference(a, b, c, h)
    results, last = outputs(b, h)
    at = block(rows, n)
    launcher(kernel)[batch * triton.cdiv(rows, at.rows),](
        a, b, c, h.contiguous(), results, last, steps, batch, rows, n,
        *a.stride(), *b.stride(), *c.stride(), *at, num_warps=1,
    )  # fmt: skip
    return results, last


# --- the operator --------------------------------------------------------------------------------


def outputs(b: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    return b.new_empty(b.shape[:-1]), h.new_empty(h.shape)


def backward(
    a: Tensor, b: Tensor, c: Tensor, h: Tensor, arriving: Tensor, grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the inputs, from these and the gradients that arrive.

    The states are computed again.
    """
    states = recurrence.linear_recurrence(a, b, h, False)
    to_states = arriving.unsqueeze(-1) * c.unsqueeze(-2)
    to_states = torch.cat((to_states[:-1], to_states[-1:] + grad))
    to_a, to_b, to_h, _ = recurrence.backward(a, h, states, False, to_states)
    return to_a, to_b, _read(states.mT, arriving), to_h if len(b) else grad


def flops(a: Sequence[int], b: Sequence[int], *others: object, **options: object) -> int:
    return 2 * math.prod(b)


scan = custom_operator(
    "pypm::scan",
    compute,
    outputs=outputs,
    unsupported=not_native,
    operands={
        "a": "[steps, batch, rows, n] T",
        "b": "[steps, batch, rows, n] T",
        "c": "[steps, batch, n] T",
        "h": "[batch, rows, n] T",
    },
    launch=launch,
    inlines=launches,
    reference=reference,
    gradients=Gradients(backward),
    flops=flops,
)
