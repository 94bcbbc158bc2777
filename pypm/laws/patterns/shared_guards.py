"""Guards that all alternates of a pattern have: whoever calls it may take them for granted."""

from __future__ import annotations

from pypm.core.guards import Guard
from pypm.core.patterns import Alt, Call, Definition, Guarded, Mu, Pattern
from pypm.core.traverse import children, conjuncts, names

__all__ = ["shared_guards"]


def shared_guards(definition: Definition) -> list[Guard]:
    """Return the guards on parameters alone without which there is no match."""
    parameters = frozenset(definition.parameters)
    return [guard for guard in definition.read(_needed) if names(guard) <= parameters]


def _needed(pattern: Pattern) -> list[Guard]:
    """Return the guards that hold in every match of a pattern, but those inside of its calls."""
    if isinstance(pattern, (Mu, Call)):
        return []
    if isinstance(pattern, Alt):
        others = _needed(pattern.right)
        return [guard for guard in _needed(pattern.left) if guard in others]
    found = conjuncts(pattern.guard) if isinstance(pattern, Guarded) else []
    return [*found, *(guard for part in children(pattern) for guard in _needed(part))]
