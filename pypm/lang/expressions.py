"""Guards and expressions: from Python syntax to `pypm.core.guards`."""

from __future__ import annotations

import ast
import builtins
import math
from typing import TYPE_CHECKING, Any, Final

from pypm.core.guards import (
    FUNCTIONS,
    And,
    Apply,
    Attribute,
    Constant,
    Equal,
    Expression,
    Function,
    Guard,
    Holds,
    Less,
    Not,
    Or,
    Reference,
    Tuple,
)
from pypm.lang.scope import ATTRIBUTES, OPERATOR_ATTRIBUTES

if TYPE_CHECKING:
    from pypm.diagnostics import Span
    from pypm.lang.scope import Scope

__all__ = ["expression", "guard"]

_ARITHMETIC: Final[dict[type[ast.operator], str]] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
}
_PYTHON_FUNCTIONS: Final[dict[Any, str]] = {
    builtins.len: "len",
    builtins.min: "min",
    builtins.max: "max",
    builtins.abs: "abs",
    math.prod: "product",
}


def guard(node: ast.expr, scope: Scope) -> Guard:
    """A guard: `and`, `or`, `not`, comparisons (chained too), or a Boolean-valued expression."""
    span = scope.captured.span(node)
    if scope.is_constant(node):
        return Holds(Constant(bool(scope.constant(node))), span)
    match node:
        case ast.BoolOp(op=ast.And(), values=parts):
            return _fold(And, [guard(part, scope) for part in parts])
        case ast.BoolOp(op=ast.Or(), values=parts):
            return _fold(Or, [guard(part, scope) for part in parts])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return Not(guard(operand, scope))
        case ast.Compare(left=first, ops=operators, comparators=others):
            pairs = zip([first, *others], operators, others, strict=False)
            compared = [_comparison(op, a, b, span, scope) for a, op, b in pairs]
            return _fold(And, compared)
    return Holds(expression(node, scope), span)


def _fold(form: type[And] | type[Or], guards: list[Guard]) -> Guard:
    result = guards[0]
    for other in guards[1:]:
        result = form(result, other)
    return result


def _comparison(
    operator: ast.cmpop, first: ast.expr, second: ast.expr, span: Span, scope: Scope
) -> Guard:
    left, right = expression(first, scope), expression(second, scope)
    match operator:
        case ast.Is() | ast.IsNot() if isinstance(second, ast.Constant) and second.value is None:
            missing: Guard = Holds(Apply(FUNCTIONS["is_none"], (left,)), span)
            return missing if isinstance(operator, ast.Is) else Not(missing)
        case ast.Eq() | ast.Is():
            return Equal(left, right, span)
        case ast.NotEq() | ast.IsNot():
            return Not(Equal(left, right, span))
        case ast.Lt():
            return Less(left, right, span)
        case ast.Gt():
            return Less(right, left, span)
        case ast.LtE():
            return _at_most(left, right, span)
        case ast.GtE():
            return _at_most(right, left, span)
        case ast.In():
            return Holds(Apply(FUNCTIONS["in"], (left, right)), span)
        case ast.NotIn():
            return Not(Holds(Apply(FUNCTIONS["in"], (left, right)), span))
        case _:
            raise TypeError(operator)


def _at_most(left: Expression, right: Expression, span: Span) -> Guard:
    return Or(Less(left, right, span), Equal(left, right, span))


def expression(node: ast.expr, scope: Scope) -> Expression:
    """A value: a variable, an attribute of one, arithmetic, a predicate's result, a constant."""
    variable = scope.variable(node)
    if variable is not None:
        return Reference(variable.core)
    if scope.is_constant(node):
        return Constant(scope.constant(node))
    match node:
        case ast.Attribute(value=ast.Name() as owner) if scope.variable(owner):
            return _attribute(node, owner, scope)
        case ast.Subscript(value=value, slice=ast.Slice(lower=low, upper=high, step=None)):
            ends = [
                Constant(None) if end is None else expression(end, scope) for end in (low, high)
            ]
            return Apply(FUNCTIONS["slice"], (expression(value, scope), *ends))
        case ast.Subscript(value=value, slice=index):
            return Apply(FUNCTIONS["item"], (expression(value, scope), expression(index, scope)))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _ARITHMETIC:
            parts = (expression(left, scope), expression(right, scope))
            return Apply(FUNCTIONS[_ARITHMETIC[type(op)]], parts)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return Apply(FUNCTIONS["neg"], (expression(operand, scope),))
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return _tuple(elements, scope)
        case ast.Call(func=called, args=arguments, keywords=[]) if scope.is_python(called):
            values = tuple(expression(argument, scope) for argument in arguments)
            return Apply(_function(called, scope), values)
    raise scope.error(
        f"`{ast.unparse(node)}` is not an expression of guards",
        node,
        "not understood here",
        "guards know attributes (`x.rank`, `x.shape[0]`), arithmetic, comparisons, `and or not "
        "in`, tuples and functions marked `@predicate`",
    )


def _attribute(node: ast.Attribute, owner: ast.Name, scope: Scope) -> Expression:
    variable = scope.variables[owner.id]
    known = OPERATOR_ATTRIBUTES if variable.is_operator else ATTRIBUTES | variable.attributes
    if node.attr not in known:
        raise scope.error(
            f"`{owner.id}` has no attribute `{node.attr}`",
            node,
            "a guard on an attribute that does not exist",
            f"it may be asked for {', '.join(sorted(known))}",
        )
    return Attribute(variable.core, node.attr)


def _tuple(elements: list[ast.expr], scope: Scope) -> Expression:
    pieces: list[Expression] = []
    run: list[Expression] = []
    for element in elements:
        if isinstance(element, ast.Starred):
            pieces += [Tuple(tuple(run)), expression(element.value, scope)]
            run = []
        else:
            run.append(expression(element, scope))
    pieces = [p for p in [*pieces, Tuple(tuple(run))] if p != Tuple(())] or [Tuple(())]
    result = pieces[0]
    for piece in pieces[1:]:
        result = Apply(FUNCTIONS["add"], (result, piece))
    return result


def _function(node: ast.expr, scope: Scope) -> Function:
    called = scope.resolve(node)
    if isinstance(called, Function):
        return called
    try:
        return FUNCTIONS[_PYTHON_FUNCTIONS[called]]
    except (KeyError, TypeError):
        raise scope.error(
            f"`{ast.unparse(node)}` cannot be called in a guard",
            node,
            "not a predicate",
            "mark a pure function of attribute values with `@predicate`",
        ) from None
