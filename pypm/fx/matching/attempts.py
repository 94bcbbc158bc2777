"""Attempts of rules at a node: the only module that tries whether rules match there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from torch import fx

from pypm.core.rules import ON_REQUEST, Exactness, Rule
from pypm.fx.legality.region import Refusal
from pypm.fx.matching.match import Match
from pypm.fx.matching.program import RuleProgram
from pypm.fx.matching.rule_matcher import RuleMatcher
from pypm.fx.matching.search import Known, MatchSearch
from pypm.fx.operators.dialects import Dialect
from pypm.fx.values.fake_tensors import symbolic_size, unguarded
from pypm.fx.values.metadata import metadata

__all__ = ["Attempt", "Attempts", "Matched", "NoMatch", "RefusedMatch", "SkippedRule"]


@dataclass(frozen=True, slots=True)
class SkippedRule:
    """The rule's `pays` or `unless` is a reason not to apply the rule at this node."""

    target: RuleMatcher
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class NoMatch:
    """The rule does not match; its search ended within its budget."""

    target: RuleMatcher


@dataclass(frozen=True, slots=True)
class RefusedMatch:
    """A match that is illegal or not exact enough, or a search that exceeded its budget."""

    target: RuleMatcher
    refusal: Refusal
    match: Match | None = None
    """The legal match whose replacement is refused; None where the match itself is refused."""


@dataclass(frozen=True, slots=True)
class Matched:
    """A legal match."""

    target: RuleMatcher
    match: Match


Attempt: TypeAlias = SkippedRule | NoMatch | RefusedMatch | Matched


@dataclass(frozen=True)
class Attempts:
    """The rules of a program, tried one after the other at a node of a graph."""

    program: RuleProgram
    search: MatchSearch
    dialect: Callable[[], Dialect] | None = None
    """Returns the dialect of the graph, an argument of `unless`; None: `unless` is not called."""
    compares: bool = True
    """False if rewrites are applied whatever they cost: `SkippedRule` are then the rules that pay
    sometimes.
    """
    exactness: Exactness = "reassociated"
    """The least word of a rule whose matches are accepted."""
    is_match_first: bool = False
    """True if `unless` is called only after a match, so that each `SkippedRule` is of a rule that
    matches; False if it is called first, which saves the search.
    """

    def at(
        self, node: fx.Node, *, targets: Iterable[RuleMatcher] | None = None
    ) -> Iterator[Attempt]:
        """Yield the results of each target at a node, in order; each is computed on demand.

        A target yields one `SkippedRule`, one `NoMatch`, or its matches: `RefusedMatch` and
        `Matched` in the order of the search. By default the targets are those that the index
        admits. The graph must not change before the last attempt; targets that seek the same are
        searched for once.
        """
        search = self.search
        known: Known = {}
        for target in self.program.at(search.view, node) if targets is None else targets:
            if not self.is_match_first and (reason := self._unless(target.rule, node)) is not None:
                yield SkippedRule(target, reason)
                continue
            has_answer = False
            for candidate in search.candidates(target, node, known):
                has_answer = True
                if isinstance(candidate, Refusal):
                    yield RefusedMatch(target, candidate)
                elif self.is_match_first and (reason := self._unless(target.rule, node)):
                    yield SkippedRule(target, reason)
                    break
                elif not target.rule.keeps(self.exactness):
                    words = f"the rule is {target.rule.exactness}, not {self.exactness}"
                    yield RefusedMatch(target, Refusal("exactness", words, (node,)), candidate)
                    break
                else:
                    yield Matched(target, candidate)
            if not has_answer:
                yield NoMatch(target)

    def _unless(self, rule: Rule, node: fx.Node) -> Refusal | None:
        """Return the reason that a rule's `pays` or `unless` gives at a node, or None."""
        if self.dialect is None:
            return None
        if rule.pays in ON_REQUEST and not self.compares:
            return Refusal("cost", "it is applied only where it was found to be faster", (node,))
        if rule.unless is None:
            return None
        value = metadata(node)
        if value is None:
            return None
        try:
            with unguarded(getattr(value, "fake_mode", None)):
                reason = rule.unless(value, self.dialect())
        except RuntimeError as error:
            if symbolic_size(error) is None:
                raise
            return None  # the body decides
        return None if reason is None else Refusal("declined", reason, (node,))
