"""Places in source text, diagnostics that point at them, and the error classes that carry them."""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final

__all__ = [
    "BudgetError",
    "Diagnostic",
    "InternalError",
    "PatternError",
    "PyPMError",
    "RewriteError",
    "Span",
    "SyntaxDiagnostic",
    "defined_at",
    "did_you_mean",
    "printable",
    "raised_at",
]


_CONTROL: Final = r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
"""Pattern of control characters, compiled at its first use to keep `import pypm` short."""


def printable(text: str, keep: str = "\n\t") -> str:
    r"""Return text that is safe to print: control characters become pictures of them.

    Characters in `keep` stay. A terminal would obey escape sequences, and Unicode's direction marks
    would reorder the text. The length stays the same.

    >>> printable("\x1b[31mred")
    '␛[31mred'
    """
    return re.sub(_CONTROL, lambda it: it[0] if it[0] in keep else _picture(it[0]), text)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question that names the known name most similar to a wrong one; "" if none is.

    >>> did_you_mean("jont", ["joint", "post_grad"])
    'did you mean `joint`?'
    """
    close = get_close_matches(name, [*known], n=1)
    return f"did you mean `{close[0]}`?" if close else ""


def _picture(control: str) -> str:
    """Return the picture of a control character: one each for ASCII's, one for all others."""
    code = ord(control)
    return chr(0x2400 + code) if code < 32 else "\u2421" if code == 127 else "\ufffd"


@dataclass(frozen=True, slots=True)
class Span:
    """A range of one source text: lines count from 1, columns from 0; the end is exclusive."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    text: str | None = None
    """The source line at `line`, if it cannot be read from `file` later."""
    reason: str = field(default="", compare=False)
    """The message of the `assert` at this place."""

    @property
    def source_line(self) -> str:
        if self.text is not None:
            return self.text
        return linecache.getline(self.file, self.line).rstrip("\n")

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column + 1}"


def defined_at(function: object) -> Span | None:
    """Return the first line of a function's definition; None if it is not written in Python."""
    called = vars(type(function)).get("__call__")
    code = getattr(function, "__code__", None) or getattr(called, "__code__", None)
    if code is None:
        return None
    line = linecache.getline(code.co_filename, code.co_firstlineno).rstrip()
    start = len(line) - len(line.lstrip())
    return Span(
        code.co_filename, code.co_firstlineno, start, code.co_firstlineno, max(len(line), start + 1)
    )


def raised_at(error: BaseException, file: str) -> Span | None:
    """Return the innermost place in a file that an error passed through, or None."""
    from traceback import extract_tb  # at its first use, to keep `import pypm` short

    for frame in reversed(extract_tb(error.__traceback__)):
        if frame.filename == file and frame.lineno and frame.colno is not None:
            end = frame.end_colno or frame.colno + 1
            return Span(file, frame.lineno, frame.colno, frame.end_lineno or frame.lineno, end)
    return None


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A problem: what is wrong, where, why, and what to do about it."""

    message: str
    span: Span | None = None
    label: str = ""
    """Text under the carets: what is wrong with exactly this piece of source."""
    help: str = ""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.render()

    def render(self, severity: str = "error") -> str:
        lines = [f"{severity}: {self.message}"]
        margin = "  "
        if self.span is not None:
            source = self.span.source_line
            number = str(self.span.line)
            margin = " " * (len(number) + 1)
            width = len(source.rstrip()) - self.span.column
            if self.span.end_line == self.span.line:
                width = self.span.end_column - self.span.column
            before = "".join("\t" if c == "\t" else " " for c in source[: self.span.column])
            carets = before + "^" * max(1, width)
            lines += [
                f"{' ' * len(number)}--> {self.span}",
                f"{margin}|",
                f"{number} | {source}",
                f"{margin}| {carets} {self.label}".rstrip(),
            ]
        lines += [f"{margin}= note: {note}" for note in self.notes]
        if self.help:
            lines.append(f"{margin}= help: {self.help}")
        return printable("\n".join(lines))


class PyPMError(Exception):
    """A mistake that the user can correct; `diagnostic` tells where and how."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic)
        self.diagnostic = diagnostic

    def __str__(self) -> str:
        return self.diagnostic.render()

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows: the diagnostic, without PyPM's own frames."""
        return [f"{type(self).__name__}: {self}"]


class PatternError(PyPMError):
    """A pattern or rule without a meaning; raised at its definition or first use."""


class SyntaxDiagnostic(PyPMError):
    """Text that is not a pattern or rule in the text syntax."""


class RewriteError(PyPMError):
    """A rewrite that had to be undone: the graph is as it was before the call."""


class BudgetError(RewriteError):
    """A search or a rule set that exceeded its budget of steps."""


class InternalError(AssertionError):
    """A bug in PyPM."""
