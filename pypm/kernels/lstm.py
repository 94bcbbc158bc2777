"""One layer of an LSTM over all its steps, as one operator with gradients.

Inductor decomposes `aten.lstm` into its steps again, so this operator is opaque to it. It calls
`torch.lstm`, which is oneDNN's layer in float32 on CPUs. The backward pass computes the gates of
all steps at once.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from pypm.kernels.recurrence import linear_recurrence
from pypm.kernels.support.registration import Gradients, Needed, Saved, custom_operator
from pypm.kernels.support.steps import States, over_steps

__all__ = ["compute", "lstm"]


def compute(
    x: Tensor, w: Tensor, u: Tensor, b: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the hidden states of all steps, [steps, batch, hidden], and the last cell state.

    Arguments:
        x: the inputs, [steps, batch, in].
        w: the weight of the inputs, [4 hidden, in]; its rows are those of the input gate, the
            forget gate, the cell and the output gate, as torch has them.
        u: the weight of the hidden state, [4 hidden, hidden], in the same order.
        b: the bias, [4 hidden].
        h, c: the hidden state and the cell state before the first step, [batch, hidden].
    """
    weights = [y.contiguous() for y in (w, u, b, torch.zeros_like(b))]  # as cuDNN needs them
    states, _, cell = torch.lstm(
        x, (h.unsqueeze(0), c.unsqueeze(0)), weights, True, 1, 0.0, False, False, False
    )
    return states.contiguous(), cell[0].contiguous()


def by_steps(
    x: Tensor, w: Tensor, u: Tensor, b: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what `compute` returns, step by step: torch differentiates its layer only once."""

    def step(states: States, sums: Tensor) -> tuple[Tensor, States]:
        cell, before = states
        i, f, g, o = (sums + F.linear(before, u)).chunk(4, -1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        after = o.sigmoid() * cell.tanh()
        return after, (cell, after)

    states, (last, _) = over_steps(step, (c, h), F.linear(x, w, b))
    return states, last


def outputs(x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty((x.shape[0], *h.shape)), h.new_empty(h.shape)


# --- gradients -----------------------------------------------------------------------------------


def backward_compute(
    x: Tensor,
    w: Tensor,
    u: Tensor,
    b: Tensor,
    h: Tensor,
    c: Tensor,
    states: Tensor,
    to_states: Tensor,
    to_cell: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, w, u, b, h and c.

    The first six arguments are those of `compute`; `states` is its first result, `to_states` and
    `to_cell` are the gradients that arrive at both.
    """
    before = torch.cat((h.unsqueeze(0), states[:-1]))
    gates = (F.linear(x, w, b) + F.linear(before, u)).chunk(4, -1)
    i, f, o = (gates[n].sigmoid() for n in (0, 1, 3))
    g = gates[2].tanh()
    cells = linear_recurrence(f, i * g, c, False)
    y = cells.tanh()
    cells = torch.cat((c.unsqueeze(0), cells[:-1]))
    # what a change of a gate's sum, or of the cell through its output, adds at each step
    slopes = torch.cat((g * i * (1 - i), cells * f * (1 - f), i * (1 - g * g)), -1)
    of_output, of_cell = y * o * (1 - o), o * (1 - y * y)
    of_gates, to_h = [], torch.zeros_like(h)
    for t in range(len(x) - 1, -1, -1):
        to_h = to_h + to_states[t]
        to_cell = torch.addcmul(to_cell, to_h, of_cell[t])
        of_gates.append(torch.cat((to_cell.repeat(1, 3) * slopes[t], to_h * of_output[t]), -1))
        to_cell = to_cell * f[t]
        to_h = of_gates[-1] @ u
    to_gates = torch.stack(of_gates[::-1])
    flat = to_gates.flatten(0, 1)
    return (
        to_gates @ w,
        flat.t() @ x.flatten(0, 1),
        flat.t() @ before.flatten(0, 1),
        flat.sum(0),
        to_h.contiguous(),
        to_cell.contiguous(),
    )


def backward_outputs(
    x: Tensor, w: Tensor, u: Tensor, b: Tensor, h: Tensor, c: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    x, w, u, b, h, c = (n.new_empty(n.shape) for n in (x, w, u, b, h, c))
    return x, w, u, b, h, c


OPERANDS: Final = {
    "x": "[steps, batch, in] T",
    "w": "[4*hidden, in] T",
    "u": "[4*hidden, hidden] T",
    "b": "[4*hidden] T",
    "h": "[batch, hidden] T",
    "c": "[batch, hidden] T",
}

lstm_backward = custom_operator(
    "pypm::lstm_backward",
    backward_compute,
    outputs=backward_outputs,
    operands={
        **OPERANDS,
        "states": "[steps, batch, hidden] T",
        "to_states": "[steps, batch, hidden] T",
        "to_cell": "[batch, hidden] T",
    },
)


def saves(inputs: Saved, output: tuple[Tensor, Tensor], needed: Needed) -> Saved:
    """Return the inputs and the hidden states."""
    return *inputs, output[0]


lstm = custom_operator(
    "pypm::lstm",
    compute,
    outputs=outputs,
    operands=OPERANDS,
    reference=by_steps,
    gradients=Gradients(lstm_backward, saves),
)
