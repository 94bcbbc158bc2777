"""Near misses: nodes at which rules almost match, grouped by cause."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pypm.diagnostics import Diagnostic
from pypm.fields import Plain
from pypm.fx.explaining.explanation import Explanation, Fails, Matches, Obstacle, Rank
from pypm.match.explain.causes import either_of

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["NearMiss", "NearMisses", "near_misses"]

SHOWN: Final = 8
"""Sites listed in the text, and causes listed in a table."""
NEAREST: Final = 3
"""Near misses that are shown in the text, and are explained in full."""


@dataclass(frozen=True, slots=True)
class NearMiss:
    """Sites where one rule fails for the same cause at the same place of its pattern."""

    sites: tuple[Explanation, ...]
    """In graph order; the first one's obstacles are shown for all, in full for the nearest."""

    @property
    def fails(self) -> Fails:
        """Return the outcome at the first site."""
        outcome = self.sites[0].outcome
        assert isinstance(outcome, Fails)
        return outcome

    @property
    def rule(self) -> str:
        return self.fails.rule

    @property
    def obstacle(self) -> Obstacle:
        return self.fails.obstacle

    @property
    def rank(self) -> Rank:
        """Return the rank of the site that is nearest to a match."""
        return max(s.outcome.rank for s in self.sites if isinstance(s.outcome, Fails))

    def __str__(self) -> str:
        return self.diagnostic.render("near miss")

    @property
    def diagnostic(self) -> Diagnostic:
        """Return the near miss as a diagnostic that points at the pattern."""
        names = [site.node.node for site in self.sites]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        only = " only" if self.fails.is_all and len(self.fails.obstacles) == 1 else ""
        if self.fails.is_left:
            fate = "1 site is left" if len(names) == 1 else f"{len(names)} sites are left"
            fate = f"{fate}: {self.obstacle.words}"
        else:
            fate = "1 site fails" if len(names) == 1 else f"{len(names)} sites fail"
            fate = f"{fate}{only} because {self.obstacle.words}"
        others = [f"after that, {o.words}" for o in self.fails.obstacles[1:]]
        first = [*self.obstacle.notes()]
        if len(names) > 1:
            first[0] = f"for example, {first[0]}"
        return Diagnostic(
            f"`{self.rule}`: {fate}",
            self.obstacle.span,
            notes=(f"at {', '.join(names[:SHOWN])}{more}", *first, *others),
        )


@dataclass(frozen=True, slots=True)
class NearMisses:
    """Matches and near misses of rules in a whole graph, the nearest first."""

    matches: tuple[Explanation, ...]
    groups: tuple[NearMiss, ...]
    far: tuple[Explanation, ...]
    """Calls at which no pattern's root operator was found, the nearest first."""
    lacking: tuple[str, ...] = ()
    """Operators that the rules need and no call of the graph has; only set if nothing matches."""
    elsewhere: str = ""
    """The stage of `torch.compile` at which these operators exist, in words, if known."""

    def __len__(self) -> int:
        return len(self.groups)

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        at = ", ".join(match.node.node for match in self.matches[:SHOWN])
        more = ", ..." if len(self.matches) > SHOWN else ""
        count = f"{len(self.matches)} match" + "es" * (len(self.matches) != 1)
        lines = [count + (f": {at}{more}" if at else "")]
        if self.lacking:
            lines.append(f"\nthe graph has no {either_of(self.lacking)}{self.elsewhere}")
        lines += [f"\n{group}" for group in self.groups[:NEAREST]]
        if len(self.groups) > NEAREST:
            rest = sum(len(group.sites) for group in self.groups[NEAREST:])
            lines.append(f"\n{rest} sites that came less far are left out")
        if self.far and not self.matches and not self.groups:
            lines.append(f"\nno call comes near; the nearest is\n{self.far[0]}")
        return "\n".join(lines)

    def __rich__(self) -> Table:
        from rich.table import Table

        table = Table(title=f"{len(self.matches)} matches, {len(self.far)} calls far from any")
        for column in ("rule", "sites", "because", "for example at"):
            table.add_column(column)
        for group in self.groups[:SHOWN]:
            because = "\nand ".join(obstacle.words for obstacle in group.fails.obstacles)
            site = group.sites[0].node
            table.add_row(group.rule, str(len(group.sites)), because, str(site.source or site.call))
        if len(self.groups) > SHOWN:
            table.caption = f"{len(self.groups) - SHOWN} causes that came less far are left out"
        return table

    def seen_closer(self, explain: Callable[[str], Explanation]) -> NearMisses:
        """Return these near misses with the first sites of the nearest explained once more.

        Arguments:
            explain: returns the explanation at the node of a name.
        """
        nearest, others = self.groups[:NEAREST], self.groups[NEAREST:]
        closer = (
            NearMiss((explain(group.sites[0].node.node), *group.sites[1:])) for group in nearest
        )
        return replace(self, groups=(*sorted(closer, key=_nearest_first), *others))

    def as_dict(self) -> Plain:
        """Return plain data for JSON."""
        return {
            "matches": [match.as_dict() for match in self.matches],
            "groups": [[site.as_dict() for site in group.sites] for group in self.groups],
            "far": len(self.far),
            "lacking": [*self.lacking],
        }

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2)


def near_misses(explanations: Iterable[Explanation]) -> NearMisses:
    """Return explanations of a graph's calls, grouped by cause and ranked by distance.

    Nodes inside a match, or inside a legal rewrite that is left, are not near misses.
    """
    matches: list[Explanation] = []
    failures: list[tuple[Explanation, Fails]] = []
    for explanation in explanations:
        match explanation.outcome:
            case Matches():
                matches.append(explanation)
            case Fails() as fails:
                failures.append((explanation, fails))
    inside = {node for found in matches for node in found.replaced}
    inside.update(node for found, fails in failures for node in _others(found, fails))
    groups: dict[Hashable, list[Explanation]] = {}
    far: list[tuple[Explanation, Fails]] = []
    for explanation, fails in failures:
        if explanation.node.node in inside:
            continue
        if fails.is_near:
            key = (fails.rule, fails.is_all, *(obstacle.key for obstacle in fails.obstacles))
            groups.setdefault(key, []).append(explanation)
        else:
            far.append((explanation, fails))
    ranked = sorted((NearMiss(tuple(g)) for g in groups.values()), key=_nearest_first)
    far.sort(key=lambda pair: pair[1].rank, reverse=True)
    return NearMisses(tuple(matches), tuple(ranked), tuple(found for found, _ in far))


def _others(found: Explanation, fails: Fails) -> Iterator[str]:
    """Yield the nodes beside the root of a legal rewrite that is left."""
    return (node for node in fails.region if node != found.node.node)


def _nearest_first(group: NearMiss) -> tuple[int, ...]:
    return (*(-part for part in group.rank), -len(group.sites))
