"""RWKV-4's time mixing, rolled up again: averages of values whose weights decay.

Each step averages all values so far: the sum of the weighted values over that of the weights, both
divided by e to the power of the largest exponent so far, as `rwkv_linear_attention_cpu` of
transformers computes them. The result of a step names the states before it, so the patterns recurse
over the results, and match the states of each step with those of the step before.
"""

import math

from pypm import decline, let, pattern, rule, var
from pypm.fx import aten, is_scalar, same_size
from pypm.kernels.support.devices import under_torch_compile
from pypm.kernels.wkv import wkv
from pypm.rules.recurrences.items import Part
from pypm.rules.recurrences.loops import SO_FEW, Copied, Placed, gathered, without_kernel
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
def Later(read, added, t, num, den, top, form, spread, last_num, last_den, last_top, steps):
    n, num_n, den_n, top_n = var(), var(), var(), var()  # after step t
    y = Result(read, n, num_n, den_n, top_n, form)
    num_n <= NextNum(added, t, num, top, top_n)
    den_n <= NextDen(added, t, den, top, top_n)
    assert n == t + 1
    return [
        Placed(y, spread),
        *Later(
            read, added, n, num_n, den_n, top_n, form, spread, last_num, last_den, last_top, steps
        ),
    ]


@pattern
def Later(read, added, t, num, den, top, form, spread, last_num, last_den, last_top, steps):
    let(last_num=num, last_den=den, last_top=top, steps=t + 1)
    return []


@pattern
def Listed(read, added, num, den, top, form, spread, last_num, last_den, last_top, steps):
    t, n, num_n, den_n, top_n = var(), var(), var(), var(), var()
    x = Result(read, t, num, den, top, form)
    y = Result(read, n, num_n, den_n, top_n, form)
    num_n <= NextNum(added, t, num, top, top_n)
    den_n <= NextDen(added, t, den, top, top_n)
    assert t == 0 and n == 1
    return [
        Placed(x, spread),
        Placed(y, spread),
        *Later(
            read, added, n, num_n, den_n, top_n, form, spread, last_num, last_den, last_top, steps
        ),
    ]


@pattern
def OneWritten(rest, read, t, num, den, top, form, d):
    x = Result(read, t, num, den, top, form)
    return aten.select_scatter(rest, Copied(rest, x, d, t), d, t)


@pattern
def Written(read, added, num, den, top, form, d, t, last_num, last_den, last_top):  # up to step t
    rest, n, num_n, den_n, top_n = var(), var(), var(), var(), var()
    y = OneWritten(rest, read, t, last_num, last_den, last_top, form, d)
    let(n=t - 1)
    rest <= Written(read, added, num, den, top, form, d, n, num_n, den_n, top_n)
    last_num <= NextNum(added, n, num_n, top_n, last_top)
    last_den <= NextDen(added, n, den_n, top_n, last_top)
    return y


@pattern
def Written(read, added, num, den, top, form, d, t, last_num, last_den, last_top):
    rest, empty, n = var(), var(), var()
    y = OneWritten(rest, read, t, last_num, last_den, last_top, form, d)
    let(n=t - 1)
    assert n == 0
    rest <= OneWritten(empty, read, n, num, den, top, form, d)
    last_num <= NextNum(added, n, num, top, last_top)
    last_den <= NextDen(added, n, den, top, last_top)
    return y


@pattern
def Gathered(
    read, added, num, den, top, form, spread, is_stack, d, last_num, last_den, last_top, steps
):
    let(is_stack=True, spread=None)
    return aten.stack(
        Listed(read, added, num, den, top, form, spread, last_num, last_den, last_top, steps), d
    )


@pattern
def Gathered(
    read, added, num, den, top, form, spread, is_stack, d, last_num, last_den, last_top, steps
):
    let(is_stack=False)
    return aten.cat(
        Listed(read, added, num, den, top, form, spread, last_num, last_den, last_top, steps), d
    )


@pattern
def Gathered(
    read, added, num, den, top, form, spread, is_stack, d, last_num, last_den, last_top, steps
):
    t = var()
    let(is_stack=True, spread=None)
    y = aten.select_scatter(_, _, d, t)
    assert t == y.shape[d] - 1
    y <= Written(read, added, num, den, top, form, d, t, last_num, last_den, last_top)
    let(steps=t + 1)
    return y


@pattern
def Averages(read, added, num, den, top, form, spread, is_stack, d, steps):
    y = Gathered(read, added, num, den, top, form, spread, is_stack, d, _, _, _, steps)
    assert read[:4] == added[:4]
    return y


@pattern
def AveragesAndStates(read, added, num, den, top, form, spread, is_stack, d, steps):
    n, num_n, den_n, top_n, after = var(), var(), var(), var(), var()
    y = Gathered(read, added, num, den, top, form, spread, is_stack, d, num_n, den_n, top_n, steps)
    last_num = NextNum(added, n, num_n, top_n, after)
    assert n == steps - 1 and read[:4] == added[:4]
    return y, last_num, NextDen(added, n, den_n, top_n, after), after


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
def averages_and_states(read, added, num, den, top, form, spread, is_stack, d, steps):
    found = computed(read, added, (num, den, top), form, steps)
    if isinstance(found, str):
        return decline(found)
    results, *states = found
    return gathered(results, spread, is_stack, d), *states


@rule(Averages)
def averages(read, added, num, den, top, form, spread, is_stack, d, steps):
    found = computed(read, added, (num, den, top), form, steps)
    if isinstance(found, str):
        return decline(found)
    return gathered(found[0], spread, is_stack, d)


def computed(read, added, states, form, steps):
    """Return the results of all steps, [steps, ...], and the states after the last one.

    Or the reason why they stay a loop.

    Arguments:
        read: the keys and the values, each with the place and the shape of its items, and what is
            added to the key of the step itself.
        added: the same, but at the end what is added to the exponents in each step.
        states: those before the first step.
        form: the type and the shape of a result.
        steps: the number of steps.
    """
    if steps < (FEW_COMPILED if under_torch_compile() else FEW):
        return SO_FEW
    k, of_k, v, of_v, boost = read
    decay = added[-1]
    if any(is_scalar(x) for x in (decay, boost, *states)):
        return "a state, the decay or the boost is a number"
    dtype, (result_type, shape) = states[0].dtype, form
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
