"""Printing of patterns, guards and terms, with the fewest parentheses that parse back."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, assert_never

from pypm.core.guards import (
    And,
    Apply,
    Attribute,
    Constant,
    Equal,
    Expression,
    Guard,
    Holds,
    Less,
    Not,
    Or,
    Reference,
    True_,
    Tuple,
)
from pypm.core.operators import Operator
from pypm.core.patterns import (
    Alt,
    Call,
    Constrained,
    Definition,
    Exists,
    Fun,
    Guarded,
    Let,
    Mu,
    Op,
    Pattern,
    Var,
)
from pypm.core.python_settings import with_room
from pypm.core.record_expressions import MakeRecord, Select
from pypm.core.records import Record, fields_of
from pypm.core.terms import Term, Value

if TYPE_CHECKING:
    from pypm.core.patterns import Context

__all__ = [
    "KEYWORDS",
    "SYMBOLS",
    "print_attributes",
    "print_dotted",
    "print_expression",
    "print_guard",
    "print_member",
    "print_name",
    "print_names",
    "print_pattern",
    "print_term",
    "print_value",
]

_PATTERN_WORDS = {"exists", "where", "let", "with", "keep", "rec", "in", "out", "small"}
_GUARD_WORDS = {"and", "or", "not", "true", "True", "False", "None", "inf", "nan", "record"}
_RULE_WORDS = {"rule", "rules", "if"}
_OPTIONS = {"absorb", "communicates", "redraws", "returns_kept", "pays", "exactness", "fingerprint"}
KEYWORDS: Final = frozenset(_PATTERN_WORDS | _GUARD_WORDS | _RULE_WORDS | _OPTIONS)
"""Names that are printed between backquotes if a keyword could stand there."""
_PLAIN: Final = re.compile(r"[^\W\d]\w*(#\d+)?")
_NUMBER: Final = re.compile(r"\d|(inf|nan)(?![\w#])")
_INFIX: Final[Mapping[str, tuple[str, int, int, int]]] = {
    # function: symbol, precedence, and what its two sides need at least
    "in": ("in", 4, 5, 5),
    "add": ("+", 5, 5, 6),
    "sub": ("-", 5, 5, 6),
    "mul": ("*", 6, 6, 7),
    "div": ("/", 6, 6, 7),
    "floordiv": ("//", 6, 6, 7),
    "mod": ("%", 6, 6, 7),
    "pow": ("**", 8, 9, 7),
}
SYMBOLS: Final = {symbol: name for name, (symbol, *_) in _INFIX.items()}
"""Functions that are infix operators, by symbol."""
_OR, _AND, _NOT, _COMPARISON, _SUM, _UNARY, _ITEM, _PRIMARY = 1, 2, 3, 4, 5, 7, 9, 10
_CHAIN, _POSTFIX, _ATOM = 0, 1, 2


@with_room
def print_pattern(pattern: Pattern, context: Context = ()) -> str:
    """Return a pattern as text; `context` are the recursive patterns around it, innermost first."""
    return _pattern(pattern, context, _CHAIN)


def _pattern(pattern: Pattern, context: Context, level: int) -> str:
    """Return a pattern as text, in parentheses if it binds less tightly than `level`."""
    match pattern:
        case Alt():
            alternates = []
            rest: Pattern = pattern
            while isinstance(rest, Alt):
                alternates.append(_pattern(rest.left, context, _POSTFIX))
                rest = rest.right
            text = " | ".join([*alternates, _pattern(rest, context, _CHAIN)])
            return _parenthesized(text, level > _CHAIN)
        case Exists():
            names = []
            rest = pattern
            while isinstance(rest, Exists):
                names.append(print_name(rest.name))
                rest = rest.body
            text = f"exists {' '.join(names)}. {_pattern(rest, context, _CHAIN)}"
            return _parenthesized(text, level > _CHAIN)
        case Guarded(body, guard):
            text = f"{_pattern(body, context, _POSTFIX)} where {print_guard(guard)}"
            return _parenthesized(text, level > _POSTFIX)
        case Let(body, name, expression):
            value = print_expression(expression)
            text = f"{_pattern(body, context, _POSTFIX)} let {print_name(name)} = {value}"
            return _parenthesized(text, level > _POSTFIX)
        case Constrained(body, constraint, name):
            inner = _pattern(constraint, context, _ATOM)
            text = f"{_pattern(body, context, _POSTFIX)} with {print_name(name)} <= {inner}"
            return _parenthesized(text, level > _POSTFIX)
        case Var(name):
            return print_name(name)
        case Op(operator, parts, keep):
            return "keep " * keep + print_dotted(operator.name) + _arguments(parts, context)
        case Fun(name, parts, keep):
            return "keep " * keep + "$" + print_name(name) + _arguments(parts, context)
        case Mu(definition, actuals):
            closed = definition.closed
            text = closed.once(_closed, definition) if closed else _definition(definition, context)
            return text + print_names(actuals)
        case Call(index, actuals):
            name = print_name(context[index].name) if index < len(context) else ""
            return f"{name}^{index}{print_names(actuals)}"
        case _:
            assert_never(pattern)


def _arguments(parts: tuple[Pattern, ...], context: Context) -> str:
    return f"({', '.join([_pattern(part, context, _CHAIN) for part in parts])})"


def _closed(definition: Definition) -> str:
    return _definition(definition, ())


def _definition(definition: Definition, context: Context) -> str:
    lists = [("in", definition.inputs), ("out", definition.outputs), ("small", definition.bounded)]
    head = ", ".join(map(print_name, definition.parameters))
    for keyword, names in lists:
        if names:
            head += f"; {keyword}: {', '.join(print_name(name) for name in sorted(names))}"
    body = _pattern(definition.body, (definition, *context), _CHAIN)
    return f"rec {print_name(definition.name)}({head}) {{ {body} }}"


def _parenthesized(text: str, needed: bool) -> str:
    return f"({text})" if needed else text


def _quoted(name: str) -> str:
    return "`" + re.sub(r"([`\\])", r"\\\1", name) + "`"


def print_name(name: str) -> str:
    """Return a name as text, between backquotes unless it is plain."""
    return name if _PLAIN.fullmatch(name) and name not in KEYWORDS else _quoted(name)


def print_member(name: str) -> str:
    """Return a name after a dot or before an equals sign, where no keyword can stand."""
    return name if _PLAIN.fullmatch(name) else _quoted(name)


def print_names(names: Iterable[str]) -> str:
    """Return names as a list between parentheses."""
    return f"({', '.join(map(print_name, names))})"


def print_dotted(name: str) -> str:
    """Return a dotted name as text, between backquotes if it is not a plain one."""
    head, *parts = name.split(".")
    plain = all(_PLAIN.fullmatch(part) for part in (head, *parts))
    return name if plain and head not in KEYWORDS else _quoted(name)


def print_value(value: Value) -> str:
    """Return a constant as text; one that is not plain data prints as the name that is its repr."""
    if isinstance(value, Operator):
        return f"&{print_dotted(value.name)}"
    if value is None or type(value) in (bool, int, float, str):
        return repr(value)
    if type(value) is tuple:
        inner = ", ".join(map(print_value, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if type(value) is frozenset:
        return f"{{{', '.join(sorted(map(print_value, value)))}}}"
    if isinstance(value, Record):
        return _record(fields_of(value), map(print_value, fields_of(value).values()))
    return f"@{print_dotted(repr(value))}"


def _record(names: Iterable[str], values: Iterable[str]) -> str:
    given = zip(map(print_member, names), values, strict=True)
    return f"record({', '.join(f'{name}={value}' for name, value in given)})"


def print_expression(expression: Expression) -> str:
    """Return an expression as text."""
    return _expression(expression, _COMPARISON)


def _expression(expression: Expression, level: int) -> str:
    match expression:
        case Constant(value):
            text = print_value(value)
            return _parenthesized(text, level >= _ITEM and text.startswith("-"))
        case Reference(name):
            return print_name(name)
        case Attribute(name, attribute):
            return f"{print_name(name)}.{print_member(attribute)}"
        case Tuple(elements):
            return f"[{', '.join([_expression(part, _COMPARISON) for part in elements])}]"
        case Apply(MakeRecord(fields=names), parts):
            return _record(names, [_expression(part, _COMPARISON) for part in parts])
        case Apply(Select(attribute=attribute), (part,)):
            inner = _expression(part, _ITEM)
            is_bare = isinstance(part, Constant | Reference)
            return f"{_parenthesized(inner, is_bare)}.{print_member(attribute)}"
        case Apply(function, parts):
            return _apply(function.name, parts, level)
        case _:
            assert_never(expression)


def _apply(name: str, parts: tuple[Expression, ...], level: int) -> str:
    if name in _INFIX and len(parts) == 2:
        symbol, own, left, right = _INFIX[name]
        text = f"{_expression(parts[0], left)} {symbol} {_expression(parts[1], right)}"
        return _parenthesized(text, level > own)
    if name == "neg" and len(parts) == 1:
        inner = _expression(parts[0], _UNARY)
        # A minus sign before a number would be read as part of it.
        text = f"-({inner})" if _NUMBER.match(inner) else f"-{inner}"
        return _parenthesized(text, level > _UNARY)
    texts = [_expression(part, _COMPARISON) for part in parts]
    if name == "item" and len(parts) == 2:
        return f"{_expression(parts[0], _ITEM)}[{texts[1]}]"
    if name == "slice" and len(parts) == 3:
        return f"{_expression(parts[0], _ITEM)}[{texts[1]}:{texts[2]}]"
    return f"{print_name(name)}({', '.join(texts)})"


def print_guard(guard: Guard) -> str:
    """Return a guard as text."""
    return _guard(guard, _OR)


def _guard(guard: Guard, level: int) -> str:
    match guard:
        case True_():
            return "true"
        case Holds(expression):
            return _expression(expression, max(level, _COMPARISON))
        case Equal(left, right):
            return _comparison(left, "==", right, level)
        case Less(left, right):
            return _comparison(left, "<", right, level)
        case Not(Equal(left, right)):
            return _comparison(left, "!=", right, level)
        case And(one, other):
            text = f"{_guard(one, _AND)} and {_guard(other, _NOT)}"
            return _parenthesized(text, level > _AND)
        case Or(one, other):
            text = f"{_guard(one, _OR)} or {_guard(other, _AND)}"
            return _parenthesized(text, level > _OR)
        case Not(inner):
            return _parenthesized(f"not {_guard(inner, _NOT)}", level > _NOT)
        case _:
            assert_never(guard)


def _comparison(left: Expression, symbol: str, right: Expression, level: int) -> str:
    text = f"{_expression(left, _SUM)} {symbol} {_expression(right, _SUM)}"
    return _parenthesized(text, level > _COMPARISON)


def print_term(term: Term) -> str:
    """Return a term as a tree in text, without derived attributes."""
    children = f"({', '.join(map(print_term, term.children))})" if term.children else ""
    return print_dotted(term.operator.name) + children + print_attributes(term.attributes.items())


def print_attributes(attributes: Iterable[tuple[str, Value]]) -> str:
    """Return attributes and their values between braces; nothing if there are none."""
    bindings = ", ".join(f"{print_member(name)}={print_value(value)}" for name, value in attributes)
    return f"{{{bindings}}}" if bindings else ""
