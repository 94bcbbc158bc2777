"""Orders of rows: functions of a place, known by the values of the row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from pypm.laws.forms.functions import function, only_factor
from pypm.laws.forms.polynomials import Key, Poly, factor, indicator, rational

__all__ = ["PROBE", "Orders"]

At: TypeAlias = Callable[[Poly], Poly]
PROBE = factor(("index", "probe"))
"""A place that stands for all of a row."""


@dataclass
class Orders:
    """The rows that were sorted, by their values at the probe."""

    _numbers: dict[Key, int] = field(default_factory=dict)
    _sorted: dict[Key, int] = field(default_factory=dict)
    """Sorted rows, with the number of their order."""
    _ends: dict[int, tuple[Poly, At]] = field(default_factory=dict)
    """By the number of an order: the number of values of which ends were searched, and the row."""
    _places: set[tuple[str, Key]] = field(default_factory=set)
    """Values that are places in a dimension, with its size."""

    def of(self, row: At, is_one: bool) -> At:
        """Return the order of a row; of one element, it is known."""
        number = self._numbers.setdefault(row(PROBE).key, len(self._numbers) + 1)
        order = _as_form if is_one else _at(f"order {number}")
        self._sorted[row(order(PROBE)).key] = number
        return order

    def back(self, row: At) -> At | None:
        """Return the inverse of an order; None if the row is none."""
        if row(PROBE) == PROBE:
            return _as_form
        for number in self._numbers.values():
            if row(PROBE) == function(f"order {number}", PROBE):
                return _at(f"rank {number}")
        return None

    def note_place(self, value: Poly, size: Poly) -> None:
        """Note that a value that is read is a place in a dimension, maybe counted from its end."""
        self._places.add((_read(value), _as_form(size).key))

    def search(self, row: At, count: Poly, values: At) -> At | None:
        """Return how many elements of a row are up to each value, where it is known: of all numbers
        below `count` in a sorted row, and of places among those.
        """
        if values(PROBE) != PROBE:
            return None
        number = self._sorted.get(row(PROBE).key)
        if number is not None and self._are_places(row(PROBE), count):
            self._ends[number] = count, row
            return _at(f"ends {number}")
        for number, (_, found) in self._ends.items():
            if row(PROBE) == function(f"ends {number}", PROBE):
                return found
        return None

    def _are_places(self, value: Poly, size: Poly) -> bool:
        """Return whether a value counts from zero, where it is a place in a dimension."""
        of = only_factor(value)
        if of[:1] == ("function",):
            return (str(of[1]), size.key) in self._places
        reads = {of for m in value.terms for of, _ in m if of[0] in ("read", "whole")}
        if len(reads) != 1:
            return False
        one = factor(reads.pop())
        counted = one + size * indicator("positive", (-one).key)
        return value == counted and (_read(one), size.key) in self._places


def _at(name: str) -> At:
    return lambda place: function(name, _as_form(place))


def _as_form(place: Poly | int) -> Poly:
    """Return a place as a form: the order of a row of one element."""
    return place if isinstance(place, Poly) else rational(place)


def _read(value: Poly) -> str:
    """Return the name of what is read, or of a function, whatever the place; else ""."""
    of = only_factor(value)
    return str(of[1]) if of and of[0] in ("read", "whole", "function") else ""
