"""Sizes of axes and constraints between them: arithmetic in text, which runs no code."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Final

__all__ = ["check", "value_of"]

Number = int | float
_MOST: Final = 2**63
_BINARY: Final[Mapping[type[ast.operator], Callable[[Number, Number], Number]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_COMPARISONS: Final[Mapping[type[ast.cmpop], Callable[[Number, Number], bool]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def check(text: str) -> set[str]:
    """Return the names in an expression. Raises ValueError if it is not arithmetic."""
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(str(error)) from None
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED):
            raise ValueError(f"`{ast.unparse(node)}` is not arithmetic")
        if isinstance(node, ast.Constant) and not isinstance(node.value, (int, float)):
            raise ValueError(f"`{ast.unparse(node)}` is not a number")
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


_ALLOWED: Final[tuple[type[ast.AST], ...]] = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Constant, ast.Name),
    *(ast.Load, ast.And, ast.Or, ast.Not, ast.UAdd, ast.USub),
    *_BINARY,
    *_COMPARISONS,
)


def value_of(text: str, names: Mapping[str, Number]) -> Number:
    """Return the value of an expression; constraints have the value True or False.

    Raises ValueError if it is not arithmetic, a name is not known, or the value is too large.
    """
    check(text)
    try:
        return _value(ast.parse(text, mode="eval").body, names)
    except (ZeroDivisionError, OverflowError) as error:
        raise ValueError(str(error)) from None


def _value(node: ast.expr, names: Mapping[str, Number]) -> Number:
    match node:
        case ast.Constant(int() | float() as number):
            return number
        case ast.Name(name):
            if name not in names:
                raise ValueError(f"there is no axis `{name}`")
            return names[name]
        case ast.BinOp(left, how, right):
            return _bounded(how, _value(left, names), _value(right, names))
        case ast.UnaryOp(ast.Not(), operand):
            return not _value(operand, names)
        case ast.UnaryOp(ast.USub(), operand):
            return -_value(operand, names)
        case ast.UnaryOp(_, operand):
            return _value(operand, names)
        case ast.BoolOp(ast.And(), values):
            return all(_value(each, names) for each in values)
        case ast.BoolOp(_, values):
            return any(_value(each, names) for each in values)
        case ast.Compare(left, hows, others):
            operands = [_value(each, names) for each in (left, *others)]
            pairs = zip(hows, operands, operands[1:], strict=False)
            return all(_COMPARISONS[type(how)](a, b) for how, a, b in pairs)
    raise ValueError(f"`{ast.unparse(node)}` is not arithmetic")


def _bounded(how: ast.operator, left: Number, right: Number) -> Number:
    if isinstance(how, ast.Pow) and not 0 <= right <= 63:
        raise ValueError(f"the exponent {right} is not between 0 and 63")
    found = _BINARY[type(how)](left, right)
    if isinstance(found, complex) or abs(found) > _MOST:
        raise ValueError(f"{found} is too large")
    return found
