"""Linear attention with decay, also by the delta rule, as one operator for all steps.

A state is a matrix. Each step adds the outer product of a key and a value to it, and reads it by a
query. A loop in Python leaves a dozen operators for every step in a graph. On CPUs, float32 and
float64 are computed in C++, where the state stays in the caches; others by a loop over the steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from pypm.kernels.support import native
from pypm.kernels.support.registration import Gradients, custom_operator

__all__ = ["compute", "linear_attention", "reference"]

SOURCE: Final = Path(__file__).with_suffix(".cpp")
NAMES: Final = {torch.float32: "attend_float32", torch.float64: "attend_float64"}
"""Functions of the library, by the type."""


def reference(
    decay: Tensor,
    keys: Tensor,
    values: Tensor,
    queries: Tensor | None,
    removed: Tensor | None,
    rates: Tensor | None,
    bonus: Tensor | None,
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
        bonus: factors of the keys, [rows, n]; results are then those of the state before the step
            and of `bonus * key` and the value, as in RWKV. Not with `removed`.
        state: the state before the first step, [rows, n, m].
    """
    results = []
    for t in range(len(keys)):
        key, value = keys[t].unsqueeze(-1), values[t].unsqueeze(-2)
        if queries is not None and bonus is not None:
            seen = state + bonus.unsqueeze(-1) * key * value
            results.append((queries[t].unsqueeze(-2) @ seen).squeeze(-2))
        state = decay[t].unsqueeze(-1) * state
        if removed is not None:
            value = value - removed[t].unsqueeze(-2) @ state
            if rates is not None:
                value = rates[t].unsqueeze(-2) * value
        state = state + key * value
        if queries is not None and bonus is None:
            results.append((queries[t].unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(results) if results else values[:0].contiguous(), state.contiguous()


def compute(
    decay: Tensor,
    keys: Tensor,
    values: Tensor,
    queries: Tensor | None,
    removed: Tensor | None,
    rates: Tensor | None,
    bonus: Tensor | None,
    state: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return what `reference` returns, in C++ where there is a compiler and the type is known."""
    given = (decay, keys, values, queries, removed, rates, bonus)
    fits = state.device.type == "cpu" and state.numel() and len(keys)
    alike = all(x is None or x.dtype == state.dtype for x in given)
    name = NAMES.get(state.dtype) if fits and alike else None
    library = native.library(SOURCE) if name is not None else None
    if name is None or library is None:
        return reference(*given, state)
    rows, n, m = state.shape
    steps = len(keys)
    held = [None if x is None else x.contiguous() for x in given]
    out, last = outputs(values, queries, state)
    last.copy_(state)
    tensors = native.arguments(
        [0 if x is None else x for x in (*held, last, out if queries is not None else None)]
    )
    attend = library[name]

    def work(first: int, after: int) -> None:
        attend(*tensors, *native.arguments((steps, rows, n, m, first, after)))

    native.in_parts(work, rows, steps * state.numel())
    return out, last


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
    bonus: Tensor | None,
    state: Tensor,
    arriving: Tensor,
    at_last: Tensor,
) -> list[Tensor]:
    """Return the gradients of all tensors that are given, in their order.

    `arriving` and `at_last` are the gradients that arrive at the results and at the last state.
    """
    given = (decay, keys, values, queries, removed, rates, bonus, state)
    to = [torch.zeros_like(state[:0] if x is None else x) for x in given]
    to_decay, to_keys, to_values, to_queries, to_removed, to_rates, to_bonus, _ = to
    states = [state]
    for t in range(len(keys)):
        read = None if removed is None else removed[t : t + 1]
        rate = None if rates is None else rates[t : t + 1]
        now = (decay[t : t + 1], keys[t : t + 1], values[t : t + 1])
        states.append(reference(*now, None, read, rate, None, states[-1])[1])
    grad = at_last
    for t in reversed(range(len(keys))):
        before, after = states[t : t + 2]
        key, value, factor = keys[t], values[t], decay[t].unsqueeze(-1)
        to_before = torch.zeros_like(grad)
        if queries is not None:
            query, result = queries[t], arriving[t]
            outer = query.unsqueeze(-1) * result.unsqueeze(-2)
            seen = after if bonus is None else before
            to_queries[t] = (seen @ result.unsqueeze(-1)).squeeze(-1)
            if bonus is None:
                grad = grad + outer
            else:
                to_before = outer
                along = (result * value).sum(-1, keepdim=True)
                to_queries[t] += along * bonus * key
                to_keys[t] = along * bonus * query
                to_bonus += along * query * key
                to_values[t] = (query * bonus * key).sum(-1, keepdim=True) * result
        change, decayed = value, factor * before
        to_change = (key.unsqueeze(-2) @ grad).squeeze(-2)
        to_decayed = grad
        if removed is not None:
            error = value - (removed[t].unsqueeze(-2) @ decayed).squeeze(-2)
            change = error
            to_error = to_change
            if rates is not None:
                change = rates[t] * error
                to_rates[t] = to_change * error
                to_error = to_change * rates[t]
            to_removed[t] = -(decayed @ to_error.unsqueeze(-1)).squeeze(-1)
            to_decayed = grad - removed[t].unsqueeze(-1) * to_error.unsqueeze(-2)
            to_change = to_error
        to_values[t] += to_change
        to_keys[t] += (grad @ change.unsqueeze(-1)).squeeze(-1)
        to_decay[t] = (to_decayed * before).sum(-1)
        grad = factor * to_decayed + to_before
    to[-1] = grad
    return [made for made, x in zip(to, given, strict=True) if x is not None]


def backward_outputs(
    decay: Tensor,
    keys: Tensor,
    values: Tensor,
    queries: Tensor | None,
    removed: Tensor | None,
    rates: Tensor | None,
    bonus: Tensor | None,
    state: Tensor,
) -> list[Tensor]:
    given = (decay, keys, values, queries, removed, rates, bonus, state)
    return [x.new_empty(x.shape) for x in given if x is not None]


linear_attention_backward: Callable[..., list[Tensor]] = custom_operator(
    "pypm::linear_attention_backward", backward_compute, outputs=backward_outputs
)


def backward(*saved: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return the gradients of the inputs, from these and the gradients that arrive."""
    *given, _, _ = saved
    found = iter(linear_attention_backward(*saved))
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
    gradients=Gradients(backward),
    flops=flops,
)
