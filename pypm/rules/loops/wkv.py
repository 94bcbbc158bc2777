"""RWKV-4's time mixing, rolled up again: averages of values whose weights decay.

Each step averages all values so far: the sum of the weighted values over that of the weights, both
divided by e to the power of the largest exponent so far, as `rwkv_linear_attention_cpu` of
transformers computes them. The result of a step names the states before it, so the patterns recurse
over the results, and match the states of each step with those of the step before.
"""

import math

from pypm import decline, let, pattern, record, rule, var
from pypm.fx import aten, is_scalar, same_size
from pypm.kernels.support.devices import under_torch_compile
from pypm.kernels.wkv import wkv
from pypm.rules.loops.folds import (
    AllWritten,
    Joined,
    ListedBefore,
    WrittenBefore,
    gathered,
)
from pypm.rules.loops.items import Part
from pypm.rules.loops.recurrences import SO_FEW, without_kernel
from pypm.rules.replacement.items import broadcast, parts
from pypm.rules.vocabulary.shapes import Rounded
from pypm.rules.vocabulary.types import FLOATS, holds

# --- one step: states are two sums, `num` and `den`, both divided by e^`top` ----------------------


@pattern
def Entry(x, of, t):  # a part, perhaps in a wider type
    inner = var()
    y = Part(x, inner, t)
    let(of=(inner[0], inner[1], x.dtype))
    assert holds(y.dtype, x.dtype)
    return y


@pattern
def Average(read, t, num, den, top):  # of the states before step t, and its value
    k, of_k, v, of_v, boost, most = var(), var(), var(), var(), var(), var()
    boosted = Entry(k, of_k, t) + boost
    old, new = aten.exp(top - most), aten.exp(boosted - most)
    y = (old * num + new * Entry(v, of_v, t)) / (old * den + new)
    most <= aten.maximum(top, Entry(k, of_k, t) + boost)  # some graphs hold that sum twice
    assert num.dtype == den.dtype == top.dtype == boosted.dtype == y.dtype
    let(read=(k, of_k, v, of_v, boost))
    return y


@pattern
def Result(read, t, num, den, top, form):
    y = Average(read, t, num, den, top)
    let(form=(y.dtype, y.shape))
    return y


@pattern
def Result(read, t, num, den, top, form):
    y = Rounded(Average(read, t, num, den, top))
    let(form=(y.dtype, y.shape))
    return y


@pattern
def NextNum(added, t, num, top, after):  # the first sum after step t, and its exponent
    k, of_k, v, of_v, decay = var(), var(), var(), var(), var()
    old, new = aten.exp(top + decay - after), aten.exp(Entry(k, of_k, t) - after)
    y = old * num + new * Entry(v, of_v, t)
    after <= aten.maximum(top + decay, Entry(k, of_k, t))
    let(added=(k, of_k, v, of_v, decay))
    return y


@pattern
def NextDen(added, t, den, top, after):
    k, of_k, decay = var(), var(), var()
    y = aten.exp(top + decay - after) * den + aten.exp(Entry(k, of_k, t) - after)
    assert added[:2] == (k, of_k) and added[4] == decay
    return y


# --- the results of all steps, and the states before the last one ---------------------------------


@pattern
def ReadOf(read, state, t):  # a result of a state, which is one of step t
    average, num, den, top, form = var(), var(), var(), var(), var()
    y = Result(average, t, num, den, top, form)
    let(read=record(average=average, form=form))
    let(state=record(num=num, den=den, top=top))
    return y


@pattern
def ReadBefore(added, read, state, after, t):  # and the state before the last step
    n, num, den, top = var(), var(), var(), var()
    average, form, next_num, next_den, next_top = var(), var(), var(), var(), var()
    y = Result(average, t, next_num, next_den, next_top, form)
    next_num <= NextNum(added, n, num, top, next_top)
    next_den <= NextDen(added, n, den, top, next_top)
    assert n == t - 1
    let(read=record(average=average, form=form))
    let(state=record(num=num, den=den, top=top))
    let(after=record(num=next_num, den=next_den, top=next_top))
    return y


@pattern
def Gathered(added, read, state, place, last, steps):
    return Joined(ListedBefore(ReadOf, ReadBefore), added, read, state, place, last, steps)


@pattern
def Gathered(added, read, state, place, last, steps):
    return AllWritten(WrittenBefore(ReadOf, ReadBefore), added, read, state, place, last, steps)


@pattern
def Averages(added, read, state, place, steps):
    y = Gathered(added, read, state, place, _, steps)
    assert read.average[:4] == added[:4]
    return y


@pattern
def AveragesAndStates(added, read, state, place, steps):
    last, n, num, den, top, after = var(), var(), var(), var(), var(), var()
    y = Gathered(added, read, state, place, last, steps)
    let(num=last.num, den=last.den, top=last.top)
    last_num = NextNum(added, n, num, top, after)
    assert n == steps - 1 and read.average[:4] == added[:4]
    return y, last_num, NextDen(added, n, den, top, after), after


# --- the rules -----------------------------------------------------------------------------------

FEW = 4
"""Steps below which the operator is slower than the steps, in graphs that run as they are.

Measured on a CPU, 64 channels: 0.9 times as fast with 3 steps, 1.2 times with 4.
"""
FEW_COMPILED = 32
"""The same under `torch.compile`, which computes so few steps by one kernel.

Measured for 64 channels: as fast with 32 steps, 0.85 times with 24.
"""


@rule(AveragesAndStates)
def averages_and_states(added, read, state, place, steps):
    found = computed(added, read, state, steps)
    if isinstance(found, str):
        return decline(found)
    results, *states = found
    return gathered(results, place), *states


@rule(Averages)
def averages(added, read, state, place, steps):
    found = computed(added, read, state, steps)
    if isinstance(found, str):
        return decline(found)
    return gathered(found[0], place)


def computed(added, read, state, steps):
    """Return the results of all steps, [steps, ...], and the states after the last one.

    Or the reason why they stay a loop.

    Arguments:
        added: the keys and the values, each with the place and the shape of its items, and what is
            added to the exponents in each step.
        read: the same as `average`, but at the end what is added to the key of the step itself; and
            `form`, the type and the shape of a result.
        state: `num`, `den` and `top` before the first step.
        steps: the number of steps.
    """
    if steps < (FEW_COMPILED if under_torch_compile() else FEW):
        return SO_FEW
    k, of_k, v, of_v, boost = read.average
    states = state.num, state.den, state.top
    decay = added[-1]
    if any(is_scalar(x) for x in (decay, boost, *states)):
        return "a state, the decay or the boost is a number"
    dtype, (result_type, shape) = states[0].dtype, read.form
    if dtype not in FLOATS or not all(holds(dtype, x.dtype) for x in (k, v, decay, boost)):
        return "the states are not of a floating-point type that holds all operands"
    if (reason := without_kernel(states[0], dtype)) is not None:
        return reason
    *batch, size = shape
    if not all(is_flat(x) for x in (decay, boost)):
        return "the decay or the boost is not one number for each channel"
    rows = math.prod(batch)

    def by_rows(x, of):
        items = broadcast(parts(x, of, steps), shape).to(dtype)
        return items.reshape(steps, rows, size).transpose(0, 1)

    decay, boost = (x.to(dtype).reshape(-1).expand(size) for x in (decay, boost))
    before = [x.expand(shape).reshape(rows, size) for x in states]
    keys, values = by_rows(k, of_k), by_rows(v, of_v)
    results, num, den, top = wkv(decay, boost, keys, values, *before)
    results = results.transpose(0, 1).reshape(steps, *shape).to(result_type)
    return results, *(x.reshape(shape) for x in (num, den, top))


def is_flat(x):
    """Return whether all dimensions of x but the last one have size 1."""
    return x.dim() > 0 and all(same_size(n, 1) for n in x.shape[:-1])
