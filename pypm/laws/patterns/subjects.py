"""Names of a way as guards see them: attributes of values, as far as they are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Final

from pypm.core.guards import Apply, Attribute, Constant, Expression, Guard
from pypm.core.records import Record
from pypm.core.terms import UNDEFINED, VALUE, Unmade, Unresolved, Value
from pypm.laws.algebra import Given
from pypm.laws.formulas import ANYTHING, Formula, Formulas
from pypm.laws.patterns.ways import WayName

__all__ = ["SHAPES", "GuardedName", "is_of_none", "is_plain", "is_said", "known_attribute"]

SHAPES: Final = (VALUE, "shape", "rank", "dimension_rank", "numel")
"""Attributes of a value that do not tell what computes it."""


class GuardedName(Unmade):
    """A name of a way as guards see it: attributes of its value, where they are known."""

    __slots__ = ("_ask", "_value")

    def __init__(self, value: Callable[[], Value], ask: Callable[[str], Value]) -> None:
        self._value = value
        self._ask = ask

    @property
    def term(self) -> Value:  # type: ignore[override]
        """Return the value."""
        return self._value()

    def attribute(self, name: str) -> Value:
        """Return an attribute of the value, or UNDEFINED."""
        return self._ask(name)


def is_of_none(guard: Guard) -> bool:
    """Return whether a guard asks whether a name stands for None."""
    expression = getattr(guard, "expression", None)
    return isinstance(expression, Apply) and expression.function.name == "is_none"


def is_plain(value: Given) -> bool:
    """Return whether a value is a constant that follows from no size and no rank."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return isinstance(value, float) and not isinstance(value, Unresolved)
    return value is None or isinstance(value, (bool, str))


def is_said(expression: Expression, names: Mapping[str, WayName]) -> bool:
    """Return whether the value of an expression is a constant of the pattern itself."""
    match expression:
        case Constant():
            return True
        case Attribute(name, attribute) if attribute == VALUE:
            said = names[name].arguments.get(VALUE)
            return said is not None and isinstance(said.value, tuple) and is_said(*said.value)
        case Apply(_, arguments):
            return all(is_said(argument, names) for argument in arguments)
    return False


def known_attribute(formulas: Formulas, value: Given, name: str) -> Value:
    """Return what is known of an attribute of a value, or UNDEFINED."""
    if isinstance(value, Record):
        return getattr(value, name, UNDEFINED)
    if not isinstance(value, Formula):
        return value if name == VALUE else UNDEFINED
    if name == VALUE:
        return value.attributes["given"] if value.name == "number" else UNDEFINED
    if isinstance(value.value, tuple):
        return UNDEFINED
    sizes = formulas.sizes(value)
    match name:
        case "shape":
            return sizes
        case "rank" | "dimension_rank":
            return len(sizes)
        case "numel":
            return prod(sizes)
    found = value.attributes.get(name, UNDEFINED)
    return UNDEFINED if found is ANYTHING else found
