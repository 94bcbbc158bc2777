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
from pypm.rules.recurrences.steps import DELTA
from pypm.rules.replacement.items import broadcast, parts, type_of

ROWS, COLUMNS = -2, -1
"""The dimensions of a state."""


def types(step, before, boost):
    """Return the types of what a step reads, as `Step` binds it, that of its summand first.

    `boost` is the tensor that `Older` binds, or None.
    """
    kind, (a, of_a, _), (b, of_b, other, of_other, _) = step
    found = [(b, of_b), (a, of_a), (before, ()), (boost, ())]
    if kind == DELTA:
        (v, of_v, (c, of_c, _), _), rate, of_rate, _ = other
        found += [(v, of_v), (c, of_c), (rate, of_rate)]
    else:
        found.append((other, of_other))
    return [type_of(x, of) for x, of in found if x is not None and not is_scalar(x)]


def factors_of(factor, like, steps):
    """Return the factors of the states before, [steps, ...].

    Arguments:
        factor: as `Faded` binds it: a tensor or a number, the place and the shape of its items, and
            whether these are logarithms.
        like: a tensor of the type and the device of the states.
        steps: the number of steps.
    """
    a, of, is_log = factor
    factors = parts(like.new_full((), a) if is_scalar(a) else a, of, steps)
    return factors.exp() if is_log else factors


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
    if attention.unsupported(key[0], type_of(*key), shape[axis]) is not None:
        return None
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

    kind, factor, (_, _, change, *_) = step
    keys, removed_by, rates = keyed(*key, steps), None, None
    if kind == DELTA:
        (v, of_v, removed, sizes), rate, of_rate, rate_sizes = change
        values, removed_by = given(v, of_v, sizes), read_by(*removed, steps)
        rates = None if rate is None else given(rate, of_rate, rate_sizes)
    else:
        values = valued(*value, steps)
    factors = vectors(factors_of(factor, keys, steps), steps, n, axis)
    queries = None if out is None else read_by(*out, count)
    before = keys.new_full((), before) if is_scalar(before) else before
    state = before.expand(shape)
    state = (state if axis == ROWS else state.mT).reshape(rows, n, m)
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
    values. The value of the delta rule is not known here.
    """
    kind, (a, of_a, _), (k, of_k, other, extra, _) = step
    dtype = type_of(k, of_k)
    if other is None or len(shape) < 2:
        return None
    reads = [] if out is None else [out]
    if kind == DELTA:
        (_, _, removed, sizes), rate, _, rate_sizes = other
        reads.append(removed)
        value, value_shape = None, extra
        given = [sizes, extra] if rate is None else [sizes, rate_sizes, extra]
    else:
        value, value_shape, given = (other, extra), extra[1], []
    axes = {axis_of(each, dtype, shape[:-2]) for each in reads} or {ROWS}
    axis = axes.pop()
    if axes or axis is None:
        return None
    across = ROWS + COLUMNS - axis
    key = k, of_k
    if kind != DELTA and not is_flat(of_k[1], across):
        key, value, value_shape = value, key, of_k[1]
    along = [
        key[1][1],
        () if is_scalar(a) else of_a[1] if of_a else a.shape,
        () if boost is None else boost.shape,
    ]
    values = math.prod(shape[:-2]) * shape[across]
    fits = all(is_flat(x, across) for x in along) and is_flat(value_shape, axis)
    if not fits or not all(same_size(math.prod(x), values) for x in given):
        return None
    return axis, key, value


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
