"""`keep(p)`: marks what p matches at its root as free to stay alive for other users."""

from __future__ import annotations

from dataclasses import replace

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

__all__ = ["kept"]


def kept(pattern: Pattern) -> Pattern:
    """`pattern` with every operator that can stand at its root marked."""
    match pattern:
        case Op() | Fun():
            return replace(pattern, keep=True)
        case Alt(left, right):
            return Alt(kept(left), kept(right))
        case Exists(name, body):
            return Exists(name, kept(body))
        case Guarded(body) | Let(body):
            return replace(pattern, body=kept(body))
        case Constrained(body, constraint, name):
            at_root = name in _root_names(body)
            return replace(
                pattern, body=kept(body), pattern=kept(constraint) if at_root else constraint
            )
        case Mu(definition):
            return replace(pattern, definition=definition.of(kept(definition.body)))
        case Var() | Call():
            return pattern


def _root_names(pattern: Pattern) -> frozenset[str]:
    """The names that a match binds to the subject itself."""
    match pattern:
        case Var(name):
            return frozenset({name})
        case Alt(left, right):
            return _root_names(left) | _root_names(right)
        case Exists(name, body):
            return _root_names(body) - {name}
        case Guarded(body) | Let(body) | Constrained(body):
            return _root_names(body)
        case Mu(definition, actuals):
            inside = _root_names(definition.body)
            pairs = zip(definition.parameters, actuals, strict=False)
            return frozenset(actual for parameter, actual in pairs if parameter in inside)
        case Op() | Fun() | Call():
            return frozenset()
