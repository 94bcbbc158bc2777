"""Parts of patterns, guards and expressions, and patterns rebuilt from changed parts."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from operator import is_
from typing import TYPE_CHECKING, TypeVar, assert_never

from pypm.core.guards import (
    And,
    Apply,
    Attribute,
    Constant,
    Equal,
    Expression,
    Guard,
    Holds,
    Less,
    Not,
    Or,
    Reference,
    True_,
    Tuple,
)
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
from pypm.core.terms import exact

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pypm.diagnostics import Span

__all__ = [
    "alternates",
    "at_root",
    "atoms",
    "children",
    "conjuncts",
    "expression_names",
    "expressions",
    "fold",
    "free_names",
    "guard_key",
    "guard_span",
    "names",
    "parts",
    "pattern_span",
    "read_names",
    "rebuilt",
    "subexpressions",
]

_Result = TypeVar("_Result")


# --- patterns -----------------------------------------------------------------------------------


def children(pattern: Pattern) -> tuple[Pattern, ...]:
    """Return the patterns directly inside a pattern, in the order in which they are matched.

    The body of a definition is inside the pattern that enters it, not inside its calls.
    """
    match pattern:
        case Op(_, arguments) | Fun(_, arguments):
            return arguments
        case Alt(left, right) | Constrained(left, right):
            return left, right
        case Exists(_, body) | Guarded(body) | Let(body):
            return (body,)
        case Mu(definition):
            return (definition.body,)
        case Var() | Call():
            return ()
        case _:
            assert_never(pattern)


def fold(
    pattern: Pattern,
    combine: Callable[[Pattern, list[_Result]], _Result],
    known: dict[int, tuple[Pattern, _Result]],
) -> _Result:
    """Return the result of a pattern, which `combine` makes of the results of its children.

    Each pattern is combined once, however often it occurs, and none is too deep. `known` has the
    results by identity, each with its pattern, which must live as long as the key.
    """
    todo = [pattern]
    while todo:
        part = todo[-1]
        inside = children(part)
        missing = [child for child in inside if id(child) not in known]
        if missing:
            todo += missing
            continue
        todo.pop()
        if id(part) not in known:
            known[id(part)] = part, combine(part, [known[id(child)][1] for child in inside])
    return known[id(pattern)][1]


def rebuilt(pattern: Pattern, inside: Sequence[Pattern]) -> Pattern:
    """Return a pattern with other `children`, as many as it has; itself if they are the same ones.

    It takes a list rather than a function that makes one: patterns are deep, and its own frame
    would stay on Python's stack at every level.
    """
    if all(map(is_, inside, children(pattern))):
        return pattern
    match pattern:
        case Op() | Fun():
            return replace(pattern, arguments=tuple(inside))
        case Alt():
            return Alt(*inside)
        case Exists(name):
            return Exists(name, *inside)
        case Guarded() | Let():
            (body,) = inside
            return replace(pattern, body=body)
        case Constrained():
            body, constraint = inside
            return replace(pattern, body=body, pattern=constraint)
        case Mu(definition):
            (body,) = inside
            return replace(pattern, definition=definition.of(body))
        case Var() | Call():
            return pattern
        case _:
            assert_never(pattern)


def at_root(pattern: Pattern) -> tuple[Pattern, ...]:
    """Return the children that are matched against the same subject as the pattern itself."""
    if isinstance(pattern, Op | Fun):
        return ()
    inside = children(pattern)
    return inside[:1] if isinstance(pattern, Constrained) else inside


def alternates(pattern: Pattern) -> list[Pattern]:
    """Return `p`, `q` and `r` for `p | q | r`, in order; for any other pattern itself alone."""
    found: list[Pattern] = []
    todo = [pattern]
    while todo:
        part = todo.pop()
        if isinstance(part, Alt):
            todo += (part.right, part.left)
        else:
            found.append(part)
    return found


def parts(pattern: Pattern) -> Iterator[Pattern]:
    """Yield a pattern and all patterns inside it, in the order in which they are matched."""
    todo = [pattern]
    while todo:
        part = todo.pop()
        yield part
        todo += reversed(children(part))


def free_names(pattern: Pattern) -> frozenset[str]:
    """Return the names that a pattern mentions and does not declare."""
    if isinstance(pattern, Mu | Call):
        return frozenset(pattern.actuals)
    found = frozenset[str]().union(*map(free_names, children(pattern)))
    if isinstance(pattern, Exists):
        return found - {pattern.name}
    if isinstance(pattern, Guarded | Let):
        found |= read_names(pattern)
    return found | {pattern.name} if isinstance(pattern, Var | Fun | Let | Constrained) else found


def read_names(pattern: Guarded | Let) -> frozenset[str]:
    """Return the variables whose values the guard or the let itself reads."""
    if isinstance(pattern, Guarded):
        return names(pattern.guard)
    return expression_names(pattern.expression)


# --- guards and expressions ---------------------------------------------------------------------


def conjuncts(guard: Guard) -> list[Guard]:
    """Return the guards of which a guard is the conjunction, in order."""
    match guard:
        case And(left, right):
            return conjuncts(left) + conjuncts(right)
        case True_():
            return []
    return [guard]


def atoms(guard: Guard) -> Iterator[Holds | Equal | Less]:
    """Yield the tests that a guard combines by `and`, `or` and `not`, in order."""
    match guard:
        case Holds() | Equal() | Less():
            yield guard
        case And(left, right) | Or(left, right):
            yield from atoms(left)
            yield from atoms(right)
        case Not(inner):
            yield from atoms(inner)
        case True_():
            pass
        case _:
            assert_never(guard)


def expressions(guard: Guard) -> Iterator[Expression]:
    """Yield the expressions whose values a guard tests, in order."""
    for atom in atoms(guard):
        if isinstance(atom, Holds):
            yield atom.expression
        else:
            yield atom.left
            yield atom.right


def subexpressions(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and all expressions inside it, in order."""
    todo = [expression]
    while todo:
        part = todo.pop()
        yield part
        if isinstance(part, Apply):
            todo += reversed(part.arguments)
        elif isinstance(part, Tuple):
            todo += reversed(part.elements)


def guard_key(guard: Guard) -> Hashable:
    """Return a key that is equal only for guards that hold in the same cases.

    Guards themselves are equal if they print alike: functions count there by name, 1 is 1.0.
    """
    found: list[object] = []
    for expression in expressions(guard):
        for part in subexpressions(expression):
            if isinstance(part, Apply):
                found.append(part.function.apply)
            elif isinstance(part, Constant):
                found.append(exact(part.value))
    return guard, tuple(found)


def expression_names(expression: Expression) -> frozenset[str]:
    """Return the variables that an expression mentions (fv)."""
    read = (part for part in subexpressions(expression) if isinstance(part, Reference | Attribute))
    return frozenset(part.name for part in read)


def names(guard: Guard) -> frozenset[str]:
    """Return the variables that a guard mentions (fv)."""
    return frozenset().union(*map(expression_names, expressions(guard)))


# --- spans --------------------------------------------------------------------------------------


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
