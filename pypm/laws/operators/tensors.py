"""Operations on tensors as functions of indices: broadcasts, views, reductions, parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import mul

from pypm.laws.algebra import Algebra, Index, Indexed, Indivisible, Scalar, Shape, SizesDiffer

__all__ = [
    "broadcast",
    "constant",
    "each",
    "joined",
    "matrix_product",
    "note_part",
    "part",
    "permuted",
    "ratio",
    "reduced",
    "shared",
    "viewed",
]


def constant(value: Scalar) -> Indexed:
    """Return a tensor of rank 0."""
    return Indexed((), lambda _: value)


def broadcast(x: Indexed, shape: Shape) -> Indexed:
    """Return a tensor expanded to a shape of the same rank or a higher one."""
    if x.shape == shape:
        return x
    skipped = len(shape) - x.rank
    if skipped < 0:
        raise SizesDiffer(x.rank, len(shape))
    ones = [n == 1 for n in x.shape]
    sizes = zip(ones, x.shape, shape[skipped:], strict=True)
    different = [(n, m) for is_one, n, m in sizes if not is_one and n != m]
    if different:
        raise SizesDiffer(*zip(*different, strict=True))

    def at(place: Shape) -> Scalar:
        own = zip(ones, place[skipped:], strict=True)
        return x.value(*[0 if is_one else i for is_one, i in own])

    return Indexed(shape, at)


def shared(shapes: Sequence[Shape]) -> Shape:
    """Return the shape to which shapes broadcast. Raises SizesDiffer."""
    if shapes and all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    rank = max(map(len, shapes), default=0)
    found: list[Index] = [1] * rank
    different = list[tuple[Index, Index]]()
    for shape in shapes:
        for place, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                if found[place] != 1 and found[place] != size:
                    different.append((found[place], size))
                found[place] = size
    if different:
        raise SizesDiffer(*zip(*different, strict=True))
    return tuple(found)


def each(function: Callable[..., Scalar], *tensors: Indexed) -> Indexed:
    """Return a function of the elements of tensors, which broadcast."""
    shape = shared([x.shape for x in tensors])
    whole = [broadcast(x, shape) for x in tensors]
    return Indexed(shape, lambda place: function(*(x.value(*place) for x in whole)))


def permuted(x: Indexed, dims: Sequence[int]) -> Indexed:
    """Return a tensor whose dimension i is the dimension `dims[i]` of x. Raises SizesDiffer."""
    if len(dims) != x.rank:
        raise SizesDiffer(x.rank, len(dims))
    back = sorted(range(len(dims)), key=lambda i: dims[i])
    shape = tuple(x.shape[d] for d in dims)
    return Indexed(shape, lambda place: x.value(*(place[b] for b in back)))


def product(sizes: Sequence[Index]) -> Index:
    """Return the product of sizes."""
    return reduce(mul, sizes, 1)


def viewed(algebra: Algebra, x: Indexed, shape: Shape) -> Indexed:
    """Return the elements of x, in order, in another shape."""
    if x.shape == shape:
        return x
    inner = [d for d, n in enumerate(x.shape) if n != 1]
    outer = [d for d, n in enumerate(shape) if n != 1]
    same: list[tuple[int, int]] = []
    while inner and outer and x.shape[inner[0]] == shape[outer[0]]:
        same.append((inner.pop(0), outer.pop(0)))
    while inner and outer and x.shape[inner[-1]] == shape[outer[-1]]:
        same.append((inner.pop(), outer.pop()))
    olds, news = [x.shape[d] for d in inner], [shape[d] for d in outer]
    _note_cuts(algebra, olds, news)
    _note_cuts(algebra, news, olds)

    def at(place: Shape) -> Scalar:
        found: list[Index] = [0] * x.rank
        for old, new in same:
            found[old] = place[new]
        flat: Index = 0
        for d, size in zip(outer, news, strict=True):
            flat = flat * size + place[d]
        for d, size in list(zip(inner, olds, strict=True))[:0:-1]:
            flat, found[d] = algebra.divided(flat, size)
        if inner:
            found[inner[0]] = flat
        return x.value(*found)

    return Indexed(shape, at)


def _note_cuts(algebra: Algebra, sizes: Sequence[Index], others: Sequence[Index]) -> None:
    """Note for each size the parts into which the other shape cuts it."""
    cuts = [product(others[d:]) for d in range(1, len(others))]
    for d, size in enumerate(sizes):
        inner, parts, left = product(sizes[d + 1 :]), list[Index](), size
        for cut in reversed(cuts):  # the innermost first
            ratio, rest = algebra.divided(cut, inner)
            if rest != 0 or ratio == 1:
                continue
            outside, rest = algebra.divided(left, ratio)
            if rest == 0 and outside != 1:
                parts.insert(0, ratio)
                left, inner = outside, cut
        if parts:
            algebra.split(size, (left, *parts), False)


def reduced(
    x: Indexed,
    dims: Sequence[int],
    keep: bool,
    by: Callable[[Index, Callable[[Index], Scalar]], Scalar],
) -> Indexed:
    """Return a reduction over dimensions; `by` is `total` or `largest` of an algebra."""
    if not dims:
        return x
    *rest, last = sorted(dims)
    gone = last if not keep else None

    def at(place: Shape) -> Scalar:
        before = place[:last]
        after = place[last:] if gone is not None else place[last + 1 :]
        return by(x.shape[last], lambda i: x.value(*before, i, *after))

    between = () if gone is not None else (1,)
    one = Indexed((*x.shape[:last], *between, *x.shape[last + 1 :]), at)
    return reduced(one, rest, keep, by)


def matrix_product(algebra: Algebra, x: Indexed, y: Indexed) -> Indexed:
    """Return `matmul`, with its forms for vectors and batches."""
    one = Indexed((1, *x.shape), lambda p: x.value(*p[1:])) if x.rank == 1 else x
    two = Indexed((*y.shape, 1), lambda p: y.value(*p[:-1])) if y.rank == 1 else y
    if one.shape[-1] != two.shape[-2]:
        raise SizesDiffer(one.shape[-1], two.shape[-2])
    batch = shared([one.shape[:-2], two.shape[:-2]])
    left = broadcast(one, (*batch, *one.shape[-2:]))
    right = broadcast(two, (*batch, *two.shape[-2:]))

    def at(place: Shape) -> Scalar:
        *outer, i, j = place
        return algebra.total(
            left.shape[-1], lambda k: left.value(*outer, i, k) * right.value(*outer, k, j)
        )

    found = Indexed((*batch, left.shape[-2], right.shape[-1]), at)
    if y.rank == 1:
        found = _without(found, found.rank - 1)
    return _without(found, found.rank - (1 if y.rank == 1 else 2)) if x.rank == 1 else found


def _without(x: Indexed, dim: int) -> Indexed:
    """Return a tensor without a dimension of size 1."""
    shape = (*x.shape[:dim], *x.shape[dim + 1 :])
    return Indexed(shape, lambda p: x.value(*p[:dim], 0, *p[dim:]))


def note_part(algebra: Algebra, whole: Index, start: Index, size: Index, step: int) -> None:
    """Note that every `step`-th element of a dimension is read from `start` on, `size` elements."""
    if step == 1:
        algebra.split(whole, (start, size, whole - start - size), True)
    elif algebra.divided(whole, step)[1] == 0:
        algebra.split(whole, (algebra.divided(whole, step)[0], step), False)


def part(
    algebra: Algebra, x: Indexed, dim: int, start: Index, size: Index, step: int = 1
) -> Indexed:
    """Return every `step`-th element of a dimension from `start` on, `size` elements."""
    note_part(algebra, x.shape[dim], start, size, step)

    def at(place: Shape) -> Scalar:
        return x.value(*place[:dim], place[dim] * step + start, *place[dim + 1 :])

    return Indexed((*x.shape[:dim], size, *x.shape[dim + 1 :]), at)


def joined(algebra: Algebra, parts: Sequence[Indexed], dim: int) -> Indexed:
    """Return `cat` along a dimension. Raises SizesDiffer if another dimension differs."""
    first, *others = parts
    for x in others:
        if x.rank != first.rank:
            raise SizesDiffer(x.rank, first.rank)
        for d, (one, two) in enumerate(zip(first.shape, x.shape, strict=True)):
            if d != dim and one != two:
                raise SizesDiffer(one, two)
    sizes = [x.shape[dim] for x in parts]
    whole: Index = sum(sizes[1:], sizes[0])
    algebra.split(whole, sizes, True)

    def at(place: Shape) -> Scalar:
        def of(rest: Sequence[Indexed], index: Index) -> Scalar:
            x, *others = rest

            def own() -> Scalar:
                return x.value(*place[:dim], index, *place[dim + 1 :])

            if not others:
                return own()
            size = x.shape[dim]
            is_own = algebra.positive(algebra.scalar(size - index))
            return algebra.choose(is_own, own, lambda: of(others, index - size))

        return of(parts, place[dim])

    return Indexed((*parts[0].shape[:dim], whole, *parts[0].shape[dim + 1 :]), at)


def ratio(algebra: Algebra, size: Index, by: Index) -> Index:
    """Return a size divided by another one. Raises Indivisible if something may remain."""
    found, rest = algebra.divided(size, by)
    if rest != 0:
        raise Indivisible(size, by)
    return found
