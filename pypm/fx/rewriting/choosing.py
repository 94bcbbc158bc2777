"""The rewrites of one round: of those that overlap, the set that saves most.

The order in which rules are listed makes no difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Final

import networkx as nx
from torch import fx

from pypm.core.rules import print_rule
from pypm.fx.operators.effects import is_view
from pypm.fx.reporting.appraisal import Appraisal
from pypm.fx.rewriting.candidates import Candidate

__all__ = ["EXACT", "Offer", "as_in_wholes", "best", "places"]

EXACT: Final = 24
"""The most rewrites that overlap, directly or by others, for which the best set is searched for.

Of more, the one that overlaps most others is made or left, whichever saves more with the rest.
"""
HALVINGS: Final = 4
"""The number of times that this is tried; then those that save most are made one after another."""
QUICKER: Final = 0.7
"""The share of a part's time that the whole must stay below for the part's to say nothing. Both are
measured, or one of them is the time of its kernels alone."""
MOST: Final = 1e200
"""The most that a rewrite counts for where the best set is searched for, in seconds."""


@dataclass(frozen=True, eq=False)
class Offer:
    """A candidate, and what it is worth."""

    candidate: Candidate
    worth: Appraisal

    @property
    def saved(self) -> float:
        return self.worth.saved

    @cached_property
    def nodes(self) -> frozenset[fx.Node]:
        """The region."""
        return frozenset(self.candidate.nodes)

    @cached_property
    def computed(self) -> frozenset[fx.Node]:
        """The nodes of the region that are no views."""
        return frozenset(node for node in self.nodes if not is_view(node))

    @cached_property
    def replaced(self) -> frozenset[fx.Node]:
        """The nodes of the region that do not stay."""
        return self.nodes - self.candidate.planned.plan.region.alive


def as_in_wholes(offers: Sequence[Offer]) -> list[Offer]:
    """Return rewrites with no worth for those of a part of a region that is quicker as a whole.

    A compiler has a kernel for such a region, as for attention. Compiled alone, a part takes longer
    than in its place, and once it is replaced, the kernel no longer serves for the others.
    """
    at: dict[fx.Node, list[Offer]] = {}
    for offer in offers:
        for node in offer.computed:
            at.setdefault(node, []).append(offer)

    def is_in_whole(offer: Offer) -> bool:
        around = min((at[node] for node in offer.computed), key=len, default=offers)
        return offer.saved > 0 and any(_is_quicker(whole, offer) for whole in around)

    return [
        replace(offer, worth=replace(offer.worth, saved=0.0, why=_IN_A_WHOLE))
        if is_in_whole(offer)
        else offer
        for offer in offers
    ]


_IN_A_WHOLE: Final = "a region around it takes less, as it is, than this part of it alone"


def _is_quicker(whole: Offer, part: Offer) -> bool:
    known = whole.worth.before, part.worth.before
    return (
        known[0] is not None
        and known[1] is not None
        and known[0] < QUICKER * known[1]
        and part.computed < whole.computed
    )


def best(offers: Sequence[Offer]) -> list[Offer]:
    """Return the disjoint rewrites that save most, the last in the graph first.

    Those that save infinitely much come before all others, in the order in which they are given.
    """
    chosen: list[Offer] = []
    used: set[fx.Node] = set()
    replaced: set[fx.Node] = set()

    def is_free(offer: Offer) -> bool:
        return offer.nodes.isdisjoint(replaced) and offer.replaced.isdisjoint(used)

    for offer in offers:
        if offer.saved == inf and is_free(offer):
            chosen.append(offer)
            used |= offer.nodes
            replaced |= offer.replaced
    rest = _without_twins([o for o in offers if o.saved < inf and is_free(o)])
    conflicts = _conflicts(rest)
    chosen += [rest[i] for i in _independent(conflicts, rest)]
    return sorted(chosen, key=lambda offer: offer.candidate.planned.match.root, reverse=True)


def _without_twins(offers: list[Offer]) -> list[Offer]:
    """Return in order, of the offers that replace the same nodes of the same region, the one that
    saves most, as of kernels that differ in a schedule.
    """
    found: dict[object, Offer] = {}
    for offer in sorted(offers, key=_order):
        key = offer.nodes, offer.replaced
        if key not in found or found[key].saved < offer.saved:
            found[key] = offer
    return [*found.values()]


def places(offers: Sequence[Offer]) -> Iterator[list[Offer]]:
    """Yield those that overlap, directly or by others, in the order in which they are given."""
    for component in nx.connected_components(_conflicts(offers)):
        yield [offers[i] for i in sorted(component)]


def _order(offer: Offer) -> tuple[tuple[int, ...], str, str, list[str]]:
    """A key that does not depend on the order of rules."""
    candidate = offer.candidate
    root = candidate.planned.match.root
    names = [node.name for node in candidate.nodes]
    return root._sort_key, candidate.rule.name, print_rule(candidate.rule), names


def _conflicts(offers: Sequence[Offer]) -> nx.Graph[int]:
    """Return the graph of the pairs of rewrites that replace a node which is in both regions."""
    conflicts: nx.Graph[int] = nx.Graph()
    conflicts.add_nodes_from(range(len(offers)))
    at: dict[fx.Node, list[int]] = {}
    for i, offer in enumerate(offers):
        others = {other for node in offer.nodes for other in at.get(node, ())}
        for other in sorted(others):
            shared = offer.nodes & offers[other].nodes
            if not shared.isdisjoint(offer.replaced | offers[other].replaced):
                conflicts.add_edge(other, i)
        for node in offer.nodes:
            at.setdefault(node, []).append(i)
    return conflicts


def _independent(
    conflicts: nx.Graph[int], offers: Sequence[Offer], left: int = HALVINGS
) -> list[int]:
    """The nodes of a graph of conflicts, no two of them in conflict, that save most."""
    found: list[int] = []
    for nodes in nx.connected_components(conflicts):
        component = conflicts.subgraph(nodes)
        search = _exact if len(nodes) <= EXACT else _by_halves if left else _greedy
        found += search(component, offers, left)
    return found


def _exact(conflicts: nx.Graph[int], offers: Sequence[Offer], left: int) -> list[int]:
    free = nx.complement(conflicts)
    for i in sorted(conflicts):
        free.nodes[i]["saved"] = max(1, round(1e12 * min(float(offers[i].saved), MOST)))
    return list(nx.max_weight_clique(free, "saved")[0])


def _by_halves(conflicts: nx.Graph[int], offers: Sequence[Offer], left: int) -> list[int]:
    """Make the rewrite that overlaps most others, or leave it."""
    most = max(sorted(conflicts), key=lambda i: int(conflicts.degree[i]))
    around = {most, *conflicts.neighbors(most)}
    ways = (
        [most, *_independent(conflicts.subgraph(conflicts.nodes - around), offers, left - 1)],
        _independent(conflicts.subgraph(conflicts.nodes - {most}), offers, left - 1),
    )
    return max(ways, key=lambda way: sum(min(float(offers[i].saved), MOST) for i in way))


def _greedy(conflicts: nx.Graph[int], offers: Sequence[Offer], left: int) -> list[int]:
    found: list[int] = []
    for i in sorted(conflicts, key=lambda i: (-offers[i].saved, i)):
        if not any(conflicts.has_edge(i, j) for j in found):
            found.append(i)
    return found
