"""Guards and expressions: from Python syntax to `pypm.core.guards`."""

from __future__ import annotations

import ast
import builtins
import math
from dataclasses import replace
from functools import reduce
from inspect import signature
from typing import TYPE_CHECKING, Final

from pypm.core.guard_origins import equality, truth
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
from pypm.core.record_expressions import made, selected
from pypm.core.records import is_field_name, record
from pypm.core.terms import VALUE, Value, argument_name
from pypm.diagnostics import did_you_mean
from pypm.lang.capture import is_comparable
from pypm.lang.predicates import condition
from pypm.lang.scope import ATTRIBUTES, OPERATOR_ATTRIBUTES
from pypm.lang.tags import check_tag
from pypm.lang.tensor_names import attribute, method, part

if TYPE_CHECKING:
    from pypm.diagnostics import Span
    from pypm.lang.record_shapes import Shape
    from pypm.lang.scope import Scope

__all__ = ["asserted", "expression", "guard"]

_ARITHMETIC: Final[dict[type[ast.operator], str]] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
}
_PYTHON_FUNCTIONS: Final[dict[object, str]] = {
    builtins.len: "len",
    builtins.min: "min",
    builtins.max: "max",
    builtins.abs: "abs",
    math.prod: "product",
}


def guard(node: ast.expr, scope: Scope, reason: str = "") -> Guard:
    """Return the guard that an expression describes.

    It is `and`, `or`, `not`, a comparison (chained too), or a Boolean-valued expression. `reason`
    is the message of the `assert` around it. Raises PatternError for any other expression.
    """
    span = replace(scope.span(node), reason=reason)
    if scope.is_constant(node):
        return Holds(Constant(bool(scope.constant(node))), span)
    match node:
        case ast.BoolOp(op=ast.And(), values=parts):
            return reduce(And, [guard(part, scope, reason) for part in parts])
        case ast.BoolOp(op=ast.Or(), values=parts):
            return reduce(Or, [guard(part, scope, reason) for part in parts])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return Not(guard(operand, scope, reason))
        case ast.Compare(left=first, ops=operators, comparators=others):
            pairs = zip([first, *others], operators, others, strict=False)
            compared = [_comparison(op, a, b, span, scope) for a, op, b in pairs]
            return reduce(And, compared)
    return Holds(_condition(expression(node, scope), node, scope), span)


def asserted(statement: ast.Assert, scope: Scope) -> Guard:
    """Return the guard of an `assert`.

    Raises PatternError if it is not a guard, or its message is not a string.
    """
    if statement.msg is None:
        return guard(statement.test, scope)
    reason = scope.constant(statement.msg) if scope.is_constant(statement.msg) else None
    if not isinstance(reason, str):
        raise scope.error(
            "the message of an `assert` is no string",
            statement.msg,
            "not the same for every match",
            "write a plain string; `explain` shows what the guard saw",
        )
    return guard(statement.test, scope, reason)


def _condition(found: Expression, node: ast.expr, scope: Scope) -> Expression:
    """Return a value as a condition. Raises PatternError if it can be neither true nor false."""
    match found:
        case Apply(function, arguments) if function.name not in FUNCTIONS:
            return Apply(condition(function), arguments)
        case Apply(function) if function.name == "item":
            return found
        case Attribute(_, name) if name not in _NO_TRUTHS:
            return found
        case Reference() | Constant():
            return found
    written = ast.unparse(node)
    raise scope.error(
        f"`{written}` is no condition",
        node,
        "neither true nor false",
        f"compare it with something, as in `{written} == ...`",
    )


_NO_TRUTHS: Final = frozenset({"device", "dtype", "name", "numel", "rank", "shape", "tags"})
"""Attributes that are never true or false."""


def _comparison(
    operator: ast.cmpop, first: ast.expr, second: ast.expr, span: Span, scope: Scope
) -> Guard:
    """Return the guard of one comparison. Raises PatternError if it can never be true."""
    left, right = expression(first, scope), expression(second, scope)
    for side, node in ((left, first), (right, second)):
        if isinstance(side, Constant) and not is_comparable(side.value):
            raise scope.incomparable(side.value, node)
    _check_dtypes(left, right, second, scope)
    _check_dtypes(right, left, first, scope)
    if isinstance(operator, ast.In | ast.NotIn) and isinstance(left, Constant):
        _check_tags(left.value, right, first, scope)
    match operator:
        case ast.Eq() | ast.Is():
            return _equality(left, right, span)
        case ast.NotEq() | ast.IsNot():
            return Not(_equality(left, right, span))
        case ast.Lt():
            return Less(left, right, span)
        case ast.Gt():
            return Less(right, left, span)
        case ast.LtE():
            return _at_most(left, right, span)
        case ast.GtE():
            return _at_most(right, left, span)
        case ast.In():
            return _membership(left, right, span)
        case ast.NotIn():
            return Not(_membership(left, right, span))
        case _:
            raise TypeError(operator)


def _check_dtypes(tested: Expression, other: Expression, node: ast.expr, scope: Scope) -> None:
    """Raise PatternError if a dtype is compared with its name, which it never equals."""
    if not (isinstance(tested, Attribute) and tested.attribute == "dtype"):
        return
    values = other.value if isinstance(other, Constant) else None
    for value in values if isinstance(values, tuple | frozenset) else (values,):
        if type(value) is str:
            raise scope.error(
                "a dtype is compared with a string",
                node,
                "never equal",
                f"write `torch.{value.removeprefix('torch.')}`",
            )


def _check_tags(value: Value, tested: Expression, node: ast.expr, scope: Scope) -> None:
    """Raise PatternError if a class that no operator has is tested for."""
    if isinstance(tested, Attribute) and tested.attribute == "tags":
        check_tag(value, node, scope.captured)


def _equality(left: Expression, right: Expression, span: Span) -> Guard:
    """Return the guard that two values are equal, or one is bound to the other's literal."""
    match left, right:
        case (Constant(None), other) | (other, Constant(None)):
            return Holds(Apply(FUNCTIONS["is_none"], (other,)), span)
        case (Reference() as name, Constant(bool() | int() | float() | str()) as constant) | (
            Constant(bool() | int() | float() | str()) as constant,
            Reference() as name,
        ):
            return Holds(Apply(FUNCTIONS["is_value"], (name, constant)), span)
    return equality(left, right, span)


def _membership(left: Expression, right: Expression, span: Span) -> Guard:
    """Return the guard that a value is one of several, or bound to the literal of one."""
    match left, right:
        case Reference(), Constant(tuple() | frozenset() as values) if values:
            found = [_equality(left, Constant(value), span) for value in values]
            return reduce(Or, found)
    return truth(Apply(FUNCTIONS["in"], (left, right)), span)


def _at_most(left: Expression, right: Expression, span: Span) -> Guard:
    return Or(Less(left, right, span), Equal(left, right, span))


def expression(node: ast.expr, scope: Scope) -> Expression:
    """Return the value that an expression describes, as an expression of the calculus.

    It is a variable, an attribute of one, arithmetic, a call of a predicate, or a constant. Raises
    PatternError for any other expression.
    """
    variable = scope.variable(node)
    if variable is not None:
        return Reference(variable.core)
    if scope.is_constant(node):
        return Constant(scope.constant(node))
    match node:
        case ast.Attribute(value=ast.Name() as owner) if scope.variable(owner):
            return _attribute(node, owner, scope)
        case ast.Attribute(value=ast.Attribute() as inner) if _is_read_of_record(inner, scope):
            return _part_of_field(node, inner, scope)
        case ast.Call(func=called) if scope.is_python(called) and scope.resolve(called) is record:
            return _record(node, scope)
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
        case ast.Attribute(value=ast.Attribute() as inner, attr=name) if scope.variable(
            _owner(inner)
        ) and (found := part(expression(inner, scope), name)):
            return found
        case ast.Call(func=ast.Attribute(value=owner, attr=name), args=arguments, keywords=[]) if (
            scope.variable(owner) or _is_read_of_record(owner, scope)
        ) and (
            found := method(
                expression(owner, scope), name, tuple(expression(each, scope) for each in arguments)
            )
        ):
            return found
        case ast.Call(func=called, args=arguments, keywords=[]) if scope.is_python(called):
            values = tuple(expression(argument, scope) for argument in arguments)
            function = _function(called, scope)
            _check_arity(function, node, scope)
            return Apply(function, values)
    raise scope.error(
        f"`{ast.unparse(node)}` is not an expression of guards",
        node,
        "not understood here",
        "guards know attributes (`x.rank`, `x.shape[0]`), arithmetic, comparisons, `and or not "
        "in`, tuples and functions marked `@predicate`",
    )


def _attribute(node: ast.Attribute, owner: ast.Name, scope: Scope) -> Expression:
    """Return an attribute of a variable. Raises PatternError if the variable has none such."""
    variable = scope.variables[owner.id]
    if variable.shape is not None:
        _check_field(node, variable.shape, scope)
        return Attribute(variable.core, node.attr)
    known = OPERATOR_ATTRIBUTES if variable.is_operator else ATTRIBUTES | variable.attributes
    spelled = None if variable.is_operator else attribute(Reference(variable.core), node.attr)
    if node.attr not in known and spelled is not None:
        return spelled
    if node.attr not in known:
        raise scope.error(
            f"`{owner.id}` has no attribute `{node.attr}`",
            node,
            "a guard on an attribute that does not exist",
            f"it may be asked for {', '.join(sorted(known))}",
        )
    argument = argument_name(VALUE)
    if node.attr == VALUE and argument in known:
        raise scope.error(
            f"`{owner.id}` is no number, so it has no `value`",
            node,
            "only literals have it",
            f"the argument of the operator is `{owner.id}.{argument}`",
        )
    return Attribute(variable.core, node.attr)


def _shape(node: ast.expr, scope: Scope) -> Shape | None:
    """Return the fields of the records that an expression may stand for; None without any."""
    match node:
        case ast.Name(id=name):
            known = scope.variables.get(name)
            return None if known is None else known.shape
        case ast.Attribute(value=value, attr=name):
            owner = _shape(value, scope)
            inner = None if owner is None else owner.root().fields.get(name)
            return inner.root() if inner is not None and inner.root().fields else None
    return None


def _owner(node: ast.expr) -> ast.expr:
    """Return what stands before all dots of an expression."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node


def _is_read_of_record(node: ast.expr, scope: Scope) -> bool:
    """Return whether an expression reads a field, as `x.a` does if x may be a record."""
    return isinstance(node, ast.Attribute) and _shape(node.value, scope) is not None


def _check_field(node: ast.Attribute, shape: Shape, scope: Scope) -> None:
    """Raise PatternError if no record of a shape has the field that is read."""
    if node.attr not in shape.fields:
        owner, known = ast.unparse(node.value), sorted(shape.fields)
        raise scope.error(
            f"record `{owner}` has no field `{node.attr}`",
            node,
            "no alternate gives it one of this name",
            did_you_mean(node.attr, known) or f"its fields are {', '.join(known)}",
        )


def _part_of_field(node: ast.Attribute, inner: ast.Attribute, scope: Scope) -> Expression:
    """Return `r.a.b`: a field of a record in a record, or an attribute of a tensor in one."""
    owner, shape = expression(inner, scope), _shape(inner, scope)
    if shape is not None:
        _check_field(node, shape, scope)
    elif node.attr not in ATTRIBUTES:
        found = attribute(owner, node.attr) or part(owner, node.attr)
        if found is None:
            raise scope.error(
                f"`{ast.unparse(inner)}` has no attribute `{node.attr}`",
                node,
                "neither a field of a record nor an attribute of a tensor",
                f"a tensor may be asked for {', '.join(sorted(ATTRIBUTES))}",
            )
        return found
    return selected(owner, node.attr)


def _record(node: ast.Call, scope: Scope) -> Expression:
    """Return the record that a call makes. Raises PatternError if it names no fields."""
    named = {each.arg: each.value for each in node.keywords if each.arg is not None}
    wrong = next((each for each in node.keywords if not is_field_name(each.arg or "")), None)
    if node.args or wrong or not named:
        raise scope.error(
            "`record` takes named fields",
            node.args[0] if node.args else wrong or node,
            "not a field" if node.args or wrong else "no fields",
            "write `record(factor=a)`; no name of a field begins with an underscore",
        )
    fields = {name: expression(value, scope) for name, value in named.items()}
    for name, value in fields.items():
        if isinstance(value, Constant) and not is_comparable(value.value):
            raise scope.incomparable(value.value, named[name])
    return made(fields)


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
    return reduce(lambda left, right: Apply(FUNCTIONS["add"], (left, right)), pieces)


def _check_arity(function: Function, node: ast.Call, scope: Scope) -> None:
    """Raise PatternError if a predicate does not take as many arguments."""
    try:
        signature(function.apply).bind(*node.args)
    except TypeError as problem:
        raise scope.error(
            f"`{ast.unparse(node.func)}` cannot be called so: {problem}",
            node,
            "wrong arguments",
            f"{ast.unparse(node.func)}{signature(function.apply)}",
        ) from None
    except ValueError:  # a function of Python's own that does not tell
        return


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
