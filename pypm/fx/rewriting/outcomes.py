"""The outcome of a run so far: its rewrites, refusals and counts, from which it is reported."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from time import perf_counter
from typing import Final, TypeAlias, assert_never

from torch import fx

from pypm.core.rules import EXACTNESS, Exactness, Rule
from pypm.diagnostics import BudgetError
from pypm.fx.legality.region import Refusal
from pypm.fx.matching.attempts import NoMatch, RefusedMatch, SkippedRule
from pypm.fx.reporting.appraisal import Appraisal
from pypm.fx.reporting.decisions import CandidateRecord, Decision, Fate
from pypm.fx.reporting.node_records import NodeRecord, module_of, records_of
from pypm.fx.reporting.recording import Recording
from pypm.fx.reporting.report import RefusalRecord, Report, RewriteRecord, RuleRecord
from pypm.fx.reporting.rewrite_order import Effect, effect, in_graph_order
from pypm.fx.rewriting.candidates import Candidate
from pypm.fx.rewriting.errors import Ancestry, unsettled
from pypm.fx.rewriting.journal import Splice
from pypm.fx.rewriting.planner import Outcome, Planned, Raised

__all__ = ["Outcomes"]

_NOT_MADE: Final[Mapping[Fate, str]] = {
    "saves nothing": "leaving it is no slower",
    "overlaps": "an overlapping one is made",
    "impossible": "another one was made before",
}


_Place: TypeAlias = frozenset[tuple[str, tuple[fx.Node, ...]]]
"""Candidates that overlap, by their rules and nodes."""


@dataclass
class _Tally:
    attempts: int = 0
    matches: int = 0
    rewrites: int = 0
    seconds: float = 0.0


_NONE: Final = _Tally()


class Outcomes:
    """The rewrites and refusals of one run over a graph, in the order in which they happen."""

    def __init__(self, graph: fx.Graph, limit: int) -> None:
        """`limit` is how many rewrites there may be."""
        self.rewrites: list[RewriteRecord] = []
        self.recording: Recording | None = None
        self._graph = graph
        self._limit = limit
        self._started = perf_counter()
        self._effects: list[Effect] = []
        """One for each rewrite."""
        self._places: dict[fx.Node, int] = {}
        """The position of each node before the first rewrite; a new node has that of its root."""
        self._ancestry: dict[fx.Node, Ancestry] = {}
        self._refusals: dict[tuple[str, str, fx.Node | None, str], RefusalRecord] = {}
        self._decisions: dict[_Place, tuple[fx.Node, Decision]] = {}
        self._tallies: defaultdict[str, _Tally] = defaultdict(_Tally)

    def alternatives(self, node: fx.Node, outcomes: Iterable[Outcome]) -> Iterator[Planned]:
        """Count the outcomes at a node, each with the time it takes, and yield the planned ones.

        Raises what the body of a rule raised.
        """
        last, start = None, perf_counter()
        for outcome in outcomes:
            target = outcome.target
            tally = self._tallies[target.rule.name]
            if target is not last and not isinstance(outcome, SkippedRule):
                tally.attempts += 1
                tally.matches += not isinstance(outcome, NoMatch)
            last = target
            now = perf_counter()
            tally.seconds += now - start
            match outcome:
                case NoMatch():
                    pass
                case Planned():
                    yield outcome
                    now = perf_counter()
                case RefusedMatch(refusal=refusal):
                    self.refuse(target.rule, node, refusal)
                case SkippedRule(refusal=Refusal("cost")):
                    pass
                case SkippedRule(refusal=refusal):
                    self.refuse(target.rule, None, refusal)
                case Raised(error=error):
                    raise error
                case _:
                    assert_never(outcome)
            start = now

    def refuse(self, rule: Rule, node: fx.Node | None, refusal: Refusal) -> None:
        """Report a refusal once at a node; with None, once in the graph."""
        key = (rule.name, refusal.kind, node, refusal.reason)
        if key not in self._refusals:
            at = refusal.nodes[0] if node is None else node
            self._refusals[key] = RefusalRecord(
                rule.name, refusal.kind, refusal.reason, at.name, span=rule.span
            )

    def check_limit(self, rule: Rule, root: fx.Node) -> None:
        """Raise BudgetError if another rewrite would be one too many."""
        if len(self.rewrites) >= self._limit:
            earlier = self._ancestry.get(root)
            raise BudgetError(unsettled(rule, self._limit, earlier, self.rewrites))
        if not self.rewrites:
            self._places = {node: place for place, node in enumerate(self._graph.nodes)}

    def decided(self, candidates: Sequence[tuple[Candidate, Appraisal, Fate]]) -> None:
        """Report what became of candidates that overlap; only the last time that they do."""
        for candidate, worth, fate in candidates:
            if fate != "made":
                times = str(worth)
                reason = f"{_NOT_MADE[fate]}: {times}" if times else _NOT_MADE[fate]
                root = candidate.planned.match.root
                self.refuse(candidate.rule, root, Refusal("cost", reason))
        decision = Decision.among(
            CandidateRecord(c.rule.name, c.root, tuple(n.name for n in c.nodes), worth, fate)
            for c, worth, fate in candidates
        )
        if decision.is_compared:
            place = frozenset((c.rule.name, c.nodes) for c, _, _ in candidates)
            first = min(c.planned.match.root for c, _, _ in candidates)
            self._decisions[place] = first, decision

    def rewritten(
        self,
        done: Planned,
        before: tuple[NodeRecord, ...],
        splice: Splice,
        worth: Appraisal | None,
    ) -> None:
        """Report a rewrite that was applied, with the nodes that its region had."""
        root, region = done.match.root, done.plan.region
        new, readers, buried = splice
        earlier = self._ancestry.get(root)
        for node in new:
            self._ancestry[node] = Ancestry(done.rule.name, earlier)
            self._places[node] = self._places[root]
        self._effects.append(effect(root, region.nodes, new, readers, buried))
        if self.recording is not None:
            self.recording.add(new, readers, buried)
        self.rewrites.append(_record(done, before, new, worth))
        self._tallies[done.rule.name].rewrites += 1

    def undo(self, rules: Iterable[Rule], refusal: Refusal) -> None:
        """Report that all rewrites so far are undone, and of the rules that made them, why."""
        made = Counter(rewrite.rule for rewrite in self.rewrites)
        for rule in rules:
            if rule.name in made:
                self.refuse(rule, None, refusal)
                self._tallies[rule.name].rewrites -= made.pop(rule.name)
        for kept in (self.rewrites, self._effects, self._places, self._ancestry):
            kept.clear()
        if self.recording is not None:
            self.recording.changes.clear()

    def spent(self, rule: Rule, seconds: float) -> None:
        """Count time that was spent on a rule, beside that of its outcomes."""
        self._tallies[rule.name].seconds += seconds

    def report(self, rules: Iterable[Rule], note: str) -> Report:
        """Return what was done, in graph order."""
        words: dict[str, Exactness] = {}
        for rule in rules:
            words[rule.name] = min(
                rule.exactness, words.get(rule.name, "bitwise"), key=EXACTNESS.index
            )
        tallies = ((name, word, self._tallies.get(name, _NONE)) for name, word in words.items())
        counts = tuple(
            RuleRecord(name, t.attempts, t.matches, t.rewrites, t.seconds, word)
            for name, word, t in tallies
        )
        seconds = perf_counter() - self._started
        refusals = tuple(self._refusals.values())
        order = in_graph_order(self._effects, self._places)
        rewrites = tuple(self.rewrites[i] for i in order)
        found = sorted(self._decisions.values(), key=itemgetter(0))
        decisions = tuple(decision for _, decision in found)
        report = Report.merge(
            [Report(rewrites, refusals, counts, seconds, note=note, decisions=decisions)]
        )
        if self.recording is not None:
            self.recording.end(report, order)
        return report


def _record(
    done: Planned,
    before: tuple[NodeRecord, ...],
    new: Sequence[fx.Node],
    worth: Appraisal | None,
) -> RewriteRecord:
    match, root = done.match, done.match.root
    return RewriteRecord(
        done.rule.name,
        root.name,
        before,
        records_of(new),
        {name: str(value) for name, value in match.bindings.items()},
        root.meta.get("stack_trace"),
        done.plan.checked,
        module_of(root),
        worth,
        done.rule.exactness,
    )
