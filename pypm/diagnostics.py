"""Places in source text, diagnostics that point at them, and the error classes that carry them."""

from __future__ import annotations

import linecache
from dataclasses import dataclass

__all__ = [
    "BudgetError",
    "Diagnostic",
    "InternalError",
    "PatternError",
    "PyPMError",
    "RewriteError",
    "Span",
    "SyntaxDiagnostic",
]


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of one source text: lines count from 1, columns from 0, the end is exclusive."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    text: str | None = None
    """The source line at `line`, where it cannot be read from `file` later."""

    @property
    def source_line(self) -> str:
        if self.text is not None:
            return self.text
        return linecache.getline(self.file, self.line).rstrip("\n")

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column + 1}"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """What is wrong, where, why, and what to do about it."""

    message: str
    span: Span | None = None
    label: str = ""
    """Said under the carets: what is wrong with exactly this piece of source."""
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
        return "\n".join(lines)


class PyPMError(Exception):
    """A mistake that the user can mend; `diagnostic` says where and how."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic)
        self.diagnostic = diagnostic

    def __str__(self) -> str:
        return self.diagnostic.render()


class PatternError(PyPMError):
    """A pattern or rule that does not mean anything: raised at its definition or first use."""


class SyntaxDiagnostic(PyPMError):
    """Text that is not a pattern or rule in the text syntax."""


class RewriteError(PyPMError):
    """A rewrite that had to be undone: the graph is as it was before the call."""


class BudgetError(RewriteError):
    """A match or a rule set that did not settle within its budget."""


class InternalError(AssertionError):
    """A bug in PyPM."""
