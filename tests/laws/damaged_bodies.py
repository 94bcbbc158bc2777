"""Damaged bodies of rules: an operator, number, argument or order in the source is another one."""

from __future__ import annotations

import ast
import copy
import linecache
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from pypm.core.rules import Rule

INFIX = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult}
NAMES = {
    "sum": "mean",
    "mean": "sum",
    "exp": "tanh",
    "rsqrt": "sqrt",
    "sqrt": "rsqrt",
    "relu": "sigmoid",
    "abs": "exp",
    "minimum": "maximum",
    "maximum": "minimum",
    "silu": "gelu",
    "gelu": "silu",
    "zeros_like": "ones_like",
    "ones_like": "zeros_like",
}


def expressions(node: ast.expr) -> Iterator[ast.expr]:
    """Expressions that differ from one in one place of its own."""
    match node:
        case ast.BinOp(left, op, right):
            if type(op) in INFIX:
                yield ast.BinOp(left, INFIX[type(op)](), right)
            if isinstance(op, (ast.MatMult, ast.Sub, ast.Div)):
                yield ast.BinOp(right, op, left)
        case ast.UnaryOp(ast.USub(), operand):
            yield operand
        case ast.Constant(bool()):
            return
        case ast.Constant(int() as value):
            yield ast.Constant(value + 1)
        case ast.Constant(float() as value):
            yield ast.Constant(value + 0.5)
            yield ast.Constant(value * 1.0001)
        case ast.Tuple(elements) | ast.List(elements) if len(elements) > 1:
            made = copy.copy(node)
            made.elts = [elements[1], elements[0], *elements[2:]]
            yield made
        case ast.Attribute(value, name) if name in NAMES:
            yield ast.Attribute(value, NAMES[name], ast.Load())
        case ast.Call(function, arguments, keywords):
            for i, (one, two) in enumerate(pairwise(arguments)):
                if isinstance(one, ast.Name) and isinstance(two, ast.Name):
                    swapped = [*arguments[:i], two, one, *arguments[i + 2 :]]
                    yield ast.Call(function, swapped, keywords)


def bodies(rule: Rule) -> Iterator[tuple[str, Callable[..., object]]]:
    """The body with each damage, and its text."""
    function: Any = rule.replacement
    tree = _definition(function)
    for place, node in enumerate(ast.walk(tree)):
        if isinstance(node, ast.expr):
            for other in expressions(node):
                changed = copy.deepcopy(tree)
                target = [*ast.walk(changed)][place]
                made = _Replaced(target, other).visit(changed)
                yield ast.unparse(made.body[-1]), _compiled(made, function)


class _Replaced(ast.NodeTransformer):
    def __init__(self, target: ast.AST, other: ast.expr) -> None:
        self.target, self.other = target, other

    def visit(self, node: ast.AST) -> Any:
        return self.other if node is self.target else super().visit(node)


def _definition(function: Any) -> ast.FunctionDef:
    """The function's definition without decorators and guards."""
    module = ast.parse("".join(linecache.getlines(function.__code__.co_filename)))
    found = next(
        node
        for node in ast.walk(module)
        if isinstance(node, ast.FunctionDef) and node.name == function.__name__
    )
    found.decorator_list = []
    found.body = [s for s in found.body if not isinstance(s, ast.Assert)]
    return found


def _compiled(tree: ast.FunctionDef, function: Any) -> Callable[..., object]:
    space = dict(function.__globals__)
    module = ast.fix_missing_locations(ast.Module([tree], []))
    exec(compile(module, function.__code__.co_filename, "exec"), space)
    made: Callable[..., object] = space[tree.name]
    return made


def with_damaged_bodies(rule: Rule) -> Iterator[tuple[str, Rule]]:
    """The rule with each damage of its body."""
    for text, body in bodies(rule):
        yield textwrap.shorten(text, 120), replace(rule, replacement=body)
