"""One step of a linear recurrence: factor, summand, and the product that it adds to the results.

The operands of a step are items of tensors, [..., steps, ...], in any number of dimensions: what
einsum, a matrix product or a sum over a product makes of vectors is one product of matrices.
"""

from pypm import let, pattern, predicate, var
from pypm.fx import GETITEM, aten
from pypm.rules.elements import Item, item_of
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


@pattern(through=Same)
def Summand(b, of_b, v, of_v, t):
    let(v=None)
    let(of_v=())
    return Part(b, of_b, t)


@pattern(through=Same)
def Summand(b, of_b, v, of_v, t):  # the outer product of a key and a value
    return Part(b, of_b, t) * Part(v, of_v, t)


@pattern(through=Same)
def Summand(b, of_b, v, of_v, t):
    x, y = var(), var()
    x <= Part(b, of_b, t)
    y <= Part(v, of_v, t)
    z = MM(x, y)
    assert x.shape[-1] == 1 and z.shape[:-1] == x.shape[:-1] and z.shape[:-2] == y.shape[:-2]
    return z


@pattern(through=Same)
def Summand(b, of_b, v, of_v, t):
    equation, at_b, at_v = var(), var(), var()
    x, y = Item(b, at_b, t), Item(v, at_v, t)
    z = aten.einsum(equation, [x, y], ...)
    let(of_b=(at_b, spread_out(equation, 0, x.shape)))
    let(of_v=(at_v, spread_out(equation, 1, y.shape)))
    return z


@pattern(through=Same)
def Step(a, of_a, b, of_b, v, of_v, before, t):  # the state after step t
    return Part(a, of_a, t) * before + Summand(b, of_b, v, of_v, t)


@pattern(through=Same)
def Step(a, of_a, b, of_b, v, of_v, before, t):  # one factor for all steps
    let(of_a=())
    return a * before + Summand(b, of_b, v, of_v, t)


@pattern(through=Same)
def Step(a, of_a, b, of_b, v, of_v, before, t):  # a sum, as in linear attention
    let(a=1.0)
    let(of_a=())
    return before + Summand(b, of_b, v, of_v, t)


DELTA = "delta"
"""In place of a factor's place, for a step of the delta rule."""


@pattern(through=Same)
def Step(a, of_a, b, of_b, v, of_v, before, t):  # S + k (v - S k), which the rules decline
    state, change = var(), var()
    let(a=None)
    let(of_a=DELTA)
    state <= Faded(before)
    change <= Correction(state, v, of_v, t)
    return state + Part(b, of_b, t) * change


@pattern(through=Same)
def Step(a, of_a, b, of_b, v, of_v, before, t):
    state, change, key = var(), var(), var()
    let(a=None)
    let(of_a=DELTA)
    state <= Faded(before)
    change <= Correction(state, v, of_v, t)
    key <= Part(b, of_b, t)
    return state + MM(key, change) | state + aten.einsum(_, [key, change], ...)


@pattern
def Faded(before):
    return before


@pattern
def Faded(before):
    return before * _


@pattern(through=NoOp)
def Correction(state, v, of_v, t):  # the difference of the value and what the state has of it
    c, of_c, form = var(), var(), var()
    return Part(v, of_v, t) - (Output(state, c, of_c, t, form) | MM(_, state))


@pattern(through=NoOp)
def Correction(state, v, of_v, t):
    x = var()
    x <= Correction(state, v, of_v, t)
    return Resized(x) | x * _


# --- what step t adds to the results --------------------------------------------------------------


@pattern
def Output(h, c, of_c, t, form):  # the state
    let(form=None)
    let(c=None)
    let(of_c=())
    return h


@pattern(through=NoOp)
def Output(h, c, of_c, t, form):  # the state, perhaps transposed, times a column
    x, z, turned = var(), var(), var()
    x <= Turned(Cast(h), turned)
    z <= Part(c, of_c, t)
    let(form=(True, turned))
    assert z.rank == h.rank and z.shape[-1] == 1
    return Flat(MM(x, z))


@pattern(through=NoOp)
def Output(h, c, of_c, t, form):  # a row times the state, perhaps transposed
    x, z, turned = var(), var(), var()
    x <= Turned(Cast(h), turned)
    z <= Part(c, of_c, t)
    let(form=(False, turned))
    assert z.rank == h.rank and z.shape[-2] == 1
    return FlatRow(MM(z, x))


@pattern(through=NoOp)
def Output(h, c, of_c, t, form):  # the same by a sum over the rows
    z = Part(c, of_c, t)
    let(form=(True, True))
    assert z.rank == h.rank and z.shape[-1] == 1 and z.shape[-2] == h.shape[-2]
    y = aten.sum(Cast(h) * z, [-2])
    assert y.dtype == z.dtype
    return y


@pattern(through=NoOp)
def Output(h, c, of_c, t, form):  # or over the columns
    z = Part(c, of_c, t)
    let(form=(False, True))
    assert z.rank == h.rank and z.shape[-2] == 1 and z.shape[-1] == h.shape[-1]
    y = aten.sum(Cast(h) * z, [-1])
    assert y.dtype == z.dtype
    return y


@pattern(through=NoOp)
def Output(h, c, of_c, t, form):
    equation, at = var(), var()
    z = Item(c, at, t)
    let(of_c=(at, as_row(z.shape)))
    let(form=(False, is_turned(equation, 0, 1, z.shape, h.shape)))
    return aten.einsum(equation, [z, Cast(h)], ...)


@pattern(through=NoOp)
def Output(h, c, of_c, t, form):
    equation, at = var(), var()
    z = Item(c, at, t)
    let(of_c=(at, as_row(z.shape)))
    let(form=(False, is_turned(equation, 1, 0, z.shape, h.shape)))
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
