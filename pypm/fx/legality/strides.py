"""Strides: nodes that observe them, and copies that restore them.

The layout that a replacement may assume of its inputs, and what it owes. Inputs are the tensors of
the graph: strides are in any order, 0 where a tensor is expanded, and overlap where it is a
window over another; a tensor begins anywhere in its storage, and may have no elements. With
metadata a body sees these strides, and its trace is used for equal ones alone. Without metadata the
trace must be right for all layouts.

A result has the shape, dtype and device of the value that it replaces, and each of its elements is
written. With metadata its strides are free: where something observes them, PyPM restores those of
the replaced value by a copy, or refuses. Without metadata a match is refused if something that
observes strides follows, unless the rules of torch tell that they are kept; strides of outputs of
the graph are then not compared. A result shares memory with inputs and other results as the value
that it replaces does: PyPM copies, or refuses, where that is observable. Operators of PyPM owe
more: `pypm.kernels.support.operands`.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import Argument

from pypm.fx.legality.aliasing import must_copy
from pypm.fx.operators import arguments, corrections
from pypm.fx.operators.dialects import Dialect
from pypm.fx.operators.effects import is_border, is_random, is_view
from pypm.fx.operators.targets import resolve
from pypm.fx.subject.memory import may_be_view, shared
from pypm.fx.subject.view import View
from pypm.fx.values.fake_tensors import run_node
from pypm.fx.values.metadata import metadata
from pypm.fx.values.size_comparison import same_shape
from pypm.fx.values.symbolic import hint
from pypm.torch_internals import FakeTensorMode

__all__ = ["Observed", "propagate", "restore_strides", "same_strides", "shows_if_shared"]

_LIMIT: Final = 256
"""The largest number of nodes recomputed for one change before strides are restored instead."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A node that would observe other strides."""

    node: fx.Node


Changes: TypeAlias = Mapping[fx.Node, Argument]
"""Nodes whose strides change, with their new fake values."""


def same_strides(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether strides are equal in every dimension that has more than one element."""
    return all(
        statically_known_true(one == other) or statically_known_true(size == 1)
        for size, one, other in zip(left.shape, left.stride(), right.stride(), strict=True)
    )


def propagate(
    view: View,
    changed: Changes,
    leaving: Set[fx.Node],
    mode: FakeTensorMode,
) -> Changes | Observed:
    """Return the new values of all nodes downstream of `changed` whose strides change with it.

    Call it within `guardless`. Nodes that are `leaving` the graph do not count. A view whose sizes
    still fit observes no layout: it computes the same values. Returns the node that observes the
    change, if there is one.
    """
    values = dict(changed)
    todo = [user for node in changed for user in view.users(node)]
    heapq.heapify(todo)
    while todo:
        node = heapq.heappop(todo)
        if node in values or node in leaving:
            continue
        if len(values) > _LIMIT or _observes(node) or _shares_otherwise(view, node):
            return Observed(node)
        before = metadata(node)
        try:
            after = run_node(node, lambda n: values.get(n, metadata(n)), mode, None)
        except Exception:  # whatever the reason, the old strides do
            return Observed(node)
        if after is None or before is None:
            return Observed(node)
        verdict = _compare(before, after)
        if verdict is None:
            return Observed(node)
        if verdict:
            values[node] = after
            for user in view.users(node):
                heapq.heappush(todo, user)
    return values


def _observes(node: fx.Node) -> bool:
    if node.op not in ("call_function", "call_method") or is_border(node):
        return True
    if is_random(node):  # numbers are drawn in the order of memory
        return True
    return reads_layout(node) and not (is_view(node) and "as_strided" not in str(node.target))


def _shares_otherwise(view: View, node: fx.Node) -> bool:
    """Return whether strides decide if the node is a view or a copy, and it is observed which."""
    return may_be_view(node) and shows_if_shared(view, node)


def shows_if_shared(view: View, node: fx.Node) -> bool:
    """Return whether it is observed if a node is a view of what it may share memory with."""
    return any(must_copy(view, node, each, frozenset()) for each in shared(node))


def _compare(before: Argument, after: Argument) -> bool | None:
    """Return whether strides differ; None if something else does."""
    if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
        if before.dtype != after.dtype or not same_shape(before.shape, after.shape):
            return None
        return not same_strides(before, after)
    if isinstance(before, (tuple, list)) and isinstance(after, (tuple, list)):
        verdicts = [_compare(b, a) for b, a in zip(before, after, strict=False)]
        return None if None in verdicts or len(before) != len(after) else any(verdicts)
    return False if type(before) is type(after) else None


def restore_strides(
    graph: fx.Graph, value: fx.Node, before: torch.Tensor, dialect: Dialect
) -> fx.Node | None:
    """Append nodes to a trace that give `value` the strides of `before`; return None if no copy
    can.
    """
    order = _order(before)
    if order is None:
        return None
    permuted = order != sorted(order)
    copy = value
    if permuted:
        copy = _call(graph, dialect, "permute", (copy, order))
    copy = _call(graph, dialect, "clone", (copy,), {"memory_format": torch.contiguous_format})
    if permuted:
        copy = _call(graph, dialect, "permute", (copy, [order.index(i) for i in range(len(order))]))
    return copy


def copy_of(graph: fx.Graph, value: fx.Node, dialect: Dialect) -> fx.Node:
    """Append a copy of `value` to a trace."""
    return _call(graph, dialect, "clone", (value,))


def alias_of(graph: fx.Graph, value: fx.Node, dialect: Dialect) -> fx.Node:
    """Append a tensor of its own in the memory of `value` to a trace."""
    with graph.inserting_before(graph.output_node()):
        return graph.call_function(torch.ops.aten.alias.default, (value,))


def _call(
    graph: fx.Graph,
    dialect: Dialect,
    name: str,
    args: tuple[Argument, ...],
    kwargs: dict[str, Argument] | None = None,
) -> fx.Node:
    target = getattr(torch, name)
    if dialect.style == "aten":
        target = getattr(torch.ops.aten, name).default
    with graph.inserting_before(graph.output_node()):
        return graph.call_function(target, args, kwargs or {})


def _order(tensor: torch.Tensor) -> list[int] | None:
    """Return the dimensions from the largest stride to the smallest; None if a size has no hint."""
    hints = [hint(stride) for stride in tensor.stride()]
    if any(h is None for h in hints):
        return None
    return sorted(range(tensor.dim()), key=lambda i: -(hints[i] or 0))


def reads_layout(node: fx.Node) -> bool:
    """Return whether the result depends on the strides of the node's arguments.

    It does for views that need them, operators tagged to need exact strides, and operators that are
    not torch's own.
    """
    if node.op in {"output", "call_module"}:
        return True
    if node.op not in ("call_function", "call_method"):
        return False
    target = resolve(node.op, node.target)
    if not target.candidates:
        return target.operator.name not in _LAYOUT_BLIND
    bound = arguments.bind(target, node)
    found = target.candidates[0] if bound is None else bound[0]
    if found.packet_name in corrections.LAYOUT_READERS or found.tags & _STRIDE_TAGS:
        return True
    return found.namespace not in {"aten", "prims"} and "flexible_layout" not in found.tags


_STRIDE_TAGS: Final = frozenset(
    {"needs_contiguous_strides", "needs_exact_strides", "needs_fixed_stride_order"}
)

_LAYOUT_BLIND: Final = frozenset({"getitem", "operator.setitem"})
