"""Text to syntax trees, by grammar.lark; and what is wrong with text that has none."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, Final, TypeAlias

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from pypm.core.printing import KEYWORDS
from pypm.diagnostics import Diagnostic, Span, SyntaxDiagnostic

__all__ = ["Node", "place", "syntax_tree"]

Node: TypeAlias = Tree[Token]


def syntax_tree(text: str, start: str, file: str) -> Node:
    """The syntax tree of a text that is a `start` of the grammar.

    Raises SyntaxDiagnostic where it is none.
    """
    try:
        return _parser().parse(text, start=start)
    except UnexpectedInput as error:
        raise SyntaxDiagnostic(_unexpected(text, file, error)) from None


@cache
def _parser() -> Lark:
    grammar = files("pypm.core").joinpath("grammar.lark").read_text(encoding="utf-8")
    starts = ["pattern", "test", "term", "template", "rule", "rules"]
    return Lark(grammar, parser="lalr", start=starts, propagate_positions=True)


def place(text: str, file: str, position: tuple[int, int, int, int]) -> Span:
    """The span at a line, column, end line, end column as lark counts them: all from 1."""
    line, column, end_line, end_column = position
    source = text.split("\n")[line - 1]
    return Span(file, line, column - 1, end_line, end_column - 1, source)


def _unexpected(text: str, file: str, error: UnexpectedInput) -> Diagnostic:
    """What lark found and what it had expected, as a diagnostic."""
    expected = _expected(error)
    label = f"expected {expected}"
    quoting = "a name that is spelled like a keyword is written between backquotes"
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        lines = text.split("\n")
        line, column = len(lines), len(lines[-1]) + 1
        span = place(text, file, (line, column, line, column + 1))
        return Diagnostic("the text ends too early", span, label, "finish what is begun here")
    found = str(error.token) if isinstance(error, UnexpectedToken) else "\n"
    if isinstance(error, UnexpectedCharacters):
        found = error.char
    span = place(text, file, (error.line, error.column, error.line, error.column + len(found)))
    before = [str(token) for token in getattr(error, "token_history", None) or ()]
    help = quoting if KEYWORDS & {found, *before} else "the syntax is in pypm/core/grammar.lark"
    return Diagnostic(f"unexpected `{found}`", span, label, help)


_KINDS: Final = {
    "$END": "the end",
    "NAME": "a name",
    "NUMBER": "a number",
    "STRING": "a string",
    "SUM": "`+`, `-`",
    "PRODUCT": "`*`, `/`, `//`, `%`",
}


def _expected(error: UnexpectedInput) -> str:
    """What could have stood where the error is, in words."""
    parser: Any = error.interactive_parser  # without types
    accepted: set[str] = parser.accepts()
    try:
        parser.copy().feed_eof()
    except UnexpectedInput:
        pass
    else:
        accepted.add("$END")
    texts = {t.name: f"`{t.pattern.value}`" for t in _parser().terminals} | _KINDS
    *most, last = sorted({texts[name] for name in accepted}) or [_KINDS["$END"]]
    return f"{', '.join(most)} or {last}" if most else last
