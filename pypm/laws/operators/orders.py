"""Meanings of sorts and of searches in sorted rows.

In proofs an order is a function without laws but three: it undoes its inverse, a sorted row is
searched by it, and the search of places among the ends of equal values undoes that of the values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pypm.laws.algebra import Given, Index, Indexed, NoMeaning, Scalar, Shape
from pypm.laws.forms.orders import PROBE
from pypm.laws.forms.polynomials import Poly
from pypm.laws.forms.printing import shown
from pypm.laws.forms.symbolic import SymbolicAlgebra
from pypm.laws.operators.site import Meaning, Site

__all__ = ["ORDERS"]

Order = Callable[[Index], Index]


def _order(c: Site, x: Indexed) -> Order:
    """Return the places of the elements of a row from the least on, in their order if equal."""
    a = c.algebra
    if isinstance(a, SymbolicAlgebra):
        return a.order(x.shape[0], x.value)
    places = sorted(range(x.shape[0]), key=lambda i: a.place(x.value(i)))

    def order(i: Index) -> Index:
        if not isinstance(i, int):
            raise NoMeaning("an order of any number of values")
        return places[i]

    return order


def _checked(x: Indexed, descending: bool) -> None:
    if x.rank != 1 or descending:
        raise NoMeaning("a sort of several rows, or from the largest on")


def _places(c: Site, x: Indexed, order: Order) -> Indexed:
    return Indexed(x.shape, lambda p: c.algebra.scalar(order(p[0])), kind="whole")


def _argsort(c: Site, x: Indexed, *, descending: bool = False, **_: Given) -> Indexed:
    _checked(x, descending)
    a = c.algebra
    back = a.order_back(x.shape[0], x.value) if isinstance(a, SymbolicAlgebra) else None
    return _places(c, x, back or _order(c, x))


def _sort(c: Site, x: Indexed, *, descending: bool = False, **_: Given) -> tuple[Indexed, Indexed]:
    _checked(x, descending)
    order = _order(c, x)
    found = Indexed(x.shape, lambda p: x.value(order(p[0])), kind=x.kind)
    return found, _places(c, x, order)


def _searched(
    c: Site,
    row: Indexed,
    values: Indexed,
    sorter: Indexed | None = None,
    *,
    right: bool = False,
    side: str | None = None,
    **_: Given,
) -> Indexed:
    """Return how many elements of a sorted row stand before a value that is put into it."""
    if row.rank != 1 or sorter is not None:
        raise NoMeaning("a search in several rows, or in a row that is not sorted")
    a, is_right = c.algebra, right or side == "right"
    if isinstance(a, SymbolicAlgebra) and is_right and values.rank == 1:
        known = a.search(row.shape[0], row.value, values.shape[0], values.value)
        if known is not None:
            return Indexed(values.shape, lambda p: known(p[0]))

    def at(place: Shape) -> Scalar:
        value = values.value(*place)

        def is_before(i: Index) -> Scalar:
            if is_right:
                return 1 - a.positive(row.value(i) - value)
            return a.positive(value - row.value(i))

        return a.total(row.shape[0], is_before)

    return Indexed(values.shape, at)


def _largest(
    c: Site, x: Indexed, *, k: Given, dim: int = -1, largest: bool = True, **_: Given
) -> tuple[Indexed, Indexed]:
    """Return the largest elements of each row, and their places: functions of the row."""
    a, size = c.algebra, x.shape[-1]
    if dim not in (-1, x.rank - 1) or not largest:
        raise NoMeaning("the least elements, or those of columns")
    name = f"largest {shown(size)}" if isinstance(size, Poly) else ""

    def place(p: Shape) -> Scalar:
        if not isinstance(a, SymbolicAlgebra):
            try:
                places = sorted(range(size), key=lambda i: -x.value(*p[:-1], i))
                return a.scalar(places[p[-1]])
            except (TypeError, IndexError):  # in a finite field, or of too few elements
                raise NoMeaning("an order of values that have none") from None
        row = a.determining((size,), lambda q: x.value(*p[:-1], *q))
        return a.function(name, a.scalar(p[-1]), *row)

    shape = (*x.shape[:-1], c.size(k))
    if isinstance(a, SymbolicAlgebra):
        a.note_place(place((PROBE,) * x.rank), size)
    found = Indexed(shape, lambda p: x.value(*p[:-1], a.place(place(p))), kind=x.kind)
    return found, Indexed(shape, place, kind="whole")


@dataclass
class _Counts(Indexed):
    """Numbers of elements of a row that are each of the first whole numbers."""

    row: Indexed | None = None


def _histogram(c: Site, x: Indexed, *, bins: Given, min: Given, max: Given) -> Indexed:
    """Return how many elements are each whole number below that of the bins."""
    a, count = c.algebra, c.size(bins)
    if not (x.kind == "whole" or x.is_cast):
        raise NoMeaning("a histogram of values that may be no whole numbers")
    if x.rank != 1 or c.size(min) != 0 or c.size(max) + 1 != count:
        raise NoMeaning("a histogram of bins that are not whole numbers")

    def at(p: Shape) -> Scalar:
        return a.total(x.shape[0], lambda i: a.zero(x.value(i) - a.scalar(p[0])))

    return _Counts((count,), at, row=x)


def _cumulated(c: Site, x: Indexed, *, dim: int, **_: Given) -> Indexed:
    """Return sums of the elements up to each; of counts in a sorted row, the ends of its values."""
    a = c.algebra
    if x.rank != 1:
        raise NoMeaning("sums of several rows")
    if isinstance(x, _Counts) and x.row is not None and isinstance(a, SymbolicAlgebra):
        known = a.search(x.row.shape[0], x.row.value, x.shape[0], lambda i: i)
        if known is not None:
            return Indexed(x.shape, lambda p: known(p[0]), kind="whole")

    def at(p: Shape) -> Scalar:
        def up_to(i: Index) -> Scalar:
            return a.choose(a.positive(a.scalar(i - p[0])), lambda: c.number(0), lambda: x.value(i))

        return a.total(x.shape[0], up_to)

    return Indexed(x.shape, at)


ORDERS: Final[dict[str, Meaning]] = {
    "aten.sort": _sort,
    "aten.argsort": _argsort,
    "aten.searchsorted": _searched,
    "aten.topk": _largest,
    "aten.histc": _histogram,
    "aten.cumsum": _cumulated,
}
