"""Some elements of each row of a tensor, or one item along a dimension, in any spelling."""

from itertools import accumulate

from pypm import let, pattern, predicate, record, var
from pypm.fx import GETITEM, Unresolved, aten
from pypm.rules.vocabulary.shapes import NoOp, Reshape

ALL = ("slice", None, None, None)
"""The part of an index that keeps a dimension as it is."""

# --- some elements of each row -------------------------------------------------------------------


def symbols(*numbers):
    """Return whether one of these numbers or Nones is a symbol of a proof.

    Raises ValueError, which means "no match", if one is a size that a graph does not know.
    """
    found = [n for n in numbers if isinstance(n, Unresolved)]
    if not all(isinstance(n, int) for n in found):
        raise ValueError("a size is not known")
    return bool(found)


def span(size, start, stop, step=1):
    """Return `range(size)[start:stop:step]`; for symbols, a record of what it has."""
    step = 1 if step is None else step
    if not symbols(size, start, stop, step):
        return range(size)[start:stop:step]
    if step < 1:
        raise ValueError("a step backwards")
    first = 0 if start is None else start if start >= 0 else start + size
    last = size if stop is None or stop >= size else stop if stop >= 0 else stop + size
    return record(step=step, start=first, stop=last)


@predicate
def sliced(shape, start, stop, step):
    """Return the range of the last dimension that a slice keeps.

    Raises ValueError, which means "no match", if its start is a tensor of another dtype than an
    integral one.
    """
    if isinstance(start, (float, complex)):
        raise ValueError("the start is no integer")
    return span(shape[-1], start, stop, step)


def stretch(first, count):
    """Return the range of so many neighbours."""
    if symbols(first, count):
        return record(step=1, start=first, stop=first + count)
    return range(first, first + count)


@predicate
def narrowed(shape, start, length):
    """Return the range of the last dimension that `narrow` keeps.

    Raises ValueError, which means "no match", if its start is no integer.
    """
    if not isinstance(start, int):
        raise ValueError("the start is no integer")
    return stretch(start if start >= 0 else start + shape[-1], length)


def last_part(shape, index):
    """Return the part of an index of x of this shape at the last dimension.

    Raises ValueError if the index changes other dimensions.
    """
    match index:
        case [*others, last] if {*others} <= {..., ALL}:
            if ... in others or len(index) == len(shape):
                return last
    raise ValueError("other dimensions are indexed")


@predicate
def indexed(shape, index):
    """Return the range of the last dimension that `x[index]` keeps, for x of this shape.

    Raises ValueError, which means "no match", if the index does something else.
    """
    match last_part(shape, index):
        case ["slice", start, stop, step]:
            return span(shape[-1], start, stop, step)
    raise ValueError("no slice is taken of the last dimension")


@predicate
def piece(shape, sizes, i):
    """Return the range of piece number i of the last dimension of a shape.

    `sizes` are those of the pieces, or one size for all but the last. Raises ValueError, which
    means "no match", if i is not a number.
    """
    if not isinstance(i, int):
        raise ValueError("several pieces are taken")
    if isinstance(sizes, tuple):
        return [range(end - n, end) for n, end in zip(sizes, accumulate(sizes), strict=True)][i]
    if i < 0:
        i = i + -(-shape[-1] // sizes)
    if not 0 <= sizes * i < shape[-1]:
        raise IndexError("no such piece")
    return span(shape[-1], sizes * i, sizes * i + sizes)


@pattern
def Taken(x, at):  # x[..., at], with `at` a range
    start, stop, step = var(), var(), var()
    let(at=sliced(x.shape, start, stop, step))
    return aten.slice(x, -1, start, stop, step)


@pattern
def Taken(x, at):
    start, length = var(), var()
    let(at=narrowed(x.shape, start.value, length))
    return aten.narrow(x, -1, start, length)


@pattern
def Taken(x, at):
    i = var()
    let(at=indexed(x.shape, i))
    return GETITEM(x, i)


@pattern
def Taken(x, at):
    sizes, i = var(), var()
    let(at=piece(x.shape, sizes, i))
    return GETITEM(aten.split(x, sizes, -1) | aten.split_with_sizes(x, sizes, -1), i)


@pattern
def Taken(x, at):
    n, i = var(), var()
    let(at=piece(x.shape, -(-x.shape[-1] // n), i))
    return GETITEM(aten.chunk(x, n, -1), i)


@predicate
def every_second(shape, i):
    """Return the range of the last dimension of a shape that element i of each pair makes up.

    Raises ValueError, which means "no match", if i is not a number.
    """
    if not isinstance(i, int) or isinstance(i, Unresolved):
        raise ValueError("several elements are taken")
    return span(shape[-1], i % 2, None, 2)


@predicate
def is_of_pairs(at):
    """Return whether a range has every second element."""
    return at.step == 2


@predicate
def element(shape, index):
    """Return i if `x[index]`, for x of this shape, is x[..., i].

    Raises ValueError, which means "no match", if it is something else.
    """
    i = last_part(shape, index)
    if not isinstance(i, int) or isinstance(i, bool):
        raise ValueError("no element is taken of the last dimension")
    return i


@pattern
def Pairs(x):  # neighbours in a dimension of their own
    y = Reshape(x)
    assert y.shape[-1] == 2 and y.shape[:-2] == x.shape[:-1] and y.rank == x.rank + 1
    return y


@pattern
def Taken(x, at):
    i = var()
    let(at=every_second(x.shape, i))
    assert is_of_pairs(at)
    return aten.select(Pairs(x), -1, i) | GETITEM(aten.unbind(Pairs(x), -1), i)


@pattern
def Taken(x, at):
    i = var()
    y = Pairs(x)
    let(at=every_second(x.shape, element(y.shape, i)))
    assert is_of_pairs(at)
    return GETITEM(y, i)


@pattern
def Taken(x, at):
    start, stop = var(), var()
    y = Pairs(x)
    let(at=every_second(x.shape, single(y.shape, -1, start, stop, 1)))
    assert is_of_pairs(at)
    return aten.squeeze(aten.slice(y, -1, start, stop), -1)


@predicate
def half(shape, i):
    """Return the range of the last dimension of a shape that half number i makes up.

    Raises ValueError, which means "no match", if i is not a number.
    """
    if not isinstance(i, int) or isinstance(i, Unresolved):
        raise ValueError("both halves are taken")
    n = shape[-1] // 2
    return span(shape[-1], i % 2 * n, (i % 2 + 1) * n)


@pattern
def Halves(x):  # both in a dimension of their own
    y = Reshape(x)
    assert y.shape[-2] == 2 and y.shape[:-2] == x.shape[:-1]
    return y


@pattern
def Taken(x, at):
    i = var()
    let(at=half(x.shape, i))
    return aten.select(Halves(x), -2, i) | GETITEM(aten.unbind(Halves(x), -2), i)


@pattern(means=lambda x, at: x[..., at.start : at.stop : at.step])
def Selected(x, at):  # the same, where a guard says which
    return Taken(x, at)


@predicate
def start(at):
    """Return the first element of a range."""
    return at.start


@predicate
def length(at):
    """Return the number of elements of a range of neighbours."""
    return at.stop - at.start


@predicate
def neighbours(first, count):
    """Return the range of so many elements."""
    return stretch(first, count)


@pattern(means=lambda x, first, count: x.narrow(-1, first, count))
def Stretch(x, first, count):  # neighbours in each row
    at = var()
    let(first=start(at))
    let(count=length(at))
    y = Selected(x, at)
    assert at == neighbours(first, count)
    return y


# --- item t of a tensor along one dimension -------------------------------------------------------


@predicate
def axis(shape, dim, kept):
    """Return the place of items along a dimension: the dimension, and whether items keep it."""
    return (dim % len(shape), kept)


@predicate
def step(shape, dim, index):
    """Return the number of an item that may be counted from the end.

    Raises ValueError, which means "no match", if it is no integer.
    """
    if not isinstance(index, int):
        raise ValueError("the index is no integer")
    return index if index >= 0 else index + shape[dim]


@predicate
def single_items(sizes):
    """Return whether pieces of these sizes, or of one size for all, are of one item each."""
    return {1} == ({*sizes} if isinstance(sizes, tuple) else {sizes})


def only(size, start, stop, stride):
    """Return the number of the only item that a slice of a dimension takes.

    Raises ValueError if the slice has another number of items, or bounds that are no integers.
    """
    if not all(n is None or isinstance(n, int) for n in (start, stop, stride)):
        raise ValueError("a bound is no integer")
    if symbols(size, start, stop, stride) and stride in (None, 1):
        first = 0 if start is None else start if start >= 0 else start + size
        last = size if stop is None else stop if stop >= 0 else stop + size
        if first + 1 != last or not 0 <= first < size:
            raise ValueError("not one item")
        return first
    (found,) = range(size)[start:stop:stride]
    return found


@predicate
def single(shape, dim, start, stop, stride):
    """Return the number of the only item that a slice takes; there is no match if it is not one."""
    return only(shape[dim], start, stop, stride)


@predicate
def item_of(shape, index):
    """Return the place and the number of the items that `x[index]` takes from x of this shape.

    Raises ValueError, which means "no match", if the index does not take one item of one dimension.
    """
    return item_at(shape, index)


def item_at(shape, index):
    """Return the same; raises ValueError in the same case."""
    parts = list(index) if isinstance(index, tuple) else [index]
    if ... in parts:
        at = parts.index(...)
        parts[at : at + 1] = [ALL] * (len(shape) - len(parts) + 1)
    places = [i for i, part in enumerate(parts) if part != ALL]
    if len(places) != 1:
        raise ValueError("not one dimension is indexed")
    (dim,) = places
    match parts[dim]:
        case bool():
            raise ValueError("a mask")
        case int() as number:
            return ((dim, False), number if number >= 0 else number + shape[dim])
        case ["slice", start, stop, stride]:
            return ((dim, True), only(shape[dim], start, stop, stride))
    raise ValueError("indexed by something else")


@pattern(through=NoOp)
def Item(x, at, t):  # item t of x; `at` is where it is taken
    d, i = var(), var()
    let(at=axis(x.shape, d, False))
    let(t=step(x.shape, d, i))
    return aten.select(x, d, i) | GETITEM(aten.unbind(x, d), i)


@pattern(through=NoOp)
def Item(x, at, t):
    d, start, stop, stride = var(), var(), var(), var()
    let(at=axis(x.shape, d, True))
    let(t=single(x.shape, d, start, stop, stride))
    return aten.slice(x, d, start, stop, stride)


@pattern(through=NoOp)
def Item(x, at, t):
    i, found = var(), var()
    let(found=item_of(x.shape, i))
    let(at=found[0])
    let(t=found[1])
    return GETITEM(x, i)


@pattern(through=NoOp)
def Item(x, at, t):
    d, start = var(), var()
    let(at=axis(x.shape, d, True))
    let(t=step(x.shape, d, start.value))
    return aten.narrow(x, d, start, 1)


@pattern(through=NoOp)
def Item(x, at, t):
    sizes, d, i = var(), var(), var()
    let(at=axis(x.shape, d, True))
    let(t=step(x.shape, d, i))
    assert single_items(sizes)
    return GETITEM(aten.split(x, sizes, d) | aten.split_with_sizes(x, sizes, d), i)


@pattern(through=NoOp)
def Item(x, at, t):
    n, d, i = var(), var(), var()
    let(at=axis(x.shape, d, True))
    let(t=step(x.shape, d, i))
    assert n == x.shape[at[0]]
    return GETITEM(aten.chunk(x, n, d) | aten.tensor_split(x, n, d), i)
