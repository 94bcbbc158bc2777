"""Records: frozen values with named fields, which `let` binds and guards and bodies read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn

__all__ = ["Record", "as_tuple", "fields_of", "is_field_name", "mapped", "record"]


class Record:
    """A value with named fields, such as `record(factor=a, summand=b)`; its fields are attributes.

    It has no positions: it cannot be indexed, unpacked or compared by `<`. Two records are equal
    if they have the same fields with equal values, in whatever order these were given.
    """

    __slots__ = ("_fields",)
    _fields: Mapping[str, object]

    def __init__(self, fields: Mapping[str, object]) -> None:
        object.__setattr__(self, "_fields", {name: fields[name] for name in sorted(fields)})

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self._fields[name]
        except KeyError:
            known = ", ".join(self._fields)
            raise AttributeError(f"no field `{name}` in this record of {known}") from None

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a record is frozen: `{name}` cannot be set")

    def __eq__(self, other: object) -> bool:
        return self._fields == other._fields if isinstance(other, Record) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self._fields.items()))

    def __dir__(self) -> list[str]:
        return [*self._fields]

    def __reduce__(self) -> tuple[object, ...]:
        return Record, (self._fields,)

    def __repr__(self) -> str:
        inner = ", ".join(f"{name}={value!r}" for name, value in self._fields.items())
        return f"record({inner})"


def record(**fields: object) -> Record:
    """Return a record with these fields. In a pattern it stands in `let` and in guards.

    Raises TypeError without fields, and for a name that begins with an underscore.
    """
    if not fields or not all(map(is_field_name, fields)):
        raise TypeError(
            "a record has one field or more, as in `record(factor=a)`; no name of one begins "
            "with an underscore"
        )
    return Record(fields)


def is_field_name(name: str) -> bool:
    """Return whether a field may have a name."""
    return bool(name) and not name.startswith("_")


def as_tuple(value: Record) -> tuple[object, ...]:
    """Return the tuple that a record is in the calculus: its fields' names, then the values."""
    return (tuple(value._fields), *value._fields.values())


def fields_of(value: Record) -> Mapping[str, object]:
    """Return the fields of a record, sorted by name."""
    return value._fields


def mapped(function: Callable[[object], object], value: Record) -> Record:
    """Return a record with each value in place of which `function` puts another."""
    return Record({name: function(part) for name, part in value._fields.items()})
