"""Static bounds of a pattern's matches: operators visited, names bound, and depth inspected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from math import inf
from operator import or_
from typing import TypeAlias, assert_never

from pypm.core.guard_origins import origin_of
from pypm.core.guards import (
    Apply,
    Attribute,
    AttributeTest,
    ClassTest,
    Constant,
    Expression,
    Guard,
    Reference,
    Tuple,
)
from pypm.core.patterns import (
    Alt,
    Call,
    Constrained,
    Definition,
    Exists,
    Fun,
    Guarded,
    Let,
    Mu,
    Op,
    Pattern,
    Var,
    args,
)
from pypm.core.rules import Rule
from pypm.core.traverse import children, expressions
from pypm.match.index import Fact

__all__ = [
    "Extent",
    "bound_below",
    "compares_terms",
    "extent",
    "fact_asked",
    "reach",
    "tag_asked",
]


@dataclass(frozen=True, slots=True)
class Extent:
    """An upper bound on the operators that a match visits: by name, by class, or everything."""

    names: frozenset[str] = frozenset()
    tags: frozenset[str] = frozenset()
    is_everything: bool = False
    keeps: bool = False
    """True if something visited may be marked to stay alive for other users."""

    def admits(self, name: str, tags: frozenset[str]) -> bool:
        """Return whether an operator of that name and of these classes can be visited."""
        return self.is_everything or name in self.names or not self.tags.isdisjoint(tags)

    def __or__(self, other: Extent) -> Extent:
        return Extent(
            self.names | other.names,
            self.tags | other.tags,
            self.is_everything or other.is_everything,
            self.keeps or other.keeps,
        )


def extent(patterns: Iterable[Pattern]) -> Extent:
    """Return the extent of a match of all of `patterns`."""
    result = Extent()
    for pattern in patterns:
        result |= _extent_of(pattern)
    return result


def _extent(pattern: Pattern, tag: str | None) -> Extent:
    """Return the extent of `pattern` at a subject with the tag `tag` (None: no tag is known)."""
    match pattern:
        case Op(operator, arguments, keep):
            return Extent(frozenset({operator.name}), keeps=keep) | extent(arguments)
        case Fun(_, arguments, keep):
            tags = frozenset[str]() if tag is None else frozenset({tag})
            return Extent(tags=tags, is_everything=tag is None, keeps=keep) | extent(arguments)
        case Constrained(body, constraint, name):
            return _extent(body, tag) | _extent(constraint, _tag_of(body, name))
        case Mu(definition) if tag is None:
            return definition.read(_extent_of)
        case _:
            return reduce(or_, (_extent(part, tag) for part in children(pattern)), Extent())


def _extent_of(pattern: Pattern) -> Extent:
    return _extent(pattern, None)


def _tag_of(pattern: Pattern, name: str) -> str | None:
    """Return the tag that `x; guard(tag in x.tags)` demands of the binding of x, or None."""
    if isinstance(pattern, Guarded) and pattern.body == Var(name):
        return tag_asked(pattern.guard, name)
    return None


def tag_asked(guard: Guard, name: str) -> str | None:
    """Return the tag of a guard `tag in x.tags`, with x of that name, or None."""
    match origin_of(guard):
        case ClassTest(asked, tag) if asked == name:
            return tag
    return None


def fact_asked(guard: Guard) -> tuple[str, Fact] | None:
    """Return the variable of a guard `tag in x.tags` or `x.dtype == dtype`, and its fact."""
    match origin_of(guard):
        case ClassTest(name, tag):
            return name, ("tags", tag)
        case AttributeTest(Attribute(name, "dtype"), Constant(dtype), None):
            return name, ("dtype", dtype)
    return None


_Names: TypeAlias = frozenset[str]
_Context: TypeAlias = tuple[tuple[Definition, _Names], ...]
"""The enclosing definitions, innermost first, each with the parameters it is assumed to bind."""


def bound_below(
    pattern: Pattern, bound: _Names = frozenset(), context: _Context = ()
) -> frozenset[str]:
    """Return the names that every match binds to a term at or below its subject.

    `bound` are the names bound so before the match. Unlike `bound_after`, this leaves out names
    bound by a let, by a constraint below a term that may lie elsewhere, and those that a recursive
    pattern requires on entry.
    """
    match pattern:
        case Var(name):
            return bound | {name}
        case Op(_, parts) | Fun(_, parts):
            for part in parts:
                bound = bound_below(part, bound, context)
            return bound
        case Alt(left, right):
            return bound_below(left, bound, context) & bound_below(right, bound, context)
        case Exists(name, body):
            inside = bound_below(body, bound - {name}, context)
            return (inside - {name}) | (bound & {name})
        case Guarded(body) | Let(body):
            return bound_below(body, bound, context)
        case Constrained(body, constraint, name):
            after = bound_below(body, bound, context)
            return bound_below(constraint, after, context) if name in after else after
        case Mu(definition, actuals):
            closed = definition.closed
            inside = closed.once(_binds, definition) if closed else _binds(definition, context)
            return bound | args(definition, actuals, inside)
        case Call(index, actuals) if index < len(context):
            return bound | args(context[index][0], actuals, context[index][1])
        case Call():
            return bound
        case _:
            assert_never(pattern)


def _binds(definition: Definition, context: _Context = ()) -> _Names:
    """Return the parameters that a body binds below its subject."""
    # The greatest fixpoint is sound, as a match is finite: its innermost calls bind the parameters
    # without relying on the assumption, and so do, by induction, those around them.
    assumed = frozenset(definition.parameters)
    while True:
        inside = bound_below(definition.body, context=((definition, assumed), *context))
        if assumed <= inside:
            return assumed
        assumed &= inside


def reach(rule: Rule) -> float:
    """Return how many operators below its root a match of a rule can inspect.

    The result is infinite if the rule recurses, has several roots, absorbs, or compares
    whole terms (a variable that occurs twice, a guard on a whole term).
    """
    if len(rule.roots) > 1 or rule.absorb is not None:
        return inf
    (root,) = rule.roots
    counts = _occurrences(root) + _whole(rule.guard)
    return inf if any(count > 1 for count in counts.values()) else _reach(root)


def compares_terms(pattern: Pattern) -> bool:
    """Return whether a match depends on two terms being equal, or on a whole term in a guard."""
    return any(count > 1 for count in _occurrences(pattern).values())


def _occurrences(pattern: Pattern) -> Counter[str]:
    """Return how often each name may be bound to a term or compared with it in one match."""
    match pattern:
        case Var(name):
            return Counter({name: 1})
        case Op() | Fun() | Constrained():
            return sum(map(_occurrences, children(pattern)), Counter())
        case Alt(left, right):
            return _occurrences(left) | _occurrences(right)
        case Exists(name, body):
            inside = _occurrences(body)
            # A repeated local name leaves the scope, but not the count: it goes on as "".
            count = inside.pop(name, 0)
            return inside + Counter({"": 2} if count > 1 else {})
        case Guarded(body, guard):
            return _occurrences(body) + _whole(guard)
        case Let(body, name, expression):
            return _occurrences(body) + Counter({name: 1}) + _whole_in(expression)
        case Mu(definition, actuals):
            inside = definition.read(_occurrences)
            first = dict(zip(reversed(definition.parameters), reversed(actuals), strict=False))
            return sum((Counter({first.get(n, ""): k}) for n, k in inside.items()), Counter())
        case Call(_, actuals):
            return Counter(actuals)
        case _:
            assert_never(pattern)


def _whole(guard: Guard) -> Counter[str]:
    """Return two occurrences for each variable whose whole value a guard reads."""
    return sum(map(_whole_in, expressions(guard)), Counter())


def _whole_in(expression: Expression) -> Counter[str]:
    match expression:
        case Constant() | Attribute():
            return Counter()
        case Reference(name):
            return Counter({name: 2})
        case Apply(function, (Reference(), *rest)) if function.name in {"is_none", "is_value"}:
            return sum(map(_whole_in, rest), Counter())
        case Apply(_, parts) | Tuple(parts):
            return sum(map(_whole_in, parts), Counter())
        case _:
            assert_never(expression)


def _reach(pattern: Pattern) -> float:
    if isinstance(pattern, Mu):
        return pattern.definition.read(_reach)
    if isinstance(pattern, Call):
        return inf
    inside = map(_reach, children(pattern))
    if isinstance(pattern, Op | Fun):
        return 1 + max(inside, default=0)
    # A constraint is matched at a binding, which lies within the reach of the body, so the two add
    # up.
    return max(inside) if isinstance(pattern, Alt) else sum(inside)
