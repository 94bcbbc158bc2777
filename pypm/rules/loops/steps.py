"""One step of a linear recurrence: the state after it, from the one before."""

from pypm import let, pattern, predicate, record, var
from pypm.fx import GETITEM, aten
from pypm.rules.loops.items import (
    Kept,
    Part,
    Same,
    Times,
    as_column,
    as_row,
    inserts,
    spread_out,
)
from pypm.rules.loops.reads import Column, Output, Row
from pypm.rules.vocabulary.shapes import Batch, Merged, NoOp, Resized

LINEAR, DELTA = "linear", "delta"
"""The step of a loop: `a * S + b`, or the delta rule, whose summand reads the state."""


@pattern
def Exponential(x, of, t):  # e to the power of a part
    return aten.exp(Part(x, of, t))


@pattern
def Exponential(x, of, t):
    inner = var()
    y = Resized(Exponential(x, inner, t))
    let(of=(inner[0], y.shape, inner[2]))
    return y


@pattern
def Exponential(x, of, t):
    inner, i = var(), var()
    y = GETITEM(Exponential(x, inner, t), i)
    let(of=(inner[0], y.shape, inner[2]))
    assert inserts(i)
    return y


@pattern
def Faded(before, factor, t):  # the state before, times a factor of the step
    a, of_a = var(), var()
    let(factor=record(x=a, of=of_a, is_log=False))
    return Part(a, of_a, t) * Kept(before)


@pattern
def Faded(before, factor, t):  # or a factor by its logarithm
    a, of_a = var(), var()
    let(factor=record(x=a, of=of_a, is_log=True))
    return Exponential(a, of_a, t) * Kept(before)


@pattern
def Faded(before, factor, t):  # or one for all steps
    a = var()
    let(factor=record(x=a, of=(), is_log=False))
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


@pattern(through=Same)
def Summand(summand, t):
    b, of_b = var(), var()
    let(summand=record(key=b, of_key=of_b, value=None, of_value=(), count=b.shape[of_b[0][0]]))
    return Part(b, of_b, t)


@pattern(through=Same)
def Summand(summand, t):  # the outer product of a key and a value
    b, of_b, v, of_v = var(), var(), var(), var()
    let(summand=record(key=b, of_key=of_b, value=v, of_value=of_v, count=b.shape[of_b[0][0]]))
    return Part(b, of_b, t) * Part(v, of_v, t)


@pattern(through=Same)
def Summand(summand, t):
    b, of_b, v, of_v, x, y = var(), var(), var(), var(), var(), var()
    x <= Part(b, of_b, t)
    y <= Part(v, of_v, t)
    let(summand=record(key=b, of_key=of_b, value=v, of_value=of_v, count=b.shape[of_b[0][0]]))
    return Outer(x, y)


@pattern(through=Same)
def Summand(summand, t):
    b, own_b, of_b, v, own_v, of_v, equation = var(), var(), var(), var(), var(), var(), var()
    x, y = Part(b, own_b, t), Part(v, own_v, t)
    z = aten.einsum(equation, [x, y], ...)
    let(of_b=(own_b[0], spread_out(equation, 0, x.shape), own_b[2]))
    let(of_v=(own_v[0], spread_out(equation, 1, y.shape), own_v[2]))
    let(summand=record(key=b, of_key=of_b, value=v, of_value=of_v, count=b.shape[of_b[0][0]]))
    return z


@pattern(through=Same)
def Summand(summand, t):
    b, own_b, of_b, v, own_v, of_v = var(), var(), var(), var(), var(), var()
    x, y = Part(b, own_b, t), Part(v, own_v, t)
    let(of_b=(own_b[0], as_column(x.shape), own_b[2]))
    let(of_v=(own_v[0], as_row(y.shape), own_v[2]))
    let(summand=record(key=b, of_key=of_b, value=v, of_value=of_v, count=b.shape[of_b[0][0]]))
    return aten.outer(x, y)


@pattern
def Step(step, before, t):
    factor, summand = var(), var()
    let(step=record(kind=LINEAR, factor=factor, summand=summand))
    return Faded(before, factor, t) + Summand(summand, t)


@pattern
def Step(step, before, t):  # S + k (v - S k)
    factor, summand, state, added = var(), var(), var(), var()
    state <= Faded(before, factor, t)
    added <= Correction(state, summand, t)
    let(step=record(kind=DELTA, factor=factor, summand=summand))
    return state + added


@pattern(through=Same)
def Correction(state, summand, t):  # the outer product of a key and a change
    k, of_k, change = var(), var(), var()
    x = Change(state, change, t)
    let(summand=record(key=k, of_key=of_k, change=change, sizes=x.shape, count=k.shape[of_k[0][0]]))
    return Part(k, of_k, t) * x


@pattern(through=Same)
def Correction(state, summand, t):
    k, of_k, change, x, y = var(), var(), var(), var(), var()
    x <= Change(state, change, t)
    y <= Part(k, of_k, t)
    let(summand=record(key=k, of_key=of_k, change=change, sizes=x.shape, count=k.shape[of_k[0][0]]))
    return Outer(x, y) | Outer(y, x)


@pattern(through=Same)
def Correction(state, summand, t):
    k, own, change, equation, of_k, sizes = var(), var(), var(), var(), var(), var()
    x, y = Change(state, change, t), Part(k, own, t)
    z = aten.einsum(equation, [y, x], ...)
    let(of_k=(own[0], spread_out(equation, 0, y.shape), own[2]))
    let(sizes=spread_out(equation, 1, x.shape))
    let(summand=record(key=k, of_key=of_k, change=change, sizes=sizes, count=k.shape[of_k[0][0]]))
    return z


@pattern(through=Same)
def Correction(state, summand, t):  # the change first
    k, own, change, equation, of_k, sizes = var(), var(), var(), var(), var(), var()
    x, y = Change(state, change, t), Part(k, own, t)
    z = aten.einsum(equation, [x, y], ...)
    let(of_k=(own[0], spread_out(equation, 1, y.shape), own[2]))
    let(sizes=spread_out(equation, 0, x.shape))
    let(summand=record(key=k, of_key=of_k, change=change, sizes=sizes, count=k.shape[of_k[0][0]]))
    return z


@pattern(through=Same)
def Correction(state, summand, t):
    k, own, of_k, change = var(), var(), var(), var()
    x, y = Change(state, change, t), Part(k, own, t)
    let(of_k=(own[0], as_column(y.shape), own[2]))
    let(summand=record(key=k, of_key=of_k, change=change, sizes=x.shape, count=k.shape[of_k[0][0]]))
    return aten.outer(y, x)


@pattern(through=Same)
def Correction(state, summand, t):
    k, own, of_k, change, sizes = var(), var(), var(), var(), var()
    x, y = Change(state, change, t), Part(k, own, t)
    let(of_k=(own[0], as_row(y.shape), own[2]))
    let(sizes=as_column(x.shape))
    let(summand=record(key=k, of_key=of_k, change=change, sizes=sizes, count=k.shape[of_k[0][0]]))
    return aten.outer(x, y)


@pattern(through=NoOp)
def Change(state, change, t):  # the value, without what the state has of it
    v, of_v, read = var(), var(), var()
    d = Part(v, of_v, t) - (Output(state, read, t) | Column(state, read, t) | Row(state, read, t))
    let(change=record(taken=record(value=v, of=of_v, read=read, sizes=d.shape), rate=None))
    return d


@pattern(through=NoOp)
def Change(state, change, t):  # times a rate
    inner, rate, of_rate, x = var(), var(), var(), var()
    x <= Change(state, inner, t)
    assert inner.rate is None
    let(change=record(taken=inner.taken, rate=record(x=rate, of=of_rate, sizes=x.shape)))
    return x * Part(rate, of_rate, t)


@pattern(through=NoOp)
def Change(state, change, t):
    return Resized(Change(state, change, t))


@pattern(through=NoOp)
def Change(state, change, t):
    i = var()
    y = GETITEM(Change(state, change, t), i)
    assert inserts(i)
    return y
