"""Expressions that make records, and that read a field or an attribute of any value.

In the calculus a record is a tuple that begins with the names of its fields, a constant. `x.a` is
an attribute of a variable; of any other expression, such as `x.a.b`, it is an operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from pypm.core.guards import Apply, Attribute, Expression, Function, Reference, attribute_of
from pypm.core.records import Record
from pypm.core.terms import Value

__all__ = ["MakeRecord", "Select", "made", "selected"]


@dataclass(frozen=True, slots=True)
class MakeRecord(Function):
    """The function that makes a record of the values of these fields, sorted by name."""

    fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Select(Function):
    """The function that reads an attribute of a value, or a field of a record."""

    attribute: str = ""


def made(fields: Mapping[str, Expression]) -> Apply:
    """Return the expression of a record with these fields."""
    names = tuple(sorted(fields))
    return Apply(_maker(names), tuple(fields[name] for name in names))


def selected(value: Expression, attribute: str) -> Expression:
    """Return an attribute of the value of an expression."""
    if isinstance(value, Reference):
        return Attribute(value.name, attribute)
    return Apply(_reader(attribute), (value,))


@cache  # equal functions are one, as users compare them by identity
def _maker(names: tuple[str, ...]) -> MakeRecord:
    def make(*values: Value) -> Value:
        return Record(dict(zip(names, values, strict=True)))

    return MakeRecord(f"record({', '.join(names)})", make, fields=names)


@cache
def _reader(attribute: str) -> Select:
    def read(value: Value) -> Value:
        return attribute_of(value, attribute)

    return Select(f".{attribute}", read, attribute=attribute)
