"""The values that decorated definitions become, and the markers that the language reads."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass, field
from functools import cached_property
from inspect import Parameter as PythonParameter
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from pypm.diagnostics import PatternError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    from pypm.core.patterns import Definition, Pattern
    from pypm.lang.capture import Captured

__all__ = ["Marker", "PatternFunction", "frozen"]


def frozen(value: Any) -> Any:
    """A constant as attributes hold it: lists as tuples, sets frozen, devices by their names."""
    if isinstance(value, list | tuple):
        return tuple(map(frozen, value))
    if isinstance(value, set):
        return frozenset(value)
    kind = type(value)
    return str(value) if (kind.__module__, kind.__qualname__) == ("torch", "device") else value


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

        try:
            return elaborate(self)
        except PatternError as error:  # the place is in the message, not in these frames
            raise error.with_traceback(None)  # noqa: B904

    def alternate(self, function: Callable[..., Any]) -> PatternFunction:
        """Give the pattern a further alternate, a function of any name; gives the pattern.

        Where a function of that name and place is one already, as in a notebook's cell that runs
        again, it is replaced. Rules and patterns that were read before stay as they are. Raises
        PatternError where the source cannot be read.
        """
        from pypm.lang.capture import capture  # which knows patterns by this class

        captured = capture(function, sys._getframe(1))
        place = captured.header()
        others = (known for known in self.alternates if known.header() != place)
        object.__setattr__(self, "alternates", (*others, captured))
        for derived in ("core", "defaults", "operator_parameters"):
            self.__dict__.pop(derived, None)
        return self

    def is_optional(self, parameter: str) -> bool:
        return self.defaults[parameter] is not PythonParameter.empty

    def __call__(self, *arguments: Any, **keywords: Any) -> NoReturn:
        raise TypeError(
            f"pattern `{self.name}` is read, not run: call it inside a pattern, or pass it to "
            "`pypm.fx.find` or `@rule`"
        )

    def __repr__(self) -> str:
        return f"<pattern {self.name}({', '.join(self.parameters)})>"
