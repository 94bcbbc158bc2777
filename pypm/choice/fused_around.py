"""Work around a region that the compiler would fuse with it: elementwise, before it and after it.

A region alone is not the region in its model. A mask that is an input of attention alone is
computed anew inside of each kernel of the model that reads it, and a sum after a norm is part of
the norm's kernel. So both versions of a region are timed with this work.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace
from typing import Final

from torch import Tensor, fx

from pypm.choice.operator_times import FUSED
from pypm.fx import Candidate, metadata
from pypm.fx.operators.effects import is_pure, is_sure_view
from pypm.fx.subject.calls import rearranges
from pypm.fx.values.symbolic import hint
from pypm.torch_internals import OpOverload

__all__ = ["in_its_surroundings"]

MOST: Final = 64
"""The most nodes on one side of a region: a longer chain is cut, and its value is an input."""
_CREATE: Final = frozenset({"full", "arange", "iota", "zeros", "ones", "scalar_tensor"})
_REDUCE: Final = frozenset({"_softmax", "_log_softmax", "native_layer_norm", "native_group_norm"})
"""Operators of one kernel with reductions that have no tag."""


def in_its_surroundings(candidate: Candidate) -> Candidate:
    """Return a candidate whose graphs also compute what would be in one kernel with the region.

    Before it, this is what its elementwise work and reductions read, back to products, reductions,
    operators without code of the compiler, inputs, and what is in memory for others anyway; after
    it, what reads its roots, up to the same.
    """
    inside = frozenset(candidate.nodes)
    roots = frozenset(root for root, _ in candidate.planned.plan.outputs)
    return replace(candidate, around=_before(inside) | _after(roots, inside))


def _before(inside: frozenset[fx.Node]) -> frozenset[fx.Node]:
    """Return elementwise nodes that the region reads, directly or through others of them.

    One as large as anything inside is in memory if others read it too: layers end there.
    """
    largest = max(map(_elements, inside))
    found: set[fx.Node] = set()
    reached = {n for node in inside if _is_fused(node) for n in node.all_input_nodes} - inside
    while reached and len(found) < MOST:
        node = max(reached)  # all that may read it was decided on
        reached.remove(node)
        is_kept = _elements(node) >= largest and not (inside | found).issuperset(node.users)
        if _is_elementwise(node) and not is_kept:
            found.add(node)
            reached.update(n for n in node.all_input_nodes if n not in inside and n not in found)
    return frozenset(found)


def _after(roots: frozenset[fx.Node], inside: frozenset[fx.Node]) -> frozenset[fx.Node]:
    """Return elementwise nodes that read the roots, directly or through others of them.

    What else they read is computed before: no kernel can hold what comes before and after another.
    """
    found: set[fx.Node] = set()
    reached = {user for root in roots if _is_fused(root) for user in root.users} - inside
    while reached and len(found) < MOST:
        node = min(reached)
        reached.remove(node)
        known = inside | found
        others = [n for n in node.all_input_nodes if n not in known]
        if _is_elementwise(node) and not _depend(others, known, min(roots)):
            found.add(node)
            reached.update(n for n in node.users if n not in known)
    return frozenset(found)


def _depend(nodes: Iterable[fx.Node], on: Set[fx.Node], first: fx.Node) -> bool:
    """Return whether nodes are some of others, the first of which is `first`, or made from them."""
    seen = {*nodes}
    todo = [*seen]
    for node in todo:
        if node in on:
            return True
        more = [n for n in node.all_input_nodes if n not in seen and not n < first]
        seen.update(more)
        todo += more
    return False


def _is_fused(node: fx.Node) -> bool:
    target = node.target
    return _is_elementwise(node) or (
        isinstance(target, OpOverload)
        and (any(tag.name == "reduction" for tag in target.tags) or _bare(target) in _REDUCE)
    )


def _is_elementwise(node: fx.Node) -> bool:
    """Return whether a node is elementwise work, a view, a copy, or makes a tensor of a number."""
    target = node.target
    if not (isinstance(target, OpOverload) and target.namespace in FUSED and is_pure(node)):
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


def _elements(node: fx.Node) -> int:
    """Return how many elements the tensor of a node has at the sizes that are compiled for."""
    value = metadata(node)
    return int(hint(value.numel()) or 0) if isinstance(value, Tensor) else 0


def _bare(target: OpOverload) -> str:
    return target._schema.name.partition("::")[2]
