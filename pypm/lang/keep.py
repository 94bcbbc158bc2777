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
    """`pattern` with every operator that can stand at its root marked."""
    match pattern:
        case Op() | Fun():
            return replace(pattern, keep=True)
        case Constrained(body, constraint, name):
            at_root = name in _root_names(body)
            return replace(
                pattern, body=kept(body), pattern=kept(constraint) if at_root else constraint
            )
        case _:
            return rebuilt(pattern, [*map(kept, children(pattern))])


def _root_names(pattern: Pattern) -> frozenset[str]:
    """The names that a match binds to the subject itself."""
    match pattern:
        case Var(name):
            return frozenset({name})
        case Exists(name, body):
            return _root_names(body) - {name}
        case Mu(definition, actuals):
            inside = _root_names(definition.body)
            pairs = zip(definition.parameters, actuals, strict=False)
            return frozenset(actual for parameter, actual in pairs if parameter in inside)
        case _:
            return frozenset().union(*map(_root_names, at_root(pattern)))
