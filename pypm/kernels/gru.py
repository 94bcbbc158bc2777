"""One layer of a GRU over all its steps, as one operator with gradients.

Inductor decomposes `aten.gru` into its steps again, so this operator is opaque to it. On CPUs, few
rows of float32 and float64 are computed in C++, which multiplies them faster than a library for
large matrices does; otherwise it calls `torch.gru`. The backward pass computes the gates of all
steps at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from pypm.kernels import cells
from pypm.kernels.recurrence import stacked
from pypm.kernels.support import native
from pypm.kernels.support.registration import Gradients, Needed, Saved, custom_operator
from pypm.kernels.support.steps import States, over_steps

__all__ = ["compute", "gru", "reference"]

SOURCE: Final = Path(__file__).with_suffix(".cpp")


def reference(x: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor, h: Tensor) -> Tensor:
    """Return the hidden states of all steps, [steps, batch, hidden].

    Arguments:
        x: the inputs, [steps, batch, in].
        w: the weight of the inputs, [3 hidden, in]; its rows are those of the reset gate, the
            update gate and the new state, as torch has them.
        u: the weight of the hidden state, [3 hidden, hidden], in the same order.
        b, d: the biases of the inputs and of the hidden state, [3 hidden]; the reset gate scales
            the last third of d, and not that of b.
        h: the hidden state before the first step, [batch, hidden].
    """
    weights = [y.contiguous() for y in (w, u, b, d)]  # as cuDNN needs them
    states, _ = torch.gru(x, h.unsqueeze(0), weights, True, 1, 0.0, False, False, False)
    return states.contiguous()


def by_steps(x: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor, h: Tensor) -> Tensor:
    """Return what `reference` returns, step by step: torch differentiates its layer only once."""

    def step(states: States, sums: Tensor) -> tuple[Tensor, States]:
        (before,) = states
        x_r, x_z, x_n = sums.chunk(3, -1)
        h_r, h_z, h_n = F.linear(before, u, d).chunk(3, -1)
        r, z = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
        n = (x_n + r * h_n).tanh()
        after = n + z * (before - n)
        return after, (after,)

    return over_steps(step, (h,), F.linear(x, w, b))[0]


def compute(x: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor, h: Tensor) -> Tensor:
    """Return what `reference` returns, in C++ where there is a compiler and it is faster."""
    if not_native(h) is not None:
        return reference(x, w, u, b, d, h)
    found: Tensor = native.operator(SOURCE, "gru_native")(x, w, u, b, d, h)
    return found


def not_native(h: Tensor) -> str | None:
    """Return why the kernel in C++ does not take the operands, or is slower; or None."""
    return cells.not_native(SOURCE, h)


def outputs(x: Tensor, h: Tensor) -> Tensor:
    return x.new_empty((x.shape[0], *h.shape))


# --- gradients -----------------------------------------------------------------------------------


def backward_compute(
    x: Tensor,
    w: Tensor,
    u: Tensor,
    b: Tensor,
    d: Tensor,
    h: Tensor,
    states: Tensor,
    arriving: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, w, u, b, d and h.

    The first six arguments are those of `compute`; `states` is its result, `arriving` the gradient
    that arrives there.
    """
    before = torch.cat((h.unsqueeze(0), states[:-1]))
    x_r, x_z, x_n = F.linear(x, w, b).chunk(3, -1)
    h_r, h_z, h_n = F.linear(before, u, d).chunk(3, -1)
    r, z = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
    n = (x_n + r * h_n).tanh()
    # the gradients of the gates' sums are those of the states times these slopes
    of_new = (1 - z) * (1 - n * n)
    slopes = torch.cat((of_new * h_n * r * (1 - r), (before - n) * z * (1 - z), of_new * r), -1)
    of_states, of_sums, to_h = [], [], torch.zeros_like(h)
    for t in range(len(x) - 1, -1, -1):
        to_h = to_h + arriving[t]
        of_states.append(to_h)
        of_sums.append(to_h.repeat(1, 3) * slopes[t])
        to_h = torch.addmm(to_h * z[t], of_sums[-1], u)
    to_sums, to_states = stacked(of_sums[::-1], slopes), stacked(of_states[::-1], states)
    to_inputs = torch.cat((to_sums[..., : -h.shape[1]], to_states * of_new), -1)
    flat, flat_inputs = to_sums.flatten(0, 1), to_inputs.flatten(0, 1)
    return (
        to_inputs @ w,
        flat_inputs.t() @ x.flatten(0, 1),
        flat.t() @ before.flatten(0, 1),
        flat_inputs.sum(0),
        flat.sum(0),
        to_h.contiguous(),
    )


def backward_outputs(
    x: Tensor, w: Tensor, u: Tensor, b: Tensor, d: Tensor, h: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    x, w, u, b, d, h = (n.new_empty(n.shape) for n in (x, w, u, b, d, h))
    return x, w, u, b, d, h


OPERANDS: Final = {
    "x": "[steps, batch, in] T",
    "w": "[3*hidden, in] T",
    "u": "[3*hidden, hidden] T",
    "b": "[3*hidden] T",
    "d": "[3*hidden] T",
    "h": "[batch, hidden] T",
}

gru_backward = custom_operator(
    "pypm::gru_backward",
    backward_compute,
    outputs=backward_outputs,
    operands={
        **OPERANDS,
        "states": "[steps, batch, hidden] T",
        "arriving": "[steps, batch, hidden] T",
    },
)


def saves(inputs: Saved, output: Tensor, needed: Needed) -> Saved:
    """Return the inputs and the hidden states."""
    return *inputs, output


gru = custom_operator(
    "pypm::gru",
    compute,
    outputs=outputs,
    unsupported=not_native,
    operands=OPERANDS,
    reference=by_steps,
    gradients=Gradients(gru_backward, saves),
)
