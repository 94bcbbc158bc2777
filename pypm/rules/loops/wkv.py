"""RWKV-4's time mixing, rolled up again: averages of values whose weights decay.

Each step averages all values so far: the sum of the weighted values over that of the weights, both
divided by e to the power of the largest exponent so far, as `rwkv_linear_attention_cpu` of
transformers computes them. The result of a step names the states before it, so the patterns recurse
over the results, and match the states of each step with those of the step before.
"""

import math

from pypm import decline, let, pattern, record, rule, var
from pypm.fx import aten, hiding, observer
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
from pypm.rules.vocabulary.shapes import Rounded, rows_if_said
from pypm.rules.vocabulary.types import FLOATS, holds

# --- one step: states are two sums, `num` and `den`, both divided by e^`top` ----------------------


@observer((2,), (1,), (3,))
def items_of(entries, steps):
    """Return the items of all steps, [steps, ...], in the type of their tensor.

    Arguments:
        entries: as `Entry` binds them: a tensor, `x`, and the place, the shape and the type of its
            items, `of`.
        steps: the number of steps.
    """
    return parts(entries.x, entries.of, steps)


@pattern(means=hiding(items_of, lambda entries, t, steps: items_of(entries, steps)[t]))
def Entry(entries, t):  # a part, perhaps in a wider type
    x, inner = var(), var()
    y = Part(x, inner, t)
    let(entries=record(x=x, of=(inner[0], inner[1], x.dtype)))
    assert holds(y.dtype, x.dtype)
    return y


@observer((1,))
def channels_of(x):
    """Return one number for each channel, [channels], of a tensor that broadcasts to all rows."""
    return x.reshape(-1)


def for_channels(x, shape=None):
    """Return the same, with other dimensions of size 1 if a shape says so."""
    return rows_if_said(channels_of(x), shape)


@pattern(means=hiding(channels_of, for_channels))
def Channels(x):
    assert x.numel == x.shape[-1]
    return x


@pattern
def Average(keys, values, boost, t, num, den, top):  # of the states before step t, and its value
    most = var()
    boosted = Entry(keys, t) + Channels(boost)
    new, old = aten.exp(boosted - most), aten.exp(top - most)
    most <= aten.maximum(Entry(keys, t) + Channels(boost), top)  # some graphs hold that sum twice
    assert num.dtype == den.dtype == top.dtype == boosted.dtype
    return (new * Entry(values, t) + old * num) / (new + old * den)


@pattern
def Result(keys, values, boost, t, num, den, top):
    average = Average(keys, values, boost, t, num, den, top)
    return Rounded(average) | average


@pattern
def NextNum(keys, values, decay, t, num, top, after):  # the sums after step t
    new, old = aten.exp(Entry(keys, t) - after), aten.exp(top + Channels(decay) - after)
    return new * Entry(values, t) + old * num


@pattern
def NextDen(keys, decay, t, den, top, after):
    return aten.exp(Entry(keys, t) - after) + aten.exp(top + Channels(decay) - after) * den


@pattern
def NextTop(keys, decay, t, top):
    return aten.maximum(Entry(keys, t), top + Channels(decay))


# --- the results of all steps, and the states before the last one ---------------------------------


@pattern
def ReadOf(read, state, t):  # a result of a state, which is one of step t
    keys, values, boost, num, den, top = var(), var(), var(), var(), var(), var()
    y = Result(keys, values, boost, t, num, den, top)
    let(read=record(keys=keys, values=values, boost=boost, form=(y.dtype, y.shape)))
    let(state=record(num=num, den=den, top=top))
    return y


@pattern
def ReadBefore(decay, read, state, after, t):  # and the state before the last step
    keys, values, boost, n = var(), var(), var(), var()
    num, den, top, next_num, next_den, next_top = var(), var(), var(), var(), var(), var()
    y = Result(keys, values, boost, t, next_num, next_den, next_top)
    next_num <= NextNum(keys, values, decay, n, num, top, next_top)
    next_den <= NextDen(keys, decay, n, den, top, next_top)
    next_top <= NextTop(keys, decay, n, top)
    assert n == t - 1
    let(read=record(keys=keys, values=values, boost=boost, form=(y.dtype, y.shape)))
    let(state=record(num=num, den=den, top=top))
    let(after=record(num=next_num, den=next_den, top=next_top))
    return y


@pattern
def Gathered(decay, read, state, place, last, steps):
    return Joined(ListedBefore(ReadOf, ReadBefore), decay, read, state, place, last, steps)


@pattern
def Gathered(decay, read, state, place, last, steps):
    return AllWritten(WrittenBefore(ReadOf, ReadBefore), decay, read, state, place, last, steps)


@pattern
def Averages(decay, read, state, place, steps):
    return Gathered(decay, read, state, place, _, steps)


@pattern
def AveragesAndStates(decay, read, state, place, steps):
    last, keys, values, n = var(), var(), var(), var()
    num, den, top, after = var(), var(), var(), var()
    y = Gathered(decay, read, state, place, last, steps)
    let(keys=read.keys, values=read.values)
    let(num=last.num, den=last.den, top=last.top)
    let(n=steps - 1)
    last_num = NextNum(keys, values, decay, n, num, top, after)
    last_den = NextDen(keys, decay, n, den, top, after)
    after <= NextTop(keys, decay, n, top)
    return y, last_num, last_den, after


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
def averages_and_states(decay, read, state, place, steps):
    found = computed(decay, read, state, steps)
    if isinstance(found, str):
        return decline(found)
    results, *states = found
    return gathered(results, place), *states


@rule(Averages)
def averages(decay, read, state, place, steps):
    found = computed(decay, read, state, steps)
    if isinstance(found, str):
        return decline(found)
    return gathered(found[0], place)


def computed(decay, read, state, steps):
    """Return the results of all steps, [steps, ...], and the states after the last one.

    Or the reason why they stay a loop.

    Arguments:
        decay: what is added to the exponents in each step, as for `channels_of`.
        read: the `keys` and the `values`, as for `items_of`; `boost`, what is added to the key of
            the step itself; and `form`, the type and the shape of a result.
        state: `num`, `den` and `top` before the first step.
        steps: the number of steps.
    """
    if steps < (FEW_COMPILED if under_torch_compile() else FEW):
        return SO_FEW
    states = state.num, state.den, state.top
    keys, values = (items_of(x, steps) for x in (read.keys, read.values))
    decay, boost = channels_of(decay), channels_of(read.boost)
    dtype, (result_type, shape) = states[0].dtype, read.form
    if dtype not in FLOATS or not all(holds(dtype, x.dtype) for x in (keys, values, decay, boost)):
        return "the states are not of a floating-point type that holds all operands"
    if (reason := without_kernel(states[0], dtype)) is not None:
        return reason
    *batch, size = shape
    rows = math.prod(batch)

    def by_rows(items):
        return broadcast(items, shape).to(dtype).reshape(steps, rows, size).transpose(0, 1)

    decay, boost = (x.to(dtype).expand(size) for x in (decay, boost))
    before = [x.expand(shape).reshape(rows, size) for x in states]
    results, num, den, top = wkv(decay, boost, by_rows(keys), by_rows(values), *before)
    results = results.transpose(0, 1).reshape(steps, *shape).to(result_type)
    return results, *(x.reshape(shape) for x in (num, den, top))
