"""Kernels that a compiler is expected to make of a graph: products alone, and the rest fused."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from operator import getitem

import networkx as nx
from torch import fx

from pypm.fx.operators.effects import has_effect
from pypm.fx.subject.view import ASSERTS_METADATA
from pypm.roofline.flops import work_of
from pypm.roofline.regions import is_view, operation, tensors

__all__ = ["allocated", "is_alias", "kernels"]


def kernels(graph: fx.Graph, taken: Collection[fx.Node] = ()) -> list[tuple[fx.Node, ...]]:
    """Return the calls of each kernel in graph order, the kernels by their first calls.

    Arguments:
        graph: the graph, with metadata.
        taken: nodes that are in no kernel, as others replace them.

    A product is a kernel, and so is a call whose work is not known. Other calls are fused if they
    are connected, and no path between them leads through one of these or through a taken node. A
    view is in a kernel that reads it if no other kernel does. Calls that nothing uses, and those
    that compute no tensors, are in none.
    """
    apart = {*taken}
    calls = _computing(graph) - apart
    views = {node for node in calls if is_alias(node)}
    alone = {node for node in calls - views if _is_alone(node)}
    fused = _fused(graph, calls - views - alone, apart | alone)
    owner = {node: number for number, nodes in enumerate(fused) for node in nodes}
    owner |= {node: len(fused) + number for number, node in enumerate(sorted(alone))}
    _add_views(graph, views, owner)
    found: dict[int, list[fx.Node]] = {}
    for node in graph.nodes:
        if node in owner:
            found.setdefault(owner[node], []).append(node)
    return [tuple(nodes) for nodes in found.values()]


def _computing(graph: fx.Graph) -> set[fx.Node]:
    """Return the calls that compute tensors which results or effects need."""
    live: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        is_needed = node.op == "output" or has_effect(node) or not live.isdisjoint(node.users)
        if is_needed and node.target is not ASSERTS_METADATA:
            live.add(node)
    return {node for node in live if node.op.startswith("call_") and tensors(node)}


def is_alias(node: fx.Node) -> bool:
    """Return whether a call is a view, or an item of a tuple: it computes nothing."""
    return node.target is getitem or is_view(node)


def _is_alone(node: fx.Node) -> bool:
    work = work_of(operation(node), node)
    return work is None or work.products != 0


def _fused(graph: fx.Graph, calls: set[fx.Node], barriers: set[fx.Node]) -> list[set[fx.Node]]:
    """Return the connected calls of equal depth: the number of barriers on the way to them."""
    joined: nx.Graph[fx.Node] = nx.Graph()
    depth: dict[fx.Node, int] = {}
    for node in graph.nodes:
        sources = [n for n in node.all_input_nodes if tensors(n)]
        depth[node] = max((depth[n] + (n in barriers) for n in sources), default=0)
        if node in calls:
            joined.add_node(node)
            roots = (allocated(n) for n in sources)
            joined.add_edges_from(
                (node, n) for n in roots if n in joined and depth[n] == depth[node]
            )
    return list(nx.connected_components(joined))


def allocated(node: fx.Node) -> fx.Node:
    """Return the node whose value a view or an item is of."""
    while is_alias(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _add_views(graph: fx.Graph, views: set[fx.Node], owner: dict[fx.Node, int]) -> None:
    """Add views and items to the kernels of their source and their readers."""
    readers: dict[fx.Node, set[int | None]] = {}
    for node in reversed(graph.nodes):
        if node not in views:
            continue
        by = readers[node] = set(_readers(node, readers, owner))
        source = owner.get(allocated(node))
        if source in by or (node.target is getitem and not is_view(node)):
            if source is not None:
                owner[node] = source
        elif len(by) == 1 and (reader := next(iter(by))) is not None:
            owner[node] = reader
    for node in graph.nodes:
        first = node.all_input_nodes[0] if node.target is getitem else None
        if first is not None and owner.get(first) != owner.get(node):
            owner.pop(node, None)  # a tuple is not passed from one kernel to another


def _readers(
    node: fx.Node, known: dict[fx.Node, set[int | None]], owner: dict[fx.Node, int]
) -> Iterator[int | None]:
    """Yield the kernels that read a value, or views of it; None for what is in no kernel."""
    for user in node.users:
        if user in known:
            yield from known[user]
        elif tensors(user) or user.op == "output":
            yield owner.get(user)
