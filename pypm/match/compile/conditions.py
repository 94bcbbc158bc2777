"""Guards and expressions as functions of a frame: those of `pypm.core.guards`, compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias, assert_never

from pypm.core.guards import (
    PARTIAL,
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
    attribute_of,
    conjoined,
    equal,
    less,
    negated,
)
from pypm.core.terms import UNDEFINED, Value
from pypm.match.search_state import Frame, Scope

__all__ = ["holds_in", "value_in"]

_Valuation: TypeAlias = Callable[[Frame], Value]
_Truth: TypeAlias = Callable[[Frame], bool | None]


def holds_in(guard: Guard, scope: Scope) -> Callable[[Frame], bool]:
    """Return a function that tests whether a guard is true in a frame with this scope.

    The guard is compiled at the first test: most guards of a program meet no graph that tests them.
    """
    compiled: Callable[[Frame], bool] | None = None

    def holds(frame: Frame) -> bool:
        nonlocal compiled
        if compiled is None:
            compiled = _compiled(guard, scope)
        return compiled(frame)

    return holds


def _compiled(guard: Guard, scope: Scope) -> Callable[[Frame], bool]:
    if isinstance(guard, And):
        left, right = _compiled(guard.left, scope), _compiled(guard.right, scope)
        return lambda frame: left(frame) and right(frame)
    truth = _truth(guard, scope)
    return lambda frame: truth(frame) is True


def _truth(guard: Guard, scope: Scope) -> _Truth:
    """Compile `pypm.core.guards.holds`: a function from a frame to a Kleene truth."""
    match guard:
        case True_():
            return lambda frame: True
        case Holds(expression):
            value = value_in(expression, scope)
            return lambda frame: found if isinstance(found := value(frame), bool) else None
        case Equal(left, right):
            one, other = value_in(left, scope), value_in(right, scope)
            return lambda frame: equal(one(frame), other(frame))
        case Less(left, right):
            one, other = value_in(left, scope), value_in(right, scope)
            return lambda frame: less(one(frame), other(frame))
        case And(first, second):
            before, after = _truth(first, scope), _truth(second, scope)
            return lambda frame: (
                False if (known := before(frame)) is False else conjoined(known, after(frame))
            )
        case Or(first, second):
            return _truth(Not(And(Not(first), Not(second))), scope)
        case Not(inner):
            truth = _truth(inner, scope)
            return lambda frame: negated(truth(frame))
        case _:
            assert_never(guard)


def value_in(expression: Expression, scope: Scope) -> _Valuation:
    """Compile `pypm.core.guards.evaluate` to a function of frames with this scope."""
    match expression:
        case Constant(value):
            return lambda frame: value
        case Reference(name) | Attribute(name) if name not in scope:
            return lambda frame: UNDEFINED
        case Reference(name):
            slot = scope[name]
            return lambda frame: frame[slot].read()
        case Attribute(name, attribute):
            slot = scope[name]
            return lambda frame: attribute_of(frame[slot].look(), attribute)
        case Apply(function, arguments):
            apply, values = function.apply, _values(arguments, scope)

            def applied(frame: Frame) -> Value:
                found = values(frame)
                if found is None:
                    return UNDEFINED
                try:
                    return apply(*found)
                except PARTIAL:
                    return UNDEFINED

            return applied
        case Tuple(elements):
            values = _values(elements, scope)
            return lambda frame: UNDEFINED if (found := values(frame)) is None else tuple(found)
        case _:
            assert_never(expression)


def _values(
    expressions: tuple[Expression, ...], scope: Scope
) -> Callable[[Frame], list[Value] | None]:
    """Compile several expressions to one function; it returns None if one of them has no value."""
    parts = [value_in(expression, scope) for expression in expressions]

    def values(frame: Frame) -> list[Value] | None:
        found = []
        for part in parts:
            value = part(frame)
            if value is UNDEFINED:
                return None
            found.append(value)
        return found

    return values
