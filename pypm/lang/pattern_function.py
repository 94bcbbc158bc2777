"""`PatternFunction`: the value that `@pattern` makes of a function."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

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
        if self.takes_patterns:
            first, (name, *_) = self.alternates[0], self.pattern_parameters
            place = next(each for each in first.tree.args.args if each.arg == name)
            raise first.error(
                f"pattern `{self.name}` is not given the patterns that it takes",
                place,
                "stands for a pattern",
                f"name one: `{self.name}({', '.join(self.pattern_parameters)})` is a pattern",
            )
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
        for derived in ("core", "operator_parameters", "pattern_parameters"):
            self.__dict__.pop(derived, None)
        return self

    def __call__(self, *patterns: PatternFunction, **named: PatternFunction) -> PatternFunction:
        """Return the pattern with these for the patterns that it takes.

        Raises TypeError if it takes others, or none: a pattern is read, not run.
        """
        wanted = self.pattern_parameters if self.takes_patterns else ()
        given = dict(zip(wanted, patterns, strict=False)) | named
        chosen = tuple(given[name] for name in wanted if name in given)
        count = len(patterns) + len(named)
        if wanted and len(chosen) == len(wanted) == count and all(map(_is_whole, chosen)):
            return self.of(chosen)
        if wanted:
            raise TypeError(
                f"pattern `{self.name}` takes the patterns {', '.join(wanted)} here, and its "
                "values inside of a pattern"
            )
        raise TypeError(
            f"pattern `{self.name}` is read, not run: call it inside a pattern, or pass it to "
            "`pypm.fx.find` or `@rule`"
        )


def _is_whole(value: object) -> bool:
    """Return whether a value is a pattern that takes no more patterns."""
    return isinstance(value, PatternFunction) and not value.takes_patterns
