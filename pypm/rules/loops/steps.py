"""One step of a linear recurrence: the state after it, from the one before: `a * S + b`, or by the
delta rule, whose summand reads the state.
"""

from pypm import let, pattern, predicate, record, var
from pypm.fx import aten, hiding, is_scalar, observer
from pypm.rules.loops.items import (
    Kept,
    Part,
    Piece,
    Reformed,
    Same,
    Times,
    as_column,
    as_row,
    piece,
    spread_out,
)
from pypm.rules.loops.reads import Column, Dot, Row, along, vectors
from pypm.rules.replacement.items import COLUMN, ROW, WHOLE, broadcast, parts, pieces
from pypm.rules.replacement.types import holds_number
from pypm.rules.vocabulary.shapes import Batch, Merged, NoOp
from pypm.rules.vocabulary.types import FLOATS


@predicate
def exact_in(dtype, number):
    """Return whether a type of floating point has a number, so that no narrow one rounds it."""
    return dtype in FLOATS and not isinstance(number, complex) and holds_number(dtype, number)


def exponential(x, at, t, steps, shape=None):
    """Return e to the power of an item."""
    return piece(x, at, t, steps, shape).exp()


@pattern(means=hiding(pieces, exponential))
def Exponential(x, at, t):  # e to the power of a part
    return aten.exp(Piece(x, at, t))


@pattern
def Exponential(x, at, t):
    return Reformed(Exponential(x, at, t))


@observer((WHOLE,), (COLUMN,), (ROW,))
def factors_of(factor, like, steps):
    """Return the factors of the states before, [steps, ...].

    Arguments:
        factor: as `Faded` binds it: `x`, a tensor or a number; `of`, the place, the shape and the
            type of its items; `is_log`, True if these are logarithms.
        like: a tensor of the type and the device of the states.
        steps: the number of steps.
    """
    a = factor.x
    factors = parts(like.new_full((), a) if is_scalar(a) else a, factor.of, steps)
    return factors.exp() if factor.is_log else factors


def faded(before, factor, t, steps):
    """Return a state times the factor of a step."""
    return before * factors_of(factor, before, steps)[t]


@pattern(means=hiding(factors_of, faded))
def Faded(before, factor, t):  # the state before, times a factor of the step
    a, of_a = var(), var()
    let(factor=record(x=a, of=of_a, is_log=False))
    return Part(a, of_a, t) * Kept(before)


@pattern
def Faded(before, factor, t):  # or a factor by its logarithm
    a, at = var(), var()
    x = Exponential(a, at, t)
    let(factor=record(x=a, of=(at, x.shape, x.dtype), is_log=True))
    return x * Kept(before)


@pattern
def Faded(before, factor, t):  # or one for all steps
    a = var()
    let(factor=record(x=a, of=(), is_log=False))
    y = a * Kept(before)
    assert exact_in(y.dtype, a.value)
    return y


@pattern
def Faded(before, factor, t):
    a = var()
    let(factor=record(x=a, of=(), is_log=False))
    assert a.dtype in FLOATS
    return a * Kept(before)


@pattern
def Faded(before, factor, t):  # or none, as in linear attention
    let(factor=record(x=1.0, of=(), is_log=False))
    return Kept(before)


@predicate
def spreads(small, large):
    """Return whether the batch dimensions of one shape broadcast to those of another."""
    pairs = zip(small[:-2], large[:-2], strict=True)
    return all(n == 1 or n == size for n, size in pairs)


@pattern
def Outer(x, y):  # a column times a row
    z = Times(x, y)
    assert x.shape[-1] == 1 and x.rank == y.rank == z.rank
    assert spreads(x.shape, z.shape) and spreads(y.shape, z.shape)
    return z


@pattern
def Outer(x, y):  # as Inductor writes it
    z = Batch(Merged(x) * Merged(y))
    assert x.shape[:-2] == y.shape[:-2] == z.shape[:-2]
    return z


@observer((WHOLE, None), (COLUMN, ROW), (ROW, COLUMN))
def added(summand, steps):
    """Return the keys and the values of all steps, [steps, ...], whose product is added; the values
    are None if the keys are.

    Arguments:
        summand: as `Summand` binds it: `key` and `value`, tensors, each with the place, the shape
            and the type of its items.
        steps: the number of steps.
    """
    keys, v = parts(summand.key, summand.of_key, steps), summand.value
    return keys, None if v is None else parts(v, summand.of_value, steps)


def addend(summand, t, steps):
    """Return what a step adds."""
    keys, values = added(summand, steps)
    return keys[t] if values is None else keys[t] * values[t]


@pattern(through=Same, means=hiding(added, addend))
def Summand(summand, t):
    b, of_b = var(), var()
    let(summand=record(key=b, of_key=of_b, value=None, of_value=()))
    return Part(b, of_b, t)


@pattern(through=Same)
def Summand(summand, t):  # the outer product of a key and a value
    b, of_b, v, of_v = var(), var(), var(), var()
    let(summand=record(key=b, of_key=of_b, value=v, of_value=of_v))
    return Part(b, of_b, t) * Part(v, of_v, t)


@pattern(through=Same)
def Summand(summand, t):
    b, of_b, v, of_v, x, y = var(), var(), var(), var(), var(), var()
    x <= Part(b, of_b, t)
    y <= Part(v, of_v, t)
    let(summand=record(key=b, of_key=of_b, value=v, of_value=of_v))
    return Outer(x, y)


@pattern(through=Same)
def Summand(summand, t):
    b, own_b, of_b, v, own_v, of_v, equation = var(), var(), var(), var(), var(), var(), var()
    x, y = Part(b, own_b, t), Part(v, own_v, t)
    z = aten.einsum(equation, [x, y], ...)
    let(of_b=(own_b[0], spread_out(equation, 0, x.shape), own_b[2]))
    let(of_v=(own_v[0], spread_out(equation, 1, y.shape), own_v[2]))
    let(summand=record(key=b, of_key=of_b, value=v, of_value=of_v))
    return z


@pattern(through=Same)
def Summand(summand, t):
    b, own_b, of_b, v, own_v, of_v = var(), var(), var(), var(), var(), var()
    x, y = Part(b, own_b, t), Part(v, own_v, t)
    let(of_b=(own_b[0], as_column(x.shape), own_b[2]))
    let(of_v=(own_v[0], as_row(y.shape), own_v[2]))
    let(summand=record(key=b, of_key=of_b, value=v, of_value=of_v))
    return aten.outer(x, y)


@observer(
    (WHOLE, WHOLE, None, None, None),
    (WHOLE, COLUMN, ROW, None, None),
    (COLUMN, COLUMN, ROW, None, None),
    (ROW, ROW, COLUMN, None, None),
    (COLUMN, COLUMN, ROW, COLUMN, None),
    (COLUMN, COLUMN, ROW, COLUMN, ROW),
    (ROW, ROW, COLUMN, ROW, None),
)
def operands(step, steps):
    """Return the operands of all steps, [steps, ...]: factors, keys and values, as in `added`; and
    by the delta rule, the vectors that read the states, and rates, as in `corrected`, or None.

    Arguments:
        step: as `Step` binds it: its `factor`, its `summand`, and whether that is a correction.
        steps: the number of steps.
    """
    if step.is_delta:
        keys, values, reads, rates = corrected(step.summand, steps)
    else:
        (keys, values), reads, rates = added(step.summand, steps), None, None
    return factors_of(step.factor, keys, steps), keys, values, reads, rates


def advanced(step, before, t, steps):
    """Return the state after a step."""
    factor, key, *change = (None if x is None else x[t] for x in operands(step, steps))
    state, (value, read, _) = before * factor, change
    if read is not None:
        value = change_of(state, *change)
    return state + (key if value is None else key * value)


@pattern(means=hiding(operands, advanced))
def Step(step, before, t):
    factor, summand = var(), var()
    let(step=record(factor=factor, summand=summand, is_delta=False))
    return Faded(before, factor, t) + Summand(summand, t)


@pattern
def Step(step, before, t):  # S + k (v - S k)
    factor, summand, state, change = var(), var(), var(), var()
    state <= Faded(before, factor, t)
    change <= Correction(state, summand, t)
    let(step=record(factor=factor, summand=summand, is_delta=True))
    return state + change


def change_of(state, values, reads, rates=None):
    """Return values without what a state has of them, times rates, in the shape of the values."""
    found = (state * reads).sum(along(reads.shape, state.shape))
    change = values.reshape(found.shape) - found
    return (change if rates is None else change * rates.reshape(found.shape)).reshape(values.shape)


@observer((COLUMN, ROW, COLUMN, None), (COLUMN, ROW, COLUMN, ROW), (ROW, COLUMN, ROW, None))
def corrected(summand, steps):
    """Return keys, values, the vectors that read the states, and rates or None, [steps, ...].

    Arguments:
        summand: as `Correction` binds it: `key`, a tensor, with the place, the shape and the type
            of its items; `change`, as for `changed`; and its shape there, `sizes`.
        steps: the number of steps.
    """
    keys, sizes = parts(summand.key, summand.of_key, steps), (steps, *summand.sizes)
    values, reads, rates = changed(summand.change, steps)
    return keys, values.reshape(sizes), reads, None if rates is None else rates.reshape(sizes)


def correction(state, summand, t, steps):
    """Return what a step adds by the delta rule to a state that has faded."""
    key, *change = (None if x is None else x[t] for x in corrected(summand, steps))
    return key * change_of(state, *change)


@pattern(through=Same, means=hiding(corrected, correction))
def Correction(state, summand, t):  # the outer product of a key and a change
    k, of_k, change = var(), var(), var()
    x = Viewed(Change(state, change, t))
    let(summand=record(key=k, of_key=of_k, change=change, sizes=x.shape))
    return Part(k, of_k, t) * x


@pattern(through=Same)
def Correction(state, summand, t):
    k, of_k, change, x, y = var(), var(), var(), var(), var()
    x <= Viewed(Change(state, change, t))
    y <= Part(k, of_k, t)
    let(summand=record(key=k, of_key=of_k, change=change, sizes=x.shape))
    return Outer(x, y) | Outer(y, x)


@pattern(through=Same)
def Correction(state, summand, t):
    k, own, change, equation, of_k, sizes = var(), var(), var(), var(), var(), var()
    x, y = Viewed(Change(state, change, t)), Part(k, own, t)
    z = aten.einsum(equation, [y, x], ...)
    let(of_k=(own[0], spread_out(equation, 0, y.shape), own[2]))
    let(sizes=spread_out(equation, 1, x.shape))
    let(summand=record(key=k, of_key=of_k, change=change, sizes=sizes))
    return z


@pattern(through=Same)
def Correction(state, summand, t):  # the change first
    k, own, change, equation, of_k, sizes = var(), var(), var(), var(), var(), var()
    x, y = Viewed(Change(state, change, t)), Part(k, own, t)
    z = aten.einsum(equation, [x, y], ...)
    let(of_k=(own[0], spread_out(equation, 1, y.shape), own[2]))
    let(sizes=spread_out(equation, 0, x.shape))
    let(summand=record(key=k, of_key=of_k, change=change, sizes=sizes))
    return z


@pattern(through=Same)
def Correction(state, summand, t):
    k, own, of_k, change = var(), var(), var(), var()
    x, y = Viewed(Change(state, change, t)), Part(k, own, t)
    let(of_k=(own[0], as_column(y.shape), own[2]))
    let(summand=record(key=k, of_key=of_k, change=change, sizes=x.shape))
    return aten.outer(y, x)


@pattern(through=Same)
def Correction(state, summand, t):
    k, own, of_k, change, sizes = var(), var(), var(), var(), var()
    x, y = Viewed(Change(state, change, t)), Part(k, own, t)
    let(of_k=(own[0], as_row(y.shape), own[2]))
    let(sizes=as_column(x.shape))
    let(summand=record(key=k, of_key=of_k, change=change, sizes=sizes))
    return aten.outer(x, y)


@observer((1, COLUMN), (1, ROW), (ROW, COLUMN), (COLUMN, ROW))
def taken_from(taken, steps):
    """Return values, and the vectors that read the states, [steps, ...].

    Arguments:
        taken: as `Difference` binds it: `value`, a tensor, with the place, the shape and the type
            of its items, `of`; `read`, as for `vectors`; and the shape of the difference, `sizes`.
        steps: the number of steps.
    """
    values = broadcast(parts(taken.value, taken.of, steps), taken.sizes)
    return values, vectors(taken.read, steps)


def difference(state, taken, t, steps):
    """Return the value of a step, without what a state has of it."""
    return change_of(state, *(x[t] for x in taken_from(taken, steps)))


@pattern(through=NoOp, means=hiding(taken_from, difference))
def Difference(state, taken, t):
    v, of_v, read = var(), var(), var()
    found = Dot(state, read, t) | Column(state, read, t) | Row(state, read, t)
    d = Part(v, of_v, t) - found
    let(taken=record(value=v, of=of_v, read=read, sizes=d.shape))
    assert d.numel == found.numel
    return d


def viewed(x, shape=None):
    """Return the same elements in the same order, in another shape if there is one."""
    return x if shape is None else x.reshape(shape)


@pattern(through=NoOp, means=viewed)
def Viewed(x):
    return x


@pattern(through=NoOp)
def Viewed(x):
    return Reformed(Viewed(x))


@observer((1, COLUMN, None), (1, ROW, 1), (ROW, COLUMN, ROW), (COLUMN, ROW, None))
def changed(change, steps):
    """Return the same, and rates or None.

    Arguments:
        change: as `Change` binds it: `taken`, as for `taken_from`; and `rate` or None: a tensor,
            with the place, the shape and the type of its items, and the shape of the difference.
        steps: the number of steps.
    """
    values, reads = taken_from(change.taken, steps)
    rate = change.rate
    if rate is None:
        return values, reads, None
    rates = broadcast(parts(rate.x, rate.of, steps), rate.sizes)
    return values.reshape(steps, *rate.sizes), reads, rates


def rated(state, change, t, steps):
    """Return the difference times the rate, if there is one."""
    return change_of(state, *(None if x is None else x[t] for x in changed(change, steps)))


@pattern(through=NoOp, means=hiding(changed, rated))
def Change(state, change, t):
    taken = var()
    let(change=record(taken=taken, rate=None))
    return Difference(state, taken, t)


@pattern(through=NoOp)
def Change(state, change, t):  # times a rate
    taken, x, a, of = var(), var(), var(), var()
    x <= Viewed(Difference(state, taken, t))
    y = x * Part(a, of, t)
    let(change=record(taken=taken, rate=record(x=a, of=of, sizes=x.shape)))
    assert y.shape == x.shape
    return y
