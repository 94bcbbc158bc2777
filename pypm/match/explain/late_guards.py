"""Patterns rearranged so that guards on a call's arguments come after its children.

Structure is then compared first. This loses no match: a guard that holds still holds when more
names are bound.
"""

from __future__ import annotations

from dataclasses import replace

from pypm.core.guards import And
from pypm.core.patterns import (
    Alt,
    Constrained,
    Definition,
    Exists,
    Guarded,
    Let,
    Mu,
    Op,
    Pattern,
    Var,
)
from pypm.core.traverse import at_root, children, rebuilt
from pypm.match.compile.extent import tag_asked

__all__ = ["Lateness"]


class Lateness:
    """Rearrangement of patterns; a definition that occurs more than once stays one object.

    If not `late`, only conjunctions are split.
    """

    def __init__(self, *, late: bool) -> None:
        self._late = late
        self._definitions: dict[int, tuple[Definition, Definition]] = {}
        """By identity, with the original, which must live as long as the key."""

    def of(self, pattern: Pattern) -> Pattern:
        """Return the pattern with each part of a conjunction as a guard of its own, placed late."""
        if isinstance(pattern, Guarded) and isinstance(pattern.guard, And):
            first = replace(pattern, guard=pattern.guard.left)
            return self.of(replace(pattern, body=first, guard=pattern.guard.right))
        if isinstance(pattern, Constrained):
            return self._constrained(pattern)
        if isinstance(pattern, Mu):
            return replace(pattern, definition=self._definition(pattern.definition))
        return rebuilt(pattern, [*map(self.of, children(pattern))])

    def _definition(self, definition: Definition) -> Definition:
        found = self._definitions.get(id(definition))
        if found is None:
            found = definition, definition.of(self.of(definition.body))
            self._definitions[id(definition)] = found
        return found[1]

    def _constrained(self, pattern: Constrained) -> Pattern:
        """Return `(x; let(..); guard(g)); (p <= x)` as `((x; let(..)); (p <= x)); guard(g)`.

        The operator test of p comes before the lets, since p may read their names.
        """
        body, name = self.of(pattern.body), pattern.name
        constraint = self.of(pattern.pattern)
        guards, lets, innermost = _tests(body)
        if not self._late or innermost != Var(name):
            return replace(pattern, body=body, pattern=constraint)
        if any(tag_asked(test.guard, name) for test in guards):  # these keep the search small
            return replace(pattern, body=body, pattern=constraint)
        heads = _heads(constraint)
        if lets and heads is not None:
            innermost = Constrained(innermost, heads, name, pattern.span)
        for let in lets:
            innermost = replace(let, body=innermost)
        result: Pattern = replace(pattern, body=innermost, pattern=constraint)
        for test in guards:
            result = replace(test, body=result)
        return result


def _tests(pattern: Pattern) -> tuple[list[Guarded], list[Let], Pattern]:
    """Return the guards and lets around a pattern, innermost first, and that pattern."""
    guards: list[Guarded] = []
    lets: list[Let] = []
    while isinstance(pattern, Guarded | Let):
        if isinstance(pattern, Guarded):
            guards.append(pattern)
        else:
            lets.append(pattern)
        pattern = pattern.body
    return guards[::-1], lets[::-1], pattern


def _heads(pattern: Pattern) -> Pattern | None:
    """Return the part of a pattern that tests only the operator, if it has one at its root."""
    if isinstance(pattern, Op):
        anything = [Exists("_", Var("_")) for _ in pattern.arguments]
        return replace(pattern, arguments=tuple(anything))
    inside = [_heads(part) for part in at_root(pattern)]
    if not isinstance(pattern, Alt):
        return inside[0] if inside else None
    one, other = inside
    return None if one is None or other is None else one if one == other else Alt(one, other)
