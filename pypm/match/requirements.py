"""Operators that a pattern requires: their number, and those that a graph lacks."""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import Final

from pypm.core.operators import CONS, LITERAL, NIL
from pypm.core.patterns import (
    Alt,
    Call,
    Fun,
    Op,
    Pattern,
)
from pypm.core.traverse import children

__all__ = ["Sizes", "lacking"]

BUILT_IN: Final = frozenset({LITERAL.name, CONS.name, NIL.name})
"""Operators of terms that are not calls of a graph."""


class Sizes:
    """Numbers of operators of the smallest terms that patterns match (memoized)."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Pattern, float]] = {}
        """By identity, with the pattern, which must live as long as the key."""

    def of(self, pattern: Pattern) -> float:
        """Return the number of operators of the smallest term; infinity if none is finite."""
        found = self._known.get(id(pattern))
        if found is None:
            found = self._known[id(pattern)] = pattern, self._count(pattern)
        return found[1]

    def _count(self, pattern: Pattern) -> float:
        match pattern:
            case Op(operator, arguments):
                return (operator != LITERAL) + sum(map(self.of, arguments))
            case Fun(_, arguments):
                return 1 + sum(map(self.of, arguments))
            case Alt(left, right):
                return min(self.of(left), self.of(right))
            case Call():
                return inf
            case _:
                return sum(map(self.of, children(pattern)))


def lacking(pattern: Pattern, present: Collection[str]) -> frozenset[str]:
    """Return the operators that every match requires and that are not in `present`.

    Of alternates that lack different ones, the one that lacks the fewest counts.
    """
    match pattern:
        case Alt(left, right):
            return min(lacking(left, present), lacking(right, present), key=len)
        case Op(operator) if operator.name not in BUILT_IN and operator.name not in present:
            own = frozenset({operator.name})
        case _:
            own = frozenset()
    return own.union(*(lacking(part, present) for part in children(pattern)))
