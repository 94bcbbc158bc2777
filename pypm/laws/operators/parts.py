"""Meanings of operators that move elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import torch

from pypm.fx.operators.arguments import CHILD
from pypm.laws.algebra import (
    Given,
    Index,
    Indexed,
    NoMeaning,
    Scalar,
    Shape,
    SizesDiffer,
)
from pypm.laws.operators.reads import indexed
from pypm.laws.operators.site import Meaning, Site
from pypm.laws.operators.tensors import broadcast, joined, note_part, part, permuted, ratio, viewed

__all__ = ["MEANINGS_OF_PARTS", "Pieces", "kind_of"]


def _same(c: Site, x: Indexed, *others: Given, **attributes: Given) -> Indexed:
    return x


def _cast(c: Site, x: Indexed, *others: Given, **attributes: Given) -> Indexed:
    dtype = attributes.get("dtype")
    if others or not isinstance(dtype, torch.dtype):
        is_cast = x.kind == "whole"  # patterns ask that it be floating-point
        return Indexed(x.shape, lambda p: x.value(*p), is_cast=is_cast)
    kind = kind_of(dtype)
    if kind == "truth" and x.kind == "real":
        raise NoMeaning("a cast to truth values")
    is_narrow = dtype.is_floating_point and dtype.itemsize == 1
    rounds = is_narrow or (kind == "whole" and x.kind == "real")
    name = f"to {dtype}".replace("torch.", "")

    def at(place: Shape) -> Scalar:
        value = x.value(*place)
        return c.algebra.function(name, value) if rounds else value

    return Indexed(x.shape, at, kind=kind, is_cast=x.kind == "whole" and not is_narrow)


def kind_of(dtype: torch.dtype) -> str:
    """Return the kind of values of a type. Raises NoMeaning for complex numbers."""
    if dtype.is_complex:
        raise NoMeaning("complex numbers")
    return "real" if dtype.is_floating_point else "truth" if dtype == torch.bool else "whole"


def _dropped(c: Site, x: Indexed, *, p: float, train: bool) -> Indexed:
    if train is not False and p != 0:
        raise NoMeaning("values that are drawn")
    return x


def _moved(c: Site, x: Indexed, *, source: Sequence[int], destination: Sequence[int]) -> Indexed:
    places = dict(zip([d % x.rank for d in destination], [s % x.rank for s in source], strict=True))
    rest = (d for d in range(x.rank) if d not in places.values())
    return permuted(x, [places[d] if d in places else next(rest) for d in range(x.rank)])


def _viewed(c: Site, x: Indexed, *others: Given, **attributes: Given) -> Indexed:
    if attributes.get("dtype") is not None:
        raise NoMeaning("a view of the bits as another type")
    return viewed(c.algebra, x, c.shape)


def _expanded(c: Site, x: Indexed, *others: Given, **attributes: Given) -> Indexed:
    return broadcast(x, c.shape)


def _transposed(c: Site, x: Indexed, *, dim0: int = -2, dim1: int = -1) -> Indexed:
    order = list(range(x.rank))
    if x.rank > 1:
        order[dim0], order[dim1] = order[dim1], order[dim0]
    return permuted(x, order)


def _permuted(c: Site, x: Indexed, *, dims: Sequence[int]) -> Indexed:
    if len(dims) != x.rank:
        raise SizesDiffer(len(dims), x.rank)
    return permuted(x, [d % x.rank for d in dims])


def _flipped(c: Site, x: Indexed, *, dims: Sequence[int]) -> Indexed:
    gone = {d % x.rank for d in dims}

    def at(p: Shape) -> Scalar:
        return x.value(*(x.shape[d] - 1 - i if d in gone else i for d, i in enumerate(p)))

    return Indexed(x.shape, at)


def _selected(c: Site, x: Indexed, *, dim: int, index: Given) -> Indexed:
    return _at(x, dim, _counted_up(c, x.shape[dim], index))


def _at(x: Indexed, dim: int, at: Index) -> Indexed:
    return Indexed((*x.shape[:dim], *x.shape[dim + 1 :]), lambda p: x.value(*p[:dim], at, *p[dim:]))


def _sliced(
    c: Site,
    x: Indexed,
    *,
    dim: int = 0,
    start: Given = None,
    end: Given = None,
    step: int = 1,
) -> Indexed:
    first = _counted_up(c, x.shape[dim], start or 0)
    return part(c.algebra, x, dim, first, c.shape[dim], step)


def _scattered(
    c: Site,
    x: Indexed,
    source: Indexed,
    *,
    dim: int = 0,
    start: Given = None,
    end: Given = None,
    step: int = 1,
) -> Indexed:
    """Return x with other elements for a slice; `c.shape` is that of the slice."""
    if source.shape != c.shape:
        raise SizesDiffer(source.shape, c.shape)
    a, count = c.algebra, c.shape[dim]
    first, before = a.divided(_counted_up(c, x.shape[dim], start or 0), step)
    note_part(a, x.shape[dim], first * step + before, count, step)

    def at(p: Shape) -> Scalar:
        number, after = a.divided(p[dim], step)
        i = number - first
        is_in = a.positive(a.scalar(i + 1)) * a.positive(a.scalar(count - i))
        for beyond in (after - before, before - after) if step > 1 else ():
            is_in = is_in * a.positive(a.scalar(1 - beyond))
        own = (*p[:dim], i, *p[dim + 1 :])
        return a.choose(is_in, lambda: source.value(*own), lambda: x.value(*p))

    return Indexed(x.shape, at)


def _put(c: Site, x: Indexed, source: Indexed, *, dim: int, index: Given) -> Indexed:
    """Return x with another item."""
    if (*x.shape[:dim], *x.shape[dim + 1 :]) != source.shape:
        raise SizesDiffer(source.shape, (*x.shape[:dim], *x.shape[dim + 1 :]))
    a, item = c.algebra, _counted_up(c, x.shape[dim], index)

    def at(p: Shape) -> Scalar:
        after = p[dim] - item
        is_it = a.positive(a.scalar(after + 1)) * a.positive(a.scalar(1 - after))
        own = (*p[:dim], *p[dim + 1 :])
        return a.choose(is_it, lambda: source.value(*own), lambda: x.value(*p))

    return Indexed(x.shape, at)


def _narrowed(c: Site, x: Indexed, start: Indexed, *, dim: int, length: Given) -> Indexed:
    return part(c.algebra, x, dim, c.algebra.place(start.value()), c.shape[dim])


def _pieces(c: Site, x: Indexed, dim: int, sizes: Sequence[Index]) -> tuple[Indexed, ...]:
    found, start = [], c.size(0)
    for size in sizes:
        found.append(part(c.algebra, x, dim, start, size))
        start = start + size
    if start != x.shape[dim]:
        raise SizesDiffer(start, x.shape[dim])
    return tuple(found)


def _split(c: Site, x: Indexed, *, dim: int = 0, **attributes: Given) -> tuple[Indexed, ...]:
    sizes = attributes.get("split_sizes") or attributes.get("split_size")
    if isinstance(sizes, tuple):
        return _pieces(c, x, dim, [c.size(n) for n in sizes])
    return _equal_pieces(c, x, dim, c.size(sizes))


class Pieces(tuple[Indexed, ...]):
    """Pieces of a tensor whose number is a symbol."""

    count: Index
    at: Callable[[Index], Indexed]


def _each_piece(count: Index, at: Callable[[Index], Indexed]) -> tuple[Indexed, ...]:
    """Return so many pieces, each by its number."""
    number = count if isinstance(count, int) else count.constant
    if number is not None:
        return tuple(map(at, range(int(number))))
    found = Pieces()
    found.count, found.at = count, at
    return found


def _equal_pieces(c: Site, x: Indexed, dim: int, size: Index) -> tuple[Indexed, ...]:
    count = ratio(c.algebra, x.shape[dim], size)
    return _each_piece(count, lambda i: part(c.algebra, x, dim, size * i, size))


def _chunk(c: Site, x: Indexed, *, chunks: Given, dim: int = 0, **_: Given) -> tuple[Indexed, ...]:
    return _equal_pieces(c, x, dim, ratio(c.algebra, x.shape[dim], c.size(chunks)))


def _unbound(c: Site, x: Indexed, *, dim: int = 0) -> tuple[Indexed, ...]:
    return _each_piece(x.shape[dim], lambda i: _at(x, dim, i))


def _unsqueezed(x: Indexed, dim: int) -> Indexed:
    return Indexed((*x.shape[:dim], 1, *x.shape[dim:]), lambda p: x.value(*p[:dim], *p[dim + 1 :]))


def _stacked(c: Site, parts: tuple[Indexed, ...], *, dim: int = 0) -> Indexed:
    return joined(c.algebra, [_unsqueezed(x, dim) for x in parts], dim)


def _repeated(c: Site, x: Indexed, *, repeats: Sequence[Given]) -> Indexed:
    rank = len(repeats)
    whole = viewed(c.algebra, x, (*(1,) * (rank - x.rank), *x.shape))
    shape = [n for r, size in zip(repeats, whole.shape, strict=True) for n in (c.size(r), size)]
    wide = Indexed(tuple(shape), lambda p: whole.value(*p[1::2]))
    return viewed(c.algebra, wide, c.shape)


def _interleaved(
    c: Site,
    x: Indexed,
    times: Given = None,
    *,
    dim: int | None = None,
    **attributes: Given,
) -> Indexed:
    number = attributes.get("repeats") if times is None else times.value()
    if number is None or dim is None:
        raise NoMeaning("repeats that are a tensor, or of all dimensions")
    count = c.algebra.place(number) if times is not None else c.size(int(number))
    shape = (*x.shape[: dim + 1], count, *x.shape[dim + 1 :])
    wide = Indexed(shape, lambda p: x.value(*p[: dim + 1], *p[dim + 2 :]))
    return viewed(c.algebra, wide, c.shape)


def _padded(
    c: Site, x: Indexed, *, pad: Sequence[Given], value: Given = None, **k: Given
) -> Indexed:
    if k.get("mode", "constant") != "constant":
        raise NoMeaning("a padding by elements")
    found = x
    for number, dim in enumerate(range(x.rank - 1, x.rank - 1 - len(pad) // 2, -1)):
        before, after = (c.size(n) for n in pad[2 * number : 2 * number + 2])
        for size, place in ((before, 0), (after, 1)):
            if size != 0:
                shape = (*found.shape[:dim], size, *found.shape[dim + 1 :])
                filling = Indexed(shape, lambda _: c.number(value or 0))
                parts = [found, filling] if place else [filling, found]
                found = joined(c.algebra, parts, dim)
    return found


def _got(
    c: Site,
    x: Indexed | tuple[Indexed, ...],
    *tensors: Indexed,
    index: Given = (CHILD,),
) -> Indexed:
    """Return one of several results, or `x[index]`: for integers, slices, None and an ellipsis, or
    for tensors in some dimensions and all of the others.
    """
    if isinstance(x, tuple) and isinstance(index, tuple):
        raise SizesDiffer(0, 1)
    if isinstance(x, Pieces):
        return x.at(_counted_up(c, x.count, index))
    if isinstance(x, tuple):
        return x[index]
    if tensors:
        if any(one not in (CHILD, ALL) for one in index):
            raise NoMeaning("an index of tensors and others")
        left = iter(tensors)
        return indexed(c, x, tuple(next(left) if one == CHILD else None for one in index))
    parts = list(index) if isinstance(index, tuple) and index[:1] != ("slice",) else [index]
    if "list" in parts or any(isinstance(one, Indexed) for one in parts):
        raise NoMeaning("an index that is a tensor or a list")
    taken = sum(one is not None and one is not ... for one in parts)
    if not any(one is ... for one in parts):
        parts.append(...)
    found, dim, counts = x, 0, iter(c.shape)
    for one in parts:
        if one is ...:
            dim += x.rank - taken
        elif one is None:
            found, dim = _unsqueezed(found, dim), dim + 1
        elif isinstance(one, tuple):
            _, start, _, by = one
            first = _counted_up(c, found.shape[dim], start or 0)
            found, dim = part(c.algebra, found, dim, first, next(counts), by or 1), dim + 1
        else:
            found = _selected(c, found, dim=dim, index=one)
    return found


ALL: Final = ("slice", None, None, None)


def _counted_up(c: Site, size: Index, index: Given) -> Index:
    return size + c.size(index) if index < 0 else c.size(index)


MEANINGS_OF_PARTS: Final[dict[str, Meaning]] = {
    **dict.fromkeys(("aten.clone", "aten.contiguous", "aten.alias", "aten.detach"), _same),
    "aten.lift_fresh_copy": _same,
    **dict.fromkeys(("aten.to", "aten._to_copy", "aten.type_as"), _cast),
    "prims.convert_element_type": _cast,
    **dict.fromkeys(("aten.view", "aten.reshape", "aten._unsafe_view", "aten.flatten"), _viewed),
    **dict.fromkeys(("aten.unflatten", "aten.view_as", "aten.reshape_as"), _viewed),
    **dict.fromkeys(("aten.squeeze", "aten.unsqueeze"), _viewed),
    **dict.fromkeys(("aten.expand", "aten.expand_as", "aten.broadcast_to"), _expanded),
    **dict.fromkeys(("aten.t", "aten.mT", "aten.numpy_T", "aten.transpose"), _transposed),
    "aten.permute": _permuted,
    "aten.movedim": _moved,
    "aten.flip": _flipped,
    "aten.dropout": _dropped,
    "aten.select": _selected,
    "aten.slice": _sliced,
    "aten.slice_scatter": _scattered,
    "aten.select_scatter": _put,
    "aten.copy": lambda c, x, source, **_: broadcast(source, x.shape),
    "aten.narrow": _narrowed,
    "aten.split": _split,
    "aten.split_with_sizes": _split,
    "aten.chunk": _chunk,
    "aten.tensor_split": lambda c, x, *, sections, dim=0, **_: _chunk(
        c, x, chunks=sections, dim=dim
    ),
    "aten.unbind": _unbound,
    "getitem": _got,
    "aten.cat": lambda c, parts, *, dim=0: joined(c.algebra, parts, dim),
    "aten.stack": _stacked,
    **dict.fromkeys(("aten.pad", "aten.constant_pad_nd"), _padded),
    "aten.repeat": _repeated,
    "aten.repeat_interleave": _interleaved,
}
