"""Terms: operators applied to children, with attributes, shared maximally (a hash-consed DAG)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping
from enum import Enum
from math import copysign
from typing import TYPE_CHECKING, Final, TypeAlias

from pypm.core.operators import CONS, LITERAL, NIL
from pypm.core.records import Record, as_tuple, mapped

if TYPE_CHECKING:
    from pypm.core.operators import Operator

__all__ = [
    "ARGUMENT",
    "DERIVED",
    "UNDEFINED",
    "VALUE",
    "Term",
    "Terms",
    "Undefined",
    "Unmade",
    "Unresolved",
    "Value",
    "all_made",
    "argument_name",
    "attribute_of",
    "exact",
    "same",
]

Value: TypeAlias = object
"""A term, an operator, a constant (any hashable Python value), or a tuple or record of values."""


class Undefined(Enum):
    """The value of an expression without one; unlike None, which is a constant."""

    UNDEFINED = "undefined"


UNDEFINED: Final = Undefined.UNDEFINED


DERIVED: Final = frozenset(
    {
        "device",
        "dimension_rank",
        "dtype",
        "is_constant",
        "is_contiguous",
        "numel",
        "rank",
        "shape",
        "tags",
    }
)
"""Properties of a term's value, as opposed to arguments of its call.

`dimension_rank` is the rank in which the operator's dimension arguments count, None if unknown.
"""
VALUE: Final = "value"
"""The attribute of a literal that is its number, string or None.

Only literals have it; an operator's argument `value` is read by `argument_name`.
"""
ARGUMENT: Final = "_argument"
_RESERVED: Final = DERIVED | {VALUE}


def argument_name(parameter: str) -> str:
    """Return the attribute of a term that holds the argument for one of its operator's parameters.

    >>> argument_name("alpha"), argument_name("dtype"), argument_name("value")
    ('alpha', 'dtype_argument', 'value_argument')
    """
    return parameter + ARGUMENT if parameter in _RESERVED else parameter


class Term:
    """One node of the DAG, made only by `Terms.make`, so that equal terms are the same object.

    `attributes` are part of a term's identity. `derived` attributes follow from it (shape, dtype,
    ...) and may be computed on demand.
    """

    __slots__ = ("attributes", "children", "derived", "operator")

    def __init__(
        self,
        operator: Operator,
        children: tuple[Term, ...],
        attributes: Mapping[str, Value],
        derived: Mapping[str, Value],
    ) -> None:
        self.operator = operator
        self.children = children
        self.attributes = attributes
        self.derived = derived

    @property
    def term(self) -> Term:
        """Return the term itself: a term is a subject of matching that is its own occurrence."""
        return self

    def attribute(self, name: str) -> Value:
        """Return the attribute's value, or UNDEFINED.

        A name in `DERIVED` means that property of the value, and `VALUE` the constant of a literal.
        An argument of the operator with such a name, often `dtype`, is read by `argument_name`.
        """
        if name == VALUE and self.operator == LITERAL:
            return self.attributes.get(VALUE, UNDEFINED)
        return attribute_of(name, self.attributes, self.derived)

    def __repr__(self) -> str:
        parts = [repr(child) for child in self.children]
        parts += [f"{name}={value!r}" for name, value in self.attributes.items()]
        return f"{self.operator}({', '.join(parts)})"


def attribute_of(name: str, attributes: Mapping[str, Value], derived: Mapping[str, Value]) -> Value:
    """Return an attribute of a term that has these attributes and is not a literal."""
    if name not in _RESERVED:
        found = attributes.get(name.removesuffix(ARGUMENT), UNDEFINED)
        if found is not UNDEFINED:
            return found
    return derived.get(name, UNDEFINED)


class Unmade:
    """A term that is not created while only its attributes are read.

    The matcher has some, as bindings of variables and in the fields of records.
    """

    __slots__ = ()

    @property
    def is_made(self) -> bool:
        raise NotImplementedError

    @property
    def term(self) -> Term:
        raise NotImplementedError

    def attribute(self, name: str) -> Value:
        """Return `term.attribute(name)`."""
        raise NotImplementedError


def all_made(value: Value | Unmade) -> Value:
    """Return a value with its term in place of each unmade one, also in the fields of records."""
    if isinstance(value, Record):
        return mapped(all_made, value)
    return value.term if isinstance(value, Unmade) else value


class Unresolved(ABC):
    """A constant that is not fully known, such as a symbolic size; comparisons may be undecided."""

    @abstractmethod
    def equals(self, other: Value) -> bool | None:
        """Return whether this equals `other`; None if undecided."""

    @abstractmethod
    def less(self, other: Value) -> bool | None:
        """Return whether this is below `other`; None if undecided."""

    @abstractmethod
    def greater(self, other: Value) -> bool | None:
        """Return whether this is above `other`; None if undecided."""


_NOTHING: Final[Mapping[str, Value]] = {}


class Terms:
    """A maximally shared store of terms: no two have the same operator, children and attributes.

    Maximal sharing makes comparing terms by identity complete (theorem T6; without it,
    counterexample C10). Attribute values are distinguished by type and sign: 1, 1.0, True, 0.0 and
    -0.0 are five different literals.
    """

    def __init__(self) -> None:
        self._terms: dict[tuple[object, ...], Term] = {}

    def make(
        self,
        operator: Operator,
        children: Iterable[Term] = (),
        attributes: Mapping[str, Value] = _NOTHING,
        derived: Mapping[str, Value] = _NOTHING,
    ) -> Term:
        children = tuple(children)
        named = tuple(sorted((name, exact(value)) for name, value in attributes.items()))
        key = (operator.name, tuple(map(id, children)), named)
        term = self._terms.get(key)
        if term is None:
            term = self._terms[key] = Term(operator, children, attributes, derived)
        return term

    def literal(self, value: Value) -> Term:
        return self.make(LITERAL, (), {VALUE: value})

    def list(self, elements: Iterable[Term]) -> Term:
        """Return a list of tensors as one term: cons cells ended by nil."""
        cell = self.make(NIL)
        for element in reversed(tuple(elements)):
            cell = self.make(CONS, (element, cell))
        return cell


def exact(value: Value) -> Hashable:
    """Return a key that is equal only for indistinguishable values: types and signs count."""
    if isinstance(value, tuple):
        return (tuple, *map(exact, value))
    if isinstance(value, float):
        return (float, repr(value), copysign(1.0, value))
    if isinstance(value, complex):
        return (complex, exact(value.real), exact(value.imag))
    if isinstance(value, Term):
        return (Term, id(value))
    if isinstance(value, Record):
        return (Record, exact(as_tuple(value)))
    return (type(value), value)


def same(one: Value, other: Value) -> bool:
    """Return whether two values are certainly the same: the test of a name that is bound twice.

    Constants are the same if they are `exact`ly equal: 1 is neither 1.0 nor True, NaN is NaN.
    Numbers that are not fully known are the same if they are equal for all their values.
    """
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Record) and isinstance(other, Record):
        return same(as_tuple(one), as_tuple(other))
    if isinstance(one, Unresolved):
        return one.equals(other) is True
    if isinstance(other, Unresolved):
        return other.equals(one) is True
    return exact(one) == exact(other)
