"""Named patterns as data: definitions as written, instances, and the markers in definitions."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import Parameter as PythonParameter
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, NoReturn, Self, TypeAlias

from pypm.core.terms import Value
from pypm.lang.capture import Captured, Growing

if TYPE_CHECKING:
    from types import CodeType

    from pypm.core.patterns import Definition

__all__ = ["Called", "Marker", "Mistake", "NamedPattern", "called_by", "pattern_parameters"]


@dataclass(frozen=True)
class Marker:
    """A word of the language, such as `var`: patterns contain it, and it never runs."""

    name: str
    is_pattern_form: ClassVar[bool] = True

    def __call__(self, *arguments: object, **keywords: object) -> NoReturn:
        raise TypeError(f"`{self.name}` means something only inside a pattern")


@dataclass(frozen=True, eq=False)
class NamedPattern(Growing):
    """A named pattern: its alternates as written, in order."""

    name: str
    alternates: tuple[Captured, ...]
    through: NamedPattern | None
    home: CodeType | str
    """The code that runs its definitions (in a notebook, the file of the cell): further
    definitions there are alternates.
    """
    definitions: dict[str, tuple[object, Definition]] = field(default_factory=dict, repr=False)
    """The definitions that callers share, by their use, each with the sources it was made from."""
    given: Mapping[str, NamedPattern] = field(default_factory=dict, repr=False)
    """The patterns that the pattern parameters of an instance stand for."""
    instances: dict[tuple[NamedPattern, ...], Self] = field(default_factory=dict, repr=False)
    means: Callable[..., Value] | None = field(default=None, repr=False)
    """The meaning of all alternates, as a function of the parameters for values."""
    is_pattern_form: ClassVar[bool] = True

    @property
    def defaults(self) -> dict[str, Value]:
        """Return the parameters for values, each with its default or `inspect.Parameter.empty`."""
        patterns = self.pattern_parameters
        every = self.alternates[0].defaults.items()
        return {name: default for name, default in every if name not in patterns}

    @cached_property
    def pattern_parameters(self) -> tuple[str, ...]:
        """Return the parameters that stand for patterns: they are annotated so."""
        return pattern_parameters(self.alternates[0])

    @property
    def takes_patterns(self) -> bool:
        """Return whether it is no pattern before it is given some."""
        return self.given.keys() != {*self.pattern_parameters}

    @property
    def depth(self) -> int:
        """Return how deeply the patterns that it was given are nested."""
        return 1 + max((pattern.depth for pattern in self.given.values()), default=-1)

    def of(self, patterns: tuple[NamedPattern, ...]) -> Self:
        """Return the pattern with these for its pattern parameters: the same one for the same."""
        known = self.instances.get(patterns)
        if known is None or known.alternates != self.alternates:
            given = dict(zip(self.pattern_parameters, patterns, strict=True))
            known = replace(self, definitions={}, instances={}, given=given)
            self.instances[patterns] = known
        return known

    @cached_property
    def operator_parameters(self) -> frozenset[str]:
        """Return the parameters that stand for operators, since some alternate calls them."""
        called = {
            part.func.id
            for captured in self.alternates
            for part in captured.parts
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name)
        }
        return frozenset(called & set(self.parameters))

    @property
    def parameters(self) -> tuple[str, ...]:
        """Return the names of the parameters for values, in order."""
        return tuple(self.defaults)

    @property
    def has_outputs(self) -> bool:
        """Return whether it is one definition that returns a tuple."""
        return len(self.alternates) == 1 and self.alternates[0].returns_tuple

    def is_optional(self, parameter: str) -> bool:
        """Return whether a parameter has a default."""
        return self.defaults[parameter] is not PythonParameter.empty

    def __repr__(self) -> str:
        return f"<pattern {self.name}({', '.join(self.alternates[0].defaults)})>"


def pattern_parameters(captured: Captured) -> tuple[str, ...]:
    """Return the parameters of a definition that are annotated as patterns."""
    annotated = [(each.arg, each.annotation) for each in captured.tree.args.args]
    classes = [(name, captured.value_of(said)) for name, said in annotated if said is not None]
    return tuple(
        name
        for name, value in classes
        if isinstance(value, type) and issubclass(value, NamedPattern)
    )


# --- instances: what is given to patterns is known before anything is matched -------------------

DEEPEST: Final = 8
"""The deepest nesting of patterns that are given to patterns."""
_Resolve: TypeAlias = Callable[[ast.expr], object]
"""The value of a dotted name, which may raise an error."""


class Mistake(Exception):
    """A mistake at a node: the message, the label and the help of its diagnostic."""

    def __init__(self, node: ast.expr, message: str, label: str, help: str) -> None:
        super().__init__(message)
        self.node = node
        self.diagnostic = message, label, help


class Called(NamedTuple):
    """The pattern that a call is of, with what it takes, and the parameters for the arguments."""

    form: NamedPattern
    parameters: tuple[str, ...]


def called_by(call: ast.Call, resolve: _Resolve) -> Called:
    """Return what a call is of. Raises Mistake."""
    called = resolve(call.func)
    form = instance(call, resolve)
    takes = isinstance(called, NamedPattern) and called.takes_patterns
    return Called(form, tuple(form.alternates[0].defaults) if takes else form.parameters)


def instance(call: ast.Call, resolve: _Resolve) -> NamedPattern:
    """Return the pattern that a call is of, given what it is to take. Raises Mistake."""
    called = resolve(call.func)
    if not isinstance(called, NamedPattern):
        raise Mistake(call.func, "not a pattern", "", "")
    if not called.takes_patterns:
        return called
    given = dict(zip(called.alternates[0].defaults, call.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg is not None}
    missing = [name for name in called.pattern_parameters if name not in given]
    if missing:
        raise Mistake(
            call,
            f"pattern `{called.name}` cannot be called so: `{missing[0]}` is missing",
            "wrong arguments",
            f"{called.name}({', '.join(called.alternates[0].defaults)}); `{missing[0]}` is a "
            "pattern",
        )
    patterns = tuple(_given(given[name], called, resolve) for name in called.pattern_parameters)
    made = called.of(patterns)
    if made.depth > DEEPEST:
        raise Mistake(
            call,
            f"pattern `{called.name}` is given ever larger patterns",
            f"patterns inside of patterns, {made.depth} deep",
            "let the recursion pass its pattern parameters as they are",
        )
    return made


def _given(node: ast.expr, taker: NamedPattern, resolve: _Resolve) -> NamedPattern:
    """Return the pattern that is given to another one, `taker`. Raises Mistake."""
    if isinstance(node, ast.Call):
        called = resolve(node.func)
        if isinstance(called, NamedPattern) and called.takes_patterns:
            values = [k.arg for k in node.keywords if k.arg not in called.pattern_parameters]
            if len(node.args) + len(node.keywords) > len(called.pattern_parameters) or values:
                raise Mistake(
                    node,
                    f"`{ast.unparse(node)}` is given more than patterns",
                    f"`{taker.name}` takes a pattern here, and gives it its values itself",
                    f"write `{called.name}({', '.join(called.pattern_parameters)})`",
                )
            return instance(node, resolve)
    found = resolve(node) if isinstance(node, ast.Name | ast.Attribute) else None
    if not isinstance(found, NamedPattern):
        raise Mistake(
            node,
            f"`{ast.unparse(node)}` is given to `{taker.name}`, and is no pattern",
            "a pattern is wanted here",
            "name a pattern, without calling it: the pattern that takes it does",
        )
    if found.takes_patterns:
        raise Mistake(
            node,
            f"pattern `{found.name}` takes patterns itself",
            "given without them",
            f"write `{found.name}({', '.join(found.pattern_parameters)})`",
        )
    return found
