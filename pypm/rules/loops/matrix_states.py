"""Loops over states that are matrices: what their steps bind, as operands of
`pypm::linear_attention` and `pypm::scan`.

A state is [..., keys, values] or [..., values, keys], and the vectors of a step are columns or
rows: a vector lies along one of the last two dimensions, and has size 1 in the other one.
"""

import math

import torch

from pypm.fx import same_size
from pypm.kernels import linear_attention as attention
from pypm.kernels import scan as scans
from pypm.kernels.linear_attention import linear_attention
from pypm.kernels.scan import scan
from pypm.rules.loops.reads import COLUMNS, ROWS, along
from pypm.rules.replacement.items import broadcast


def attended(given, before, reads, boosts, shape):
    """Return the results of all steps, [steps, ...], and the last state, by one operator.

    None if it does not compute such steps.

    Arguments:
        given: what all steps do, as `operands` returns it.
        before: the state before the first step, a tensor that broadcasts to `shape`.
        reads: the vectors that read states for the results, as `vectors_of_output` returns them, or
            None if these are the states; in a list, which is empty for no results.
        boosts: None; or for results that read the states before the steps, of which there is one
            more, what is added to these, as `boosted` returns it.
        shape: the shape of a state.
    """
    boost = None if boosts is None else boosts[0]
    found = layout(given, reads, boost, shape)
    if found is None:
        return None
    axis, keys, values = found
    factors, _, _, removed, rates = given
    across = ROWS + COLUMNS - axis
    added = None if boost is None else lengthwise(*boosts[1:], axis)
    if boost is not None and added is None:
        return None
    batch, n, m = shape[:-2], shape[axis], shape[across]
    rows, steps = math.prod(batch), keys.shape[0]

    def lined(items, size, dim):  # vectors of a size along a dimension
        ends = (size, 1) if dim == ROWS else (1, size)
        return broadcast(items, (*batch, *ends)).reshape(items.shape[0], rows, size)

    def keyed(x):
        return lined(x, n, axis)

    def valued(x):  # in a shape of their own by the delta rule
        return x.reshape(steps, rows, m) if removed is not None else lined(x, m, across)

    state = (before.expand(shape) if axis == ROWS else before.expand(shape).mT).reshape(rows, n, m)
    queries = keyed(*reads) if reads else None
    later = queries if boosts is None else queries[1:]
    results, last = linear_attention(
        *(keyed(factors), keyed(keys), valued(values), later),
        None if removed is None else keyed(removed),
        None if rates is None else valued(rates),
        state,
    )
    if boosts is not None:
        first = (state * queries[0].unsqueeze(-1)).sum(-2)
        results = torch.cat((first.unsqueeze(0), results))
    if added is not None:
        key, value = added
        weights = queries * keyed(boost) * keyed(key)
        results = results + weights.sum(-1, keepdim=True) * lined(value, m, across)
    last = last.reshape(*batch, n, m)
    results = None if queries is None else results.reshape(results.shape[0], *batch, m)
    return results, last if axis == ROWS else last.mT


def scanned(factors, summands, before, reads, shape):
    """Return the products of all states with vectors, [steps, ...], and the last state.

    None if `pypm::scan` does not compute them: results that are no products along the last
    dimension of states, or states for which it has no kernel.

    Arguments:
        factors, summands: those of each step, [steps, *shape].
        before: the state before the first step, of this shape.
        reads: the vectors that read the states, as `vectors_of_output` returns them.
        shape: the shape of a state.
    """
    if scans.unsupported(summands, shape[-1]) is not None:
        return None
    if axis_of(reads, summands.dtype, shape) != COLUMNS:
        return None
    *batch, rows, n = shape
    steps, count = summands.shape[0], math.prod(batch)
    vectors = broadcast(reads, (*batch, 1, n)).reshape(steps, count, n)
    factors, summands = (x.reshape(steps, count, rows, n) for x in (factors, summands))
    results, last = scan(factors, summands, vectors, before.reshape(count, rows, n))
    return results.reshape(steps, *batch, rows), last.reshape(shape)


def layout(given, reads, boost, shape):
    """Return the dimension of a state that queries read, and the keys and the values of all steps.

    None if `pypm::linear_attention` does not compute such steps: states that are no matrices,
    results that are no products of these with vectors, factors or boosts that differ among the
    values, or states for which it has no kernel.
    """
    factors, keys, values, removed, _ = given
    if len(shape) < 2 or values is None:
        return None
    every = [*reads, *[removed] * (removed is not None)]
    axes = {axis_of(each, keys.dtype, shape) for each in every} or {ROWS}
    axis = axes.pop()
    if axes or axis is None:
        return None
    across = ROWS + COLUMNS - axis
    if removed is None:
        keys, values = lengthwise(keys, values, axis) or (keys, values)
    fits = is_flat(values.shape, axis) and all(is_flat(x.shape, across) for x in (factors, keys))
    if not fits or (boost is not None and not is_flat(boost.shape, across)):
        return None
    wide = math.prod(shape[:-2]) * shape[across]
    if removed is not None and not same_size(math.prod(values.shape[1:]), wide):
        return None
    return None if attention.unsupported(keys, keys.dtype, shape[axis]) else (axis, keys, values)


def lengthwise(one, other, axis):
    """Return the keys and the values of outer products: those that lie along a dimension of a state
    come first. None if none do, or there are no values.
    """
    across = ROWS + COLUMNS - axis
    for keys, values in ((one, other), (other, one)) if other is not None else ():
        if is_flat(keys.shape, across) and is_flat(values.shape, axis):
            return keys, values
    return None


def axis_of(reads, dtype, shape):
    """Return the dimension of states of this shape along which the vectors `reads` lie.

    None if the results are states, or the vectors of another type or of a larger batch than these.
    """
    if reads is None or reads.dtype != dtype:
        return None
    _, *batch, _, _ = sizes = reads.shape
    if len(sizes) != len(shape) + 1:
        return None
    pairs = zip(batch, shape, strict=False)
    if not all(same_size(n, 1) or same_size(n, size) for n, size in pairs):
        return None
    return along(sizes, shape)


def is_flat(shape, dim):
    """Return whether the size of a dimension of items, [steps, ...], is 1, or they lack it."""
    return len(shape) <= -dim or same_size(shape[dim], 1)
