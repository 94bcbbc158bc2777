"""Operators that a pattern needs: how many at least, and which of them a graph lacks."""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import Final, assert_never

from pypm.core.operators import CONS, LITERAL, NIL
from pypm.core.patterns import (
    Alt,
    Call,
    Constrained,
    Exists,
    Fun,
    Guarded,
    Let,
    Mu,
    Op,
    Pattern,
    Var,
)

__all__ = ["Sizes", "lacking"]

BUILT_IN: Final = frozenset({LITERAL.name, CONS.name, NIL.name})
"""Operators of terms that no call of a graph has."""


class Sizes:
    """Numbers of operators of the smallest terms that patterns match, remembered."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Pattern, float]] = {}
        """By identity, each with its pattern, which must live as long."""

    def of(self, pattern: Pattern) -> float:
        """Return how many operators the smallest term has; infinite where only recursion ends."""
        found = self._known.get(id(pattern))
        if found is None:
            found = self._known[id(pattern)] = pattern, self._count(pattern)
        return found[1]

    def _count(self, pattern: Pattern) -> float:
        match pattern:
            case Var():
                return 0
            case Op(operator, arguments):
                return (operator != LITERAL) + sum(map(self.of, arguments))
            case Fun(_, arguments):
                return 1 + sum(map(self.of, arguments))
            case Alt(left, right):
                return min(self.of(left), self.of(right))
            case Exists(_, body) | Guarded(body) | Let(body):
                return self.of(body)
            case Constrained(body, constraint):
                return self.of(body) + self.of(constraint)
            case Mu(definition):
                return self.of(definition.body)
            case Call():
                return inf
            case _:
                assert_never(pattern)


def lacking(pattern: Pattern, present: Collection[str]) -> frozenset[str]:
    """Return the operators that are not present and that every match needs.

    Where alternates need different ones, those of the alternate that lacks the fewest.
    """
    match pattern:
        case Var() | Call():
            return frozenset()
        case Op(operator, arguments):
            known = operator.name in BUILT_IN or operator.name in present
            own = frozenset() if known else frozenset({operator.name})
            return own.union(*(lacking(argument, present) for argument in arguments))
        case Fun(_, arguments):
            return frozenset().union(*(lacking(argument, present) for argument in arguments))
        case Alt(left, right):
            return min(lacking(left, present), lacking(right, present), key=len)
        case Exists(_, body) | Guarded(body) | Let(body):
            return lacking(body, present)
        case Constrained(body, constraint):
            return lacking(body, present) | lacking(constraint, present)
        case Mu(definition):
            return lacking(definition.body, present)
        case _:
            assert_never(pattern)
