"""Causes for which a step of matching fails, as a closed union, and the text of each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

from pypm.core.guard_origins import origin_of
from pypm.core.guards import (
    Attribute,
    AttributeTest,
    ClassTest,
    Expression,
    Guard,
    Lookup,
    Not,
    Reference,
    evaluate,
    holds,
)
from pypm.core.operators import CONS, LITERAL, NIL, Operator
from pypm.core.patterns import shown
from pypm.core.printing import print_guard
from pypm.core.records import Record, fields_of
from pypm.core.terms import ARGUMENT, UNDEFINED, VALUE, Term, Value
from pypm.core.traverse import expressions, guard_span, subexpressions

__all__ = [
    "BoundOtherwise",
    "Cause",
    "GuardFails",
    "GuardUnknown",
    "OtherArity",
    "OtherClass",
    "OtherOperator",
    "OtherValue",
    "Unbound",
    "either_of",
    "guard_cause",
    "guard_text",
    "in_words",
    "kind_of",
    "value_text",
]


@dataclass(frozen=True, slots=True)
class OtherOperator:
    """Another operator than the pattern demands."""

    expected: tuple[str, ...]
    met: str


@dataclass(frozen=True, slots=True)
class OtherArity:
    """The demanded operator with another number of inputs."""

    operator: str
    expected: int
    met: int


@dataclass(frozen=True, slots=True)
class OtherClass:
    """An operator that is not of the demanded class."""

    tag: str
    operator: str


@dataclass(frozen=True, slots=True)
class OtherValue:
    """Another value of an operator's argument, or of a literal."""

    name: str
    expected: str
    met: str


@dataclass(frozen=True, slots=True)
class GuardFails:
    """A guard that is false, with the values that it read."""

    guard: str
    values: tuple[tuple[str, str], ...]
    reason: str = ""
    """The message of its `assert`."""


@dataclass(frozen=True, slots=True)
class GuardUnknown:
    """A guard that is undecided, because a value that it reads is unknown."""

    guard: str
    values: tuple[tuple[str, str], ...]
    reason: str = ""
    """The message of its `assert`."""


@dataclass(frozen=True, slots=True)
class BoundOtherwise:
    """A variable that is already bound to another value."""

    name: str
    bound: str
    met: str


@dataclass(frozen=True, slots=True)
class Unbound:
    """A name without a value where one is required."""

    name: str


Cause: TypeAlias = (
    OtherOperator
    | OtherArity
    | OtherClass
    | OtherValue
    | GuardFails
    | GuardUnknown
    | BoundOtherwise
    | Unbound
)


def in_words(cause: Cause) -> str:
    """Return the cause as a label for the span of the pattern."""
    match cause:
        case OtherOperator(expected, met):
            return f"{_one_of(expected)} is asked for, the graph has {_operator_words(met)}"
        case OtherArity(operator, expected, met):
            return f"{_inputs(expected)} asked for, {_operator_words(operator)} has {met}"
        case OtherClass(tag, operator):
            return f"{_operator_words(operator)} is not tagged {tag!r}"
        case OtherValue(name, expected, met):
            return f"{name} is {met}, asked for is {expected}"
        case GuardFails(guard, values, reason):
            seen = f"{_seen(values)} here" if values else f"`{guard}` is false"
            return f"{reason}: {seen}" if reason else seen
        case GuardUnknown(guard, values, reason):
            seen = f": {_seen(values)} here" if values else ""
            unknown = f"whether `{guard}` holds is not known{seen}"
            return f"{reason}: {unknown}" if reason else unknown
        case BoundOtherwise(name, bound, met):
            return f"`{name}` is {bound} already, and here it would be {met}"
        case Unbound(name):
            return f"nothing binds `{name}`"
        case _:
            assert_never(cause)


def kind_of(cause: Cause) -> tuple[object, ...]:
    """Return a key that is equal for causes that differ only in the node."""
    match cause:
        case BoundOtherwise(name) | Unbound(name):
            return (type(cause), name)
        case GuardFails(guard) | GuardUnknown(guard):
            return (type(cause), guard)
        case _:
            return (type(cause), cause)


def _seen(values: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{name} is {value}" for name, value in values)


def _one_of(operators: tuple[str, ...]) -> str:
    words = [_operator_words(name) for name in operators]
    if len(words) > MOST:
        words = [words[0], f"one of {len(words) - 1} others"]
    return either_of(words)


def either_of(words: Sequence[str]) -> str:
    """Return words as text: `a, b or c`."""
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


MOST: Final = 4
"""The largest number of expected operators that a message lists."""


def _inputs(count: int) -> str:
    return "1 input is" if count == 1 else f"{count} inputs are"


_WORDS: Final = {
    LITERAL.name: "a number",
    CONS.name: "a further element",
    NIL.name: "the end of the list",
}


def _operator_words(name: str) -> str:
    return _WORDS.get(name, name)


# --- guards -------------------------------------------------------------------------------------


def guard_cause(guard: Guard, lookup: Lookup) -> Cause:
    """Return the cause for which a guard does not hold, given its variables by `lookup`."""
    match origin_of(guard):
        case AttributeTest(is_argument=True) as test:
            met, wanted = evaluate(test.tested, lookup), evaluate(test.expected, lookup)
            if met is not UNDEFINED and wanted is not UNDEFINED:
                return OtherValue(_argument_words(test), value_text(wanted), value_text(met))
        case ClassTest(name, tag):
            value = lookup(name)
            operator = getattr(value, "operator", value)
            return OtherClass(tag, str(operator))
    leaves = dict.fromkeys(leaf for part in expressions(guard) for leaf in _leaves(part))
    values = tuple(
        (_plain(_leaf_text(leaf)), value_text(evaluate(leaf, lookup))) for leaf in leaves
    )
    kind = GuardFails if holds(guard, lookup) is False else GuardUnknown
    span = guard_span(guard)
    return kind(guard_text(guard), values, "" if span is None else span.reason)


def _argument_words(test: AttributeTest) -> str:
    name = test.attribute.attribute
    called = "the number" if name == VALUE else name.removesuffix(ARGUMENT)
    return called if test.index is None else f"{called}[{test.index}]"


def _leaves(expression: Expression) -> Iterator[Reference | Attribute]:
    """Yield the variables and attributes that an expression reads, in order."""
    for part in subexpressions(expression):
        if isinstance(part, Reference | Attribute):
            yield part


def _leaf_text(leaf: Reference | Attribute) -> str:
    return f"{leaf.name}.{leaf.attribute}" if isinstance(leaf, Attribute) else leaf.name


def guard_text(guard: Guard) -> str:
    """Return a guard's source text if it is one piece of one line, else its printed form."""
    span = guard_span(guard)
    if span is None or span.line != span.end_line or isinstance(guard, Not):
        return _plain(print_guard(guard))
    return span.source_line[span.column : span.end_column]


def _plain(text: str) -> str:
    """Return text with the user's names instead of internal ones."""
    return re.sub(r"[\w_]+#\d+", lambda found: shown(found[0]), text)


def value_text(value: Value) -> str:
    """Return a short text for a value."""
    if value is UNDEFINED:
        return "not known"
    if isinstance(value, Term):
        return (
            value_text(value.attributes["value"])
            if value.operator == LITERAL
            else value.operator.name
        )
    if isinstance(value, tuple):
        inner = ", ".join(value_text(part) for part in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, Record):
        fields = fields_of(value).items()
        return f"record({', '.join(f'{name}={value_text(part)}' for name, part in fields)})"
    if isinstance(value, Operator):
        return value.name
    return repr(value) if isinstance(value, (str, float)) else str(value)
