"""Operators: what stands at the head of a term, and the ways in which it can be called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Literal, TypeVar

__all__ = [
    "CONS",
    "GETITEM",
    "LITERAL",
    "NIL",
    "REQUIRED",
    "Form",
    "Operator",
    "Parameter",
    "Signature",
    "operator",
]


_Argument = TypeVar("_Argument")


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
    swapped (an empty tuple: always). `mirror` is the operator that computes the same with its
    first two children swapped: `gt` of `lt`. No term has an operator with a `form`: its calls are
    those of another operator. `run` computes it where a rule's body calls it.
    """

    name: str
    signatures: tuple[Signature, ...] = field(default=(), compare=False, repr=False)
    tags: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    commutes: tuple[tuple[str, object], ...] | None = field(default=None, compare=False, repr=False)
    mirror: Operator | None = field(default=None, compare=False, repr=False)
    form: Form | None = field(default=None, compare=False, repr=False)
    run: Callable[..., Any] | None = field(default=None, compare=False, repr=False)

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

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """In a rule's body, what it computes; in a pattern, a call is read and not run.

        Raises TypeError elsewhere, and for an operator that was declared for patterns alone.
        """
        if self.run is None:
            raise TypeError(
                f"operator `{self}` was declared for patterns: in a rule's body, call the "
                "function that computes it"
            )
        return self.run(*arguments, **keywords)

    @property
    def canonical(self) -> Operator:
        """The operator that terms have for calls of this one."""
        return self if self.form is None else self.form.operator

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Form:
    """A way to call an operator under another name: `rsub(x, y)` is `sub(y, x)`.

    Arguments keep their names; where `exchanged`, the first two change places. `given` are
    arguments that the other name says by itself.
    """

    operator: Operator
    signature: Signature
    exchanged: bool = False
    given: tuple[tuple[str, object], ...] = ()

    def arguments(
        self, named: Mapping[str, _Argument], constant: Callable[[object], _Argument]
    ) -> dict[str, _Argument]:
        """The arguments of `operator`, for those of a call under the other name.

        `constant` makes an argument of a constant.
        """
        found = dict(named)
        if self.exchanged:
            first, second = (parameter.name for parameter in self.signature.parameters[:2])
            found[first], found[second] = found[second], found[first]
        return found | {name: constant(value) for name, value in self.given}


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
GETITEM: Final = Operator(
    "getitem", (Signature((Parameter("self"), Parameter("index", "attribute"))),)
)
"""`x[i]`: an output of an operator with several, or an indexed tensor."""
