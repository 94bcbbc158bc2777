"""Origins of guards: the attribute, length or class that a guard was made to test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pypm.core.guards import (
    FUNCTIONS,
    Apply,
    Attribute,
    AttributeTest,
    ClassTest,
    Constant,
    Equal,
    Expression,
    Guard,
    Holds,
    LengthTest,
    Origin,
)

if TYPE_CHECKING:
    from pypm.diagnostics import Span

__all__ = [
    "CALL",
    "NUMBER",
    "attribute_read",
    "class_test",
    "equality",
    "origin_of",
    "truth",
]


CALL: Final = "node"
NUMBER: Final = "literal"
"""Names, before a `#` and a digit, that the elaborator gives to what a call or a number matches."""


def origin_of(guard: Guard) -> Origin | None:
    """Return the origin of a guard; None if it tests something else."""
    return guard.origin if isinstance(guard, Equal | Holds) else None


def equality(
    left: Expression, right: Expression, span: Span | None = None, *, is_argument: bool = False
) -> Equal:
    """Return the guard `left == right`, which remembers the attribute or length that it tests."""
    origin = (
        _length_test(left, right)
        or _attribute_test(left, right, is_argument)
        or _attribute_test(right, left, is_argument)
    )
    return Equal(left, right, span, origin)


def truth(expression: Expression, span: Span | None = None, *, is_argument: bool = False) -> Holds:
    """Return a Boolean-valued expression as a guard, which remembers what it tests."""
    origin: Origin | None = None
    match expression:
        case Apply(function, (Constant(str() as tag), Attribute(name, "tags"))) if (
            function.name == "in"
        ):
            origin = ClassTest(name, tag)
        case Apply(function, (tested, expected, *_)) if function.name in _EQUALITIES:
            origin = _attribute_test(tested, expected, is_argument)
    return Holds(expression, span, origin)


def class_test(name: str, tag: str, span: Span | None = None) -> Holds:
    """Return the guard `tag in name.tags`."""
    return truth(Apply(FUNCTIONS["in"], (Constant(tag), Attribute(name, "tags"))), span)


_EQUALITIES: Final = frozenset({"close", "is_value", "same_dims"})
"""Functions that are true if their first two arguments are the same value."""


def attribute_read(expression: Expression) -> tuple[Attribute, int | None] | None:
    """Return the attribute that is all an expression reads, and the index of the item it takes."""
    match expression:
        case Attribute():
            return expression, None
        case Apply(function, (Attribute() as attribute, Constant(int(index)))) if (
            function.name == "item"
        ):
            return attribute, index
    return None


def _attribute_test(
    tested: Expression, expected: Expression, is_argument: bool
) -> AttributeTest | None:
    read = attribute_read(tested)
    if read is None:
        return None
    attribute, index = read
    return AttributeTest(attribute, expected, index, is_argument)


def _length_test(tested: Expression, expected: Expression) -> LengthTest | None:
    match tested, expected:
        case Apply(function, (Attribute() as attribute,)), Constant(int(length)) if (
            function.name == "len"
        ):
            return LengthTest(attribute, length)
    return None
