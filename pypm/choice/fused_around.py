"""Work around a region that the compiler would fuse with it: elementwise, before it and after it.

A region alone is not the region in its model. A mask that is an input of attention alone is
computed anew inside of each kernel of the model that reads it, and a sum after a norm is part of
the norm's kernel. So both versions of a region are timed with this work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from torch import Tensor, fx

from pypm.fx import metadata
from pypm.fx.operators.effects import is_pure, is_sure_view
from pypm.fx.subject.calls import rearranges
from pypm.torch_internals import OpOverload

__all__ = ["fused_around"]

MOST: Final = 64
"""The most nodes on one side of a region: a longer chain is cut, and its value is an input."""
_FUSED: Final = ("aten", "prims")
"""Namespaces of operators that Inductor generates code for."""
_CREATE: Final = frozenset({"full", "arange", "iota", "zeros", "ones", "scalar_tensor"})
_REDUCE: Final = frozenset({"_softmax", "_log_softmax", "native_layer_norm", "native_group_norm"})
"""Operators of one kernel with reductions that have no tag."""


def fused_around(region: Iterable[fx.Node], roots: Iterable[fx.Node]) -> frozenset[fx.Node]:
    """Return the nodes outside of a region that would be in one kernel with nodes of it.

    Before it, this is what its elementwise work and reductions read, back to products, reductions,
    operators without code of the compiler, and inputs; after it, what reads its roots, up to the
    same.
    """
    inside = frozenset(region)
    readers = [node for node in sorted(inside) if _is_fused(node)]
    before = _walked(readers, lambda node: node.all_input_nodes, inside)
    after = _walked([root for root in roots if _is_fused(root)], lambda node: node.users, inside)
    return before | after


def _walked(
    start: Iterable[fx.Node],
    step: Callable[[fx.Node], Iterable[fx.Node]],
    inside: frozenset[fx.Node],
) -> frozenset[fx.Node]:
    """Return elementwise nodes outside of the region that can be reached through others of them."""
    found: dict[fx.Node, None] = {}
    todo = [*start]
    for node in todo:
        for other in step(node):
            if other not in inside and other not in found and _is_elementwise(other):
                if len(found) == MOST:
                    return frozenset(found)
                found[other] = None
                todo.append(other)
    return frozenset(found)


def _is_fused(node: fx.Node) -> bool:
    target = node.target
    return _is_elementwise(node) or (
        isinstance(target, OpOverload)
        and (any(tag.name == "reduction" for tag in target.tags) or _bare(target) in _REDUCE)
    )


def _is_elementwise(node: fx.Node) -> bool:
    """Return whether a node is elementwise work, a view, a copy, or makes a tensor of a number."""
    target = node.target
    if not (isinstance(target, OpOverload) and target.namespace in _FUSED and is_pure(node)):
        return False
    values = [metadata(node), *map(metadata, node.all_input_nodes)]
    if not all(isinstance(value, Tensor) for value in values):
        return False
    is_pointwise = any(tag.name == "pointwise" for tag in target.tags)
    is_made = _bare(target) in _CREATE or _reads_known_places(node)
    return is_pointwise or is_made or is_sure_view(node) or rearranges(node)


def _reads_known_places(node: fx.Node) -> bool:
    """Return whether a node is an index by numbers of the graph: an input's may lie outside."""
    if _bare(node.target) != "index":  # type: ignore[arg-type]
        return False
    todo = [*node.all_input_nodes[1:]]
    for each in todo:
        if each.op != "call_function" or len(todo) > MOST:
            return False
        todo += each.all_input_nodes
    return True


def _bare(target: OpOverload) -> str:
    return target._schema.name.partition("::")[2]
