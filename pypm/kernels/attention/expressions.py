"""Expressions over the places of scores: indices, numbers, elements of tensors, operators; text."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias, assert_never

import torch
from torch import Tensor

__all__ = [
    "FALSE",
    "INDICES",
    "OPERATORS",
    "SCORE",
    "TRUE",
    "Applied",
    "Element",
    "Expression",
    "Name",
    "Number",
    "apply",
    "as_text",
    "both",
    "elements",
    "evaluate",
    "names",
    "negated",
    "parse",
    "parts",
    "size",
]


@dataclass(frozen=True, slots=True)
class Name:
    """An index of the score, "b" (batch), "h" (head), "q" (query), "k" (key), or the score "s"."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Number:
    """A number, or a truth value; 1, 1.0 and True are three."""

    value: int | float | bool

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Number):
            return NotImplemented
        return type(self.value) is type(other.value) and self.value == other.value

    def __hash__(self) -> int:
        return hash((type(self.value), self.value))


@dataclass(frozen=True, slots=True)
class Element:
    """An element of the tensor with this number, at one index for each of its dimensions."""

    tensor: int
    indices: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """An operator, a key of `OPERATORS`, on its operands."""

    operator: str
    operands: tuple[Expression, ...]


Expression: TypeAlias = Name | Number | Element | Applied
Value: TypeAlias = "Tensor | int | float"

INDICES: Final = ("b", "h", "q", "k")
SCORE: Final = Name("s")
TRUE: Final = Number(True)
FALSE: Final = Number(False)


def _least(a: Value, b: Value) -> Value:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.minimum(a, b)
    if isinstance(a, Tensor):
        return a.clamp(max=b)
    return b.clamp(max=a) if isinstance(b, Tensor) else min(a, b)


def _largest(a: Value, b: Value) -> Value:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.maximum(a, b)
    if isinstance(a, Tensor):
        return a.clamp(min=b)
    return b.clamp(min=a) if isinstance(b, Tensor) else max(a, b)


def _chosen(condition: Value, a: Value, b: Value) -> Value:
    if isinstance(condition, Tensor):
        return torch.where(condition, a, b)
    return a if condition else b


def _on_tensors(
    one: Callable[[Tensor], Tensor], other: Callable[[float], float]
) -> Callable[[Value], Value]:
    return lambda x: one(x) if isinstance(x, Tensor) else other(x)


def _not(x: Value) -> Value:
    return ~x if isinstance(x, Tensor) else not x


_INFIX: Final[Mapping[str, tuple[type[ast.AST], Callable[..., Value]]]] = {
    "+": (ast.Add, operator.add),
    "-": (ast.Sub, operator.sub),
    "*": (ast.Mult, operator.mul),
    "/": (ast.Div, operator.truediv),
    "//": (ast.FloorDiv, operator.floordiv),
    "%": (ast.Mod, operator.mod),
    "&": (ast.BitAnd, operator.and_),
    "|": (ast.BitOr, operator.or_),
    "==": (ast.Eq, operator.eq),
    "!=": (ast.NotEq, operator.ne),
    "<": (ast.Lt, operator.lt),
    "<=": (ast.LtE, operator.le),
    ">": (ast.Gt, operator.gt),
    ">=": (ast.GtE, operator.ge),
}
_CALLED: Final[Mapping[str, Callable[..., Value]]] = {
    "abs": abs,
    "not": _not,
    "min": _least,
    "max": _largest,
    "where": _chosen,
    "exp": _on_tensors(torch.exp, math.exp),
    "log": _on_tensors(torch.log, math.log),
    "sqrt": _on_tensors(torch.sqrt, math.sqrt),
    "tanh": _on_tensors(torch.tanh, math.tanh),
    "sigmoid": _on_tensors(torch.sigmoid, lambda x: 1 / (1 + math.exp(-x))),
    "float": _on_tensors(lambda x: x.to(torch.float32), float),
    "int": _on_tensors(lambda x: x.to(torch.int64), int),
    "bool": _on_tensors(lambda x: x != 0, bool),
}
OPERATORS: Final[Mapping[str, Callable[..., Value]]] = {
    **{name: function for name, (_, function) in _INFIX.items()},
    **_CALLED,
}
"""Operators by name, as functions of tensors and numbers; "//" and "%" round down."""

_SIGNS: Final = {kind: name for name, (kind, _) in _INFIX.items()}
_TRUTH: Final = frozenset({"&", "|", "==", "!=", "<", "<=", ">", ">=", "not", "bool"})


# --- making --------------------------------------------------------------------------------------


def apply(name: str, *operands: Expression) -> Expression:
    """Return an operator on operands, simplified: numbers are computed, neutral operands left out.

    Operators on numbers are applied inside of a `where` between numbers.
    """
    if all(isinstance(x, Number) for x in operands):
        return _computed(name, operands)
    match name, operands:
        case "+", (x, Number(value)) | (Number(value), x) if value == 0 and type(value) is int:
            return x
        case "-", (x, Number(value)) if value == 0 and type(value) is int:
            return x
        case "*", (x, Number(value)) | (Number(value), x) if value == 1 and type(value) is int:
            return x
        case "*", (_, Number(value)) | (Number(value), _) if value == 0 and type(value) is int:
            return Number(0)
        case "//", (x, Number(1)):
            return x
        case "&", (Number(value), x) | (x, Number(value)):
            return x if value else FALSE
        case "|", (Number(value), x) | (x, Number(value)):
            return TRUE if value else x
        case "not", (x,):
            return negated(x)
        case "where", (Number(value), a, b):
            return a if value else b
        case "where", (_, a, b) if a == b:
            return a
        case "where", (c, a, Number(value)) if value is False:
            return apply("&", c, a)
        case "where", (c, a, Number(value)) if value is True:
            return apply("|", negated(c), a)
        case "where", (c, Number(value), b) if value is True:
            return apply("|", c, b)
        case "where", (c, Number(value), b) if value is False:
            return apply("&", negated(c), b)
        case "float" | "int", (x,) if _is_truth(x):
            one, zero = (1.0, 0.0) if name == "float" else (1, 0)
            return Applied("where", (x, Number(one), Number(zero)))
        case "bool", (x,) if _is_truth(x):
            return x
    return _inside_where(name, operands) or Applied(name, operands)


def _inside_where(name: str, operands: Sequence[Expression]) -> Expression | None:
    """Return an operator on a `where` between numbers, and on numbers, as such a `where`."""
    found = [x for x in operands if not isinstance(x, Number)]
    if name == "where" or len(found) != 1:
        return None
    match found[0]:
        case Applied("where", (condition, Number() as a, Number() as b)):
            one, other = (
                apply(name, *[branch if x is found[0] else x for x in operands])
                for branch in (a, b)
            )
            return apply("where", condition, one, other)
    return None


def _computed(name: str, operands: Sequence[Expression]) -> Expression:
    values = [x.value for x in operands if isinstance(x, Number)]
    try:
        value = OPERATORS[name](*values)
    except (ArithmeticError, ValueError):
        return Applied(name, tuple(operands))
    if isinstance(value, Tensor) or value != value:
        return Applied(name, tuple(operands))
    return Number(bool(value) if name in _TRUTH else value)


def _is_truth(x: Expression) -> bool:
    """Return whether an expression is known to be a truth value."""
    match x:
        case Number(value):
            return isinstance(value, bool)
        case Applied("where", (_, a, b)):
            return _is_truth(a) and _is_truth(b)
        case Applied(name, _):
            return name in _TRUTH
    return False


_OPPOSITE: Final = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


def negated(x: Expression) -> Expression:
    """Return the negation of a truth value; comparisons of indices become their opposites."""
    match x:
        case Number(value):
            return Number(not value)
        case Applied("not", (inner,)):
            return inner
        case Applied(name, operands) if name in _OPPOSITE and not any(map(elements, operands)):
            return Applied(_OPPOSITE[name], operands)  # not with elements, which may be NaN
        case Applied("&" | "|" as name, operands):
            return apply("|" if name == "&" else "&", *map(negated, operands))
    return Applied("not", (x,))


def both(*conditions: Expression) -> Expression:
    """Return the conjunction of conditions, each once."""
    result: Expression = TRUE
    for condition in dict.fromkeys(conditions):
        result = apply("&", result, condition)
    return result


# --- parts ---------------------------------------------------------------------------------------


def parts(x: Expression) -> Iterator[Expression]:
    """Yield an expression and all in it, each once."""
    todo, seen = [x], {x}
    while todo:
        part = todo.pop()
        yield part
        inner: tuple[Expression, ...] = ()
        match part:
            case Element(_, indices):
                inner = indices
            case Applied(_, operands):
                inner = operands
        for each in inner:
            if each not in seen:
                seen.add(each)
                todo.append(each)


def names(x: Expression) -> frozenset[str]:
    """Return the names of indices and of the score that an expression reads."""
    return frozenset(part.name for part in parts(x) if isinstance(part, Name))


def elements(x: Expression) -> frozenset[Element]:
    """Return the elements of tensors that an expression reads."""
    return frozenset(part for part in parts(x) if isinstance(part, Element))


def size(x: Expression) -> int:
    """Return the number of operators, names and numbers in the text of an expression."""
    match x:
        case Element(_, indices):
            return 1 + sum(map(size, indices))
        case Applied(_, operands):
            return 1 + sum(map(size, operands))
    return 1


# --- values --------------------------------------------------------------------------------------


def evaluate(x: Expression, values: Mapping[str, Value], tensors: Sequence[Tensor]) -> Value:
    """Return the value of an expression.

    Arguments:
        x: the expression.
        values: the score and the indices by name: tensors that broadcast together.
        tensors: the tensors by number.

    Integers that are cast to "float" become float32, or float64 if the score is that.
    """
    score = values.get("s")
    is_wide = isinstance(score, Tensor) and score.dtype == torch.float64
    known: dict[Expression, Value] = {}

    def value(part: Expression) -> Value:
        if part not in known:
            known[part] = compute(part)
        return known[part]

    def compute(part: Expression) -> Value:
        match part:
            case Name(name):
                return values[name]
            case Number(number):
                return number
            case Element(tensor, indices):
                found, given = tensors[tensor], [value(i) for i in indices]
                for dim, i in reversed([*enumerate(given)]):
                    if not isinstance(i, Tensor):
                        found = found.select(dim, int(i))
                places = tuple(i for i in given if isinstance(i, Tensor))
                return found[places] if places else found
            case Applied(name, operands):
                of = [value(operand) for operand in operands]
                if name == "float" and is_wide and isinstance(of[0], Tensor):
                    return of[0].to(torch.float64)
                return OPERATORS[name](*of)
            case _:
                assert_never(part)

    return value(x)


# --- text ----------------------------------------------------------------------------------------


def as_text(x: Expression) -> str:
    """Return an expression as text, which `parse` reads."""
    text = _text(x)
    return text[1:-1] if isinstance(x, Applied) and x.operator in _INFIX else text


def _text(x: Expression) -> str:
    match x:
        case Name(name):
            return name
        case Number(value):
            return repr(value)
        case Element(tensor, indices):
            return f"t{tensor}[{', '.join(map(as_text, indices)) or '()'}]"
        case Applied(name, operands) if name in _INFIX:
            return f"({_text(operands[0])} {name} {_text(operands[1])})"
        case Applied(name, operands):
            called = "not_" if name == "not" else name
            return f"{called}({', '.join(map(as_text, operands))})"
        case _:
            assert_never(x)


@lru_cache(maxsize=1024)
def parse(text: str) -> Expression:
    """Return the expression that a text stands for. Raises ValueError if it is none."""
    try:
        return _parsed(ast.parse(text, mode="eval").body)
    except (SyntaxError, RecursionError) as error:
        raise ValueError(f"no expression over scores: {text!r}") from error


def _parsed(tree: ast.expr) -> Expression:
    match tree:
        case ast.Name("inf"):
            return Number(math.inf)
        case ast.Name(name) if name in (*INDICES, "s"):
            return Name(name)
        case ast.Constant(value) if isinstance(value, int | float):
            return Number(value)
        case ast.UnaryOp(ast.USub(), operand):
            number = _parsed(operand)
            if isinstance(number, Number):
                return Number(-number.value)
        case ast.BinOp(left, sign, right) if type(sign) in _SIGNS:
            return Applied(_SIGNS[type(sign)], (_parsed(left), _parsed(right)))
        case ast.Compare(left, [sign], [right]) if type(sign) in _SIGNS:
            return Applied(_SIGNS[type(sign)], (_parsed(left), _parsed(right)))
        case ast.Call(ast.Name(called), operands, []):
            name = "not" if called == "not_" else called
            if name in _CALLED:
                return Applied(name, tuple(map(_parsed, operands)))
        case ast.Subscript(ast.Name(tensor), place) if tensor[0] == "t" and tensor[1:].isdigit():
            places = place.elts if isinstance(place, ast.Tuple) else [place]
            return Element(int(tensor[1:]), tuple(map(_parsed, places)))
    raise ValueError(f"no expression over scores: {ast.unparse(tree)!r}")
