"""Linear recurrences h = a_t * h + b_t over the first dimension, as one operator.

A loop in Python leaves two operators and two views for every step in a graph, and a compiler takes
time for each of them. This operator is one node. On CPUs, float32 and float64 are computed in C++,
piece by piece through all steps; on GPUs, one kernel keeps the states in registers, in float32.
Elsewhere, each step is one call of `addcmul`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from pypm.kernels.support import native
from pypm.kernels.support.registration import Gradients, Needed, Saved, custom_operator
from pypm.kernels.support.steps import States, over_steps
from pypm.kernels.support.triton import agree, jit, launcher, nothing, tl, triton

__all__ = ["compute", "kernel", "launch", "linear_recurrence", "reference", "stacked", "unroll"]

SOURCE: Final = Path(__file__).with_suffix(".cpp")
NATIVE: Final = (torch.float32, torch.float64)
"""Types of the kernel in C++."""


def reference(a: Tensor, b: Tensor, h: Tensor, reverse: bool) -> Tensor:
    """Return the states h_t = a_t * h_(t-1) + b_t for every t, [steps, ...].

    Arguments:
        a: the factors, [steps, ...]; may be expanded, and is not copied then.
        b: the summands, of the shape and type of a.
        h: the state before the first step, [...], of the type of a.
        reverse: True to begin with the last step: h_t = a_t * h_(t+1) + b_t.
    """

    def step(states: States, factor: Tensor, summand: Tensor) -> tuple[Tensor, States]:
        after = torch.addcmul(summand, factor, states[0])
        return after, (after,)

    items = (a.flip(0), b.flip(0)) if reverse else (a, b)
    found, _ = over_steps(step, (h,), *items)
    return found.flip(0) if reverse else found


def stacked(items: Sequence[Tensor], like: Tensor, shape: Sequence[int] | None = None) -> Tensor:
    """Return the items of all steps as one tensor.

    If there are none, the result is zeros of the shape that is given, or of that of `like`.
    """
    return (
        torch.stack([*items]) if items else like.new_zeros(like.shape if shape is None else shape)
    )


def compute(a: Tensor, b: Tensor, h: Tensor, reverse: bool) -> Tensor:
    """Return what `reference` returns, in C++ where there is a compiler and the type is known."""
    if not_native(b) is not None:
        return reference(a, b, h, reverse)
    found: Tensor = native.operator(SOURCE, "linear_recurrence_native")(a, b, h, reverse)
    return found


def not_native(b: Tensor) -> str | None:
    """Return why the kernel in C++ does not take the operands, or None."""
    return native.unsupported(SOURCE, NATIVE, b)


def empty(b: Tensor) -> Tensor:
    return torch.empty(b.shape, dtype=b.dtype, device=b.device)


# --- on GPUs -------------------------------------------------------------------------------------

BLOCK: Final = 32
"""Elements of the state that a program keeps: one for each thread of a warp."""


@jit
def kernel(
    a, b, h, out, steps, count, rows, columns, a_step, a_plane, a_row, a_column,
    b_step, b_plane, b_row, b_column,
    reverse: tl.constexpr, block: tl.constexpr, unroll: tl.constexpr,
):  # fmt: skip
    """Compute `block` elements through all steps; what `unroll` steps read is loaded at once.

    An element is in a column, a row and a plane, of which each has so many rows and columns.
    """
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = place < count
    column, rest = place % columns, place // columns
    row, plane = rest % rows, rest // rows
    a += plane * a_plane + row * a_row + column * a_column
    b += plane * b_plane + row * b_row + column * b_column
    state = tl.load(h + place, inside, 0.0).to(tl.float32)
    for start in range(0, steps, unroll):
        factors, summands = nothing(), nothing()
        for i in tl.static_range(unroll):
            t = tl.cast(start + i, tl.int64)
            at = steps - 1 - t if reverse else t
            known = inside & (t < steps)
            factors += (tl.load(a + at * a_step, known, 1.0),)
            summands += (tl.load(b + at * b_step, known, 0.0),)
        for i in tl.static_range(unroll):
            t = tl.cast(start + i, tl.int64)
            at = steps - 1 - t if reverse else t
            state = factors[i].to(tl.float32) * state + summands[i].to(tl.float32)
            tl.store(out + at * count + place, state, inside & (t < steps))


def layout(a: Tensor, b: Tensor) -> list[tuple[int, int, int]]:
    """Return size, stride of a and stride of b of each dimension but the first.

    Dimensions are merged where both tensors allow it; the result has one at least.
    """
    merged: list[tuple[int, int, int]] = []
    for found in zip(b.shape[1:], a.stride()[1:], b.stride()[1:], strict=True):
        n, x, y = found
        if n == 1:
            continue
        if merged and merged[-1][1:] == (n * x, n * y):
            found = (merged.pop()[0] * n, x, y)
        merged.append(found)
    return merged or [(1, 1, 1)]


def unroll(programs: int) -> int:
    """Return how many steps are loaded at once: more where few programs wait for memory."""
    return 32 if programs <= 1024 else 16


def launches(b: Tensor) -> bool:
    """Return whether the kernel takes the operands."""
    return agree(b) and b.numel() > 0


def launch(a: Tensor, b: Tensor, h: Tensor, reverse: bool) -> Tensor:
    """Return what `reference` returns, by the kernel; in other types than its own, by `reference`.

    The states are kept in float32, and rounded where they are written.
    """
    if not launches(b):
        return reference(a, b, h, reverse)
    h, out = h.contiguous(), empty(b)
    if len(layout(a, b)) > 3:
        a, b = a.contiguous(), b.contiguous()
    planes, rows, columns = ([(1, 0, 0)] * 2 + layout(a, b))[-3:]
    a_strides, b_strides = (
        (x.stride(0), planes[i], rows[i], columns[i]) for i, x in ((1, a), (2, b))
    )
    count, steps = h.numel(), len(b)
    programs = triton.cdiv(count, BLOCK)
    launcher(kernel)[programs,](
        a, b, h, out, steps, count, rows[0], columns[0], *a_strides, *b_strides,
        reverse, BLOCK, unroll(programs), num_warps=1,
    )  # fmt: skip
    return out


# --- gradients -----------------------------------------------------------------------------------


def saves(inputs: Saved, output: Tensor, needed: Needed) -> Saved:
    """Return the factors, the first state, the states, and the direction."""
    a, _, h, reverse = inputs
    return a, h, output, reverse


def backward(
    a: Tensor, h: Tensor, states: Tensor, reverse: bool, grad: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients: the gradient of a state is itself a recurrence, the other way round.

    g_t = a_(t+1) * g_(t+1) + grad_t; the gradients of a_t, b_t and the first state are
    g_t * h_(t-1), g_t and a_1 * g_1.
    """
    end, first = (slice(-1), slice(-1, None)) if reverse else (slice(1, None), slice(1))
    none = torch.zeros_like(a[:1])
    later = torch.cat((none, a[end]) if reverse else (a[end], none))
    g = linear_recurrence(later, grad, torch.zeros_like(h), not reverse)
    start = h.unsqueeze(0)
    before = torch.cat((states[1:], start) if reverse else (start, states[:-1]))
    return g * before, g, (a[first] * g[first]).sum(0), None  # of no steps: 0


linear_recurrence = custom_operator(
    "pypm::linear_recurrence",
    compute,
    outputs=empty,
    unsupported=not_native,
    operands={"a": "[steps, *rows] T", "b": "[steps, *rows] T", "h": "[*rows] T"},
    launch=launch,
    inlines=launches,
    reference=reference,
    gradients=Gradients(backward, saves),
)
