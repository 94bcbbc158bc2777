"""Linear recurrences h = a_t * h + b_t over rows, each state read by a vector, as one operator.

Mamba's selective scan is one: factors and summands differ in each element of a state, so that
`pypm::linear_attention` does not compute it, and only products of the states are used. On CPUs,
float32 and float64 are computed in C++, which writes no states but the last one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from pypm.kernels import recurrence
from pypm.kernels.support import native
from pypm.kernels.support.registration import Gradients, custom_operator

__all__ = ["compute", "reference", "scan"]

SOURCE: Final = Path(__file__).with_suffix(".cpp")
NAMES: Final = {torch.float32: "scan_float32", torch.float64: "scan_float64"}
"""Functions of the library, by the type."""
GROUP: Final = 4
"""Rows that the kernel computes through all steps at a time, as in the source."""


def reference(a: Tensor, b: Tensor, c: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Return the results `h_t @ c_t`, [steps, batch, rows], and the last state, for all steps.

    Arguments:
        a: the factors of the states before, [steps, batch, rows, n]; may be expanded.
        b: the summands, of the same shape.
        c: the vectors that read the states, [steps, batch, n].
        h: the state before the first step, [batch, rows, n].
    """
    results, last = outputs(b, h)
    for t in range(len(b)):
        h = torch.addcmul(b[t], a[t], h)
        results[t] = _read(h, c[t])
    return results, last.copy_(h)


def _read(states: Tensor, vectors: Tensor) -> Tensor:
    return (states @ vectors.unsqueeze(-1)).squeeze(-1)


def compute(a: Tensor, b: Tensor, c: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `reference` returns, in C++ where there is a compiler and the type is known."""
    fits = b.device.type == "cpu" and b.numel() and all(x.dtype == b.dtype for x in (a, c, h))
    name = NAMES.get(b.dtype) if fits else None
    library = native.library(SOURCE) if name is not None else None
    if name is None or library is None:
        return reference(a, b, c, h)
    a, b, c = (x if x.stride(-1) == 1 else x.contiguous() for x in (a, b, c))
    results, last = outputs(b, h)
    last.copy_(h)
    steps, batch, rows, n = b.shape
    strides = (*a.stride()[:-1], *b.stride()[:-1], *c.stride()[:-1])
    given = native.arguments((a, b, c, last, results, batch, rows, n, steps, *strides))
    run = library[name]

    def work(first: int, after: int) -> None:
        run(*given, *native.arguments((first, after)))

    native.in_parts(work, batch * -(-rows // GROUP), b.numel())
    return results, last


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
    return to_a, to_b, _read(states.mT, arriving), to_h


def flops(a: Sequence[int], b: Sequence[int], *others: object, **options: object) -> int:
    return 2 * math.prod(b)


scan = custom_operator(
    "pypm::scan", compute, outputs=outputs, gradients=Gradients(backward), flops=flops
)
