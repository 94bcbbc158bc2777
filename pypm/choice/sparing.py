"""Candidates that a choice by default does not time: what cannot matter or be the fastest, and all
once a budget is spent.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Final
from weakref import WeakKeyDictionary

from torch import fx

from pypm.choice.kept_times import Answers
from pypm.choice.operator_times import kind_of, work
from pypm.fx import Candidate
from pypm.fx.subject.subgraphs import signature

__all__ = ["Spared", "Sparing"]

SHARE: Final = 0.01
"""The share of a graph's time below which regions, all like them together, are not timed."""
SAVING: Final = 0.02
"""The share of a graph's time that all of them have to save at best, to be compiled. Bounds are
loose: what is saved is half of it."""
COMPILING: Final = 0.07
"""Seconds that `torch.compile` takes for each call in a graph, roughly."""
BUDGET: Final = 0.3
"""The share of that time after which nothing more is compiled to be timed."""
LEAST: Final = 3.0
"""The least budget in seconds."""
PROMISING: Final = 0.7
"""The share of another replacement's time below which one may take at best to be timed beyond the
budget."""
REASONS: Final = (
    f"all like it take less than {SHARE:.0%} of the graph's time",
    "at best it takes longer than another rewrite of these nodes",
    "what may be spent on this graph is spent",
    f"at best all like it save less than {SAVING:.0%} of the graph's time",
    "a larger match of the rule is faster",
)
SMALL, SLOWER, SPENT, LITTLE, INSIDE = range(len(REASONS))


class Spared(Exception):
    """A candidate that is not timed, and so left; `reason` is a place in `REASONS`."""

    def __init__(self, reason: int) -> None:
        super().__init__(f"not timed: {REASONS[reason]}")
        self.reason = reason


@dataclass
class _Graph:
    """Times of one graph."""

    key: str
    """A hash of the graph as it was first seen."""
    budget: float
    """The seconds that are left to time regions."""
    seconds: float | None = None
    """An estimate of the time that it takes, once it was asked for; 0 if there is none."""
    least: dict[frozenset[fx.Node], float] = field(default_factory=dict)
    """The least time of what replaces some nodes."""
    wholes: dict[str, set[frozenset[fx.Node]]] = field(default_factory=dict)
    """Regions that are slower than what replaces them, by the names of rules."""


class Sparing:
    """Knows of each graph what was spent on it, and what was found."""

    def __init__(self) -> None:
        self._graphs: WeakKeyDictionary[fx.Graph, _Graph] = WeakKeyDictionary()
        self._answers = Answers()

    def recall(self, candidate: Candidate, key: str) -> None:
        """Raise Spared if a candidate was not timed before, in this graph; `key` is that of its
        times.
        """
        found = self._answers.get(f"{key} {self._of(candidate).key}", ("reason",))
        if found is not None and found["reason"] in range(len(REASONS)):
            raise Spared(int(found["reason"]))

    def keep(self, candidate: Candidate, key: str, spared: Spared) -> None:
        """Keep that a candidate is not timed in this graph, so that any process decides alike."""
        self._answers.put(f"{key} {self._of(candidate).key}", {"reason": spared.reason})

    def check_inside(self, candidate: Candidate) -> None:
        """Raise Spared if a larger match of the rule is faster, as one of more layers."""
        nodes = frozenset(candidate.nodes)
        if any(nodes < whole for whole in self._of(candidate).wholes.get(candidate.rule.name, ())):
            raise Spared(INSIDE)

    def faster(self, candidate: Candidate) -> None:
        """Take note of a match whose replacement is faster."""
        wholes = self._of(candidate).wholes.setdefault(candidate.rule.name, set())
        wholes.add(frozenset(candidate.nodes))

    def check_share(self, candidate: Candidate) -> None:
        """Raise Spared if the region, and others like it, take a small share of the graph's time.

        To be called `apart`: rates may be measured.
        """
        if self._share(candidate, _seconds(candidate.graphs[0])) < SHARE:
            raise Spared(SMALL)

    def check_compiling(
        self, candidate: Candidate, at_most: float = inf, at_best: float = 0.0
    ) -> None:
        """Raise Spared if another replacement of the nodes is faster, if this one saves too little,
        or if the budget is spent; the arguments are those of `check_saving`.
        """
        known = self._of(candidate)
        rival = known.least.get(frozenset(candidate.nodes), 0.0)
        mean = at_best / 2 if candidate.by_data else at_best  # contents leave out any part
        if rival and mean > rival:
            raise Spared(SLOWER)
        self.check_saving(candidate, at_most, at_best)
        if known.budget <= 0 and not mean < PROMISING * rival:
            raise Spared(SPENT)

    def check_saving(self, candidate: Candidate, at_most: float, at_best: float) -> None:
        """Raise Spared if the replacement saves too little, here and in all regions like this.

        Arguments:
            at_most: the seconds that the region takes, or more; infinity if nothing is known.
            at_best: the seconds that the replacement takes, or less.

        By data nothing is known: contents may leave work out.
        """
        if at_most == inf or candidate.by_data:
            return
        rival = self._of(candidate).least.get(frozenset(candidate.nodes), inf)
        if self._share(candidate, min(at_most, rival) - at_best) < SAVING:
            raise Spared(LITTLE)

    def spent(self, candidate: Candidate, seconds: float) -> None:
        """Take the seconds that timing a candidate took from the budget of its graph."""
        self._of(candidate).budget -= seconds

    def found(self, candidate: Candidate, after: float) -> None:
        """Keep the seconds that a replacement takes."""
        least, nodes = self._of(candidate).least, frozenset(candidate.nodes)
        least[nodes] = min(after, least.get(nodes, inf))

    def _share(self, candidate: Candidate, seconds: float) -> float:
        """Return some seconds over those of the graph, times the number of regions that have the
        same operators and types; of a graph that cannot be estimated, infinity.
        """
        graph, known = candidate.planned.match.root.graph, self._of(candidate)
        if known.seconds is None:
            known.seconds = _seconds(graph)
        if not known.seconds:
            return inf
        everywhere, here = work(graph), Counter(map(kind_of, candidate.nodes))
        like = min(everywhere[kind] // count for kind, count in here.items())
        return seconds * like / known.seconds

    def _of(self, candidate: Candidate) -> _Graph:
        graph = candidate.planned.match.root.graph
        if graph not in self._graphs:
            calls = sum(node.op.startswith("call_") for node in graph.nodes)
            budget = max(LEAST, BUDGET * COMPILING * calls)
            self._graphs[graph] = _Graph(signature((), graph), budget)
        return self._graphs[graph]


def _seconds(graph: fx.Graph) -> float:
    """Return an estimate of the time of a graph; 0 where there is none."""
    from pypm.choice.estimates import graph_seconds  # late: most answers are kept

    with suppress(Exception):  # calls without metadata
        return graph_seconds(graph)
    return 0.0
