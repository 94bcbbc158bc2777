"""`PatternFunction`: the value that `@pattern` makes of a function."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

from pypm.core.patterns import Pattern
from pypm.diagnostics import PatternError
from pypm.lang.capture import capture
from pypm.lang.elaborate import elaborate
from pypm.lang.named_pattern import NamedPattern

__all__ = ["PatternFunction"]


@dataclass(frozen=True, eq=False, repr=False)
class PatternFunction(NamedPattern):
    """A named pattern that users call, extend and match.

    It is elaborated at its first use, so that it can mention patterns defined after it.
    """

    @cached_property
    def core(self) -> tuple[Pattern, ...]:
        """Return the pattern in the calculus: one root for each output. Raises PatternError."""
        try:
            return elaborate(self)
        except PatternError as error:  # the place is in the message, not in these frames
            raise error.with_traceback(None)  # noqa: B904

    def alternate(self, function: Callable[..., object]) -> PatternFunction:
        """Add an alternate, a function of any name, and return the pattern.

        A function of the same name and place, as in a notebook's cell that runs again, replaces
        the former one. Rules and patterns that were read before do not change. Raises
        PatternError if the source cannot be read.
        """
        captured = capture(function, sys._getframe(1))
        place = captured.header()
        others = (known for known in self.alternates if known.header() != place)
        object.__setattr__(self, "alternates", (*others, captured))
        for derived in ("core", "operator_parameters"):
            self.__dict__.pop(derived, None)
        return self

    def __call__(self, *arguments: object, **keywords: object) -> NoReturn:
        raise TypeError(
            f"pattern `{self.name}` is read, not run: call it inside a pattern, or pass it to "
            "`pypm.fx.find` or `@rule`"
        )
