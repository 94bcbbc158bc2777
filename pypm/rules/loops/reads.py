"""Products of the state with a vector, which a step of a loop reads, and the state itself."""

from pypm import let, pattern, predicate, var
from pypm.fx import aten, hiding, observer, same_size
from pypm.rules.loops.items import Once, Part, Times, as_column, as_row, is_turned
from pypm.rules.replacement.items import COLUMN, ROW, parts
from pypm.rules.vocabulary.indexing import Item
from pypm.rules.vocabulary.shapes import NoOp, ResizedInSteps, Transposed

ROWS, COLUMNS = -2, -1
"""The dimensions of a state."""


@observer((COLUMN,), (ROW,))
def vectors(out, steps):
    """Return the vectors of all steps along the dimension of the state that they are multiplied
    along, [steps, ..., n, 1] or [steps, ..., 1, n].

    Arguments:
        out: as `Dot` binds it: the tensor of the vectors, the place, the shape and the type of its
            items, and their form: whether they are columns [..., n, 1], by which the state is
            multiplied, or rows; and whether the state is transposed before.
        steps: the number of steps.
    """
    c, of, (_, turned) = out
    items = parts(c, of, steps)
    return items if turned else items.transpose(-2, -1)


@observer((None,), (COLUMN,), (ROW,))
def vectors_of_output(out, steps):
    """Return the same for what `Output` binds; None if the state itself is read."""
    return None if out is None else vectors(out, steps)


def along(sizes, shape):
    """Return the dimension of a state of this shape along which a vector of these sizes lies."""
    is_column, is_row = (same_size(sizes[dim], 1) for dim in (COLUMNS, ROWS))
    if is_column and is_row:
        return ROWS if same_size(shape[ROWS], 1) else COLUMNS
    return ROWS if is_column else COLUMNS


def product(h, out, t, steps):
    """Return what a vector reads of a state."""
    read_by = vectors(out, steps)
    return (h * read_by[t]).sum(along(read_by.shape, h.shape))


def column(h, out, t, steps):
    """Return the same as a column."""
    return product(h, out, t, steps).unsqueeze(-1)


def row(h, out, t, steps):
    """Return the same as a row."""
    return product(h, out, t, steps).unsqueeze(-2)


def output(h, out, t, steps):
    """Return what a step reads of a state."""
    read_by = vectors_of_output(out, steps)
    return h if read_by is None else (h * read_by[t]).sum(along(read_by.shape, h.shape))


@pattern(through=NoOp, means=hiding(vectors, column))
def Column(h, out, t):  # the state, perhaps transposed, times a column: [..., n, 1]
    c, of_c, x, z, turned = var(), var(), var(), var(), var()
    x <= Turned(Once(h), turned)
    z <= Part(c, of_c, t)
    let(out=(c, of_c, (True, turned)))
    assert z.rank == h.rank and z.shape[-1] == 1
    return Times(x, z)


@pattern(through=NoOp, means=hiding(vectors, row))
def Row(h, out, t):  # a row times the state, perhaps transposed: [..., 1, n]
    c, of_c, x, z, turned = var(), var(), var(), var(), var()
    x <= Turned(Once(h), turned)
    z <= Part(c, of_c, t)
    let(out=(c, of_c, (False, turned)))
    assert z.rank == h.rank and z.shape[-2] == 1
    return Times(z, x)


@pattern(means=hiding(vectors_of_output, output))
def Output(h, out, t):  # the state
    let(out=None)
    return h


@pattern
def Output(h, out, t):
    return Dot(h, out, t)


@pattern(through=NoOp, means=hiding(vectors, product))
def Dot(h, out, t):  # what a vector reads of it
    return Flat(Column(h, out, t)) | FlatRow(Row(h, out, t))


@pattern(through=NoOp)
def Dot(h, out, t):  # the same by a sum over the rows
    c, of_c = var(), var()
    x, z = Once(h), Part(c, of_c, t)
    let(out=(c, of_c, (True, True)))
    assert z.rank == h.rank and z.shape[-1] == 1 and z.shape[-2] == h.shape[-2]
    y = aten.sum(x * z, [-2])
    assert y.dtype == z.dtype and (x.dtype == z.dtype or x.dtype == h.dtype)
    return y


@pattern(through=NoOp)
def Dot(h, out, t):  # or over the columns
    c, of_c = var(), var()
    x, z = Once(h), Part(c, of_c, t)
    let(out=(c, of_c, (False, True)))
    assert z.rank == h.rank and z.shape[-2] == 1 and z.shape[-1] == h.shape[-1]
    y = aten.sum(x * z, [-1])
    assert y.dtype == z.dtype and (x.dtype == z.dtype or x.dtype == h.dtype)
    return y


@pattern(through=NoOp)
def Dot(h, out, t):
    c, equation, own, of_c = var(), var(), var(), var()
    z = Part(c, own, t)
    let(of_c=(own[0], as_row(z.shape), own[2]))
    let(out=(c, of_c, (False, is_turned(equation, 0, 1, z.shape, h.shape))))
    return aten.einsum(equation, [z, Once(h)], ...)


@pattern(through=NoOp)
def Dot(h, out, t):
    c, equation, own, of_c = var(), var(), var(), var()
    z = Part(c, own, t)
    let(of_c=(own[0], as_row(z.shape), own[2]))
    let(out=(c, of_c, (False, is_turned(equation, 1, 0, z.shape, h.shape))))
    return aten.einsum(equation, [Once(h), z], ...)


@pattern(through=NoOp)
def Dot(h, out, t):  # a matrix times a vector
    c, own, of_c, x, turned = var(), var(), var(), var(), var()
    x <= Turned(Once(h), turned)
    z = Part(c, own, t)
    let(of_c=(own[0], as_column(z.shape), own[2]))
    let(out=(c, of_c, (True, turned)))
    assert h.rank == 2 and z.rank == 1
    return aten.mv(x, z) | aten.matmul(x, z) | Summed(x, z)


@pattern(through=NoOp)
def Dot(h, out, t):
    c, own, of_c, x, turned = var(), var(), var(), var(), var()
    x <= Turned(Once(h), turned)
    z = Part(c, own, t)
    let(of_c=(own[0], as_row(z.shape), own[2]))
    let(out=(c, of_c, (False, turned)))
    assert h.rank == 2 and z.rank == 1
    return aten.matmul(z, x)


@pattern
def Result(h, out, t):  # what the step adds to the results: that, perhaps in another type
    read = var()
    y = Once(Output(h, read, t))
    let(out=(read, y.dtype))
    return y


@pattern
def Summed(x, z):  # the same by a sum over a product
    y = aten.sum(x * z, [-1])
    assert z.shape[-1] == x.shape[-1] and y.dtype == z.dtype == x.dtype
    return y


@pattern
def Turned(x, turned):
    let(turned=False)
    return x


@pattern
def Turned(x, turned):
    let(turned=True)
    return Transposed(x)


@pattern
def Turned(x, turned):
    let(turned=True)
    y = aten.permute(x, [1, 0]) | aten.t(x) | aten.numpy_T(x)
    assert y.rank == 2
    return y


@predicate
def without_row(shape):
    """Return the shape of rows [..., 1, n] as vectors, [..., n]."""
    return (*shape[:-2], shape[-1])


@pattern(through=NoOp)
def FlatRow(x):  # x [..., 1, n] without that dimension
    y = ResizedInSteps(x)
    assert y.shape == without_row(x.shape)
    return y


@pattern
def FlatRow(x):
    at, t = var(), var()
    y = Item(x, at, t)
    assert at == (x.rank - 2, False)
    return y


@pattern(through=NoOp)
def Flat(x):  # x [..., 1] without its last dimension
    y = ResizedInSteps(x)
    assert y.shape == x.shape[:-1]
    return y


@pattern
def Flat(x):
    at, t = var(), var()
    y = Item(x, at, t)
    assert at == (x.rank - 1, False)
    return y
