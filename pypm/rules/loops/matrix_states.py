"""Loops over states that are matrices: what their steps bind, as operands of
`pypm::linear_attention` and `pypm::scan`.

A state is [..., keys, values] or [..., values, keys], and the vectors of a step are columns or
rows: a vector lies along one of the last two dimensions, and has size 1 in the other one.
"""

import math

import torch

from pypm.fx import is_scalar, same_size
from pypm.kernels import linear_attention as attention
from pypm.kernels import scan as scans
from pypm.kernels.linear_attention import linear_attention
from pypm.kernels.scan import scan
from pypm.rules.loops.steps import DELTA
from pypm.rules.replacement.items import broadcast, parts, type_of

ROWS, COLUMNS = -2, -1
"""The dimensions of a state."""


def types(step, before, boost):
    """Return the types of what a step reads, as `Step` binds it, that of its summand first.

    `boost` is the tensor that `Older` binds, or None.
    """
    factor, summand = step.factor, step.summand
    found = [(summand.key, summand.of_key), (factor.x, factor.of), (before, ()), (boost, ())]
    if step.kind == DELTA:
        taken, rate = summand.change.taken, summand.change.rate
        found += [(taken.value, taken.of), taken.read[:2]]
        found += [] if rate is None else [(rate.x, rate.of)]
    else:
        found.append((summand.value, summand.of_value))
    return [type_of(x, of) for x, of in found if x is not None and not is_scalar(x)]


def factors_of(factor, like, steps):
    """Return the factors of the states before, [steps, ...].

    Arguments:
        factor: as `Faded` binds it: `x`, a tensor or a number; `of`, the place and the shape of its
            items; `is_log`, True if these are logarithms.
        like: a tensor of the type and the device of the states.
        steps: the number of steps.
    """
    a = factor.x
    factors = parts(like.new_full((), a) if is_scalar(a) else a, factor.of, steps)
    return factors.exp() if factor.is_log else factors


def attended(step, before, out, boost, steps, count, shape):
    """Return the results of all steps, [steps, ...], and the last state, by one operator.

    None if it does not compute such steps.

    Arguments:
        step: what a step does, as `Step` binds it.
        before: the state before the first step: a tensor that broadcasts to `shape`, or a number.
        out: what a step adds to the results, as `Output` binds it; None if that is nothing.
        boost: what `Older` multiplies the summand of a result by, a tensor; None for no summand.
        steps: the number of steps.
        count: the number of results: one more, if they read the states before the steps.
        shape: the shape of a state.
    """
    found = layout(step, out, boost, shape)
    if found is None:
        return None
    axis, key, value = found
    across = ROWS + COLUMNS - axis
    batch, n, m = shape[:-2], shape[axis], shape[across]
    rows = math.prod(batch)

    def vectors(items, count, size, dim):  # of a size, along a dimension
        ends = (size, 1) if dim == ROWS else (1, size)
        return broadcast(items, (*batch, *ends)).reshape(count, rows, size)

    def keyed(x, of, count):
        return vectors(parts(x, of, count), count, n, axis)

    def valued(x, of, count):
        return vectors(parts(x, of, count), count, m, across)

    def read_by(x, of, form, count):
        return vectors(parts(x, of, count), count, n, ROWS if form[0] else COLUMNS)

    def given(x, of, sizes):  # for the values, in a shape of their own
        return broadcast(parts(x, of, steps), sizes).reshape(steps, rows, m)

    keys, removed_by, rates = keyed(*key, steps), None, None
    if step.kind == DELTA:
        taken, rate = step.summand.change.taken, step.summand.change.rate
        values, removed_by = given(taken.value, taken.of, taken.sizes), read_by(*taken.read, steps)
        rates = None if rate is None else given(rate.x, rate.of, rate.sizes)
    else:
        values = valued(*value, steps)
    factors = vectors(factors_of(step.factor, keys, steps), steps, n, axis)
    queries = None if out is None else read_by(*out, count)
    state = turned(before, keys, axis, shape).reshape(rows, n, m)
    later = None if queries is None else queries[count - steps :]
    results, last = linear_attention(factors, keys, values, later, removed_by, rates, state)
    if count > steps:
        first = (state * queries[0].unsqueeze(-1)).sum(-2)
        results = torch.cat((first.unsqueeze(0), results))
    if boost is not None:
        weights = queries * keyed(boost, None, count) * keyed(*key, count)
        results = results + weights.sum(-1, keepdim=True) * valued(*value, count)
    last = last.reshape(*batch, n, m)
    results = None if out is None else results.reshape(count, *batch, m)
    return results, last if axis == ROWS else last.mT


def scanned(factors, summands, before, out, steps, shape):
    """Return the products of all states with vectors, [steps, ...], and the last state.

    None if `pypm::scan` does not compute them: results that are no products along the last
    dimension of states, or states for which it has no kernel.

    Arguments:
        factors, summands: those of each step, [steps, *shape].
        before: the state before the first step, of this shape.
        out: what a step adds to the results, as `Output` binds it.
        steps: the number of steps.
        shape: the shape of a state.
    """
    if scans.unsupported(summands, shape[-1]) is not None:
        return None
    if axis_of(out, summands.dtype, shape[:-2]) != COLUMNS:
        return None
    c, of_c, (is_column, _) = out
    *batch, rows, n = shape
    count, ends = math.prod(batch), (n, 1) if is_column else (1, n)
    vectors = broadcast(parts(c, of_c, steps), (*batch, *ends)).reshape(steps, count, n)
    factors, summands = (x.reshape(steps, count, rows, n) for x in (factors, summands))
    results, last = scan(factors, summands, vectors, before.reshape(count, rows, n))
    return results.reshape(steps, *batch, rows), last.reshape(shape)


def layout(step, out, boost, shape):
    """Return the dimension of a state that queries read, and the key and the value of each step.

    None if `pypm::linear_attention` does not compute such steps: states that are no matrices,
    results that are no products of these with vectors, factors or boosts that differ among the
    values, or states for which it has no kernel. The value of the delta rule is not known here.
    """
    a, of_a, summand = step.factor.x, step.factor.of, step.summand
    key, given = (summand.key, summand.of_key), []
    dtype = type_of(*key)
    if len(shape) < 2:
        return None
    reads = [] if out is None else [out]
    if step.kind == DELTA:
        change, value, value_shape = summand.change, None, summand.sizes
        reads.append(change.taken.read)
        given = [each.sizes for each in (change.taken, change.rate, summand) if each is not None]
    elif summand.value is None:
        return None
    else:
        value = summand.value, summand.of_value
        value_shape = summand.of_value[1]
    axes = {axis_of(each, dtype, shape[:-2]) for each in reads} or {ROWS}
    axis = axes.pop()
    if axes or axis is None:
        return None
    across = ROWS + COLUMNS - axis
    if value is not None and not is_flat(key[1][1], across):
        key, value, value_shape = value, key, key[1][1]
    along = [
        key[1][1],
        () if is_scalar(a) else of_a[1] if of_a else a.shape,
        () if boost is None else boost.shape,
    ]
    values = math.prod(shape[:-2]) * shape[across]
    fits = all(is_flat(x, across) for x in along) and is_flat(value_shape, axis)
    if not fits or not all(same_size(math.prod(x), values) for x in given):
        return None
    if attention.unsupported(key[0], type_of(*key), shape[axis]) is not None:
        return None
    return axis, key, value


def turned(state, like, axis, shape):
    """Return a state with the dimension that queries read first: it broadcasts to `shape`, or is a
    number.
    """
    state = (like.new_full((), state) if is_scalar(state) else state).expand(shape)
    return state if axis == ROWS else state.mT


def axis_of(out, dtype, batch):
    """Return the dimension of the state along which it is multiplied by the vectors of `out`.

    None if the results are states, or the vectors of another type or of a larger batch than these.
    """
    c, of, form = out
    if form is None or type_of(c, of) != dtype:
        return None
    *sizes, _, _ = of[1]
    if len(sizes) != len(batch):
        return None
    if not all(same_size(n, 1) or same_size(n, size) for n, size in zip(sizes, batch, strict=True)):
        return None
    is_column, turned = form
    return ROWS if is_column == turned else COLUMNS


def is_flat(shape, dim):
    """Return whether the size of a dimension is 1, or the shape has no such dimension."""
    return len(shape) < -dim or same_size(shape[dim], 1)
