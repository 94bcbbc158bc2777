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
    Function,
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
from pypm.core.record_expressions import MakeRecord, Select
from pypm.core.records import Record, fields_of
from pypm.core.terms import UNDEFINED, Unmade, Value
from pypm.match.search_state import Frame, Scope

__all__ = ["held_in", "holds_in", "value_in"]

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
        case Apply(Select(attribute=attribute), (of,)):
            held = held_in(of, scope)
            return lambda frame: attribute_of(held(frame), attribute)
        case Apply(function, arguments):
            return _applied(function, [value_in(argument, scope) for argument in arguments])
        case Tuple(elements):
            values = _values([value_in(element, scope) for element in elements])
            return lambda frame: UNDEFINED if (found := values(frame)) is None else tuple(found)
        case _:
            assert_never(expression)


def held_in(expression: Expression, scope: Scope) -> Callable[[Frame], Value | Unmade]:
    """Compile as `value_in` an expression of which no term need be made: see `Cell.look`."""
    match expression:
        case Reference(name) if name in scope:
            slot = scope[name]
            return lambda frame: frame[slot].look()
        case Attribute(name, attribute) if name in scope:
            slot = scope[name]
            return lambda frame: _field(frame[slot].look(), attribute)
        case Apply(Select(attribute=attribute), (of,)):
            held = held_in(of, scope)
            return lambda frame: _field(held(frame), attribute)
        case Apply(MakeRecord() as function, arguments):
            return _applied(function, [held_in(argument, scope) for argument in arguments])
        case _:
            return value_in(expression, scope)


def _field(value: Value | Unmade, attribute: str) -> Value | Unmade:
    """Return what a record holds in a field, or an attribute of another value."""
    if isinstance(value, Record):
        return fields_of(value).get(attribute, UNDEFINED)
    return attribute_of(value, attribute)


def _applied(function: Function, arguments: list[_Valuation]) -> _Valuation:
    apply, values = function.apply, _values(arguments)

    def applied(frame: Frame) -> Value:
        found = values(frame)
        if found is None:
            return UNDEFINED
        try:
            return apply(*found)
        except PARTIAL:
            return UNDEFINED

    return applied


def _values(parts: list[_Valuation]) -> Callable[[Frame], list[Value] | None]:
    """Return one function for several; it returns None if one of them has no value."""

    def values(frame: Frame) -> list[Value] | None:
        found = []
        for part in parts:
            value = part(frame)
            if value is UNDEFINED:
                return None
            found.append(value)
        return found

    return values
