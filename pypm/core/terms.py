"""Terms: operators applied to children, with attributes, shared maximally (a hash-consed DAG)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from enum import Enum
from math import copysign
from typing import TYPE_CHECKING, Final, TypeAlias

from pypm.core.operators import CONS, LITERAL, NIL

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
    "argument_name",
    "attribute_of",
    "exact",
    "same",
]

Value: TypeAlias = object
"""A term, an operator, a constant (any hashable Python value) or a tuple of values."""


class Undefined(Enum):
    """The value of an expression that has none; unlike None, which is a constant."""

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
"""Properties that follow from what a term computes, not from how it is called.

`dimension_rank` is the rank in which the operator's dimension arguments count, None if unknown.
"""
VALUE: Final = "value"
"""The number, string or None that a literal is. Only literals have it: an argument `value` of an
operator is asked for by `argument_name`.
"""
ARGUMENT: Final = "_argument"
_RESERVED: Final = DERIVED | {VALUE}


def argument_name(parameter: str) -> str:
    """The attribute under which a term gives the argument for one of its operator's parameters.

    >>> argument_name("alpha"), argument_name("dtype"), argument_name("value")
    ('alpha', 'dtype_argument', 'value_argument')
    """
    return parameter + ARGUMENT if parameter in _RESERVED else parameter


class Term:
    """One node of the DAG. Made by `Terms.make` only, so equal terms are the same object.

    `attributes` are part of what makes a term that term. `derived` attributes follow from it
    (shape, dtype, ...) and may be computed when asked for.
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
        """A term is a subject of matching whose occurrence is itself."""
        return self

    def attribute(self, name: str) -> Value:
        """The attribute's value, or UNDEFINED.

        A name in `DERIVED` means that property of the value, and `VALUE` what a literal is. An
        argument of the operator that has such a name, as `dtype` often does, is asked for by
        `argument_name`.
        """
        if name == VALUE and self.operator == LITERAL:
            return self.attributes.get(VALUE, UNDEFINED)
        return attribute_of(name, self.attributes, self.derived)

    def __repr__(self) -> str:
        parts = [repr(child) for child in self.children]
        parts += [f"{name}={value!r}" for name, value in self.attributes.items()]
        return f"{self.operator}({', '.join(parts)})"


def attribute_of(name: str, attributes: Mapping[str, Value], derived: Mapping[str, Value]) -> Value:
    """The attribute of that name of a term that has these, and is no literal."""
    if name not in _RESERVED:
        found = attributes.get(name.removesuffix(ARGUMENT), UNDEFINED)
        if found is not UNDEFINED:
            return found
    return derived.get(name, UNDEFINED)


class Unmade:
    """A term that need not be made while only its attributes are asked for."""

    __slots__ = ()

    @property
    def is_made(self) -> bool:
        raise NotImplementedError

    @property
    def term(self) -> Term:
        raise NotImplementedError

    def attribute(self, name: str) -> Value:
        """What `term.attribute(name)` is."""
        raise NotImplementedError


class Unresolved(ABC):
    """A constant not fully known, such as a symbolic size: comparing it may give no answer."""

    @abstractmethod
    def equals(self, other: object) -> bool | None:
        """Return whether this certainly is, certainly is not (or None: may be) equal to `other`."""

    @abstractmethod
    def less(self, other: object) -> bool | None:
        """Return whether this certainly is, or certainly is not, below `other`."""

    @abstractmethod
    def greater(self, other: object) -> bool | None:
        """Return whether this certainly is, or certainly is not, above `other`."""


_NOTHING: Final[Mapping[str, Value]] = {}


class Terms:
    """A maximally shared store of terms: no two hold the same operator, children, attributes.

    Maximal sharing is what makes comparing terms by identity complete (theorem T6; without it,
    counterexample C10). Attribute values are told apart by type and sign, so 1, 1.0, True, 0.0
    and -0.0 are five different literals.
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
        """A list of tensors as one term: cons cells ended by nil."""
        cell = self.make(NIL)
        for element in reversed(tuple(elements)):
            cell = self.make(CONS, (element, cell))
        return cell


def exact(value: Value) -> object:
    """A key under which only indistinguishable values are equal: types and signs count."""
    if isinstance(value, tuple):
        return (tuple, *map(exact, value))
    if isinstance(value, float):
        return (float, repr(value), copysign(1.0, value))
    if isinstance(value, Term):
        return (Term, id(value))
    return (type(value), value)


def same(one: Value, other: Value) -> bool:
    """Return whether two values surely are one: what a name that is bound twice asks.

    Constants are one where they are `exact`ly the same: 1 is neither 1.0 nor True, NaN is NaN.
    Numbers that are not fully known are one where they are equal whatever they turn out to be.
    """
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Unresolved):
        return one.equals(other) is True
    if isinstance(other, Unresolved):
        return other.equals(one) is True
    return exact(one) == exact(other)
