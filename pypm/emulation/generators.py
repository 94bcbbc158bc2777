"""Text of kernels as generators: functions yield their operations, and others go on."""

from __future__ import annotations

import ast
from collections.abc import Set

__all__ = ["Yielding", "dotted"]


class Yielding(ast.NodeTransformer):
    """Yields every operation, and drops imports.

    Arguments:
        operations: names of the functions that return a request.
        inner: names of functions of the text that are called in it and perform operations.
    """

    def __init__(self, operations: Set[str], inner: Set[str] = frozenset()) -> None:
        self.operations = operations
        self.inner = inner

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = dotted(node.func)
        if name in self.inner:
            return ast.copy_location(ast.YieldFrom(node), node)
        return ast.copy_location(ast.Yield(node), node) if name in self.operations else node


def dotted(function: ast.expr) -> str:
    """Return the name of a function, with that of its module; "" if it has another form."""
    match function:
        case ast.Name(name):
            return name
        case ast.Attribute(ast.Name(module), name):
            return f"{module}.{name}"
    return ""
