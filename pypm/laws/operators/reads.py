"""Meanings of operators that read elements at indices, or make constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache
from typing import Final

from pypm.fx.operators.corrections import named
from pypm.laws.algebra import (
    Algebra,
    Given,
    Index,
    Indexed,
    NoMeaning,
    Scalar,
    Shape,
    SizesDiffer,
)
from pypm.laws.forms.orders import PROBE
from pypm.laws.forms.polynomials import Poly
from pypm.laws.forms.symbolic import SymbolicAlgebra
from pypm.laws.operators.composites import where
from pypm.laws.operators.site import Meaning, Site
from pypm.laws.operators.tensors import broadcast, each

__all__ = ["MEANINGS_OF_READS", "indexed"]


def _full(value: float) -> Callable[..., Indexed]:
    return lambda c, *others, **attributes: Indexed(c.shape, lambda _: c.number(value))


def _filled(c: Site, *others: Given, fill_value: Given = None, **attributes: Given) -> Indexed:
    value = others[-1] if fill_value is None else fill_value
    if isinstance(value, Indexed):
        return broadcast(value, c.shape)
    return Indexed(c.shape, lambda _: c.number(value))


def _uninitialized(c: Site, *others: Given, **attributes: Given) -> Indexed:
    def at(place: Shape) -> Scalar:
        raise NoMeaning("memory that is not initialized")

    return Indexed(c.shape, at)


def _counted(
    c: Site,
    *others: Given,
    start: Given = 0,
    step: Given = 1,
    **attributes: Given,
) -> Indexed:
    first, by = c.number(start or 0), c.number(step)
    return Indexed(c.shape, lambda p: c.algebra.scalar(p[0]) * by + first)


def _triangle(sign: int) -> Callable[..., Indexed]:
    def meaning(c: Site, x: Indexed, *, diagonal: Given = 0) -> Indexed:
        offset = c.size(diagonal)

        def at(p: Shape) -> Scalar:
            beyond = (p[-1] - p[-2] - offset) * sign
            outside = c.algebra.positive(c.algebra.scalar(beyond))
            return c.algebra.choose(outside, lambda: c.number(0), lambda: x.value(*p))

        return Indexed(x.shape, at)

    return meaning


def _taken(c: Site, x: Indexed, index: Indexed, *, dim: int) -> Indexed:
    def at(p: Shape) -> Scalar:
        place = c.algebra.place(index.value(p[dim]))
        return x.value(*p[:dim], place, *p[dim + 1 :])

    return Indexed((*x.shape[:dim], *index.shape, *x.shape[dim + 1 :]), at)


def _embedded(c: Site, weight: Indexed, index: Indexed, **_: Given) -> Indexed:
    shape = (*index.shape, weight.shape[1])
    return Indexed(shape, lambda p: weight.value(c.algebra.place(index.value(*p[:-1])), p[-1]))


def indexed(c: Site, x: Indexed, indices: tuple[Indexed | None, ...]) -> Indexed:
    """Return `x[indices]`, where the indices are tensors side by side."""
    dims = [d for d, index in enumerate(indices) if index is not None]
    if not dims or dims != list(range(dims[0], dims[-1] + 1)):
        raise NoMeaning("indices in dimensions that are apart")
    given = [index for index in indices if index is not None]
    if any(index.kind == "truth" for index in given):
        raise NoMeaning("an index of truth values")
    together = each(lambda *values: values, *given)
    first, rank, a = dims[0], together.rank, c.algebra
    if isinstance(a, SymbolicAlgebra):
        for dim, index in zip(dims, given, strict=True):
            a.note_place(index.value(*(PROBE,) * index.rank), x.shape[dim])

    def at(p: Shape) -> Scalar:
        values = together.value(*p[first : first + rank])
        places = (
            _counted_up(a, value, n) for value, n in zip(values, x.shape[first:], strict=False)
        )
        return x.value(*p[:first], *places, *p[first + rank :])

    return Indexed((*x.shape[:first], *together.shape, *x.shape[dims[-1] + 1 :]), at)


def _counted_up(a: Algebra, value: Scalar, size: Index) -> Index:
    """Return a place that may be counted from the end of a dimension."""
    is_negative = a.positive(-value)
    return a.place(a.choose(is_negative, lambda: value + a.scalar(size), lambda: value))


def _put(
    c: Site,
    x: Indexed,
    indices: tuple[Indexed | None, ...],
    values: Indexed,
    *,
    accumulate: bool = False,
) -> Indexed:
    """Return x with values at places along one dimension."""
    given = [(dim, index) for dim, index in enumerate(indices) if index is not None]
    if accumulate or len(given) != 1 or given[0][1].kind == "truth":
        raise NoMeaning("values that are added, or places in several dimensions")
    ((dim, index),) = given
    shape = (*x.shape[:dim], *index.shape, *x.shape[dim + 1 :])
    return _with_values(c, x, broadcast(values, shape), index, dim)


def _copied(c: Site, x: Indexed, index: Indexed, values: Indexed, *, dim: int) -> Indexed:
    shape = (*x.shape[:dim], *(index.shape or (1,)), *x.shape[dim + 1 :])
    if values.rank != x.rank:
        raise SizesDiffer(values.rank, x.rank)
    for n, m in zip(values.shape, shape, strict=True):
        if n != m:
            raise SizesDiffer(n, m)
    row = index if index.rank else Indexed((1,), lambda _: index.value())
    return _with_values(c, x, values, row, dim)


def _with_values(c: Site, x: Indexed, values: Indexed, index: Indexed, dim: int) -> Indexed:
    """Return x with values at places along a dimension: at one, or in an order of the first."""
    if index.rank != 1:
        raise NoMeaning("places in several dimensions")
    a, count = c.algebra, index.shape[0]
    back = None
    if isinstance(a, SymbolicAlgebra) and isinstance(count, Poly):
        back = a.order_back(count, index.value)
    is_all = x.shape[dim] == count
    constant = count.constant if isinstance(count, Poly) else Fraction(count)
    if constant is None and back is None:
        raise NoMeaning("values at several places")
    known = int(constant or 0)

    def at(p: Shape) -> Scalar:
        if back is not None:
            there = values.value(*p[:dim], back(p[dim]), *p[dim + 1 :])
            is_written = a.number(1) if is_all else a.positive(a.scalar(count - p[dim]))
            return a.choose(is_written, lambda: there, lambda: x.value(*p))
        found = x.value(*p)
        for i in range(known):
            place = _counted_up(a, index.value(i), x.shape[dim])
            there = values.value(*p[:dim], i, *p[dim + 1 :])
            found = where(a, a.zero(a.scalar(p[dim] - place)), there, found)
        return found

    return Indexed(x.shape, at, kind=x.kind)


def _gathered(c: Site, x: Indexed, index: Indexed, *, dim: int, **_: Given) -> Indexed:
    def at(p: Shape) -> Scalar:
        return x.value(*p[:dim], c.algebra.place(index.value(*p)), *p[dim + 1 :])

    return Indexed(index.shape, at)


def _opaque(c: Site, *operands: Indexed, name: str, given: tuple[Given, ...]) -> Indexed:
    """Return a function of tensors and numbers without laws."""
    a = c.algebra

    def of(x: Indexed) -> list[Scalar]:
        inside = a.determining(x.shape, lambda place: x.value(*place))
        return [*map(c.number, (x.rank, len(inside), *x.shape)), *inside]

    @cache
    def determining() -> Sequence[Scalar]:
        return [*map(c.number, given), *(value for x in operands for value in of(x))]

    def at(place: Shape) -> Scalar:
        return a.function(name, *map(c.number, place), *determining())

    return Indexed(c.shape, at)


MEANINGS_OF_READS: Final[dict[str, Meaning]] = {
    "opaque": _opaque,
    **dict.fromkeys(("aten.zeros", "aten.zeros_like", "aten.new_zeros"), _full(0)),
    **dict.fromkeys(("aten.ones", "aten.ones_like", "aten.new_ones"), _full(1)),
    **dict.fromkeys(("aten.full", "aten.full_like", "aten.new_full"), _filled),
    **dict.fromkeys(
        named("aten", "empty empty_like empty_strided new_empty new_empty_strided"), _uninitialized
    ),
    **dict.fromkeys(("aten.arange", "prims.iota"), _counted),
    "aten.tril": _triangle(1),
    "aten.triu": _triangle(-1),
    "aten.index": indexed,
    "aten.index_put": _put,
    "aten.index_copy": _copied,
    "aten.index_select": _taken,
    "aten.embedding": _embedded,
    "aten.gather": _gathered,
}
