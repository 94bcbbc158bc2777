"""`explain`: the reason for which rules do not match at a node, or the near misses of a graph.

The engine itself decides whether a rule matches. If it does not, the same search runs again on
watched patterns (`pypm.match.explain.watch`), and the attempt that came furthest is reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Final, TypeAlias, assert_never, overload

from torch import fx

from pypm.core.operators import LITERAL
from pypm.core.patterns import Pattern
from pypm.core.python_settings import with_room
from pypm.core.rules import Exactness, Rules, RuleSet, as_rule_set
from pypm.core.traverse import pattern_span
from pypm.diagnostics import BudgetError, InternalError, RewriteError, Span
from pypm.fx.explaining.explanation import (
    Explanation,
    Fails,
    Incomplete,
    Matches,
    Obstacle,
    Refused,
    Untried,
    chosen,
    matches,
    place_of,
)
from pypm.fx.explaining.near_misses import NearMisses, near_misses
from pypm.fx.legality.region import Refusal
from pypm.fx.matching.attempts import Attempt, Matched, NoMatch, RefusedMatch, SkippedRule
from pypm.fx.matching.opened_modules import OpenedModules
from pypm.fx.matching.patterns_as_rules import as_rule
from pypm.fx.matching.program import operators_of
from pypm.fx.matching.rule_matcher import RuleMatcher
from pypm.fx.matching.search import Allowance
from pypm.fx.operators.dialects import Dialect
from pypm.fx.rewriting.candidates import Choice, first
from pypm.fx.rewriting.planner import Outcome, Planned, Raised
from pypm.fx.rewriting.run import RewriteRun
from pypm.fx.rewriting.writes_as_values import WritesAsValues
from pypm.fx.subject.calls import rearranges
from pypm.fx.subject.index_states import StateReader
from pypm.fx.subject.order import check_order
from pypm.fx.subject.transaction import Transaction
from pypm.fx.subject.view import View, node_of
from pypm.fx.values.user_input import check_module, nodes_of
from pypm.lang.pattern_function import PatternFunction
from pypm.match.compile.lower import Compiler
from pypm.match.explain.causes import value_text
from pypm.match.explain.watch import Failure, Watch
from pypm.match.index import Index
from pypm.match.matcher import Matcher
from pypm.match.requirements import TermSizes, lacking
from pypm.match.search_state import Subject

__all__ = ["Asked", "Explainer", "explain"]

Asked: TypeAlias = Rules | PatternFunction | Pattern
"""Rules, or a pattern, as for `find`."""

STEPS: Final = 100_000
"""The budget of one watched search; the report uses what it has seen when the budget ends."""
GLANCE: Final = 500
"""The same at a glance, as every node of a graph gets it."""
CANDIDATES: Final = 20
"""The largest number of refused matches that are compared to find the nearest one."""
ENDS: Final = 4
"""The largest number of equally far attempts of which the one with the fewest obstacles counts."""
GUARDS: Final = 4
"""The largest number of failed guards that are ignored to find further obstacles."""


@overload
def explain(
    gm: fx.GraphModule,
    rules: Asked,
    at: fx.Node | str,
    *,
    exactness: Exactness = ...,
    dialect: Dialect | None = ...,
    choose: Choice = ...,
) -> Explanation: ...
@overload
def explain(
    gm: fx.GraphModule,
    rules: Asked,
    at: None = ...,
    *,
    exactness: Exactness = ...,
    dialect: Dialect | None = ...,
    choose: Choice = ...,
) -> NearMisses: ...
def explain(
    gm: fx.GraphModule,
    rules: Asked,
    at: fx.Node | str | None = None,
    *,
    exactness: Exactness = "reassociated",
    dialect: Dialect | None = None,
    choose: Choice = first,
) -> Explanation | NearMisses:
    """Return the reason for which rules do not match at a node, or the near misses of a graph.

    Arguments:
        gm: the graph module; it is not changed.
        rules: a rule, rules, or a pattern, as for `find`.
        at: the node, or its name. Without it, the result is the near misses of the whole graph.
        exactness: the least word of a rule whose matches count, as for `rewrite`.
        dialect: the dialect of the graph, as for `rewrite`; by default, it is recognized.
        choose: what each rewrite is worth, as for `rewrite`: one that saves nothing is explained by
            its times. `measured(seconds=0)` knows those that are kept, and times nothing.

    The explanation is true if `rewrite`, called with the same arguments, would begin by applying a
    rule at that node, whether or not another rewrite that overlaps saves more. Of several rules, it
    is about the one that came furthest. Raises PyPMError if `gm` is not a graph module, has no such
    node, or its graph is not in order; RewriteError if `choose` raises or returns no number.
    """
    check_module(gm, "pypm.fx.explain")
    with Transaction() as transaction:
        named = operators_of(_rules(rules)[0])
        values = WritesAsValues(gm.graph, named, transaction)
        modules = OpenedModules(gm.graph, named, transaction)
        explainer = Explainer(gm.graph, rules, exactness, dialect, choose)
        found: Explanation | NearMisses = (
            explainer.near_misses() if at is None else explainer.at(*nodes_of(gm.graph, [at]))
        )
        modules.close(has_changed=False)
        values.close(has_changed=False)
    return found


class Explainer:
    """Explanations of rules on one graph, which must not change meanwhile."""

    def __init__(
        self,
        graph: fx.Graph,
        asked: Asked,
        exactness: Exactness = "reassociated",
        dialect: Dialect | None = None,
        choose: Choice = first,
    ) -> None:
        check_order(graph)
        self.rules, self.rewrites = _rules(asked)
        self.run = RewriteRun(graph, self.rules, dialect, exactness=exactness, choose=choose)
        self.attempts = replace(self.run.attempts, is_match_first=True)
        if not self.rewrites:
            self.attempts = replace(self.attempts, dialect=None)
        self.steps = STEPS
        """The budget of each watched search."""

    @property
    def calls(self) -> list[fx.Node]:
        """Return the nodes of the graph at which rules can match."""
        return [node for node in self.run.graph.nodes if node.op.startswith("call_")]

    def near_misses(self, calls: Iterable[fx.Node] | None = None) -> NearMisses:
        """Return matches and near misses at calls: the nearest in full, the others at a glance."""
        self.steps = GLANCE
        try:
            found = near_misses(map(self.at, self.calls if calls is None else calls))
        finally:
            self.steps = STEPS
        found = found.seen_closer(lambda site: self.at(*nodes_of(self.run.graph, [site])))
        return found if found.matches else replace(found, lacking=self.lacking)

    @property
    def lacking(self) -> tuple[str, ...]:
        """Return the operators that the graph lacks, if each rule requires one of these."""
        present = {self.run.view.occurrence(node).operator.name for node in self.calls}
        needs = [
            frozenset().union(*(lacking(root, present) for root in rule.roots))
            for rule in self.rules
        ]
        return tuple(sorted(frozenset().union(*needs))) if all(needs) else ()

    def at(self, node: fx.Node) -> Explanation:
        """Return whether rules match at one node, and the reason."""
        return Explanation(place_of(node), self._outcome(node))

    def _outcome(self, node: fx.Node) -> Matches | Fails:
        """Return the first match at a node, or else the failure that came nearest to one.

        If the search of a rule exceeds its budget, the result is that refusal.
        """
        untried = self._untried(node)
        if untried is not None:
            obstacle = Obstacle(Untried(untried), None, place_of(node))
            return Fails(self.rules.name, (obstacle,), is_all=False, rank=(), is_near=False)
        refused, legal = list[Fails](), list[Planned]()
        for outcome in self.outcomes(self.attempts.at(node)):
            match outcome:
                case Matched(match=match):
                    return matches(match)
                case Planned(match=match):
                    if self.run.choose is first:
                        return matches(match)
                    legal.append(outcome)
                case RefusedMatch(refusal=Refusal("budget")):
                    return self.refusal(outcome, node)
                case RefusedMatch() | SkippedRule() | Raised():
                    refused.append(self.refusal(outcome, node))
                case NoMatch():
                    pass
                case _:
                    assert_never(outcome)
        if legal:
            return chosen(self.run, legal)
        attempts = [self._attempt(target, node) for target in self.run.program.targets]
        found = [fails for fails in attempts if fails is not None] or refused
        if not found:
            raise InternalError(f"nothing keeps {self.rules.name} from matching at `{node}`")
        return max(found, key=lambda fails: fails.rank)

    def _untried(self, node: fx.Node) -> str | None:
        """Return the reason for which no rule is tried at a node; None if some are."""
        if not node.op.startswith("call_"):
            return f"`{node}` is no call: rules match at calls"
        if node in self.run.view.dead or (self.rewrites and not self.run.view.is_used(node)):
            return f"nothing uses the value of `{node}`"
        return None if len(self.rules) else "there are no rules"

    def _attempt(self, target: RuleMatcher, node: fx.Node) -> Fails | None:
        """Return what ended the attempt of one target; None if the watched searches do not tell."""
        return self._late.attempt(target, node) or self._early.attempt(target, node)

    @cached_property
    @with_room
    def _late(self) -> _Watched:
        return _Watched(self, late=True)

    @cached_property
    @with_room
    def _early(self) -> _Watched:
        """Return the rules with early guards, as the engine has them.

        A late guard may know more, and hold where the engine's does not.
        """
        return _Watched(self, late=False)

    def outcomes(self, attempts: Iterator[Attempt]) -> Iterator[Matched | Outcome]:
        """Return the outcomes of attempts; a match of a pattern is not planned."""
        return map(self.run.planner.plan, attempts) if self.rewrites else attempts

    def refusal(self, outcome: SkippedRule | RefusedMatch | Raised, node: fx.Node) -> Fails:
        """Return a match that is not applied as the end of an attempt."""
        rule, about, is_legal = outcome.target.rule, node, True
        match outcome:
            case Raised(error=error):
                reason = Refused("raised", error.diagnostic.message)
            case SkippedRule(refusal=refusal):
                reason = Refused(refusal.kind, refusal.reason)
            case RefusedMatch(refusal=refusal, match=match):
                reason, is_legal = Refused(refusal.kind, refusal.reason), match is not None
                about = node if is_legal else refusal.node or node
            case _:
                assert_never(outcome)
        span = None if is_legal else self._late.span(about)
        obstacle = Obstacle(reason, span or rule.span, place_of(about))
        return Fails(rule.name, (obstacle,), is_all=False, rank=(3 if is_legal else 2,))


class _Watched:
    """The rules of an explainer with watched matchers."""

    def __init__(self, explainer: Explainer, *, late: bool) -> None:
        self.explainer = explainer
        self.watch = Watch(Index(), _show, _computes)
        self.sizes = TermSizes()
        plain = Compiler(self.watch.index)
        self.twins: dict[RuleMatcher, RuleMatcher] = {}
        for target in explainer.run.program.targets:
            whole = target.whole
            if whole is not None:
                whole = replace(whole, matcher=Matcher(whole.roots, plain))
            matcher = self.watch.matcher(target.roots, late=late)
            self.twins[target] = replace(target, matcher=matcher, whole=whole)
        view = View(explainer.run.graph, StateReader(self.watch.index))
        self.search = replace(explainer.attempts.search, view=view, confining=False)

    def span(self, node: fx.Node) -> Span | None:
        """Return the span of the operator pattern that visited a node last, or None."""
        return self.watch.spans.get(self.search.view.occurrence(node))

    def attempt(self, target: RuleMatcher, node: fx.Node) -> Fails | None:
        """Return what ended the furthest attempt; None if the target matches."""
        self.watch.forget()
        nearest: Fails | None = None
        attempts = islice(self._attempts(target, node), CANDIDATES)
        for outcome in self.explainer.outcomes(iter([*attempts])):
            match outcome:
                case Matched() | Planned():
                    return None
                case RefusedMatch() | SkippedRule() | Raised():
                    fails = self.explainer.refusal(outcome, node)
                    nearest = fails if nearest is None or fails.rank > nearest.rank else nearest
                case NoMatch():
                    pass
                case _:
                    assert_never(outcome)
        if nearest is not None:
            return nearest
        ends = self.watch.ends[: ENDS if self.explainer.steps == STEPS else 1]
        if not ends or not ends[0].progress[0]:
            incomplete = self._incomplete(target, node)
            if incomplete is not None or not ends:
                return incomplete
        ended = (self._ended(target, node, end) for end in ends)
        return max(ended, key=lambda fails: fails.rank)

    def _attempts(
        self, target: RuleMatcher, node: fx.Node, steps: int | None = None
    ) -> Iterator[Attempt]:
        """Yield the results of the watched search at a node, until its budget ends.

        If nothing failed until then, as in a pattern of many operators, it gets more steps.
        """
        steps = steps or self.explainer.steps
        search = replace(self.search, allowance=Allowance(steps))
        attempts = replace(self.explainer.attempts, search=search)
        for attempt in attempts.at(node, targets=[self.twins[target]]):
            match attempt:
                case RefusedMatch(refusal=Refusal("budget")):
                    if self.watch.furthest is None and steps < STEPS:
                        yield from self._attempts(target, node, 2 * steps)
                    return
                case NoMatch():
                    return
                case Matched() | SkippedRule() | RefusedMatch():
                    yield attempt
                case _:
                    assert_never(attempt)

    def _ended(self, target: RuleMatcher, node: fx.Node, furthest: Failure) -> Fails:
        """Return the obstacles of an attempt: its mismatch, and further ones if that is a guard."""
        self.watch.forget()
        obstacles = [self._obstacle(furthest, target, node)]
        failure: Failure | None = furthest
        is_all = False
        while failure is not None and failure.is_guard and len(obstacles) <= GUARDS:
            self.watch.lift(failure)
            try:
                attempt = next(self._attempts(target, node), None)
            except RewriteError:  # of a predicate that relies on the guard
                break
            failure = None
            match attempt:
                case Matched():
                    is_all = True
                case RefusedMatch() | SkippedRule():
                    obstacles += self.explainer.refusal(attempt, node).obstacles
                case NoMatch() | None:
                    failure = self.watch.furthest
                    if failure is not None:
                        obstacles.append(self._obstacle(failure, target, node))
                case _:
                    assert_never(attempt)
        known, computing, *rest = furthest.progress
        fewer = -len(obstacles)
        whole = sum(map(self.sizes.of, target.roots))
        share = round(100 * min(computing / max(whole, 1), 1))
        rank = (1, is_all, fewer if is_all else 0, known, share, computing, fewer, *rest)
        is_near = is_all or any(furthest.progress[:3])
        return Fails(target.rule.name, tuple(obstacles), is_all, rank, is_near)

    def _obstacle(self, failure: Failure, target: RuleMatcher, node: fx.Node) -> Obstacle:
        nodes = map(node_of, failure.subjects)
        met = next((found for found in nodes if found is not None), node)
        return Obstacle(failure.cause, failure.span or target.rule.span, place_of(met))

    def _incomplete(self, target: RuleMatcher, node: fx.Node) -> Fails | None:
        """Return the obstacle of a rule of which only the first output matches; else None."""
        twin, rule = self.twins[target], target.rule
        if len(rule.roots) == 1:
            return None
        subject = self.search.view.occurrence(node)
        answers = twin.matcher.answers(subject, budget=STEPS)
        try:
            if next(answers, None) is None:
                return None
        except BudgetError:
            return None
        reason, span = f"`{node}` is an output of a match that has more outputs", rule.span
        if len(target.present) > 1:
            reason = f"no node beside `{node}` may be the other output"
            span = pattern_span(target.roots[1]) or span
        obstacle = Obstacle(Incomplete(reason), span, place_of(node))
        return Fails(rule.name, (obstacle,), is_all=False, rank=(2,))


def _rules(asked: Asked) -> tuple[RuleSet, bool]:
    """Return the rule set to explain, and whether its rules replace anything."""
    if not isinstance(asked, Pattern | PatternFunction):
        return as_rule_set(asked), True
    rule = as_rule(asked)
    return RuleSet((rule,), rule.name), False


def _computes(subject: Subject) -> bool:
    """Return whether a subject's operator does more than view or copy."""
    node = node_of(subject)
    return node is None or not rearranges(node)


def _show(subject: Subject) -> str:
    """Return the name of a subject's node, or its value as text."""
    node = node_of(subject)
    if node is not None:
        return f"`{node}`"
    return value_text(subject.term) if subject.operator == LITERAL else "a list"
