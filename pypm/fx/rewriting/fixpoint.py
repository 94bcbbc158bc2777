"""Groups of rules: what they do lands together in a graph or a layer, or leaves no trace.

A group is settled by itself where it may match anew. If a match of its rules is left there, or one
of them was never applied, the run goes back to where it was before. A match that is left later on,
by what other rules did since, takes it back to before the group landed; then the group is given up
there for good, so that this ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from torch import fx

from pypm.core.rules import Group, Rule
from pypm.diagnostics import InternalError
from pypm.fx.reporting.appraisal import Appraisal
from pypm.fx.reporting.decisions import CandidateRecord, Decision, Fate
from pypm.fx.reporting.report import RefusalRecord
from pypm.fx.rewriting.layers import layer_of
from pypm.fx.rewriting.run import Run, Stage

__all__ = ["Fixpoint"]

_Place: TypeAlias = tuple[Stage, str | None]
"""A group and a scope of it: a layer, None for what is in none, or the whole graph: ""."""


@dataclass(frozen=True, repr=False)
class _Before:
    """The way back to before a group landed, and the rules of it that were applied since."""

    rollback: Callable[[], None]
    rewrites: int
    """The number of rewrites at that time."""
    fired: frozenset[str] = frozenset()


class Fixpoint:
    """The stages of a run, which take turns until none of them has anything to do."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.landed: dict[_Place, _Before] = {}
        self.refused: dict[_Place, RefusalRecord] = {}
        self.given_up: dict[_Place, RefusalRecord] = {}
        self.visited: dict[_Place, set[fx.Node]] = {}

    def to_fixpoint(self) -> None:
        """From the first stage to the last, and again from the first where one changed the graph.

        What a rewrite may have changed is visited again, and nothing else.
        """
        stages, turn = self.run.stages, 0
        while turn < len(stages):
            stage = stages[turn]
            has_changed = self.run.settle(stage) if stage.group is None else self.land(stage)
            turn = 0 if has_changed and turn else turn + 1

    def records(self) -> Iterator[RefusalRecord]:
        """Yield the reasons why groups did not land."""
        yield from self.given_up.values()
        yield from self.refused.values()

    def land(self, stage: Stage) -> bool:
        """Let a group land wherever it may, a scope at a time; gives whether the graph changed."""
        has_changed = False
        while nodes := stage.worklist.take():
            scopes: dict[str | None, list[fx.Node]] = {}
            for node in nodes:
                scopes.setdefault(_scope(stage, node), []).append(node)
            self.report_outside(stage, scopes.pop(None, []))
            if not scopes:
                continue
            last = max(scopes, key=lambda scope: scopes[scope][-1])
            chosen = scopes.pop(last)
            stage.worklist.waiting = sorted(node for others in scopes.values() for node in others)
            has_changed |= self.attempt((stage, last), chosen)
        return has_changed

    def attempt(self, place: _Place, nodes: Sequence[fx.Node]) -> bool:
        """Settle a group in one scope, and go back if it does not land."""
        if place in self.given_up:
            return False
        rewrites = self.run.outcomes.rewrites
        start = len(rewrites)
        before = self.landed.get(place) or _Before(self.savepoint(), start)
        if place not in self.landed:  # what was undone before matches as it did
            nodes = sorted({*nodes, *self.living(place)})
        self.settle(place, nodes)
        fired = before.fired.union(record.rule for record in rewrites[start:])
        why = self.left(place) or self.missing(place, before, fired)
        if why is not None:
            return self.take_back(place, before, why)
        appraised = self.appraised(place, before)
        if appraised is not None and appraised.worth.saved <= 0:
            has_changed = self.take_back(place, before, _too_dear(place, appraised))
            self.decide(place, nodes[0], appraised, "saves nothing")
            return has_changed
        if appraised is not None:
            self.decide(place, nodes[0], appraised, "made")
        if fired:
            self.refused.pop(place, None)
            self.landed[place] = replace(before, fired=fired)
        return len(rewrites) > start

    def living(self, place: _Place) -> Iterator[fx.Node]:
        """The nodes of a scope at which the group's rules were ever tried, those that are left."""
        return (node for node in self.visited.get(place, ()) if not node._erased)

    def settle(self, place: _Place, nodes: Sequence[fx.Node]) -> None:
        stage, scope = place
        visited = self.visited.setdefault(place, set())
        elsewhere: list[fx.Node] = []
        while nodes:
            visited.update(nodes)
            for node in reversed(nodes):
                self.run.visit(node, stage)
            found = stage.worklist.take()
            nodes = [node for node in found if _scope(stage, node) == scope]
            elsewhere += [node for node in found if _scope(stage, node) != scope]
        stage.worklist.waiting = sorted(set(elsewhere))

    def left(self, place: _Place) -> RefusalRecord | None:
        """Return why a match that is left in a scope is refused: the first from the outputs up."""
        stage, _ = place
        for node in sorted(self.living(place), reverse=True):
            found = self.run.left(node, stage)
            if found is not None:
                rule, refusal = found
                reason = f"rule `{rule}` is refused at `{node}`: {refusal.reason}"
                return _record(place, rule, reason, node.name)
        return None

    def missing(
        self, place: _Place, before: _Before, fired: frozenset[str]
    ) -> RefusalRecord | None:
        """Return the refusal of a rule that was never applied in a scope where others were."""
        group = _group(place[0])
        if not fired:
            return None
        never = next((rule for rule in group.rules if rule.name not in fired), None)
        if never is None:
            return None
        others = self.run.outcomes.rewrites[before.rewrites :]
        root = next(record.root for record in others if record.rule in fired)
        return _record(place, never, f"rule `{never}` never matches", root)

    def appraised(self, place: _Place, before: _Before) -> CandidateRecord | None:
        """The rewrites of a group in a scope as one candidate; None if they were not appraised."""
        done = self.run.outcomes.rewrites[before.rewrites :]
        worths = [record.worth for record in done if record.worth is not None]
        if not worths:
            return None
        new = {name for record in done for name in record.new}
        replaced = dict.fromkeys(node.name for record in done for node in record.before)
        region = tuple(name for name in replaced if name not in new)
        return CandidateRecord(_named(place), done[0].root, region, Appraisal.total(worths), "made")

    def decide(self, place: _Place, first: fx.Node, candidate: CandidateRecord, fate: Fate) -> None:
        """Report whether a group that was appraised has landed in a scope."""
        self.run.outcomes.decide(place, first, Decision((replace(candidate, fate=fate),)))

    def take_back(self, place: _Place, before: _Before, why: RefusalRecord) -> bool:
        """Undo what a group did in a scope and all since; gives whether it had landed there."""
        had_landed = place in self.landed
        before.rollback()
        if had_landed:
            self.given_up[place] = why
        else:
            self.refused.setdefault(place, why)  # the first reason is the one that other rules met
        return had_landed

    def savepoint(self) -> Callable[[], None]:
        """Return a function that goes back to now: the run, and which groups have landed."""
        undo, landed, refused = self.run.savepoint(), dict(self.landed), dict(self.refused)

        def rollback() -> None:
            undo()
            self.landed, self.refused = dict(landed), dict(refused)

        return rollback

    def report_outside(self, stage: Stage, nodes: Sequence[fx.Node]) -> None:
        """Say that a rule of a group matches where there is no layer."""
        place = stage, None
        for node in reversed(nodes):
            if place in self.refused:
                return
            rule = self.run.matching(node, stage)
            if rule is not None:
                reason = f"rule `{rule}` matches at `{node}`, which is in no layer"
                self.refused[place] = _record(place, rule, reason, node.name)


def _group(stage: Stage) -> Group:
    if stage.group is None:
        raise InternalError("rules that are no group cannot land")
    return stage.group


def _scope(stage: Stage, node: fx.Node) -> str | None:
    return "" if _group(stage).per == "graph" else layer_of(node)


def _named(place: _Place) -> str:
    stage, scope = place
    return _group(stage).name + (f" in {scope}" if scope else "")


def _too_dear(place: _Place, candidate: CandidateRecord) -> RefusalRecord:
    reason = "its rewrites together are no faster"
    return _record(place, _group(place[0]).rules[0], reason, candidate.root)


def _record(place: _Place, rule: Rule, reason: str, node: str) -> RefusalRecord:
    return RefusalRecord(_named(place), "group", reason, node, span=rule.span)
