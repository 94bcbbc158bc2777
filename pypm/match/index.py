"""Which operators can stand at the root of a match: what lets most attempts never start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from pypm.core.guards import Apply, Attribute, Constant, Holds
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

__all__ = ["Expected", "Heads", "Visited", "heads", "visited"]

Heads: TypeAlias = frozenset[str] | None
"""Names of operators; None means any."""
Expected: TypeAlias = Mapping[str, Heads]
"""For names that a constraint further on will examine: the heads it can accept."""


def heads(pattern: Pattern, expected: Expected) -> Heads:
    """Operators at which `pattern` may match; a match anywhere else is impossible.

    A variable that is later constrained (`n; (f(p) <= n)`) can only have met what the constraint
    accepts, which is what sees through the elaborations of attribute tests and of `through=`.
    """
    match pattern:
        case Var(name):
            return expected.get(name)
        case Op(operator, _):
            return frozenset({operator.name})
        case Fun() | Call():
            return None
        case Alt(left, right):
            first, second = heads(left, expected), heads(right, expected)
            return None if first is None or second is None else first | second
        case Exists(name, body):
            return heads(body, without(expected, name))
        case Guarded(body, _) | Let(body, _, _):
            return heads(body, expected)
        case Constrained(body, _, _):
            return heads(body, expecting(pattern, expected))
        case Mu(definition, actuals):
            inner = entering(definition.parameters, actuals, expected)
            return heads(definition.body, inner)
        case _:
            assert_never(pattern)


def without(expected: Expected, name: str) -> Expected:
    """What is expected inside a scope that declares `name` anew."""
    if name not in expected:
        return expected
    return {other: accepted for other, accepted in expected.items() if other != name}


def expecting(pattern: Constrained, expected: Expected) -> Expected:
    """What is expected in the body of a constraint."""
    accepted = heads(pattern.pattern, expected)
    known = expected.get(pattern.name)
    if accepted is None or known is None:
        accepted = known if accepted is None else accepted
    else:
        accepted &= known
    return expected if accepted is None else {**expected, pattern.name: accepted}


def entering(parameters: tuple[str, ...], actuals: tuple[str, ...], expected: Expected) -> Expected:
    """What is expected of the parameters of a recursive pattern entered with `actuals`."""
    first: dict[str, str] = {}
    for parameter, actual in zip(parameters, actuals, strict=False):
        first.setdefault(parameter, actual)
    return {name: expected[actual] for name, actual in first.items() if actual in expected}


@dataclass(frozen=True, slots=True)
class Visited:
    """A bound on the operators that a match visits: those named, those of a class, or all."""

    names: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    is_everything: bool = False
    keeps: bool = False
    """Whether something visited may be marked to stay alive for other users."""

    def __or__(self, other: Visited) -> Visited:
        return Visited(
            self.names | other.names,
            self.tags | other.tags,
            self.is_everything or other.is_everything,
            self.keeps or other.keeps,
        )


def visited(patterns: Iterable[Pattern]) -> Visited:
    """What a match of all of `patterns` can visit."""
    result = Visited()
    for pattern in patterns:
        result |= _visited(pattern, None)
    return result


def _visited(pattern: Pattern, tag: str | None) -> Visited:
    """What `pattern` can visit where the subject has the tag."""
    match pattern:
        case Var() | Call():
            return Visited()
        case Op(operator, arguments, keep):
            return Visited(frozenset({operator.name}), keeps=keep) | visited(arguments)
        case Fun(_, arguments, keep):
            tags = frozenset[str]() if tag is None else frozenset({tag})
            return Visited(tags=tags, is_everything=tag is None, keeps=keep) | visited(arguments)
        case Alt(left, right):
            return _visited(left, tag) | _visited(right, tag)
        case Exists(_, body) | Guarded(body, _) | Let(body, _, _):
            return _visited(body, tag)
        case Constrained(body, constraint, name):
            return _visited(body, tag) | _visited(constraint, _tag_of(body, name))
        case Mu(definition, _):
            return _visited(definition.body, tag)
        case _:
            assert_never(pattern)


def _tag_of(pattern: Pattern, name: str) -> str | None:
    """The tag that `x; guard(tag in x.tags)` demands of what is bound to x."""
    match pattern:
        case Guarded(Var(bound), Holds(Apply(function, (Constant(str() as tag), tagged)))):
            asked = function.name == "in" and tagged == Attribute(name, "tags")
            return tag if asked and bound == name else None
    return None
