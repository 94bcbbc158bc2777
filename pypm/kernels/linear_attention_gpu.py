"""Linear attention over all steps on GPUs: a program keeps some columns of a state in registers.

The columns of a state do not depend on each other, as keys and queries sum over its rows.
"""

from __future__ import annotations

import operator
from typing import Final, NamedTuple

import torch
from torch import Tensor

from pypm.fx import known_to_hold
from pypm.kernels.support.layouts import packed
from pypm.kernels.support.triton import jit, launcher, missing, nothing, tl, triton

__all__ = ["LARGEST_KEY", "StateBlock", "block", "kernel", "launch", "unsupported"]

LARGEST_KEY: Final = 256
"""Most elements of a key: so many rows of a state."""


def unsupported(like: Tensor, dtype: torch.dtype, n: int | torch.SymInt) -> str | None:
    """Return why the kernel does not take keys of `n` elements of a type, on a device; or None."""
    if not known_to_hold(operator.le, n, LARGEST_KEY):
        return f"the kernel takes keys of up to {LARGEST_KEY} elements"
    return missing(like, dtype=dtype)


class StateBlock(NamedTuple):
    """Rows of a state with those that are masked, columns of a program, steps loaded at once."""

    rows: int
    columns: int
    unroll: int


def block(n: int, m: int) -> StateBlock:
    """Return the block for states of n rows and m columns: at most 64 elements for each thread.

    All rows are in one warp, so that sums over them wait for no other. It is the largest of those
    tried that is built for Hopper without spilled registers.
    """
    rows = triton.next_power_of_2(n)
    columns = min(max(1024 // rows, 8), 32)
    return StateBlock(rows, min(columns, triton.next_power_of_2(m)), min(512 // rows, 8))


@jit
def item(x, t, steps, step, by_row, row, place, inside):
    """Return what step t has of a row; of None anything, as Triton 3.6 has no tuples with None."""
    found = inside
    if x is not None:
        at = x + tl.cast(t, tl.int64) * step + row * by_row + place
        found = tl.load(at, inside & (t < steps), 0.0)
    return found


@jit
def advanced(state, decay, key, value, removed, rate):
    """Return the state after a step, from the one before, in float32."""
    state *= decay.to(tl.float32)[:, None]
    value = value.to(tl.float32)
    if removed is not None:
        value -= tl.sum(state * removed.to(tl.float32)[:, None], 0)
    if rate is not None:
        value *= rate.to(tl.float32)
    return state + key.to(tl.float32)[:, None] * value[None, :]


@jit
def kernel(
    decay, keys, values, queries, removed, rates, state, results, last, steps, rows, n, m,
    decay_step, decay_row, keys_step, keys_row, values_step, values_row, queries_step, queries_row,
    removed_step, removed_row, rates_step, rates_row,
    wide: tl.constexpr, block: tl.constexpr, unroll: tl.constexpr,
):  # fmt: skip
    """Compute `block` columns of the state of a row; what `unroll` steps read is loaded at once."""
    blocks = tl.cdiv(m, block)
    row = (tl.program_id(0) // blocks).to(tl.int64)
    down = tl.arange(0, wide)
    across = (tl.program_id(0) % blocks) * block + tl.arange(0, block)
    in_down, in_across = down < n, across < m
    inside = in_down[:, None] & in_across[None, :]
    places = (row * n + down[:, None]) * m + across[None, :]
    held = tl.load(state + places, inside, 0.0).to(tl.float32)
    for start in range(0, steps, unroll):
        items = nothing()
        for i in tl.static_range(unroll):
            t = start + i
            items += ((
                item(decay, t, steps, decay_step, decay_row, row, down, in_down),
                item(keys, t, steps, keys_step, keys_row, row, down, in_down),
                item(values, t, steps, values_step, values_row, row, across, in_across),
                item(removed, t, steps, removed_step, removed_row, row, down, in_down),
                item(rates, t, steps, rates_step, rates_row, row, across, in_across),
                item(queries, t, steps, queries_step, queries_row, row, down, in_down),
            ),)  # fmt: skip
        for i in tl.static_range(unroll):
            t = start + i
            if t < steps:
                factor, key, value, read, rate, query = items[i]
                read = read if removed is not None else None
                rate = rate if rates is not None else None
                held = advanced(held, factor, key, value, read, rate)
                if queries is not None:
                    result = tl.sum(held * query.to(tl.float32)[:, None], 0)
                    at = (tl.cast(t, tl.int64) * rows + row) * m + across
                    tl.store(results + at, result, in_across)
    tl.store(last + places, held, inside)


def launch(
    given: tuple[Tensor | None, ...], state: Tensor, results: Tensor, last: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the results and the last state into tensors for them, and return these.

    Arguments:
        given: decay, keys, values, queries, removed and rates, as of the operator.
        state: the state before the first step, [rows, n, m].
        results, last: contiguous; there are no results without queries.
    """
    held = [None if x is None else packed(x) for x in given]
    strides = [n for x in held for n in ((0, 0) if x is None else x.stride()[:2])]
    rows, n, m = state.shape
    at = block(n, m)
    steps = next(len(x) for x in held if x is not None)
    launcher(kernel)[rows * triton.cdiv(m, at.columns),](
        *held, state.contiguous(), results, last, steps, rows, n, m, *strides, *at, num_warps=1
    )
    return results, last
