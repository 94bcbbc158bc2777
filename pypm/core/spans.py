"""Spans of guards and patterns in source text."""

from __future__ import annotations

from pypm.core.guards import Guard
from pypm.core.patterns import Alt, Constrained, Exists, Guarded, Let, Mu, Pattern
from pypm.core.traverse import atoms, names
from pypm.diagnostics import Span

__all__ = ["guard_span", "pattern_span"]


def guard_span(guard: Guard, name: str | None = None) -> Span | None:
    """Return the span of a guard, or of the first part of it that has one.

    With a name, the part must mention it.
    """
    spans = (atom.span for atom in atoms(guard) if name is None or name in names(atom))
    return next(filter(None, spans), None)


def pattern_span(pattern: Pattern) -> Span | None:
    """Return the span of a pattern, or of the first part of it that has one."""
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
