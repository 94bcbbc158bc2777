"""Spans of guards and patterns in source text."""

from __future__ import annotations

from pypm.core.guards import Guard
from pypm.core.patterns import Alt, Constrained, Exists, Mu, Pattern
from pypm.core.traverse import at_root, atoms, names
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
    if isinstance(pattern, Mu):
        return pattern.span or pattern.definition.span
    if isinstance(pattern, Constrained):
        return pattern_span(pattern.pattern) or pattern_span(pattern.body)
    found = next(filter(None, map(pattern_span, at_root(pattern))), None)
    return found if isinstance(pattern, Alt | Exists) else found or pattern.span
