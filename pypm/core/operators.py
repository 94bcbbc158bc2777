"""Operators, the heads of terms, and the signatures by which they can be called."""

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
    "index_key",
    "operator",
]


_Argument = TypeVar("_Argument")


class Required(Enum):
    """The default of a parameter that must be given."""

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
    """One overload of an operator: its parameters in order."""

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
    """An operator of the term language; operators with the same name are equal.

    `signatures` are its overloads, tried in order when a pattern calls it. An attribute that an
    overload lacks has the first default that another overload gives it, or None. `commutes` is
    None, or the attribute values under which the first two children may be swapped (an empty tuple:
    always). `mirror` is the operator that computes the same with its first two children swapped:
    `gt` for `lt`. An operator with a `form` heads no term: its calls are calls of another operator.
    `run` computes it in a rule's body.
    """

    name: str
    signatures: tuple[Signature, ...] = field(default=(), compare=False, repr=False)
    tags: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    commutes: tuple[tuple[str, object], ...] | None = field(default=None, compare=False, repr=False)
    mirror: Operator | None = field(default=None, compare=False, repr=False)
    form: Form | None = field(default=None, compare=False, repr=False)
    run: Callable[..., object] | None = field(default=None, compare=False, repr=False)

    @property
    def attribute_defaults(self) -> dict[str, object]:
        """Return every attribute of any overload, with its default for overloads that lack it."""
        defaults: dict[str, object] = {}
        for signature in self.signatures:
            for parameter in signature.attributes:
                known = defaults.get(parameter.name)
                default = None if parameter.default is REQUIRED else parameter.default
                defaults[parameter.name] = default if known is None else known
        return defaults

    def __call__(self, *arguments: object, **keywords: object) -> Any:
        """Compute the operator, in a rule's body; in a pattern, a call is read and not run.

        Raises TypeError elsewhere, and for an operator that was declared for patterns only.
        """
        if self.run is None:
            raise TypeError(
                f"operator `{self}` was declared for patterns: in a rule's body, call the "
                "function that computes it"
            )
        return self.run(*arguments, **keywords)

    @property
    def canonical(self) -> Operator:
        """Return the operator that heads the terms for calls of this one."""
        return self if self.form is None else self.form.operator

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Form:
    """Another name for calls of an operator: `rsub(x, y)` is `sub(y, x)`.

    Arguments keep their names; if `exchanged`, the first two swap places. `given` are arguments
    that the other name implies.
    """

    operator: Operator
    signature: Signature
    exchanged: bool = False
    given: tuple[tuple[str, object], ...] = ()

    def arguments(
        self, named: Mapping[str, _Argument], constant: Callable[[object], _Argument]
    ) -> dict[str, _Argument]:
        """Return the arguments of `operator` for those of a call under the other name.

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
    """Declare an operator with one signature, for patterns.

    Arguments:
        name: the dotted name that its terms have, as "my.gelu".
        parameters: its parameters in order; one given as a name alone is a child, that is a tensor.
        tags: the classes that guards can ask for, as "pointwise".
        commutative: True if its first two children may be swapped.

    >>> operator("my.gelu", ["x"], tags=["pointwise"]).signatures[0].children[0].name
    'x'
    """
    listed = tuple(Parameter(p) if isinstance(p, str) else p for p in parameters)
    return Operator(name, (Signature(listed),), frozenset(tags), () if commutative else None)


LITERAL: Final = Operator("literal")
"""A number, string or None in the place of a tensor: no children, attribute `value`."""
CONS: Final = Operator("cons")
"""A non-empty list of tensors: its first element and the rest."""
NIL: Final = Operator("nil")
"""The empty list of tensors."""
GETITEM: Final = Operator(
    "getitem", (Signature((Parameter("self"), Parameter("index", "attribute"))),)
)
"""`x[i]`: an output of an operator with several, or an indexed tensor."""


def index_key(index: object) -> object:
    """Return the index of a call of `getitem` as terms hold it.

    Slices and lists are tuples that begin with "slice" and "list". `0:n:1` is the same slice as
    `:n`.
    """
    match index:
        case slice(start=start, stop=stop, step=step):
            from_first = type(start) is int and start == 0
            each = type(step) is int and step == 1
            return ("slice", None if from_first else start, stop, None if each else step)
        case list():
            return ("list", *map(index_key, index))
        case tuple():
            return tuple(map(index_key, index))
    return index
