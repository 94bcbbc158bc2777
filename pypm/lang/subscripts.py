"""Subscripts in patterns: the index of a call of `getitem`, and the views of ATen that it means."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from pypm.core.operators import Operator, Parameter, Signature, index_key
from pypm.core.patterns import Alt, Constrained, Exists, Pattern, Var

if TYPE_CHECKING:
    from pypm.lang.scope import Scope

__all__ = ["SubscriptView", "index_of", "view_of", "views_of"]

Apply: TypeAlias = Callable[[Operator, Pattern, list[ast.expr]], Pattern]
"""Function of an operator, its tensor and its other arguments to the pattern of their call."""


def _view(name: str, *attributes: str) -> Operator:
    dim = Parameter("dim", "attribute", dimension=True)
    others = (Parameter(attribute, "attribute") for attribute in attributes)
    return Operator(f"aten.{name}", (Signature((Parameter("self"), dim, *others)),))


SELECT: Final = _view("select", "index")
SLICE: Final = _view("slice", "start", "end", "step")
UNSQUEEZE: Final = _view("unsqueeze")
_END: Final = 2**63 - 1
"""The end that torch records for a slice without one."""


@dataclass(frozen=True, slots=True)
class SubscriptView:
    """A view that an item of an index stands for, with its arguments after the tensor."""

    called: Operator
    arguments: list[ast.expr]
    takes_all: bool
    """True for `:`, which torch records for symbolic sizes alone."""


def view_of(
    x: Pattern, views: list[SubscriptView], apply: Apply, fresh: Callable[[], str]
) -> Pattern:
    """Return the views of x, one after the other. `fresh` returns a new core name."""
    for view in views:
        if view.takes_all:
            name = fresh()
            either = Alt(apply(view.called, Var(name), view.arguments), Var(name))
            x = Exists(name, Constrained(either, x, name))
        else:
            x = apply(view.called, x, view.arguments)
    return x


def index_of(node: ast.expr, scope: Scope) -> ast.expr:
    """Return an index with its known values written as terms of `getitem` have them."""
    if _is_ellipsis(node):  # in subscripts, `...` is not any argument
        return _located(ast.Name("Ellipsis", ast.Load()), node)
    if isinstance(node, ast.Tuple):
        return _located(ast.Tuple([index_of(item, scope) for item in node.elts], ast.Load()), node)
    if scope.is_constant(node):
        value = index_key(scope.evaluated(node))
        is_plain = value is None or isinstance(value, int | str | tuple)
        return _located(ast.Constant(value), node) if is_plain else node  # type: ignore[arg-type]
    match node:
        case ast.Slice():
            parts = index_key(slice(*_ends(node, scope)))
        case ast.List(elts=items):
            parts = index_key(items)
        case _:
            return node
    assert isinstance(parts, tuple)
    written = [part if isinstance(part, ast.expr) else ast.Constant(part) for part in parts]
    return _located(ast.Tuple(written, ast.Load()), node)


def _ends(node: ast.Slice, scope: Scope) -> list[object]:
    """Return the start, stop and step of a slice: their values, or expressions of variables."""
    parts = (node.lower, node.upper, node.step)
    is_known = [part is None or scope.is_constant(part) for part in parts]
    return [
        part and (scope.evaluated(part) if known else part)
        for part, known in zip(parts, is_known, strict=True)
    ]


def views_of(index: ast.expr, scope: Scope) -> list[SubscriptView] | None:
    """Return the views of ATen that torch records for an index before which stands a tensor.

    None for a single item, which may be one of a tuple, and for what is no basic index.
    """
    items = index.elts if isinstance(index, ast.Tuple) else [index]
    kinds = [_kind(item, scope) for item in items]
    if None in kinds or kinds == [SELECT] or kinds.count(_ELLIPSIS) > 1:
        return None
    found: list[SubscriptView] = []
    dim, counts_from_end = 0, False
    left = sum(kind in (SELECT, SLICE) for kind in kinds)  # dimensions from here on, for the end
    for item, kind in zip(items, kinds, strict=True):
        if kind in (None, _ELLIPSIS):
            counts_from_end = True
            continue
        at = -left - (kind == UNSQUEEZE) if counts_from_end else dim
        left -= kind != UNSQUEEZE
        dim += kind != SELECT
        arguments = [_located(ast.Constant(at), item), *_arguments(item)]
        found.append(SubscriptView(kind, arguments, _takes_all(item)))
    return None if all(view.takes_all for view in found) else found


_ELLIPSIS: Final = Operator("...")


def _kind(item: ast.expr, scope: Scope) -> Operator | None:
    """Return the view that an item of an index stands for; None if it is none."""
    if isinstance(item, ast.Slice):
        return SLICE
    if _is_ellipsis(item):
        return _ELLIPSIS
    if scope.is_constant(item):
        value = scope.evaluated(item)
        if value is None:
            return UNSQUEEZE
        return SELECT if type(value) is int else None
    return None if isinstance(item, ast.List | ast.Tuple) else SELECT


def _arguments(item: ast.expr) -> list[ast.expr]:
    """Return the arguments of an item's view after its dimension."""
    if isinstance(item, ast.Slice):
        parts = ((item.lower, 0), (item.upper, _END), (item.step, 1))
        return [part or _located(ast.Constant(default), item) for part, default in parts]
    return [] if isinstance(item, ast.Constant) and item.value is None else [item]


def _takes_all(item: ast.expr) -> bool:
    return isinstance(item, ast.Slice) and not (item.lower or item.upper or item.step)


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is Ellipsis


def _located(found: ast.expr, node: ast.expr) -> ast.expr:
    return ast.fix_missing_locations(ast.copy_location(found, node))
