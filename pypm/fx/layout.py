"""What can be observed of a tensor's memory: strides where they are read, and aliasing."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import statically_known_true

from pypm.fx.calls import describe
from pypm.fx.dialect import Dialect
from pypm.fx.fakes import run_node
from pypm.fx.legality import same_sizes
from pypm.fx.operators import is_view, mutates, reads_layout
from pypm.fx.view import View, metadata

__all__ = [
    "Observed",
    "aliases",
    "alike",
    "must_copy",
    "must_part",
    "must_share",
    "propagate",
    "restore_strides",
    "same_strides",
]

_LIMIT: Final = 256
"""Nodes recomputed for one change of strides before the strides are restored instead."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A node that would see other strides."""

    node: fx.Node


Changes: TypeAlias = Mapping[fx.Node, Any]
"""New fake values for nodes whose strides change."""


def same_strides(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether strides are equal in every dimension that has more than one element."""
    return all(
        statically_known_true(one == other) or statically_known_true(size == 1)
        for size, one, other in zip(left.shape, left.stride(), right.stride(), strict=True)
    )


def propagate(
    view: View,
    changed: Mapping[fx.Node, Any],
    leaving: Set[fx.Node],
    mode: FakeTensorMode,
) -> Changes | Observed:
    """The values of everything downstream of `changed` whose strides change with it; `guardless`.

    Nodes that are `leaving` the graph do not count. A view whose sizes still fit reads no layout:
    it computes the same values.
    """
    values = dict(changed)
    todo = [user for node in changed for user in view.users(node)]
    heapq.heapify(todo)
    while todo:
        node = heapq.heappop(todo)
        if node in values or node in leaving:
            continue
        if len(values) > _LIMIT or _observes(node):
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
    if node.op not in ("call_function", "call_method") or mutates(node):
        return True
    return reads_layout(node) and not (is_view(node) and "as_strided" not in str(node.target))


def _compare(before: Any, after: Any) -> bool | None:
    """Whether strides differ; None where something else does."""
    if isinstance(before, torch.Tensor) and isinstance(after, torch.Tensor):
        if before.dtype != after.dtype or not same_sizes(before.shape, after.shape):
            return None
        return not same_strides(before, after)
    if isinstance(before, (tuple, list)) and isinstance(after, (tuple, list)):
        verdicts = [_compare(b, a) for b, a in zip(before, after, strict=False)]
        return None if None in verdicts or len(before) != len(after) else any(verdicts)
    return False if type(before) is type(after) else None


def restore_strides(
    graph: fx.Graph, value: fx.Node, before: torch.Tensor, dialect: Dialect
) -> fx.Node | None:
    """Append to a trace what gives `value` the strides of `before`; None if a copy cannot."""
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


def _call(
    graph: fx.Graph,
    dialect: Dialect,
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
) -> fx.Node:
    target = getattr(torch, name)
    if dialect.style == "aten":
        target = getattr(torch.ops.aten, name).default
    with graph.inserting_before(graph.output_node()):
        return graph.call_function(target, args, kwargs or {})


def _order(tensor: torch.Tensor) -> list[int] | None:
    """The dimensions from the largest stride to the smallest; None where a size has no hint."""
    hints = [hint(stride) for stride in tensor.stride()]
    if any(h is None for h in hints):
        return None
    return sorted(range(tensor.dim()), key=lambda i: -(hints[i] or 0))


def hint(size: Any) -> int | None:
    """The example's value of a symbolic size; looking at it adds no guard."""
    if isinstance(size, torch.SymInt):
        return size.node.hint if size.node.has_hint() else None
    return int(size)


# --- aliasing -----------------------------------------------------------------------------------


def aliases(output: object) -> fx.Node | None:
    """The placeholder whose memory an output of a trace may share."""
    base = _base(output) if isinstance(output, fx.Node) else None
    return base if base is not None and base.op == "placeholder" else None


def _shares(node: fx.Node) -> bool:
    """Whether the node's value may be the memory of its first input."""
    return is_view(node) and bool(node.all_input_nodes)


def _base(node: fx.Node, *, surely: bool = False) -> fx.Node:
    """What the node is a view of, at most or, `surely`, in any case."""
    while _shares(node) and not (surely and _may_copy(node)):
        node = node.all_input_nodes[0]
    return node


def _may_copy(node: fx.Node) -> bool:
    """Whether the node is no view for all that is known: torch's own trace of it shows none."""
    if describe(node).operator.name not in _MAY_COPY:
        return False
    values = metadata(node), metadata(node.all_input_nodes[0])
    if not all(isinstance(v, torch.Tensor) and v.layout is torch.strided for v in values):
        return True
    one, other = (value.untyped_storage() for value in values)
    return bool(one._cdata != other._cdata)


_MAY_COPY: Final = frozenset(
    f"aten.{name}" for name in ("contiguous", "flatten", "ravel", "reshape", "to")
)
"""Operators that give a view or a copy, as the strides and the type want it."""


def _sharing(view: View, node: fx.Node) -> set[fx.Node]:
    """The node and every view of it, of any depth."""
    shared = {node}
    todo = [node]
    while todo:
        source = todo.pop()
        for user in view.users(source):
            if user not in shared and _shares(user) and user.all_input_nodes[0] is source:
                shared.add(user)
                todo.append(user)
    return shared


def _written_after(view: View, nodes: set[fx.Node], root: fx.Node) -> bool:
    users = {user for node in nodes for user in view.users(node)}
    return any(root < user and user.op != "output" and mutates(user) for user in users)


def _leaves(view: View, nodes: set[fx.Node]) -> bool:
    return any(user.op == "output" for node in nodes for user in view.users(node))


def must_copy(view: View, root: fx.Node, source: fx.Node, region: Sequence[fx.Node]) -> bool:
    """Whether it would show that `root` now shares the memory of `source`.

    It shows where either is written later, and where both leave the graph.
    """
    if _base(root, surely=True) is _base(source, surely=True):
        return False
    base = _base(source)
    new = _sharing(view, root)
    old = _sharing(view, base) - new - set(region)
    if _written_after(view, new | old, root):
        return True
    stays = base.op in ("placeholder", "get_attr") or _leaves(view, old)
    return stays and _leaves(view, new)


def alike(output: object, other: object) -> bool:
    """Whether two outputs of a trace may share memory."""
    if not isinstance(output, fx.Node) or not isinstance(other, fx.Node):
        return False
    return _base(output) is _base(other)


def must_part(view: View, root: fx.Node, other: fx.Node) -> bool:
    """Whether it would show that two nodes now share memory."""
    if _base(root, surely=True) is _base(other, surely=True):
        return False
    one, two = _sharing(view, root), _sharing(view, other)
    if _written_after(view, one | two, min(root, other)):
        return True
    return _leaves(view, one) and _leaves(view, two)


def must_share(view: View, root: fx.Node) -> bool:
    """Whether it would show that `root` is no longer the view that it was."""
    base = _base(root)
    return base is not root and _written_after(view, _sharing(view, base), root)
