"""Loops over states that are matrices: what their steps bind, as operands of
`pypm::linear_attention`.

A state is [..., keys, values] or [..., values, keys], and the vectors of a step are columns or
rows: a vector lies along one of the last two dimensions, and has size 1 in the other one.
"""

import math

from pypm.fx import is_scalar, same_size
from pypm.kernels.linear_attention import NAMES, linear_attention
from pypm.rules.elements import broadcast, parts
from pypm.rules.recurrences.steps import DELTA

ROWS, COLUMNS = -2, -1
"""The dimensions of a state."""


def operands(step, before):
    """Return the tensors that a step reads, as `Step` binds it, that of its summand first."""
    kind, (a, *_), (b, _, other, *_) = step
    found = [b, a, before]
    if kind == DELTA:
        (v, _, (c, *_), _), rate, *_ = other
        found += [v, c, rate]
    else:
        found.append(other)
    return [x for x in found if x is not None and not is_scalar(x)]


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


def attended(step, before, out, steps, shape):
    """Return the results of all steps, [steps, ...], and the last state, by one operator.

    None if it does not compute such steps: states that are no matrices of float32 or float64 on a
    CPU, results that are no products of these with vectors, factors that differ among the values.

    Arguments:
        step: what a step does, as `Step` binds it.
        before: the state before the first step: a tensor that broadcasts to `shape`, or a number.
        out: what a step adds to the results, as `Output` binds it; None if that is nothing.
        steps: the number of steps.
        shape: the shape of a state.
    """
    kind, (a, of_a, _), (k, of_k, other, extra, _) = step
    if other is None or len(shape) < 2 or k.device.type != "cpu" or k.dtype not in NAMES:
        return None
    reads = [] if out is None else [out]
    if kind == DELTA:
        (v, of_v, removed, sizes), rate, of_rate, rate_sizes = other
        reads.append(removed)
        value_shape = extra
    else:
        v, of_v = other, extra
        value_shape = of_v[1]
    axes = {axis_of(each, k.dtype, shape[:-2]) for each in reads} or {ROWS}
    axis = axes.pop()
    if axes or axis is None:
        return None
    across = ROWS + COLUMNS - axis
    if kind != DELTA and not is_flat(of_k[1], across):
        k, of_k, v, of_v = v, of_v, k, of_k
        value_shape = of_v[1]
    factor_shape = () if is_scalar(a) else of_a[1] if of_a else a.shape
    if not (
        is_flat(of_k[1], across) and is_flat(value_shape, axis) and is_flat(factor_shape, across)
    ):
        return None
    batch, n, m = shape[:-2], shape[axis], shape[across]
    rows = math.prod(batch)
    if kind == DELTA:
        shapes = [sizes, value_shape] if rate is None else [sizes, rate_sizes, value_shape]
        if not all(same_size(math.prod(x), rows * m) for x in shapes):
            return None

    def vectors(items, size, dim):  # of a size, along a dimension
        ends = (size, 1) if dim == ROWS else (1, size)
        return broadcast(items, (*batch, *ends)).reshape(steps, rows, size)

    def read_by(c, of_c, form):
        return vectors(parts(c, of_c, steps), n, ROWS if form[0] else COLUMNS)

    def given(x, of, sizes):  # for the values, in a shape of their own
        return broadcast(parts(x, of, steps), sizes).reshape(steps, rows, m)

    queries = None if out is None else read_by(*out)
    before = k.new_full((), before) if is_scalar(before) else before
    state = before.expand(shape)
    state = state if axis == ROWS else state.mT
    removed_by = rates = None
    if kind == DELTA:
        values, removed_by = given(v, of_v, sizes), read_by(*removed)
        rates = None if rate is None else given(rate, of_rate, rate_sizes)
    else:
        values = vectors(parts(v, of_v, steps), m, across)
    factors = vectors(factors_of(step[1], k, steps), n, axis)
    keys, state = vectors(parts(k, of_k, steps), n, axis), state.reshape(rows, n, m)
    results, last = linear_attention(factors, keys, values, queries, removed_by, rates, state)
    last = last.reshape(*batch, n, m)
    results = None if out is None else results.reshape(steps, *batch, m)
    return results, last if axis == ROWS else last.mT


def axis_of(out, dtype, batch):
    """Return the dimension of the state along which it is multiplied by the vectors of `out`.

    None if the results are states, or the vectors of another type or of a larger batch than these.
    """
    c, of, form = out
    if form is None or c.dtype != dtype:
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
