"""One plain recurrent layer over all its steps, as one operator with gradients.

Inductor decomposes `aten.rnn_tanh` and `aten.rnn_relu` into their steps again, so this operator is
opaque to it. On CPUs, few rows of float32 and float64 are computed in C++, which multiplies them
faster than a library for large matrices does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from pypm.kernels import cells
from pypm.kernels.recurrence import stacked
from pypm.kernels.support import native
from pypm.kernels.support.registration import Gradients, Needed, Saved, custom_operator
from pypm.kernels.support.steps import States, over_steps

__all__ = ["compute", "reference", "rnn"]

SOURCE: Final = Path(__file__).with_suffix(".cpp")


def reference(x: Tensor, u: Tensor, h: Tensor, relu: bool) -> Tensor:
    """Return the hidden states of all steps, [steps, batch, hidden].

    Arguments:
        x: what each step adds to the product of the state: products of the inputs, and biases;
            [steps, batch, hidden].
        u: the weight of the hidden state, [hidden, hidden], as `torch.nn.Linear` has it.
        h: the hidden state before the first step, [batch, hidden].
        relu: the activation is relu; else it is tanh.
    """
    weight = u.t()

    def step(states: States, row: Tensor) -> tuple[Tensor, States]:
        (before,) = states
        sums = torch.addmm(row, before, weight)
        after = sums.relu() if relu else sums.tanh()
        return after, (after,)

    return over_steps(step, (h,), x)[0]


def compute(x: Tensor, u: Tensor, h: Tensor, relu: bool) -> Tensor:
    """Return what `reference` returns, in C++ where there is a compiler and it is faster."""
    if not_native(h) is not None:
        return reference(x, u, h, relu)
    found: Tensor = native.operator(SOURCE, "rnn_native")(x, u, h, relu)
    return found


def not_native(h: Tensor) -> str | None:
    """Return why the kernel in C++ does not take the operands, or is slower; or None."""
    return cells.not_native(SOURCE, h)


def outputs(x: Tensor) -> Tensor:
    return x.new_empty(x.shape)


# --- gradients -----------------------------------------------------------------------------------


def backward_compute(
    u: Tensor, h: Tensor, states: Tensor, arriving: Tensor, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, u and h.

    `states` is the result of `compute`, `arriving` the gradient that arrives there; the other
    arguments are those of `compute`.
    """
    before = torch.cat((h.unsqueeze(0), states))[:-1]
    of_sums, to_h = [], torch.zeros_like(h)
    for t in range(len(states) - 1, -1, -1):
        to_h = to_h + arriving[t]
        of_sums.append(
            torch.ops.aten.threshold_backward(to_h, states[t], 0)
            if relu
            else torch.ops.aten.tanh_backward(to_h, states[t])
        )
        to_h = of_sums[-1] @ u
    to_x = stacked(of_sums[::-1], states)
    return to_x, to_x.flatten(0, 1).t() @ before.flatten(0, 1), to_h.contiguous()


def backward_outputs(u: Tensor, h: Tensor, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, u, h = (n.new_empty(n.shape) for n in (states, u, h))
    return x, u, h


OPERANDS: Final = {"u": "[hidden, hidden] T", "h": "[batch, hidden] T"}
EACH_STEP: Final = "[steps, batch, hidden] T"

rnn_backward = custom_operator(
    "pypm::rnn_backward",
    backward_compute,
    outputs=backward_outputs,
    operands={**OPERANDS, "states": EACH_STEP, "arriving": EACH_STEP},
)


def backward(
    u: Tensor, h: Tensor, relu: bool, states: Tensor, arriving: Tensor
) -> tuple[Tensor, Tensor, Tensor, None]:
    """Return the gradients of all inputs, of what `saves` keeps and the gradient that arrives."""
    return *rnn_backward(u, h, states, arriving, relu), None


def saves(inputs: Saved, output: Tensor, needed: Needed) -> Saved:
    """Return the inputs but x, and the hidden states."""
    return *inputs[1:], output


rnn = custom_operator(
    "pypm::rnn",
    compute,
    outputs=outputs,
    unsupported=not_native,
    operands={"x": EACH_STEP, **OPERANDS},
    reference=reference,
    gradients=Gradients(backward, saves),
)
