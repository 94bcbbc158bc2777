"""Operators that a pattern requires: their number, and those that a graph lacks."""

from __future__ import annotations

from collections.abc import Collection, Iterable
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
from pypm.core.traverse import children, fold

__all__ = ["BUILT_IN", "TermSizes", "lacking", "named"]

BUILT_IN: Final = frozenset({LITERAL.name, CONS.name, NIL.name})
"""Operators of terms that are not calls of a graph."""


class TermSizes:
    """Numbers of operators of the smallest terms that patterns match (memoized)."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Pattern, float]] = {}
        """By identity, with the pattern, which must live as long as the key."""

    def of(self, pattern: Pattern) -> float:
        """Return the number of operators of the smallest term; infinity if none is finite."""
        return fold(pattern, _smallest, self._known)


def _smallest(pattern: Pattern, inside: list[float]) -> float:
    if isinstance(pattern, Call):
        return inf
    if isinstance(pattern, Alt):
        return min(inside)
    is_operator = isinstance(pattern, Op) and pattern.operator != LITERAL
    return sum(inside, int(is_operator or isinstance(pattern, Fun)))


def named(patterns: Iterable[Pattern]) -> frozenset[str]:
    """Return the names of the operators in patterns, and in the definitions that they enter."""
    todo = [*patterns]
    seen: dict[int, Pattern] = {}
    while todo:
        part = todo.pop()
        if id(part) not in seen:
            seen[id(part)] = part
            todo += children(part)
    return frozenset(part.operator.name for part in seen.values() if isinstance(part, Op))


def lacking(pattern: Pattern, present: Collection[str]) -> frozenset[str]:
    """Return the operators that every match requires and that are not in `present`.

    Of alternates that lack different ones, the one that lacks the fewest counts.
    """

    def combine(part: Pattern, inside: list[frozenset[str]]) -> frozenset[str]:
        if isinstance(part, Alt):
            return min(inside, key=len)
        own = frozenset({part.operator.name} if isinstance(part, Op) else ())
        return (own - BUILT_IN).difference(present).union(*inside)

    return fold(pattern, combine, {})
