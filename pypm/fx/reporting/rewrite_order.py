"""Rewrites in graph order, as far as their effects commute."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import networkx as nx
from torch import fx

__all__ = ["Effect", "effect", "in_graph_order"]

ASPECTS: Final = ("value", "inputs")
Aspect: TypeAlias = tuple[fx.Node, str]


class Effect(NamedTuple):
    """One rewrite, by what it needs of nodes and changes of them.

    A node's value and its inputs count apart: a rewrite that only reads the value of a node
    commutes with one that redirects its inputs.
    """

    root: fx.Node
    writes: frozenset[Aspect]
    reads: frozenset[Aspect]


def effect(
    root: fx.Node,
    region: Sequence[fx.Node],
    new: Sequence[fx.Node],
    readers: Iterable[fx.Node],
    buried: Iterable[fx.Node],
) -> Effect:
    """Return the effect of putting new nodes in the place of a region."""
    writes: set[Aspect] = {(node, "inputs") for node in readers}
    writes.update((node, aspect) for node in (*new, *buried) for aspect in ASPECTS)
    reads: set[Aspect] = {(node, aspect) for node in region for aspect in ASPECTS}
    reads.update((i, "value") for node in (*region, *new) for i in node.all_input_nodes)
    return Effect(root, frozenset(writes), frozenset(reads - writes))


def in_graph_order(effects: Sequence[Effect], places: Mapping[fx.Node, int]) -> list[int]:
    """Return the rewrites, by their index, in the order of their roots in the graph.

    `places` says where each root was at first; a root that a rewrite made is where the root of
    that rewrite was. The engine may rewrite the last layer first. Two rewrites keep the order in
    which they were made where one changes a node that the other changes or reads; all others
    commute, so that a replay in the new order ends at the same graph.
    """
    order: nx.DiGraph[int] = nx.DiGraph()
    order.add_nodes_from(range(len(effects)))
    order.add_edges_from(_conflicts(effects))
    return [*nx.lexicographical_topological_sort(order, lambda i: places[effects[i].root])]


def _conflicts(effects: Sequence[Effect]) -> Iterator[tuple[int, int]]:
    """Yield pairs of rewrites that keep their order: an earlier one, and one that follows it."""
    writer: dict[Aspect, int] = {}
    readers: dict[Aspect, list[int]] = {}
    for i, effect in enumerate(effects):
        yield from ((writer[part], i) for part in effect.writes | effect.reads if part in writer)
        yield from ((r, i) for part in effect.writes for r in readers.get(part, ()))
        for part in effect.writes:
            writer[part] = i
            readers.pop(part, None)
        for part in effect.reads:
            readers.setdefault(part, []).append(i)
