"""Linear attention with decay, also by the delta rule, as one operator for all steps.

A state is a matrix. Each step adds the outer product of a key and a value to it, and reads it by a
query. A loop in Python leaves a dozen operators for every step in a graph. Float32 and float64 are
computed in C++ on CPUs, where the state stays in the caches, float32 and narrower types by one
kernel on GPUs, where it stays in registers; others by a loop over the steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from pypm.kernels import linear_attention_gpu as gpu
from pypm.kernels import recurrence
from pypm.kernels.support import native
from pypm.kernels.support.devices import on_cpu
from pypm.kernels.support.registration import Gradients, custom_operator
from pypm.kernels.support.steps import States, over_steps
from pypm.kernels.support.triton import agree

__all__ = ["compute", "launch", "linear_attention", "reference", "unsupported"]

SOURCE: Final = Path(__file__).with_suffix(".cpp")
NATIVE: Final = (torch.float32, torch.float64)
"""Types of the kernel in C++."""


def unsupported(like: Tensor, dtype: torch.dtype, n: int | torch.SymInt) -> str | None:
    """Return why there is no kernel for keys of `n` elements of a type, on a device; or None."""
    if on_cpu(like):
        return None if dtype in NATIVE else "the kernel for CPUs takes float32 and float64"
    return gpu.unsupported(like, dtype, n)


def reference(
    decay: Tensor,
    keys: Tensor,
    values: Tensor,
    queries: Tensor | None,
    removed: Tensor | None,
    rates: Tensor | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the results, [steps, rows, m], and the state after the last step, [rows, n, m].

    A step computes `S = decay[:, None] * S + key[:, None] * value`, and the result `query @ S`.

    Arguments:
        decay: the factors of the rows of the state, [steps, rows, n].
        keys: [steps, rows, n].
        values: [steps, rows, m].
        queries: [steps, rows, n]; None if no results are read: there are 0 then.
        removed: for the delta rule, the keys by which the decayed state is read, [steps, rows, n];
            its value there is subtracted from the value of the step before that is added.
        rates: for the delta rule, factors of the difference, [steps, rows, m]; None for 1.
        state: the state before the first step, [rows, n, m].
    """
    given = queries, removed, rates

    def step(states: States, *items: Tensor) -> tuple[Tensor, States]:
        decay, key, value, *others = items
        rest = iter(others)
        query, read, rate = (None if x is None else next(rest) for x in given)
        state, _ = _advanced(decay, key, value, read, rate, *states)
        return value if query is None else _read(state, query), (state,)

    items = (decay, keys, values, *(x for x in given if x is not None))
    results, (last,) = over_steps(step, (state,), *items)
    if queries is None or not keys.shape[0]:
        results = values.new_zeros((0, *values.shape[1:]))
    return results, last.clone()


def _item(x: Tensor | None, t: int) -> Tensor | None:
    return None if x is None else x[t]


def _advanced(
    decay: Tensor,
    key: Tensor,
    value: Tensor,
    removed: Tensor | None,
    rate: Tensor | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the state after a step, from the one before, and what is added for its key."""
    state = decay.unsqueeze(-1) * state
    if removed is not None:
        value = value - _read(state, removed)
        value = value if rate is None else rate * value
    return state + _outer(key, value), value


def _read(state: Tensor, vector: Tensor) -> Tensor:
    return (vector.unsqueeze(-2) @ state).squeeze(-2)


def _outer(column: Tensor, row: Tensor) -> Tensor:
    return column.unsqueeze(-1) * row.unsqueeze(-2)


def compute(
    decay: Tensor,
    keys: Tensor,
    values: Tensor,
    queries: Tensor | None,
    removed: Tensor | None,
    rates: Tensor | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return what `reference` returns, in C++ where there is a compiler and the type is known."""
    given = (decay, keys, values, queries, removed, rates, state)
    if not_native(state) is not None:
        return reference(*given)
    found: tuple[Tensor, Tensor] = native.operator(SOURCE, "linear_attention_native")(*given)
    return found


def not_native(state: Tensor) -> str | None:
    """Return why the kernel in C++ does not take the operands, or None."""
    return native.unsupported(SOURCE, NATIVE, state)


def launches(keys: Tensor, state: Tensor) -> bool:
    """Return whether the kernel for GPUs takes the operands."""
    held = state.numel() > 0 and len(keys) > 0 and state.shape[1] <= gpu.LARGEST_KEY
    return held and agree(state)


def launch(
    decay: Tensor,
    keys: Tensor,
    values: Tensor,
    queries: Tensor | None,
    removed: Tensor | None,
    rates: Tensor | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return what `reference` returns, by a kernel; what it does not take, by `reference`.

    The state is kept in float32.
    """
    given = (decay, keys, values, queries, removed, rates)
    if not launches(keys, state):
        return reference(*given, state)
    return gpu.launch(given, state, *outputs(values, queries, state))


def outputs(values: Tensor, queries: Tensor | None, state: Tensor) -> tuple[Tensor, Tensor]:
    steps = 0 if queries is None else len(values)
    return values.new_empty((steps, *values.shape[1:])), state.new_empty(state.shape)


# --- gradients -----------------------------------------------------------------------------------


def backward_compute(
    decay: Tensor,
    keys: Tensor,
    values: Tensor,
    queries: Tensor | None,
    removed: Tensor | None,
    rates: Tensor | None,
    state: Tensor,
    arriving: Tensor,
    grad: Tensor,
) -> list[Tensor]:
    """Return the gradients of the arguments of `compute` that are not None, in their order.

    `arriving` and `grad` are those that arrive at the results and at the last state.
    """
    given = (decay, keys, values, queries, removed, rates)
    found: list[list[Tensor]] = [[] for _ in given]
    to_decay, to_keys, to_values, to_queries, to_removed, to_rates = found
    states, added = [state], []
    for t in range(len(keys)):
        read, rate = _item(removed, t), _item(rates, t)
        state, value = _advanced(decay[t], keys[t], values[t], read, rate, state)
        states.append(state)
        added.append(value)
    for t in reversed(range(len(keys))):
        before, after = states[t : t + 2]
        if queries is not None:
            to_queries.append(_read(after.mT, arriving[t]))
            grad = grad + _outer(queries[t], arriving[t])
        to_keys.append(_read(grad.mT, added[t]))
        to_value = _read(grad, keys[t])
        factor = decay[t].unsqueeze(-1)
        if removed is not None:
            decayed = factor * before
            if rates is not None:
                to_rates.append(to_value * (values[t] - _read(decayed, removed[t])))
                to_value = to_value * rates[t]
            to_removed.append(-_read(decayed.mT, to_value))
            grad = grad - _outer(removed[t], to_value)
        to_values.append(to_value)
        to_decay.append((grad * before).sum(-1))
        grad = factor * grad
    pairs = zip(found, given, strict=True)
    made = [recurrence.stacked(x[::-1], y) for x, y in pairs if y is not None]
    return [*made, grad.clone(memory_format=torch.contiguous_format)]


def backward_outputs(
    decay: Tensor,
    keys: Tensor,
    values: Tensor,
    queries: Tensor | None,
    removed: Tensor | None,
    rates: Tensor | None,
    state: Tensor,
) -> list[Tensor]:
    given = (decay, keys, values, queries, removed, rates, state)
    return [x.new_empty(x.shape) for x in given if x is not None]


KEYED: Final = "[steps, rows, n] T"
VALUED: Final = "[steps, rows, m] T"
STATE: Final = "[rows, n, m] T"


OPERANDS: Final = {
    "decay": KEYED,
    "keys": KEYED,
    "values": VALUED,
    "queries": f"{KEYED}?",
    "removed": f"{KEYED}?",
    "rates": f"{VALUED}?",
    "state": STATE,
}


def misfit(keys: Tensor, queries: Tensor | None, arriving: Tensor) -> str | None:
    """Return why gradients do not arrive at the results, or None."""
    steps = 0 if queries is None else len(keys)
    if len(arriving) == steps:
        return None
    return f"`arriving` has {len(arriving)} steps, and there are {steps} results; it needs as many"


linear_attention_backward = custom_operator(
    "pypm::linear_attention_backward",
    backward_compute,
    outputs=backward_outputs,
    operands={**OPERANDS, "arriving": "[steps|0, rows, m] T", "grad": STATE},
    requires=misfit,
)


def backward(
    decay: Tensor,
    keys: Tensor,
    values: Tensor,
    queries: Tensor | None,
    removed: Tensor | None,
    rates: Tensor | None,
    state: Tensor,
    *arriving: Tensor,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of the inputs, from these and the gradients that arrive."""
    given = (decay, keys, values, queries, removed, rates, state)
    found = iter(linear_attention_backward(*given, *arriving))
    return tuple(None if x is None else next(found) for x in given)


def flops(
    decay: Sequence[int],
    keys: Sequence[int],
    values: Sequence[int],
    queries: Sequence[int] | None,
    removed: Sequence[int] | None,
    *others: object,
    **options: object,
) -> int:
    products = 1 + (queries is not None) + (removed is not None)
    return 2 * products * math.prod(keys) * values[-1]


linear_attention = custom_operator(
    "pypm::linear_attention",
    compute,
    outputs=outputs,
    unsupported=not_native,
    operands=OPERANDS,
    launch=launch,
    inlines=launches,
    reference=reference,
    gradients=Gradients(backward),
    flops=flops,
)
