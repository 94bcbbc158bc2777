"""`keep(p)`: marks what p matches at its root as free to stay alive for other users."""

from __future__ import annotations

from dataclasses import replace

from pypm.core.patterns import (
    Constrained,
    Exists,
    Fun,
    Mu,
    Op,
    Pattern,
    Var,
)
from pypm.core.traverse import at_root, children, rebuilt

__all__ = ["kept"]


def kept(pattern: Pattern) -> Pattern:
    """Return `pattern` with every operator that can be at its root marked."""
    if isinstance(pattern, Op | Fun):
        return replace(pattern, keep=True)
    if isinstance(pattern, Constrained) and pattern.name not in _root_names(pattern.body):
        return replace(pattern, body=kept(pattern.body))
    found = rebuilt(pattern, [*map(kept, children(pattern))])
    if isinstance(pattern, Mu) and isinstance(found, Mu):
        unmarked = pattern.definition.unmarked or pattern.definition
        return replace(found, definition=replace(found.definition, unmarked=unmarked))
    return found


def _root_names(pattern: Pattern) -> frozenset[str]:
    """Return the names that a match binds to the subject itself."""
    if isinstance(pattern, Var):
        return frozenset({pattern.name})
    found = frozenset[str]().union(*map(_root_names, at_root(pattern)))
    if isinstance(pattern, Exists):
        return found - {pattern.name}
    if isinstance(pattern, Mu):
        pairs = zip(pattern.definition.parameters, pattern.actuals, strict=False)
        return frozenset(actual for parameter, actual in pairs if parameter in found)
    return found
