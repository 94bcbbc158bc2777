"""Definitions of a rule and of the patterns that it uses: their places and source."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache

from pypm.core.rules import Rule, print_rule
from pypm.diagnostics import Span

__all__ = ["Definition", "definitions"]


@dataclass(frozen=True, slots=True)
class Definition:
    """A function as it is written, or a rule in the text syntax where there is none."""

    place: str
    text: str


def definitions(rule: Rule) -> list[Definition]:
    """The rule, then the patterns that its own is made of, nearest first; each as written."""
    places: dict[tuple[str, str], None] = {}
    for span in filter(None, (rule.span, *_spans(rule.roots, set()))):
        name = _function_at(span.file, span.line)
        if name is not None:
            places[span.file, name] = None
    if not places:
        return [Definition("in the text syntax", print_rule(rule))]
    return [_definition(file, name) for file, name in places]


def _spans(part: object, seen: set[int]) -> Iterator[Span]:
    if isinstance(part, Span):
        yield part
    elif id(part) not in seen:
        seen.add(id(part))
        if isinstance(part, tuple):
            inner: list[object] = [*part]
        elif is_dataclass(part):
            inner = [getattr(part, field.name) for field in fields(part)]
        else:
            return
        for value in inner:
            yield from _spans(value, seen)


@lru_cache(maxsize=64)
def _functions(file: str) -> tuple[tuple[str, int, int], ...]:
    """The functions of a file: name, first and last line, decorators included."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return ()
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return tuple(
        (f.name, min([f.lineno, *(d.lineno for d in f.decorator_list)]), f.end_lineno or f.lineno)
        for f in found
    )


def _function_at(file: str, line: int) -> str | None:
    """The innermost function around a line."""
    around = [function for function in _functions(file) if function[1] <= line <= function[2]]
    return min(around, key=lambda function: function[2] - function[1])[0] if around else None


def _definition(file: str, name: str) -> Definition:
    """A function with all its alternates."""
    spans = [(first, last) for known, first, last in _functions(file) if known == name]
    lines = linecache.getlines(file)
    text = "\n\n".join("".join(lines[first - 1 : last]).rstrip() for first, last in spans)
    return Definition(f"{name}, {file}:{spans[0][0]}", text)
