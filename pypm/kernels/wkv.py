"""RWKV-4's time mixing over all steps, as one operator: averages with weights that decay.

A loop in Python leaves two dozen operators for every step in a graph. The sums are kept divided by
e to the power of the largest exponent so far, so that none overflows. Float32 and float64 are
computed in C++ on CPUs, where the states stay in the caches, float32 and narrower types by one
kernel on GPUs, where they stay in registers; others by a loop over the steps.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from pypm.kernels import recurrence
from pypm.kernels.support import native
from pypm.kernels.support.registration import Gradients, custom_operator
from pypm.kernels.support.steps import over_steps
from pypm.kernels.support.triton import agree, jit, launcher, nothing, tl, triton

__all__ = ["compute", "kernel", "launch", "reference", "wkv"]

SOURCE: Final = Path(__file__).with_suffix(".cpp")
NATIVE: Final = (torch.float32, torch.float64)
"""Types of the kernel in C++."""

States = tuple[Tensor, Tensor, Tensor]
"""The sum of the weighted values, that of the weights, both divided by e to the power of the third.
"""


def reference(
    decay: Tensor,
    boost: Tensor,
    keys: Tensor,
    values: Tensor,
    num: Tensor,
    den: Tensor,
    top: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the averages, [batch, steps, channels], and the states after the last step.

    At step t, the value of an earlier step s has the weight `exp(keys[s] + (t - s - 1) * decay)`,
    that of step t itself `exp(keys[t] + boost)`.

    Arguments:
        decay: what is added to exponents with each step, [channels].
        boost: what is added to the key of the current step, [channels].
        keys, values: [batch, steps, channels].
        num, den, top: the states before the first step, [batch, channels]: the sum of the weighted
            values and that of the weights, both divided by `exp(top)`.
    """

    def step(states: tuple[Tensor, ...], key: Tensor, value: Tensor) -> tuple[Tensor, States]:
        den, num, top = states
        old, new, _ = _weights(top, key + boost)
        average = (old * num + new * value) / (old * den + new)
        num, den, top = _advanced(decay, key, value, num, den, top)
        return average, (den, num, top)

    items = keys.transpose(0, 1), values.transpose(0, 1)
    averages, states = over_steps(step, (den, num, top), *items)
    den, num, top = (x.clone() for x in states)
    return averages.transpose(0, 1).contiguous(), num, den, top


def _weights(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return e to the power of both, divided by the larger one, and the larger exponent."""
    most = torch.maximum(x, y)
    return torch.exp(x - most), torch.exp(y - most), most


def _advanced(
    decay: Tensor, key: Tensor, value: Tensor, num: Tensor, den: Tensor, top: Tensor
) -> States:
    """Return the states after a step, from those before."""
    old, new, most = _weights(top + decay, key)
    return old * num + new * value, old * den + new, most


def compute(
    decay: Tensor,
    boost: Tensor,
    keys: Tensor,
    values: Tensor,
    num: Tensor,
    den: Tensor,
    top: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what `reference` returns, in C++ where there is a compiler and the type is known."""
    given = (decay, boost, keys, values, num, den, top)
    if not_native(keys) is not None:
        return reference(*given)
    kernel_of_cpus = native.operator(SOURCE, "wkv_native")
    found: tuple[Tensor, Tensor, Tensor, Tensor] = kernel_of_cpus(*given)
    return found


def not_native(keys: Tensor) -> str | None:
    """Return why the kernel in C++ does not take the operands, or None."""
    return native.unsupported(SOURCE, NATIVE, keys)


# --- on GPUs -------------------------------------------------------------------------------------

BLOCK: Final = 32
"""Channels that a program keeps the states of: one for each thread of a warp."""
UNROLL: Final = 16
"""Steps whose keys and values are loaded at once."""


@jit
def weights(x, y):
    """Return what `_weights` returns."""
    most = tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
    return tl.exp(x - most), tl.exp(y - most), most


@jit
def kernel(
    decay, boost, keys, values, num, den, top, out, last_num, last_den, last_top,
    steps, count, size, k_row, k_step, k_channel, v_row, v_step, v_channel,
    block: tl.constexpr, unroll: tl.constexpr,
):  # fmt: skip
    """Compute `block` channels through all steps; what `unroll` steps read is loaded at once."""
    place = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = place < count
    row, channel = place // size, place % size
    faded = tl.load(decay + channel, inside, 0.0).to(tl.float32)
    boosts = tl.load(boost + channel, inside, 0.0).to(tl.float32)
    a = tl.load(num + place, inside, 0.0).to(tl.float32)
    b = tl.load(den + place, inside, 0.0).to(tl.float32)
    p = tl.load(top + place, inside, 0.0).to(tl.float32)
    keys += row * k_row + channel * k_channel
    values += row * v_row + channel * v_channel
    out += row * steps * size + channel
    for start in range(0, steps, unroll):
        ks, vs = nothing(), nothing()
        for i in tl.static_range(unroll):
            t = tl.cast(start + i, tl.int64)
            known = inside & (t < steps)
            ks += (tl.load(keys + t * k_step, known, 0.0),)
            vs += (tl.load(values + t * v_step, known, 0.0),)
        for i in tl.static_range(unroll):
            t = tl.cast(start + i, tl.int64)
            if t < steps:
                key, value = ks[i].to(tl.float32), vs[i].to(tl.float32)
                old, new, _ = weights(p, key + boosts)
                tl.store(out + t * size, (old * a + new * value) / (old * b + new), inside)
                old, new, p = weights(p + faded, key)
                a = old * a + new * value
                b = old * b + new
    tl.store(last_num + place, a, inside)
    tl.store(last_den + place, b, inside)
    tl.store(last_top + place, p, inside)


def launches(keys: Tensor) -> bool:
    """Return whether the kernel takes the operands."""
    return agree(keys) and keys.numel() > 0


def launch(
    decay: Tensor,
    boost: Tensor,
    keys: Tensor,
    values: Tensor,
    num: Tensor,
    den: Tensor,
    top: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what `reference` returns, by the kernel; in other types than its own, by `reference`.

    The states are kept in float32.
    """
    if not launches(keys):
        return reference(decay, boost, keys, values, num, den, top)
    decay, boost, num, den, top = (x.contiguous() for x in (decay, boost, num, den, top))
    found = outputs(keys, num)
    (_, steps, size), count = keys.shape, num.numel()
    launcher(kernel)[triton.cdiv(count, BLOCK),](
        decay, boost, keys, values, num, den, top, *found, steps, count, size,
        *keys.stride(), *values.stride(), BLOCK, UNROLL, num_warps=1,
    )  # fmt: skip
    return found


# --- the operator --------------------------------------------------------------------------------


def outputs(keys: Tensor, num: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    a, b, p = (num.new_empty(num.shape) for _ in range(3))
    return keys.new_empty(keys.shape), a, b, p


# --- gradients -----------------------------------------------------------------------------------


def backward_compute(
    decay: Tensor,
    boost: Tensor,
    keys: Tensor,
    values: Tensor,
    num: Tensor,
    den: Tensor,
    top: Tensor,
    arriving: Tensor,
    to_num: Tensor,
    to_den: Tensor,
    to_top: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of the inputs.

    Each gradient of a state is a linear recurrence from the last step to the first. An average does
    not depend on what both of its sums are divided by; the states do.

    Arguments:
        decay, boost, keys, values, num, den, top: those of `compute`.
        arriving, to_num, to_den, to_top: the gradients that arrive at its results.
    """
    k, v = keys.transpose(0, 1), values.transpose(0, 1)
    states = [(num, den, top)]
    for key, value in zip(k, v, strict=True):
        states.append(_advanced(decay, key, value, *states[-1]))
    a, b, p = (torch.stack(each) for each in zip(*states, strict=True))
    old, new, _ = _weights(p[:-1], k + boost)
    kept, added, _ = _weights(p[:-1] + decay, k)
    total = old * b[:-1] + new
    to_sum = arriving.transpose(0, 1) / total
    to_total = -to_sum * (old * a[:-1] + new * v) / total
    to_a = _backwards(kept, old * to_sum, to_num)
    to_b = _backwards(kept, old * to_total, to_den)
    of_old = kept * (to_a[1:] * a[:-1] + to_b[1:] * b[:-1])
    of_new = added * (to_a[1:] * v + to_b[1:])
    share = _share(p[:-1] + decay, k)
    of_top = old * (to_sum * a[:-1] + to_total * b[:-1])
    rest = of_old + of_new
    to_p = _backwards(share, of_old - share * rest + of_top, to_top)
    to_largest = to_p[1:] - rest
    to_decay = of_old + share * to_largest
    to_boosted = new * (to_sum * v + to_total)
    to_keys = of_new + (1 - share) * to_largest + to_boosted
    to_values = added * to_a[1:] + new * to_sum
    return (
        to_decay.sum((0, 1)),
        to_boosted.sum((0, 1)),
        to_keys.transpose(0, 1).contiguous(),
        to_values.transpose(0, 1).contiguous(),
        to_a[0].clone(),
        to_b[0].clone(),
        to_p[0].clone(),
    )


def _backwards(factors: Tensor, summands: Tensor, last: Tensor) -> Tensor:
    """Return the gradients of a state before each step and after the last one, [steps + 1, ...]."""
    found = recurrence.linear_recurrence(factors.contiguous(), summands.contiguous(), last, True)
    return torch.cat((found, last.unsqueeze(0)))


def _share(x: Tensor, y: Tensor) -> Tensor:
    """Return which share of the gradient of the larger one goes to x: half where they are equal."""
    return (1 + torch.sign(x - y).nan_to_num(0)) / 2


def backward_outputs(
    decay: Tensor,
    boost: Tensor,
    keys: Tensor,
    values: Tensor,
    num: Tensor,
    den: Tensor,
    top: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    given = decay, boost, keys, values, num, den, top
    decay, boost, keys, values, num, den, top = (x.new_empty(x.shape) for x in given)
    return decay, boost, keys, values, num, den, top


OPERANDS: Final = {
    "decay": "[channels] T",
    "boost": "[channels] T",
    "keys": "[batch, steps, channels] T",
    "values": "[batch, steps, channels] T",
    "num": "[batch, channels] T",
    "den": "[batch, channels] T",
    "top": "[batch, channels] T",
}

wkv_backward = custom_operator(
    "pypm::wkv_backward",
    backward_compute,
    outputs=backward_outputs,
    operands={
        **OPERANDS,
        "arriving": "[batch, steps, channels] T",
        "to_num": "[batch, channels] T",
        "to_den": "[batch, channels] T",
        "to_top": "[batch, channels] T",
    },
)

wkv = custom_operator(
    "pypm::wkv",
    compute,
    outputs=outputs,
    unsupported=not_native,
    operands=OPERANDS,
    launch=launch,
    inlines=launches,
    reference=reference,
    gradients=Gradients(wkv_backward),
)
