"""One step of a linear recurrence: factor, summand, and the product that it adds to the results.

The operands of a step are items of tensors, [..., steps, ...], in any number of dimensions: what
einsum, a matrix product or a sum over a product makes of vectors is one product of matrices.
"""

from pypm import let, pattern, predicate, var
from pypm.fx import GETITEM, aten
from pypm.rules.elements import ALL, Item, item_of
from pypm.rules.spellings import MM, Cast, NoOp, Refitted, Resized, Transposed

# --- items --------------------------------------------------------------------------------------


@pattern
def Same(x):  # torch.export keeps casts that change nothing, and goes on with their results
    return NoOp(x)


@pattern
def Same(x):
    y = aten.to(x, ...)
    assert y.dtype == x.dtype
    return y


@predicate
def old_parts(index):
    """Return an index without the parts that insert dimensions.

    Raises ValueError, which means "no match", if it inserts none.
    """
    if not isinstance(index, tuple) or None not in index:
        raise ValueError("no dimension is inserted")
    return tuple(part for part in index if part is not None)


@predicate
def inserts(index):
    """Return whether an index does nothing but insert dimensions."""
    return isinstance(index, tuple) and all(part in (None, ..., ALL) for part in index)


@predicate
def spread_out(equation, number, shape):
    """Return the shape of an operand of an outer product by `einsum` that broadcasts to the result.

    `number` is that of the operand, `shape` its shape. Raises ValueError, which means "no match",
    if the einsum sums, or permutes the dimensions of the operand.
    """
    operands, letters = equation.replace(" ", "").split("->")
    mine = operands.split(",")[number]
    own = dict(zip(mine, shape, strict=True))
    if "." in equation or [x for x in letters if x in own] != [*mine]:
        raise ValueError("no outer product")
    if len({*letters}) != len(letters) or {*letters} != {*operands} - {","}:
        raise ValueError("something is summed")
    return tuple(own.get(x, 1) for x in letters)


@predicate
def as_row(shape):
    """Return the shape of a vector [..., n] as rows, [..., 1, n]."""
    return (*shape[:-1], 1, shape[-1])


@predicate
def is_turned(equation, vector, state, sizes, shape):
    """Return whether an `einsum` is the product of a vector and the transposed state.

    `vector` and `state` are the numbers of the operands, of shapes `sizes` and `shape`. Returns
    False for the product with the state itself; raises ValueError, which means "no match", if it
    computes something else, or repeats the vector.
    """
    operands, result = equation.replace(" ", "").split("->")
    of_vector, of_state = (operands.split(",")[i] for i in (vector, state))
    *batch, row, column = of_state
    if "." in equation or len({*of_state}) != len(of_state):
        raise ValueError("no product of a vector and a state")
    known = dict(zip(of_state, shape, strict=True))
    if [known.get(x) for x in of_vector] != [*sizes]:
        raise ValueError("the vector is repeated")
    for turned, (summed, kept) in enumerate(((row, column), (column, row))):
        if [*of_vector] == [*batch, summed] and [*result] == [*batch, kept]:
            return bool(turned)
    raise ValueError("no product of a vector and a state")


@pattern
def Part(x, of, t):  # item t of x, perhaps in more dimensions; `of` is its place and its shape
    at = var()
    y = Item(x, at, t)
    let(of=(at, y.shape))
    return y


@pattern
def Part(x, of, t):
    inner = var()
    y = Resized(Part(x, inner, t)) | NoOp(Part(x, inner, t))
    let(of=(inner[0], y.shape))
    return y


@pattern(through=NoOp)
def Part(x, of, t):
    i, found = var(), var()
    y = GETITEM(x, i)
    let(found=item_of(x.shape, old_parts(i)))
    let(of=(found[0], y.shape))
    let(t=found[1])
    return y


# --- the state after step t, from the one before ------------------------------------------------

LINEAR, DELTA = "linear", "delta"
"""The step of a loop: `a * S + b`, or the delta rule, whose summand reads the state."""


@pattern
def Exponential(x, of, t):  # e to the power of a part
    return aten.exp(Part(x, of, t))


@pattern
def Exponential(x, of, t):
    inner = var()
    y = Resized(Exponential(x, inner, t))
    let(of=(inner[0], y.shape))
    return y


@pattern
def Faded(before, factor, t):  # the state before, times a factor of the step
    a, of_a = var(), var()
    let(factor=(a, of_a, False))
    return Part(a, of_a, t) * before


@pattern
def Faded(before, factor, t):  # or a factor by its logarithm
    a, of_a = var(), var()
    let(factor=(a, of_a, True))
    return Exponential(a, of_a, t) * before


@pattern
def Faded(before, factor, t):  # or one for all steps
    a = var()
    let(factor=(a, (), False))
    return a * before


@pattern
def Faded(before, factor, t):  # or none, as in linear attention
    let(factor=(1.0, (), False))
    return before


@pattern
def Outer(x, y):  # a column times a row
    z = MM(x, y)
    assert x.shape[-1] == 1 and x.rank == y.rank == z.rank
    return z


@pattern(through=Same)
def Summand(summand, t):
    b, of_b = var(), var()
    let(summand=(b, of_b, None, (), b.shape[of_b[0][0]]))
    return Part(b, of_b, t)


@pattern(through=Same)
def Summand(summand, t):  # the outer product of a key and a value
    b, of_b, v, of_v = var(), var(), var(), var()
    let(summand=(b, of_b, v, of_v, b.shape[of_b[0][0]]))
    return Part(b, of_b, t) * Part(v, of_v, t)


@pattern(through=Same)
def Summand(summand, t):
    b, of_b, v, of_v, x, y = var(), var(), var(), var(), var(), var()
    x <= Part(b, of_b, t)
    y <= Part(v, of_v, t)
    let(summand=(b, of_b, v, of_v, b.shape[of_b[0][0]]))
    return Outer(x, y)


@pattern(through=Same)
def Summand(summand, t):
    b, at_b, of_b, v, at_v, of_v, equation = var(), var(), var(), var(), var(), var(), var()
    x, y = Item(b, at_b, t), Item(v, at_v, t)
    z = aten.einsum(equation, [x, y], ...)
    let(of_b=(at_b, spread_out(equation, 0, x.shape)))
    let(of_v=(at_v, spread_out(equation, 1, y.shape)))
    let(summand=(b, of_b, v, of_v, b.shape[of_b[0][0]]))
    return z


@pattern(through=Same)
def Step(step, before, t):
    factor, summand = var(), var()
    let(step=(LINEAR, factor, summand))
    return Faded(before, factor, t) + Summand(summand, t)


@pattern(through=Same)
def Step(step, before, t):  # S + k (v - S k)
    factor, summand, state, added = var(), var(), var(), var()
    state <= Faded(before, factor, t)
    added <= Correction(state, summand, t)
    let(step=(DELTA, factor, summand))
    return state + added


@pattern(through=Same)
def Correction(state, summand, t):  # the outer product of a key and a change
    k, of_k, change = var(), var(), var()
    x = Change(state, change, t)
    let(summand=(k, of_k, change, x.shape, k.shape[of_k[0][0]]))
    return Part(k, of_k, t) * x


@pattern(through=Same)
def Correction(state, summand, t):
    k, of_k, change, x, y = var(), var(), var(), var(), var()
    x <= Change(state, change, t)
    y <= Part(k, of_k, t)
    let(summand=(k, of_k, change, x.shape, k.shape[of_k[0][0]]))
    return Outer(x, y) | Outer(y, x)


@pattern(through=Same)
def Correction(state, summand, t):
    k, at, change, equation, of_k, sizes = var(), var(), var(), var(), var(), var()
    x, y = Change(state, change, t), Item(k, at, t)
    z = aten.einsum(equation, [y, x], ...)
    let(of_k=(at, spread_out(equation, 0, y.shape)))
    let(sizes=spread_out(equation, 1, x.shape))
    let(summand=(k, of_k, change, sizes, k.shape[at[0]]))
    return z


@pattern(through=NoOp)
def Change(state, change, t):  # the value, without what the state has of it
    v, of_v, read = var(), var(), var()
    d = Part(v, of_v, t) - (Output(state, read, t) | Column(state, read, t) | Row(state, read, t))
    let(change=((v, of_v, read, d.shape), None, (), ()))
    return d


@pattern(through=NoOp)
def Change(state, change, t):  # times a rate
    inner, rate, of_rate, x = var(), var(), var(), var()
    x <= Change(state, inner, t)
    assert inner[1] is None
    let(change=(inner[0], rate, of_rate, x.shape))
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


# --- what step t adds to the results --------------------------------------------------------------


@pattern(through=NoOp)
def Column(h, out, t):  # the state, perhaps transposed, times a column: [..., n, 1]
    c, of_c, x, z, turned = var(), var(), var(), var(), var()
    x <= Turned(Cast(h), turned)
    z <= Part(c, of_c, t)
    let(out=(c, of_c, (True, turned)))
    assert z.rank == h.rank and z.shape[-1] == 1
    return MM(x, z)


@pattern(through=NoOp)
def Row(h, out, t):  # a row times the state, perhaps transposed: [..., 1, n]
    c, of_c, x, z, turned = var(), var(), var(), var(), var()
    x <= Turned(Cast(h), turned)
    z <= Part(c, of_c, t)
    let(out=(c, of_c, (False, turned)))
    assert z.rank == h.rank and z.shape[-2] == 1
    return MM(z, x)


@pattern
def Output(h, out, t):  # the state
    let(out=(None, (), None))
    return h


@pattern(through=NoOp)
def Output(h, out, t):
    return Flat(Column(h, out, t)) | FlatRow(Row(h, out, t))


@pattern(through=NoOp)
def Output(h, out, t):  # the same by a sum over the rows
    c, of_c = var(), var()
    z = Part(c, of_c, t)
    let(out=(c, of_c, (True, True)))
    assert z.rank == h.rank and z.shape[-1] == 1 and z.shape[-2] == h.shape[-2]
    y = aten.sum(Cast(h) * z, [-2])
    assert y.dtype == z.dtype
    return y


@pattern(through=NoOp)
def Output(h, out, t):  # or over the columns
    c, of_c = var(), var()
    z = Part(c, of_c, t)
    let(out=(c, of_c, (False, True)))
    assert z.rank == h.rank and z.shape[-2] == 1 and z.shape[-1] == h.shape[-1]
    y = aten.sum(Cast(h) * z, [-1])
    assert y.dtype == z.dtype
    return y


@pattern(through=NoOp)
def Output(h, out, t):
    c, equation, at = var(), var(), var()
    z = Item(c, at, t)
    let(out=(c, (at, as_row(z.shape)), (False, is_turned(equation, 0, 1, z.shape, h.shape))))
    return aten.einsum(equation, [z, Cast(h)], ...)


@pattern(through=NoOp)
def Output(h, out, t):
    c, equation, at = var(), var(), var()
    z = Item(c, at, t)
    let(out=(c, (at, as_row(z.shape)), (False, is_turned(equation, 1, 0, z.shape, h.shape))))
    return aten.einsum(equation, [Cast(h), z], ...)


@pattern
def Turned(x, turned):
    let(turned=False)
    return x


@pattern
def Turned(x, turned):
    let(turned=True)
    return Transposed(x)


@pattern(through=NoOp)
def FlatRow(x):  # x [..., 1, n] without that dimension
    y = Refitted(x)
    assert y.shape[:-1] == x.shape[:-2]
    return y


@pattern
def FlatRow(x):
    at, t = var(), var()
    y = Item(x, at, t)
    assert at == (x.rank - 2, False)
    return y


@pattern(through=NoOp)
def Flat(x):  # x [..., 1] without its last dimension
    y = Refitted(x)
    assert y.shape == x.shape[:-1]
    return y


@pattern
def Flat(x):
    at, t = var(), var()
    y = Item(x, at, t)
    assert at == (x.rank - 1, False)
    return y
