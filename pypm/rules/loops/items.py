"""Items of tensors, as the steps of a loop take them: each in a shape of its own.

The operands of a step are items of tensors, [..., steps, ...], in any number of dimensions: what
einsum, a matrix product or a sum over a product makes of vectors is one product of matrices.
"""

from pypm import let, pattern, predicate, var
from pypm.fx import GETITEM, aten, hiding
from pypm.rules.replacement.items import lined_up, pieces
from pypm.rules.vocabulary.indexing import ALL, Item, Taken, item_at, span
from pypm.rules.vocabulary.products import MM
from pypm.rules.vocabulary.shapes import NoOp, Resized, Rounded, reshaped, same
from pypm.rules.vocabulary.types import holds


@pattern(means=same)
def Same(x):  # torch.export keeps casts that change nothing, and goes on with their results
    return NoOp(x)


@pattern
def Same(x):
    y = aten.to(x, ...)
    assert y.dtype == x.dtype and y.device == x.device
    return y


@pattern(means=same)
def Kept(x):  # x under any number of those
    return Same(Kept(x)) | x


@pattern(means=same)
def Once(x):  # x, perhaps in another type, but by one cast that changes it
    return Kept(x)


@pattern
def Once(x):
    y = Rounded(Kept(x))
    assert y.dtype != x.dtype
    return Kept(y)


@predicate
def part_of(shape, index):
    """Return the place and the number of the items that `x[index]` takes, for x of this shape.

    Raises ValueError, which means "no match", if it inserts no dimension and takes no slice of the
    last dimension of an item, or does something else.
    """
    old = tuple(part for part in index if part is not None) if isinstance(index, tuple) else ()
    match old:
        case [*others, ["slice", start, stop, step]] if not {*others} <= {..., ALL}:
            if ... in others or len(old) == len(shape):
                at, t = item_at(shape, (*others, ALL))
                return (at, span(shape[-1], start, stop, step)), t
    if old == index:
        raise ValueError("no more than an item")
    at, t = item_at(shape, old)
    return (at, None), t


@predicate
def inserts(index):
    """Return whether an index does nothing but insert dimensions."""
    index = index if isinstance(index, tuple) else (index,)
    return all(part in (None, ..., ALL) for part in index)


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
def as_column(shape):
    """Return the shape of a vector [..., n] as columns, [..., n, 1]."""
    return (*shape, 1)


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


@pattern(means=hiding(lined_up, lambda x, at, t, steps: lined_up(x, at, steps)[t]))
def Input(x, at, t):
    return Item(x, at, t)


@pattern(means=hiding(pieces, lambda x, at, t, steps: pieces(x, at, steps)[t]))
def Bare(x, at, t):  # item t of x
    of = var()
    let(at=(of, None))
    return Input(x, of, t)


@pattern
def Bare(x, at, t):  # some of its elements
    of, some = var(), var()
    let(at=(of, some))
    return Taken(Input(x, of, t), some)


@pattern(through=NoOp)
def Bare(x, at, t):
    i, found = var(), var()
    let(found=part_of(x.shape, i))
    let(at=found[0])
    let(t=found[1])
    return GETITEM(x, i)


@pattern(means=reshaped)
def Reformed(x):  # the same elements in the same order
    return Resized(x)


@pattern
def Reformed(x):
    i = var()
    y = GETITEM(x, i)
    assert inserts(i)
    return y


def piece(x, at, t, steps, shape=None):
    """Return the item of x that step t takes, in another shape if there is one."""
    y = pieces(x, at, steps)[t]
    return y if shape is None else y.reshape(shape)


@pattern(means=hiding(pieces, piece))
def Piece(x, at, t):  # the same, perhaps changed
    return Bare(x, at, t)


@pattern
def Piece(x, at, t):  # in another type, as all of x may be before
    inner = Piece(x, at, t)
    y = Rounded(inner)
    assert holds(inner.dtype, x.dtype) or y.dtype == inner.dtype
    return y


@pattern
def Piece(x, at, t):
    return Reformed(Piece(x, at, t)) | NoOp(Piece(x, at, t))


@pattern
def Part(x, of, t):  # `of` is the place, the shape and the type of item t
    at = var()
    y = Piece(x, at, t)
    let(of=(at, y.shape, y.dtype))
    return y


@pattern
def Times(x, y):  # the product of two matrices
    return MM(x, y) | aten.mm(x, y)
