"""One run of rules over a graph: a rewrite at a time, until none of them matches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from time import perf_counter
from typing import Final, TypeAlias

from torch import fx

from pypm.core.rules import Exactness, RuleSet, as_exactness
from pypm.fx.matching.attempts import Attempt, Attempts, Matched
from pypm.fx.matching.program import operators, program_of
from pypm.fx.matching.rule_matcher import RuleMatcher
from pypm.fx.matching.search import MatchSearch
from pypm.fx.matching.uncovered_modules import left_whole
from pypm.fx.operators.dialects import Dialect
from pypm.fx.operators.effects import is_view
from pypm.fx.reporting.appraisal import Appraisal
from pypm.fx.reporting.decisions import Fate
from pypm.fx.reporting.node_records import records_of
from pypm.fx.reporting.report import Report
from pypm.fx.rewriting.candidates import Candidate, Choice, appraised, check_choice, first
from pypm.fx.rewriting.choosing import Offer, as_in_wholes, best, places
from pypm.fx.rewriting.journal import Journal
from pypm.fx.rewriting.outcomes import Outcomes
from pypm.fx.rewriting.planner import Planned, Planner
from pypm.fx.rewriting.worklist import Worklist
from pypm.fx.subject.transaction import Transaction
from pypm.fx.subject.view import View

__all__ = ["RewriteRun", "distinct"]

_MATCHES: Final = 16
"""The most matches of one rule at one node that are appraised."""


class RewriteRun:
    """One call of `rewrite`."""

    def __init__(
        self,
        graph: fx.Graph,
        rules: RuleSet,
        dialect: Dialect | None = None,
        *,
        outcomes: Outcomes | None = None,
        exactness: Exactness = "reassociated",
        choose: Choice = first,
        transaction: Transaction | None = None,
    ) -> None:
        """`outcomes` takes the rewrites, and bounds them; `choose` says what each is worth, and
        `exactness` the least word of a rule that is accepted.

        Without a `dialect`, it is found out if it is needed. `transaction` puts the graph back
        where the body of a rule raises. Raises PyPMError if `choose` cannot be called, or for
        another `exactness`.
        """
        check_choice(choose)
        self.graph = graph
        self.rules = rules
        self.choose = choose
        present = None if choose is first else operators(graph)
        self.program = program_of(rules, in_order=choose is first, present=present)
        self.view = View(graph, self.program.reader)
        self.journal = Journal(graph, self.view)
        self.outcomes = outcomes or Outcomes(graph, 0)
        self.planner = Planner(self.view, dialect, transaction or Transaction())
        self.attempts = Attempts(
            self.program,
            MatchSearch(self.view),
            dialect=lambda: self.planner.dialect,
            compares=choose is not first,
            exactness=as_exactness(exactness),
        )
        self.widen()
        self.worklist = Worklist(self.view, self.program.reach)

    def widen(self) -> None:
        """Have a program with all operators of the graph, if it has some that were left out."""
        if not self.view.states.missed:
            return
        while missed := self.view.states.missed:  # what is compiled now may name others
            present = missed.union(self.program.present or ())
            self.program = program_of(self.rules, in_order=False, present=frozenset(present))
            self.view.read_by(self.program.reader)
        self.attempts = replace(self.attempts, program=self.program)

    def settle(self) -> None:
        """Apply the rules until none of them matches.

        What a rewrite may have changed is visited again, and nothing else.
        """
        while todo := self.worklist.take():
            if self.choose is first:
                for node in reversed(todo):
                    self.visit(node)
            else:
                self.choose_among(reversed(todo))

    def visit(self, node: fx.Node) -> bool:
        """Apply the first rewrite at a node, whatever it is worth; return whether there was one."""
        planned = next(self.planned(node), None)
        if planned is not None:
            self.apply(planned)
        return planned is not None

    def planned(
        self, node: fx.Node, wanted: Callable[[Attempt], bool] | None = None
    ) -> Iterator[Planned]:
        """Yield the rewrites at a node in the order of the rules, each planned when asked for.

        Attempts that are not `wanted` are passed over.
        """
        if node not in self.view.dead and self.view.is_used(node):
            attempts = (a for a in self.attempts.at(node) if wanted is None or wanted(a))
            yield from self.outcomes.alternatives(node, map(self.planner.plan, attempts))

    def choose_among(self, nodes: Iterable[fx.Node]) -> None:
        """Appraise the rewrites at some nodes, and apply those that save most together."""
        found = self.different(nodes)
        offers = as_in_wholes([Offer(each, self.appraise(each)) for each in found])
        fates: dict[Offer, Fate] = {
            offer: "overlaps" if offer.saved > 0 else "saves nothing" for offer in offers
        }
        for offer in best([offer for offer in offers if offer.saved > 0]):
            planned = offer.candidate.planned
            root, nodes = planned.match.root, planned.plan.region.nodes
            current = self.current(self.program.targets[planned.target.number], root, nodes)
            fates[offer] = "impossible" if current is None else "made"
            if current is not None:
                self.apply(current, offer.worth)
        for place in places(offers):
            self.outcomes.decided([(offer.candidate, offer.worth, fates[offer]) for offer in place])

    def different(self, nodes: Iterable[fx.Node]) -> Iterator[Candidate]:
        """Yield the rewrites at some nodes, in order.

        Of the matches of one rule whose regions differ in views alone, the first that can be
        replaced counts; the others are not even planned. A part of a larger one's region does not
        count: it leaves work beside the same replacement.
        """
        regions: set[Key] = set()

        def is_new(attempt: Attempt) -> bool:
            return not isinstance(attempt, Matched) or _key(attempt) not in regions

        for node in nodes:
            yield from _largest([*map(Candidate, distinct(self.planned(node, is_new), regions))])

    def appraise(self, candidate: Candidate) -> Appraisal:
        """Ask what a rewrite is worth; the time counts for its rule."""
        start = perf_counter()
        worth = appraised(self.choose, candidate)
        self.outcomes.spent(candidate.rule, perf_counter() - start)
        return worth

    def current(
        self, target: RuleMatcher, root: fx.Node, nodes: tuple[fx.Node, ...]
    ) -> Planned | None:
        """Plan a rewrite of these nodes in the graph as it is now; None if it is not possible."""
        if root in self.view.dead or not self.view.is_used(root):
            return None
        for outcome in map(self.planner.plan, self.attempts.at(root, targets=[target])):
            if isinstance(outcome, Planned) and outcome.plan.region.nodes == nodes:
                return outcome
        return None

    def apply(self, chosen: Planned, worth: Appraisal | None = None) -> None:
        """Apply a planned rewrite, and put what it may affect on the worklist."""
        start = perf_counter()
        rule, region, updates = chosen.rule, chosen.plan.region, chosen.plan.updates
        before = records_of(region.nodes)
        self.outcomes.check_limit(rule, chosen.match.root)
        splice = self.journal.splice(chosen.plan, rule.name)
        self.outcomes.rewritten(chosen, before, splice, worth)
        self.widen()
        freed = [source for node in splice.buried for source in node.all_input_nodes]
        others = (*region.inputs, *region.nodes, *updates, *freed)
        calls = [node for node in others if node.op.startswith("call_")]
        self.worklist.touch((*splice.new, *splice.readers, *calls))
        self.outcomes.spent(rule, perf_counter() - start)

    def report(self, rules: RuleSet) -> Report:
        """Return the report of what was done, by these rules."""
        return self.outcomes.report(rules, left_whole(self.view, self.program))


Key: TypeAlias = tuple[int, tuple[fx.Node, ...]]
"""Return what matches that differ in views alone share: the rule, and the other nodes."""


def distinct(planned: Iterable[Planned], regions: set[Key]) -> Iterator[Planned]:
    """Yield the rewrites at one node whose regions are not among `regions`, and add these there.

    Of one rule, they are at most 16.
    """
    counts: Counter[int] = Counter()
    for each in planned:
        key = _key(each)
        if key not in regions and counts[key[0]] < _MATCHES:
            counts[key[0]] += 1
            regions.add(key)
            yield each


def _largest(at_a_node: list[Candidate]) -> Iterator[Candidate]:
    """Yield those whose region is no part of that of another candidate of their rule."""
    regions = [frozenset(each.nodes) for each in at_a_node]
    for each, region in zip(at_a_node, regions, strict=True):
        others = zip(at_a_node, regions, strict=True)
        if not any(other.rule is each.rule and wider > region for other, wider in others):
            yield each


def _key(found: Matched | Planned) -> Key:
    """Return a key that is equal for matches of one rule whose regions differ in views alone."""
    nodes = found.match.region.nodes
    return id(found.target.rule), tuple(node for node in nodes if not is_view(node))
