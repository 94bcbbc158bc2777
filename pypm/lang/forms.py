"""The values that decorated definitions become, and the markers that the language reads."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cached_property
from inspect import Parameter as PythonParameter
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

if TYPE_CHECKING:
    from types import CodeType

    from pypm.core.patterns import Definition, Pattern
    from pypm.lang.capture import Captured

__all__ = ["Marker", "PatternFunction", "frozen"]


def frozen(value: Any) -> Any:
    """A constant as attributes hold it: lists are tuples, sets are frozen sets."""
    if isinstance(value, list | tuple):
        return tuple(map(frozen, value))
    if isinstance(value, set):
        return frozenset(value)
    return value


@dataclass(frozen=True)
class Marker:
    """A word of the language, such as `var`: read where it stands in a pattern, never run."""

    name: str
    is_pattern_form: ClassVar[bool] = True

    def __call__(self, *arguments: Any, **keywords: Any) -> NoReturn:
        raise TypeError(f"`{self.name}` means something only inside a pattern")


@dataclass(frozen=True, eq=False)
class PatternFunction:
    """A named pattern: its alternates as written, in order.

    `core` elaborates it, at its first use, so that it can mention patterns defined after it.
    """

    name: str
    alternates: tuple[Captured, ...]
    through: PatternFunction | None
    home: CodeType | str
    """The code (of a notebook's cells, the file) whose run defines it: further definitions there
    are alternates.
    """
    definitions: dict[str, tuple[object, Definition]] = field(default_factory=dict, repr=False)
    """What others that call it share, by what it is for, and what that was made from."""
    is_pattern_form: ClassVar[bool] = True

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """The parameters in order, each with its default or `inspect.Parameter.empty`."""
        return self.defaults_of(self.alternates[0])

    @staticmethod
    def defaults_of(captured: Captured) -> dict[str, Any]:
        parameters = signature(captured.function).parameters
        return {name: frozen(parameter.default) for name, parameter in parameters.items()}

    @cached_property
    def operator_parameters(self) -> frozenset[str]:
        """The parameters that stand for operators: some alternate calls them."""
        called = {
            part.func.id
            for captured in self.alternates
            for part in captured.parts
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name)
        }
        return frozenset(called & set(self.parameters))

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(self.defaults)

    @cached_property
    def core(self) -> tuple[Pattern, ...]:
        """The pattern in the calculus: one root, or one for each output. Raises PatternError."""
        from pypm.lang.elaborate import elaborate  # the two modules define each other's values

        return elaborate(self)

    def is_optional(self, parameter: str) -> bool:
        return self.defaults[parameter] is not PythonParameter.empty

    def __call__(self, *arguments: Any, **keywords: Any) -> NoReturn:
        raise TypeError(
            f"pattern `{self.name}` is read, not run: call it inside a pattern, or pass it to "
            "`pypm.fx.find` or `@rule`"
        )

    def __repr__(self) -> str:
        return f"<pattern {self.name}({', '.join(self.parameters)})>"
