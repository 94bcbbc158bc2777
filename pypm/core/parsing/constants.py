"""Constants in the text syntax (numbers, strings, names, operators), and spans of mistakes."""

from __future__ import annotations

import warnings
from ast import literal_eval
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NoReturn

from lark import Token

from pypm.core.operators import Operator
from pypm.core.parsing.grammar import Node, name_list, place, plain_name, subtrees, token
from pypm.core.terms import Value
from pypm.diagnostics import Diagnostic, Span, SyntaxDiagnostic

__all__ = ["ConstantReader"]

DIGITS: Final = 1233
"""Digits of the largest number: those of 4,096 bits."""
ITEMS: Final = 4096
"""Items of the largest tuple or set; the time for a set of equal hashes is quadratic."""


def _no_name(name: str) -> NoReturn:
    raise LookupError(name)


@dataclass
class ConstantReader:
    """Reader of the constants in a syntax tree."""

    text: str
    operators: Callable[[str], Operator] = Operator
    names: Callable[[str], Value] = _no_name
    file: str = "<text>"

    def constant(self, tree: Node) -> Value:
        match tree.data:
            case "number":
                number = token(tree.children[0])
                return self.whole(number) if number.lstrip("-").isdecimal() else float(number)
            case "string":
                return self.string(token(tree.children[0]))
            case "true_value" | "false_value":
                return tree.data == "true_value"
            case "none":
                return None
            case "values":
                return tuple(map(self.constant, self.items(tree)))
            case "value_set":
                return frozenset(map(self.constant, self.items(tree)))
            case "operator_value":
                return self.operator(subtrees(tree)[0])
            case "opaque":
                return self.named(subtrees(tree)[0])
            case _:
                raise AssertionError(tree.data)

    def items(self, tree: Node) -> list[Node]:
        """Return the items of a tuple or a set."""
        found = subtrees(tree)
        if len(found) > ITEMS:
            help = "compare numbers by `<`"
            self.fail(tree, f"a constant of more than {ITEMS:,} items", "too many", help)
        return found

    def named(self, tree: Node) -> Value:
        name = ".".join(name_list(tree))
        try:
            return self.names(name)
        except (LookupError, AttributeError):
            help = "pass what knows the name in `names`"
            self.fail(tree, f"unknown name `{name}`", "looked up here", help)

    def operator(self, tree: Node) -> Operator:
        name = ".".join(name_list(tree))
        try:
            return self.operators(name)
        except (LookupError, AttributeError) as error:
            help = str(error) or "pass what knows the operator in `operators`"
            self.fail(tree, f"unknown operator `{name}`", "named here", help)

    def attributes(self, tree: Node) -> tuple[tuple[str, Value], ...]:
        bindings = [
            (plain_name(b.children[0]), self.constant(subtrees(b)[0])) for b in subtrees(tree)
        ]
        return tuple(bindings)

    def whole(self, number: Token) -> int:
        """Return the whole number of a token."""
        if len(number.lstrip("-")) > DIGITS:
            help = "numbers have up to 4,096 bits"
            self.fail(number, f"a number of more than {DIGITS:,} digits", "too large", help)
        return int(number)

    def string(self, quoted: Token) -> str:
        """Return the string of a token, with Python's escapes."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # of an escape that Python does not know
                return str(literal_eval(quoted))
        except (SyntaxError, ValueError, Warning) as error:
            reason = getattr(error, "msg", None) or str(error)
            help = r"escapes are Python's; a backslash is `\\`"
            self.fail(quoted, "this is not a valid string", reason, help)

    def span(self, part: Node | Token) -> Span:
        """Return the span of a tree or a token."""
        meta = part if isinstance(part, Token) else part.meta
        position = (meta.line or 1, meta.column or 1, meta.end_line or 1, meta.end_column or 1)
        return place(self.text, self.file, position)

    def fail(self, part: Node | Token, message: str, label: str, help: str = "") -> NoReturn:
        """Raise SyntaxDiagnostic about a tree or a token."""
        raise SyntaxDiagnostic(Diagnostic(message, self.span(part), label, help))
