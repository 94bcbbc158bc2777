"""Named patterns as data: their definitions as written; and the markers in definitions."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cached_property
from inspect import Parameter as PythonParameter
from typing import TYPE_CHECKING, ClassVar, NoReturn

from pypm.lang.capture import Captured, Growing

if TYPE_CHECKING:
    from types import CodeType

    from pypm.core.patterns import Definition

__all__ = ["Marker", "NamedPattern"]


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
    is_pattern_form: ClassVar[bool] = True

    @property
    def defaults(self) -> dict[str, object]:
        """Return the parameters in order, each with its default or `inspect.Parameter.empty`."""
        return self.alternates[0].defaults

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
        """Return the names of the parameters, in order."""
        return tuple(self.defaults)

    @property
    def has_outputs(self) -> bool:
        """Return whether it is one definition that returns a tuple."""
        return len(self.alternates) == 1 and self.alternates[0].returns_tuple

    def is_optional(self, parameter: str) -> bool:
        """Return whether a parameter has a default."""
        return self.defaults[parameter] is not PythonParameter.empty

    def __repr__(self) -> str:
        return f"<pattern {self.name}({', '.join(self.parameters)})>"
