"""Meanings of sorts and of searches in sorted rows.

In proofs an order is a function without laws but three: it undoes its inverse, a sorted row is
searched by it, and the search of places among the ends of equal values undoes that of the values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pypm.laws.algebra import Given, Index, Indexed, NoMeaning, Scalar, Shape
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


ORDERS: Final[dict[str, Meaning]] = {
    "aten.sort": _sort,
    "aten.argsort": _argsort,
    "aten.searchsorted": _searched,
}
