"""What `explain` gives: whether a rule matches at a node, and if not, what is in the way."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias, assert_never

from torch import fx

from pypm.diagnostics import Diagnostic, Span
from pypm.fx.reporting.model_origins import Frame, source_of
from pypm.fx.reporting.node_records import records_of
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
    "place_of",
]


@dataclass(frozen=True, slots=True)
class Refused:
    """The pattern matches, and the match is not replaced: it may not be, or the rule declines.

    `kind` is that of a refusal in a `Report`, or "raised" where the rule's body raised an error.
    """

    kind: str
    reason: str


@dataclass(frozen=True, slots=True)
class Untried:
    """No rule is tried at such a node."""

    reason: str


@dataclass(frozen=True, slots=True)
class Incomplete:
    """One output of the pattern is there, and the others are not, or belong to another match."""

    reason: str


Reason: TypeAlias = Cause | Refused | Incomplete | Untried
"""What keeps a rule from being applied."""
Rank: TypeAlias = tuple[int, ...]
"""How near an attempt came: the larger, the nearer."""


@dataclass(frozen=True, slots=True)
class Place:
    """A node in words, and the line of the model that it comes from."""

    node: str
    call: str
    source: Frame | None = None


def place_of(node: fx.Node) -> Place:
    """A node as a place."""
    (record,) = records_of([node])
    return Place(record.name, str(record), source_of(node))


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One thing that is in the way, where it stands in the pattern, and what was met there."""

    reason: Reason
    span: Span | None
    met: Place

    @property
    def words(self) -> str:
        """The reason as what may stand under the piece of pattern that it is about."""
        match self.reason:
            case Refused("declined", reason):
                return f"it declines: {reason}"
            case Refused(_, reason) | Incomplete(reason) | Untried(reason):
                return reason
            case cause:
                return in_words(cause)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for obstacles of one cause, wherever they are met."""
        match self.reason:
            case Refused("declined" | "raised" | "mismatch"):
                return (self.span, self.reason)
            case Refused(kind):
                return (self.span, kind)
            case Incomplete() | Untried():
                return (self.span, type(self.reason))
            case cause:
                return (self.span, *kind_of(cause))

    def notes(self) -> Iterator[str]:
        """The node that was met, and where the model has it."""
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


@dataclass(frozen=True, slots=True)
class Fails:
    """No rule would be applied: what ended the attempt that came furthest."""

    rule: str
    obstacles: tuple[Obstacle, ...]
    """The first, and what comes up next on the same way where it is a guard that is left out."""
    is_all: bool
    """Whether without these obstacles the pattern matches."""
    rank: Rank = field(repr=False)
    is_near: bool = True
    """Whether at least an operator at the root of the pattern was met."""

    @property
    def obstacle(self) -> Obstacle:
        return self.obstacles[0]


Outcome: TypeAlias = Matches | Fails


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether a rule is applied at a node, and why not. True where it is."""

    node: Place
    outcome: Outcome

    def __bool__(self) -> bool:
        return isinstance(self.outcome, Matches)

    @property
    def replaced(self) -> tuple[str, ...]:
        """The nodes that would be replaced."""
        return self.outcome.region if isinstance(self.outcome, Matches) else ()

    def __str__(self) -> str:
        match self.outcome:
            case Matches(rule, bindings, region):
                bound = ", ".join(f"{name}={value}" for name, value in bindings.items())
                return (
                    f"rule `{rule}` matches at `{self.node.node}`, with {bound}; "
                    f"it replaces {', '.join(region)}"
                )
            case Fails() as fails:
                return self._diagnostic(fails).render("no match")
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

    def as_dict(self) -> dict[str, Any]:
        """As plain data; each outcome and reason says under `kind` what it is."""
        return {"node": asdict(self.node), **_outcome_dict(self.outcome)}

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2)


def _outcome_dict(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, Matches):
        return {"outcome": "matches", **asdict(outcome)}
    obstacles = [_obstacle_dict(obstacle) for obstacle in outcome.obstacles]
    return {
        "outcome": "fails",
        "rule": outcome.rule,
        "obstacles": obstacles,
        "is_all": outcome.is_all,
    }


def _obstacle_dict(obstacle: Obstacle) -> dict[str, Any]:
    return {
        "cause": type(obstacle.reason).__name__,
        "reason": asdict(obstacle.reason),
        "words": obstacle.words,
        "pattern": None if obstacle.span is None else str(obstacle.span),
        "met": asdict(obstacle.met),
    }
