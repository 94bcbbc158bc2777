"""Rewrites that are planned: traced, judged, and not yet applied."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from pypm.core.rules import Rule
from pypm.diagnostics import PyPMError, RewriteError
from pypm.fx.legality.gradients import is_trained
from pypm.fx.legality.region import Refusal
from pypm.fx.matching.attempts import Attempt, Matched, NoMatch, RefusedMatch, SkippedRule
from pypm.fx.matching.match import Match
from pypm.fx.matching.rule_matcher import RuleMatcher
from pypm.fx.operators.dialects import Dialect, dialect_of
from pypm.fx.rewriting.errors import body_failed, graph_edited
from pypm.fx.rewriting.plan import RewritePlan, plan
from pypm.fx.subject.transaction import Transaction
from pypm.fx.subject.view import View
from pypm.fx.tracing.body import Replacement, trace
from pypm.fx.tracing.compile_lock import alone
from pypm.fx.tracing.trace_keys import surroundings, trace_key
from pypm.fx.values.metadata import needs_gradient

__all__ = ["Outcome", "Planned", "Planner", "Raised"]


@dataclass(frozen=True, slots=True)
class Planned:
    """A rewrite that can be applied to the graph as it is now."""

    target: RuleMatcher
    match: Match
    plan: RewritePlan

    @property
    def rule(self) -> Rule:
        return self.target.rule


@dataclass(frozen=True, slots=True)
class Raised:
    """The rule's body raised an error."""

    target: RuleMatcher
    match: Match
    error: PyPMError


Outcome: TypeAlias = SkippedRule | NoMatch | RefusedMatch | Raised | Planned


class Planner:
    """Traces the bodies of rules at legal matches in one graph, and plans their rewrites.

    The graph does not change. Bodies are traced once for all matches with the same trace key.
    """

    def __init__(self, view: View, written_in: Dialect | None, transaction: Transaction) -> None:
        """`written_in` is the dialect of the graph, None if it is not known."""
        self._view = view
        self._written_in = written_in
        self._transaction = transaction
        self._traces: dict[object, Replacement | Refusal] = {}
        self._declining: set[int] = set()
        """Rules whose bodies declined: most decline again at the other matches of a node."""

    @cached_property
    def dialect(self) -> Dialect:
        """The dialect of the graph. To find it out takes as long as a quarter of a search."""
        return self._written_in or dialect_of(self._view.graph)

    @cached_property
    def _trains(self) -> bool:
        """Return whether metadata says of a value that it needs a gradient."""
        return any(map(needs_gradient, self._view.graph.nodes))

    def plan(self, attempt: Attempt) -> Outcome:
        """Plan the rewrite of a match; other attempts are returned as they are."""
        if not isinstance(attempt, Matched):
            return attempt
        target, match = attempt.target, attempt.match
        if match.reading is not None and match.reading.declined is not None:
            return RefusedMatch(
                target, Refusal("declined", match.reading.declined, (match.root,)), match
            )
        try:
            planned = self._planned(target.rule, match)
        except PyPMError as error:
            return Raised(target, match, error)
        if isinstance(planned, Refusal):
            return RefusedMatch(target, planned, match)
        return Planned(target, match, planned)

    def _planned(self, rule: Rule, match: Match) -> RewritePlan | Refusal:
        self._transaction.keep(self._view.graph)
        with self._transaction, alone(by_dispatch=self.dialect.style == "aten"):
            try:
                replacement = self._traced(rule, match)
                if isinstance(replacement, Refusal):
                    return replacement
                return plan(self._view, match.region, match.roots, replacement, self.dialect)
            except PyPMError:
                raise
            except Exception as error:
                raise RewriteError(body_failed(rule, match, error)) from error

    def _traced(self, rule: Rule, match: Match) -> Replacement | Refusal:
        trained = self._trains and is_trained(match.region.roots, self.dialect)
        key = trace_key(rule, match), trained
        known = self._traces.get(key)
        if known is None:
            before = surroundings(match)
            declines = id(rule) in self._declining
            known = trace(rule, match, self.dialect, trained=trained, rehearsed=declines)
            self._traces[key] = known
            if isinstance(known, Refusal) and known.kind == "declined":
                self._declining.add(id(rule))
            if surroundings(match) != before:
                raise RewriteError(graph_edited(rule, match))
        return known
