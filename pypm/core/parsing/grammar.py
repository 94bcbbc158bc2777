"""Syntax trees of texts, by grammar.lark, and diagnostics for texts without one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any, Final, TypeAlias

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from pypm.core.printing import KEYWORDS
from pypm.diagnostics import Diagnostic, Span, SyntaxDiagnostic

__all__ = [
    "Node",
    "name_list",
    "place",
    "plain_name",
    "subtree",
    "subtrees",
    "syntax_tree",
    "token",
]

Node: TypeAlias = Tree[Token]


def syntax_tree(text: str, start: str, file: str) -> Node:
    """Return the syntax tree of a text that is a `start` of the grammar.

    Raises SyntaxDiagnostic if it is not, or is nested too deeply.
    """
    try:
        tree = _parser().parse(text, start=start)
    except UnexpectedInput as error:
        raise SyntaxDiagnostic(_unexpected(text, file, error)) from None
    for part in _too_deep(tree):
        meta = part.meta
        span = place(text, file, (meta.line, meta.column, meta.end_line, meta.end_column))
        help = "write parts of it as rules of their own"
        raise SyntaxDiagnostic(Diagnostic("this is nested too deeply", span, _DEEP, help))
    return tree


_LEVELS: Final = 100
"""The deepest nesting: readers of a tree, and of the result, recurse."""
_ALTERNATES: Final = 4
"""Alternates of one pattern that count as one level."""
_DEEP: Final = f"more than {_LEVELS} levels, or {_LEVELS * _ALTERNATES} alternates"


def _too_deep(tree: Node) -> Iterator[Node]:
    """Yield the parts of a tree that are nested too deeply."""
    todo = [(tree, 0)]
    while todo:
        part, depth = todo.pop()
        if depth > _LEVELS * _ALTERNATES:
            yield part
        names = len(part.children) - 1 if part.data == "exists" else 1
        depth += 1 if part.data == "alt" else _ALTERNATES * names
        todo += [(child, depth) for child in reversed(part.children) if isinstance(child, Tree)]


def subtree(child: Node | Token) -> Node:
    """Return a child that must be a tree."""
    assert isinstance(child, Tree)
    return child


def subtrees(tree: Node) -> list[Node]:
    """Return the children that are trees."""
    return [child for child in tree.children if isinstance(child, Tree)]


def token(child: Node | Token) -> Token:
    """Return a child that must be a token."""
    assert isinstance(child, Token)
    return child


def plain_name(child: Node | Token) -> str:
    """Return the name of a NAME token."""
    text = str(child)
    return re.sub(r"(?s)\\(.)", r"\1", text[1:-1]) if text.startswith("`") else text


def name_list(tree: Node | Token | None) -> tuple[str, ...]:
    """Return the names of a list; none if it is absent."""
    return () if tree is None else tuple(map(plain_name, subtree(tree).children))


@cache
def _parser() -> Lark:
    grammar = files("pypm.core.parsing").joinpath("grammar.lark").read_text(encoding="utf-8")
    starts = ["pattern", "test", "term", "template", "rule", "rules"]
    return Lark(grammar, parser="lalr", start=starts, propagate_positions=True)


def place(text: str, file: str, position: tuple[int, int, int, int]) -> Span:
    """Return the span at a line, column, end line and end column, which lark counts from 1."""
    line, column, end_line, end_column = position
    source = text.split("\n")[line - 1]
    return Span(file, line, column - 1, end_line, end_column - 1, source)


def _unexpected(text: str, file: str, error: UnexpectedInput) -> Diagnostic:
    """Return lark's error as a diagnostic: what it found, and what it expected."""
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
    syntax = "the syntax is in pypm/core/parsing/grammar.lark"
    help = quoting if KEYWORDS & {found, *before} else syntax
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
    """Return the tokens that could stand at the error, as text."""
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
