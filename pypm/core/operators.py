"""Operators: what stands at the head of a term, and the ways in which it can be called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal

__all__ = [
    "CONS",
    "LITERAL",
    "NIL",
    "REQUIRED",
    "Operator",
    "Parameter",
    "Signature",
    "operator",
]


class Required(Enum):
    """The default of a parameter that has none."""

    REQUIRED = "required"


REQUIRED: Final = Required.REQUIRED


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an operator: a child of the term (`term`, `list`) or an attribute of it.

    A `dimension` counts dimensions of a tensor, from the end where it is negative.
    """

    name: str
    kind: Literal["term", "list", "attribute"] = "term"
    default: object = REQUIRED
    keyword_only: bool = False
    dimension: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """One way to call an operator: an overload, as its parameters in order."""

    parameters: tuple[Parameter, ...]
    name: str = ""

    @property
    def children(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if p.kind != "attribute")

    @property
    def attributes(self) -> tuple[Parameter, ...]:
        return tuple(p for p in self.parameters if p.kind == "attribute")


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of the term language; two with one name are the same.

    `signatures` are its overloads, tried in order when a pattern calls it. An attribute that an
    overload does not have counts as having the first default any other overload gives it, or
    None. `commutes` is None, or the attribute values under which the first two children may be
    swapped (an empty tuple: always).
    """

    name: str
    signatures: tuple[Signature, ...] = field(default=(), compare=False, repr=False)
    tags: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    commutes: tuple[tuple[str, object], ...] | None = field(default=None, compare=False, repr=False)

    @property
    def attribute_defaults(self) -> dict[str, object]:
        """Every attribute any overload has, with the default that stands in where one lacks it."""
        defaults: dict[str, object] = {}
        for signature in self.signatures:
            for parameter in signature.attributes:
                known = defaults.get(parameter.name)
                default = None if parameter.default is REQUIRED else parameter.default
                defaults[parameter.name] = default if known is None else known
        return defaults

    def __str__(self) -> str:
        return self.name


def operator(
    name: str,
    parameters: Sequence[str | Parameter] = (),
    *,
    tags: Sequence[str] = (),
    commutative: bool = False,
) -> Operator:
    """Declare an operator with one signature; a parameter given by name alone is a child.

    >>> operator("my.gelu", ["x"], tags=["pointwise"]).signatures[0].children[0].name
    'x'
    """
    listed = tuple(Parameter(p) if isinstance(p, str) else p for p in parameters)
    return Operator(name, (Signature(listed),), frozenset(tags), () if commutative else None)


LITERAL: Final = Operator("literal")
"""A number, string or None that stands where a tensor could: no children, attribute `value`."""
CONS: Final = Operator("cons")
"""A non-empty list of tensors: its first element and the rest."""
NIL: Final = Operator("nil")
"""The empty list of tensors."""
