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

from pypm.fx import binding, tables
from pypm.fx.dialect import Dialect
from pypm.fx.effects import is_border, is_random, is_sure_view, is_view
from pypm.fx.fakes import run_node
from pypm.fx.legality import Region, same_sizes
from pypm.fx.memory import may_share, shared, sharers, viewers, written_after
from pypm.fx.targets import resolve
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
    if node.op not in ("call_function", "call_method") or is_border(node):
        return True
    if is_random(node):  # numbers are drawn in the order of memory
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


def reads_layout(node: fx.Node) -> bool:
    """Whether the strides of the node's arguments can be told from outside.

    Views that need them, operators tagged to need exact strides, and whatever is not torch's own.
    """
    if node.op in {"output", "call_module"}:
        return True
    if node.op not in ("call_function", "call_method"):
        return False
    target = resolve(node.op, node.target)
    if not target.candidates:
        return target.operator.name not in _LAYOUT_BLIND
    bound = binding.bind(target, node)
    found = target.candidates[0] if bound is None else bound[0]
    if found.packet_name in tables.LAYOUT_READERS or found.tags & _STRIDE_TAGS:
        return True
    return found.namespace not in {"aten", "prims"} and "flexible_layout" not in found.tags


_STRIDE_TAGS: Final = frozenset(
    {"needs_contiguous_strides", "needs_exact_strides", "needs_fixed_stride_order"}
)

_LAYOUT_BLIND: Final = frozenset({"getitem", "operator.setitem"})


# --- aliasing -----------------------------------------------------------------------------------


def aliases(output: object) -> list[fx.Node]:
    """The placeholders whose memory an output of a trace may share."""
    if not isinstance(output, fx.Node):
        return []
    return [n for n in output.graph.find_nodes(op="placeholder") if may_share(output, n)]


def alike(output: object, other: object) -> bool:
    """Whether two outputs of a trace may share memory."""
    if not isinstance(output, fx.Node) or not isinstance(other, fx.Node):
        return False
    return may_share(output, other)


def _sure_base(node: fx.Node) -> fx.Node:
    """What the node is a view of in any case."""
    while _is_sure(node) and (source := shared(node)):
        node = source[0]
    return node


def _is_sure(node: fx.Node) -> bool:
    """Whether the node is a view for certain; what torch's own trace shows is certain as well."""
    if is_sure_view(node):
        return True
    source = shared(node)
    values = [metadata(each) for each in (node, *source)]
    if len(values) != 2 or not all(
        isinstance(v, torch.Tensor) and v.layout is torch.strided for v in values
    ):
        return False
    one, other = (value.untyped_storage() for value in values)
    return bool(one._cdata == other._cdata)


def _leaves(view: View, nodes: Set[fx.Node]) -> bool:
    return any(user.op == "output" for node in nodes for user in view.users(node))


def _stays(view: View, nodes: Set[fx.Node]) -> bool:
    """Whether the memory of some nodes can be seen from outside of the graph."""
    return any(n.op in ("placeholder", "get_attr") for n in nodes) or _leaves(view, nodes)


def must_copy(view: View, root: fx.Node, source: fx.Node, region: Sequence[fx.Node]) -> bool:
    """Whether it would show that `root` now shares the memory of `source`.

    It shows where either is written later, and where both leave the graph.
    """
    if _sure_base(root) is _sure_base(source):
        return False
    new = viewers(root)
    old = sharers(source) - new - set(region)
    return written_after(new | old, root) or (_stays(view, old) and _leaves(view, new))


def must_part(view: View, root: fx.Node, other: fx.Node) -> bool:
    """Whether it would show that two nodes now share memory."""
    if _sure_base(root) is _sure_base(other):
        return False
    one, two = viewers(root), viewers(other)
    if written_after(one | two, min(root, other)):
        return True
    return _leaves(view, one) and _leaves(view, two)


def must_share(view: View, root: fx.Node, region: Region) -> bool:
    """Whether it would show that `root` is no longer the view that it was.

    It shows where its memory is written later, and where another view of it leaves the graph, too.
    """
    if not shared(root):
        return False
    own, base = viewers(root), _sure_base(root)
    if written_after(sharers(root), root):
        return True
    others = sharers(base) - own - (set(region.nodes) - region.alive)
    return base is not root and _stays(view, others) and _leaves(view, own)
