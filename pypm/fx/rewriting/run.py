"""One run of rules over a graph: a rewrite at a time, undone as far back as is asked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import perf_counter
from typing import Final

from torch import fx

from pypm.core.rules import Group, Rule, RuleSet
from pypm.diagnostics import BudgetError, InternalError, PyPMError, RewriteError
from pypm.fx.legality.region import Refusal
from pypm.fx.matching.match import Match
from pypm.fx.matching.program import program_of
from pypm.fx.matching.rule_matcher import RuleMatcher
from pypm.fx.matching.search import Candidate, Search
from pypm.fx.matching.uncovered_modules import left_whole
from pypm.fx.operators.dialects import Dialect, dialect_of
from pypm.fx.reporting.model_origins import module_of
from pypm.fx.reporting.node_records import NodeRecord, records_of
from pypm.fx.reporting.recording import Recording
from pypm.fx.reporting.report import RefusalRecord, Report, RewriteRecord, RuleRecord
from pypm.fx.reporting.rewrite_order import Effect, effect, in_graph_order
from pypm.fx.rewriting.errors import Ancestry, body_failed, graph_edited, unsettled
from pypm.fx.rewriting.journal import Journal
from pypm.fx.rewriting.plan import Plan, plan
from pypm.fx.subject.transaction import Transaction
from pypm.fx.subject.view import View
from pypm.fx.tracing.body import Outcome, trace
from pypm.fx.tracing.compile_lock import alone
from pypm.fx.tracing.trace_keys import surroundings, trace_key
from pypm.fx.values.fake_tensors import symbolic_size, unguarded
from pypm.fx.values.metadata import metadata

__all__ = ["Mark", "Run", "Stage"]


@dataclass(eq=False, repr=False)
class Stage:
    """Rules that take their turn together, and where they may match anew."""

    group: Group | None
    rules: frozenset[int]
    """The identities of the rules."""
    waiting: list[fx.Node]
    """Nodes to visit, in graph order."""
    touched: set[fx.Node] = field(default_factory=set)
    """What rewrites changed since the stage was last asked what to visit."""

    def allows(self, target: RuleMatcher) -> bool:
        return id(target.rule) in self.rules


_Refusals = dict[tuple[str, str, fx.Node | None, str], RefusalRecord]


@dataclass(frozen=True, repr=False)
class Mark:
    """How far a run had come: what to go back to."""

    changes: int
    rewrites: int
    refusals: _Refusals
    stages: tuple[tuple[list[fx.Node], set[fx.Node]], ...]


@dataclass
class _Tally:
    attempts: int = 0
    matches: int = 0
    rewrites: int = 0
    seconds: float = 0.0


_NONE: Final = _Tally()


@dataclass(repr=False)
class Run:
    """One call of `rewrite`."""

    graph: fx.Graph
    rules: RuleSet
    written_in: Dialect | None
    """None: to be found out, which takes as long as a quarter of a search."""
    limit: int
    exact: bool
    started: float = field(default_factory=perf_counter)
    rewrites: list[RewriteRecord] = field(default_factory=list)
    changes: list[tuple[fx.Node, ...]] = field(default_factory=list)
    """For each rewrite, the nodes that stay but read others, or have other metadata."""
    effects: list[Effect] = field(default_factory=list)
    places: dict[fx.Node, int] = field(default_factory=dict)
    """Where each node was before the first rewrite; new ones are where the replaced root was."""
    refusals: _Refusals = field(default_factory=dict)
    traces: dict[object, Outcome] = field(default_factory=dict)
    ancestry: dict[fx.Node, Ancestry] = field(default_factory=dict)
    recording: Recording | None = None
    transaction: Transaction = field(default_factory=Transaction)

    def __post_init__(self) -> None:
        self.program = program_of(self.rules)
        self.view = View(self.graph, self.program.reader)
        self.search = Search(self.view, exact=self.exact)
        self.journal = Journal(self.graph, self.view)
        self.tallies: defaultdict[str, _Tally] = defaultdict(_Tally)
        self.stages = [
            Stage(
                stage if isinstance(stage, Group) else None,
                frozenset(map(id, stage.rules)),
                self.view.starts,
            )
            for stage in self.rules.stages()
        ]

    @cached_property
    def dialect(self) -> Dialect:
        return self.written_in or dialect_of(self.graph)

    def settle(self, stage: Stage) -> bool:
        """Apply a stage's rules until none of them matches; gives whether any did."""
        before = len(self.rewrites)
        while todo := self.take(stage):
            for node in reversed(todo):
                self.visit(node, stage)
        return len(self.rewrites) > before

    def visit(self, node: fx.Node, stage: Stage) -> None:
        """Rewrite at one root by the first rule that matches, if one does."""
        if node in self.view.dead or not self.view.is_used(node):
            return
        for target in self.program.at(self.view, node):
            if not stage.allows(target):
                continue
            tally, start = self.tallies[target.rule.name], perf_counter()
            has_rewritten = self.attempt(target, node, tally)
            tally.seconds += perf_counter() - start
            if has_rewritten:
                return

    def take(self, stage: Stage) -> list[fx.Node]:
        """The nodes where a rule of the stage may match anew: those that wait, what was rewritten
        since last asked, and what is computed from it as near as the rules that may match there
        look down; in graph order.
        """
        waiting, stage.waiting = stage.waiting, []
        seen, stage.touched = stage.touched, set()
        if not seen:
            return waiting
        found = set(waiting)
        level, distance = list(seen), 0
        while level and distance <= self.program.reach:
            following: list[fx.Node] = []
            for node in level:
                if node in self.view.dead:
                    continue
                if self.view.states[node].reach >= distance:
                    found.add(node)
                fresh = [user for user in node.users if user not in seen]
                seen.update(fresh)
                following += fresh
            level, distance = following, distance + 1
        return sorted(node for node in found if node.op.startswith("call_"))

    def left(self, node: fx.Node, stage: Stage) -> tuple[Rule, Refusal] | None:
        """The first rule of a settled stage that still matches at a node, and why it is refused."""
        if node in self.view.dead or not self.view.is_used(node):
            return None
        for target in self.program.at(self.view, node):
            if stage.allows(target) and (refusal := self._left(target, node)) is not None:
                return target.rule, refusal
        return None

    def _left(self, target: RuleMatcher, node: fx.Node) -> Refusal | None:
        withheld = self.withheld(target.rule, node)
        for candidate in self._all(target, node):
            if isinstance(candidate, Refusal):
                return candidate
            if withheld is not None:
                return withheld
            planned = self.plan(target.rule, candidate)
            if isinstance(planned, Refusal):
                return planned
            raise InternalError(f"`{target.rule}` can still be applied at `{node}`")
        return None

    def matches(self, target: RuleMatcher, node: fx.Node) -> bool:
        """Whether a rule matches at a node, be it refused or not."""
        return any(True for _ in self._all(target, node))

    def _all(self, target: RuleMatcher, node: fx.Node) -> Iterator[Candidate]:
        """The candidates, without those that the search left out and that may be no matches, nor
        what matches alone where several are wanted.
        """
        if any(True for _ in self.search.candidates(target, node)):
            for candidate in replace(self.search, confining=False).candidates(target, node):
                if not isinstance(candidate, Refusal) or candidate.kind != "alone":
                    yield candidate

    def mark(self) -> Mark:
        """Where the run is now."""
        stages = tuple((list(stage.waiting), set(stage.touched)) for stage in self.stages)
        return Mark(self.journal.mark(), len(self.rewrites), dict(self.refusals), stages)

    def undo(self, mark: Mark) -> None:
        """Go back to a mark: the graph, what is reported, and what is to be visited."""
        self.journal.rollback(mark.changes)
        stale = {node for nodes in self.changes[mark.rewrites :] for node in nodes}
        for record in self.rewrites[mark.rewrites :]:
            self.tallies[record.rule].rewrites -= 1
        for done in (self.rewrites, self.changes, self.effects):
            del done[mark.rewrites :]
        self.refusals = dict(mark.refusals)
        for stage, (waiting, touched) in zip(self.stages, mark.stages, strict=True):
            stage.waiting, stage.touched = list(waiting), set(touched)
        self.view.invalidate([node for node in stale if not node._erased])

    def attempt(self, target: RuleMatcher, node: fx.Node, tally: _Tally) -> bool:
        """Rewrite by one rule at one root, if it matches and may."""
        withheld = self.withheld(target.rule, node)
        if withheld is not None:
            self.refuse(target.rule, node, withheld, once=True)
            return False
        tally.attempts += 1
        matched = False
        for candidate in self.search.candidates(target, node):
            if not matched:
                tally.matches += 1
                matched = True
            if isinstance(candidate, Refusal):
                self.refuse(target.rule, node, candidate)
                continue
            planned = self.plan(target.rule, candidate)
            if isinstance(planned, Refusal):
                self.refuse(target.rule, node, planned)
                continue
            tally.rewrites += 1
            self.apply(target.rule, candidate, planned)
            return True
        return False

    def withheld(self, rule: Rule, node: fx.Node) -> Refusal | None:
        """The reason that a rule's `unless` gives at a root, if it gives one."""
        value = None if rule.unless is None else metadata(node)
        if rule.unless is None or value is None:
            return None
        try:
            with unguarded(getattr(value, "fake_mode", None)):
                reason = rule.unless(value, self.dialect)
        except RuntimeError as error:
            if symbolic_size(error) is None:
                raise
            return None  # the body decides
        return None if reason is None else Refusal("declined", reason, (node,))

    def plan(self, rule: Rule, match: Match) -> Plan | Refusal:
        self.transaction.keep(self.graph)
        with self.transaction, alone(by_dispatch=self.dialect.style == "aten"):
            try:
                outcome = self.trace(rule, match)
                if isinstance(outcome, Refusal):
                    return outcome
                return plan(self.view, match.region, match.roots, outcome, self.dialect)
            except PyPMError:
                raise
            except Exception as error:
                raise RewriteError(body_failed(rule, match, error)) from error

    def trace(self, rule: Rule, match: Match) -> Outcome:
        key = trace_key(rule, match)
        known = self.traces.get(key)
        if known is None:
            before = surroundings(match)
            known = self.traces[key] = trace(rule, match, self.dialect)
            if surroundings(match) != before:
                raise RewriteError(graph_edited(rule, match))
        return known

    def apply(self, rule: Rule, match: Match, planned: Plan) -> None:
        before = records_of(planned.region.nodes)
        earlier = self.ancestry.get(match.root)
        if len(self.rewrites) >= self.limit:
            raise BudgetError(unsettled(rule, self.limit, earlier, self.rewrites))
        if not self.rewrites:
            self.places = {node: place for place, node in enumerate(self.graph.nodes)}
        new, readers, buried = self.journal.splice(planned, rule.name)
        for node in new:
            self.ancestry[node] = Ancestry(rule.name, earlier)
            self.places[node] = self.places[match.root]
        self.effects.append(effect(match.root, planned.region.nodes, new, readers, buried))
        self.rewrites.append(_record(rule, match, planned, before, new))
        if self.recording is not None:
            self.recording.add(len(self.changes), new, readers, buried)
        self.changes.append((*readers, *planned.updates))
        self.view.invalidate([*new, *readers, *planned.updates])
        freed = [source for node in buried for source in node.all_input_nodes]
        others = (*planned.region.inputs, *planned.region.nodes, *planned.updates, *freed)
        touched = {*new, *readers, *[node for node in others if node.op.startswith("call_")]}
        for stage in self.stages:
            stage.touched.update(touched)

    def refuse(self, rule: Rule, node: fx.Node, refusal: Refusal, *, once: bool = False) -> None:
        """Report a refusal: for this node, or `once` for all that there are of it."""
        key = (rule.name, refusal.kind, None if once else node, refusal.reason)
        if key not in self.refusals:
            self.refusals[key] = RefusalRecord(
                rule.name, refusal.kind, refusal.reason, node.name, span=rule.span
            )

    def report(self, others: Iterable[RefusalRecord] = ()) -> Report:
        """What was done, in graph order, with other refusals than those of single rules."""
        names = dict.fromkeys(rule.name for rule in self.rules)
        tallies = ((name, self.tallies.get(name, _NONE)) for name in names)
        rules = tuple(
            RuleRecord(name, t.attempts, t.matches, t.rewrites, t.seconds) for name, t in tallies
        )
        seconds = perf_counter() - self.started
        refusals = (*self.refusals.values(), *others)
        note = left_whole(self.view, self.program)
        order = in_graph_order(self.effects, self.places)
        rewrites = tuple(self.rewrites[i] for i in order)
        report = Report.merge([Report(rewrites, refusals, rules, seconds, note=note)])
        if self.recording is not None:
            self.recording.end(report, order)
        return report


def _record(
    rule: Rule,
    match: Match,
    planned: Plan,
    before: tuple[NodeRecord, ...],
    new: Sequence[fx.Node],
) -> RewriteRecord:
    root = match.root
    bindings = {name: str(value) for name, value in match.bindings.items()}
    trace = root.meta.get("stack_trace")
    made = records_of(new)
    return RewriteRecord(
        rule.name, root.name, before, made, bindings, trace, planned.checked, module_of(root)
    )
