"""Explanations: whether a rule matches at a node, and what prevents it."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TypeAlias, assert_never

from torch import fx

from pypm.diagnostics import Diagnostic, Span
from pypm.fields import Plain
from pypm.fx.matching.match import Match
from pypm.fx.reporting.appraisal import Appraisal
from pypm.fx.reporting.node_records import Frame, records_of, source_of
from pypm.fx.rewriting.candidates import Candidate
from pypm.fx.rewriting.choosing import Offer, best
from pypm.fx.rewriting.planner import Planned
from pypm.fx.rewriting.run import RewriteRun, distinct
from pypm.match.explain.causes import Cause, in_words, kind_of

__all__ = [
    "Explanation",
    "Fails",
    "Incomplete",
    "Matches",
    "Obstacle",
    "Outcome",
    "Place",
    "Rank",
    "Reason",
    "Refused",
    "Untried",
    "chosen",
    "matches",
    "place_of",
]


@dataclass(frozen=True, slots=True)
class Refused:
    """A match of the pattern that is not replaced: illegal, or declined by the rule.

    `kind` is that of a refusal in a `Report`, or "raised" if the rule's body raised an error.
    """

    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Untried:
    """A node at which no rule is tried."""

    reason: str


@dataclass(frozen=True, slots=True)
class Incomplete:
    """A match of one output of the pattern; the others are missing or belong to another match."""

    reason: str


Reason: TypeAlias = Cause | Refused | Incomplete | Untried
"""The reason that a rule is not applied."""
Rank: TypeAlias = tuple[int, ...]
"""The distance that an attempt came: the larger, the nearer to a match."""


@dataclass(frozen=True, slots=True)
class Place:
    """A node's name, its call as text, and the line of the model that it comes from."""

    node: str
    call: str
    source: Frame | None = None


def place_of(node: fx.Node) -> Place:
    """Return the `Place` of a node."""
    (record,) = records_of([node])
    return Place(record.name, str(record), source_of(node))


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One reason that prevents a match, the span of the pattern, and the node found there."""

    reason: Reason
    span: Span | None
    met: Place

    @property
    def words(self) -> str:
        """Return the reason as a label for the span of the pattern."""
        match self.reason:
            case Refused("declined", reason):
                return f"it declines: {reason}"
            case Refused(_, reason) | Incomplete(reason) | Untried(reason):
                return reason
            case cause:
                return in_words(cause)

    @property
    def key(self) -> tuple[Hashable, ...]:
        """Return a key that is equal for obstacles with the same cause, at whatever node."""
        match self.reason:
            case Refused("declined" | "raised" | "mismatch" | "cost"):
                return (self.span, self.reason)
            case Refused(kind):
                return (self.span, kind)
            case Incomplete() | Untried():
                return (self.span, type(self.reason).__name__)
            case cause:
                return (self.span, *kind_of(cause))

    def notes(self) -> Iterator[str]:
        """Yield the node that was found, and the line of the model."""
        yield f"the graph has  {self.met.call}"
        if self.met.source:
            yield f"the model has  {self.met.source}"


@dataclass(frozen=True, slots=True)
class Matches:
    """A rule matches and would be applied."""

    rule: str
    bindings: Mapping[str, str]
    region: tuple[str, ...]
    """The nodes that it would replace."""
    worth: Appraisal | None = None
    """Its worth by a choice; None without one."""


@dataclass(frozen=True, slots=True)
class Fails:
    """No rule would be applied: the obstacles of the attempt that came furthest."""

    rule: str
    obstacles: tuple[Obstacle, ...]
    """The first obstacle; if it is a guard, also those that follow once it is ignored."""
    is_all: bool
    """True if the pattern matches once these obstacles are removed."""
    rank: Rank = field(repr=False)
    is_near: bool = True
    """True if the operator at the root of the pattern was found."""
    region: tuple[str, ...] = ()
    """The nodes of a legal rewrite that is not made because it saves nothing."""

    @property
    def obstacle(self) -> Obstacle:
        return self.obstacles[0]

    @property
    def is_left(self) -> bool:
        """Return whether a legal rewrite is left because of what it costs."""
        return isinstance(self.obstacle.reason, Refused) and self.obstacle.reason.kind == "cost"


Outcome: TypeAlias = Matches | Fails


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer of `explain` at one node; it is true if a rule would be applied."""

    node: Place
    outcome: Outcome

    def __bool__(self) -> bool:
        return isinstance(self.outcome, Matches)

    @property
    def replaced(self) -> tuple[str, ...]:
        """Return the names of the nodes that would be replaced."""
        return self.outcome.region if isinstance(self.outcome, Matches) else ()

    def __str__(self) -> str:
        match self.outcome:
            case Matches(rule, bindings, region, worth):
                bound = ", ".join(f"{name}={value}" for name, value in bindings.items())
                verdict = "" if worth is None else worth.verdict
                return (
                    f"rule `{rule}` matches at `{self.node.node}`, with {bound}; "
                    f"it replaces {', '.join(region)}{verdict and f'; {verdict}'}"
                )
            case Fails() as fails:
                head = "not chosen" if fails.is_left else "no match"
                return self._diagnostic(fails).render(head)
            case _:
                assert_never(self.outcome)

    def _diagnostic(self, fails: Fails) -> Diagnostic:
        first, *others = fails.obstacles
        fate = "is not applied" if isinstance(first.reason, Refused) else "does not match"
        notes = [*first.notes()]
        notes += [f"after that, {o.words}: {o.met.call}" for o in others]
        if fails.is_all:
            notes.append("nothing else is in the way")
        message = f"rule `{fails.rule}` {fate} at `{self.node.node}`"
        if first.span is None:
            return Diagnostic(f"{message}: {first.words}", notes=tuple(notes))
        return Diagnostic(message, first.span, first.words, notes=tuple(notes))

    def __rich__(self) -> str:
        from rich.markup import escape

        colour = "green" if self else "red"
        head, *rest = str(self).splitlines()
        return "\n".join([f"[bold {colour}]{escape(head)}[/]", *map(escape, rest)])

    def as_dict(self) -> Plain:
        """Return plain data for JSON; `outcome` is "matches" or "fails"."""
        return {"node": asdict(self.node), **_outcome_dict(self.outcome)}

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2)


def _outcome_dict(outcome: Outcome) -> Plain:
    if isinstance(outcome, Matches):
        worth = None if outcome.worth is None else outcome.worth.as_dict()
        return {"outcome": "matches", **asdict(outcome), "worth": worth}
    obstacles = [_obstacle_dict(obstacle) for obstacle in outcome.obstacles]
    return {
        "outcome": "fails",
        "rule": outcome.rule,
        "obstacles": obstacles,
        "is_all": outcome.is_all,
    }


def _obstacle_dict(obstacle: Obstacle) -> Plain:
    return {
        "cause": type(obstacle.reason).__name__,
        "reason": asdict(obstacle.reason),
        "words": obstacle.words,
        "pattern": None if obstacle.span is None else str(obstacle.span),
        "met": asdict(obstacle.met),
    }


def chosen(run: RewriteRun, legal: Iterable[Planned]) -> Matches | Fails:
    """Return the legal rewrite at a node that saves most, or why none is made.

    Rewrites at other nodes, which may overlap and save more, do not count.
    """
    candidates = map(Candidate, distinct(legal, set()))
    offers = [Offer(candidate, run.appraise(candidate)) for candidate in candidates]
    for offer in best([offer for offer in offers if offer.saved > 0]):
        return matches(offer.candidate.planned.match, offer.worth)
    return _left(max(offers, key=lambda offer: offer.saved))


def matches(match: Match, worth: Appraisal | None = None) -> Matches:
    """Return the outcome for a match that is replaced."""
    bindings: Mapping[str, str] = {name: str(value) for name, value in match.bindings.items()}
    return Matches(match.rule, bindings, _names(match), worth)


def _left(offer: Offer) -> Fails:
    rule, match = offer.candidate.rule, offer.candidate.planned.match
    reason = Refused("cost", f"legal; {offer.worth.verdict or 'it is not worth it'}")
    obstacle = Obstacle(reason, rule.span, place_of(match.root))
    return Fails(rule.name, (obstacle,), is_all=False, rank=(4,), region=_names(match))


def _names(match: Match) -> tuple[str, ...]:
    return tuple(node.name for node in match.region.nodes)
