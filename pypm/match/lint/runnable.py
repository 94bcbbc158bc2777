"""Reasons why a rule cannot be run: names that may be unbound, and recursion that may not end."""

from __future__ import annotations

from collections.abc import Iterator

from pypm.core.guarded import check_guarded
from pypm.core.python_settings import with_room
from pypm.core.rules import Rule
from pypm.core.traverse import names
from pypm.core.wellformed import bound_after, check_wellformed
from pypm.diagnostics import Diagnostic

__all__ = ["not_runnable"]


@with_room
def not_runnable(rule: Rule) -> list[Diagnostic]:
    """Return the reasons why a rule cannot be run; none for a sound one."""
    return [*_unbound(rule), *(d for root in rule.roots for d in check_guarded(root))]


def _unbound(rule: Rule) -> Iterator[Diagnostic]:
    bound: frozenset[str] = frozenset()
    for root in rule.roots:
        yield from check_wellformed(root, bound)
        bound = bound_after(root, bound)
    for name in sorted((names(rule.guard) | set(rule.parameters)) - bound):
        yield Diagnostic(
            f"variable `{name}` of rule `{rule.name}` may be unbound",
            rule.span,
            help="bind it in every alternate of the pattern",
        )
