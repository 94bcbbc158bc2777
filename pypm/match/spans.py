"""Where guards and patterns are written."""

from __future__ import annotations

from typing import assert_never

from pypm.core.guards import And, Equal, Guard, Holds, Less, Not, Or, True_
from pypm.core.patterns import Alt, Constrained, Exists, Guarded, Let, Mu, Pattern
from pypm.diagnostics import Span

__all__ = ["guard_span", "pattern_span"]


def guard_span(guard: Guard) -> Span | None:
    """Where a guard, or the first part of it that says where it is, is written."""
    match guard:
        case True_():
            return None
        case Holds() | Equal() | Less():
            return guard.span
        case Not(inner):
            return guard_span(inner)
        case And(left, right) | Or(left, right):
            return guard_span(left) or guard_span(right)
        case _:
            assert_never(guard)


def pattern_span(pattern: Pattern) -> Span | None:
    """Where a pattern, or the first part of it that says where it is, is written."""
    match pattern:
        case Exists(_, body):
            return pattern_span(body)
        case Alt(left, right):
            return pattern_span(left) or pattern_span(right)
        case Constrained(body, constraint):
            return pattern_span(constraint) or pattern_span(body)
        case Guarded(body) | Let(body):
            return pattern_span(body) or pattern.span
        case Mu(definition):
            return pattern.span or definition.span
        case _:
            return pattern.span
