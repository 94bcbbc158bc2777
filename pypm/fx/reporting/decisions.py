"""Decisions of a choice: the candidates at one place of a graph, and those that were made."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Final, Literal, TypeAlias

from pypm.diagnostics import printable
from pypm.fields import Plain
from pypm.fx.reporting.appraisal import Appraisal, duration

__all__ = ["COLUMNS", "CandidateRecord", "Decision", "Fate", "in_rows", "in_words"]

Fate: TypeAlias = Literal["made", "saves nothing", "overlaps", "impossible"]
"""The fate of a candidate: made; not made, since it saves nothing over leaving the region, or since
another one that overlaps was made; or illegal once others were made."""

SITES: Final = 3
"""The places with equal decisions that are named in the text."""


@dataclass(frozen=True, slots=True)
class CandidateRecord:
    """A legal rewrite that a choice appraised, as text."""

    rule: str
    root: str
    region: tuple[str, ...]
    """The names of its nodes, in graph order."""
    worth: Appraisal
    fate: Fate

    @property
    def _key(self) -> tuple[Hashable, ...]:
        """Return a key that is equal for candidates of equal worth and fate, at whatever node."""
        return self.rule, self.worth, self.fate

    def line(self, *, why: bool) -> str:
        """Return what is known of the candidate, with the source of the figures if `why`."""
        parts = [*self.worth.figures, *filter(None, [self.worth.why if why else ""])]
        chosen = ", chosen" if self.fate == "made" else ""
        fate = [] if chosen or (parts and self.fate == "saves nothing") else [self.fate]
        return f"{printable(self.rule, keep='')}{chosen}: {', '.join([*parts, *fate])}"


@dataclass(frozen=True, slots=True)
class Decision:
    """One place where rewrites compete with each other and with leaving the nodes as they are."""

    candidates: tuple[CandidateRecord, ...]
    """Rewrites that overlap, directly or by others: first those that were made, then by what they
    save."""

    @staticmethod
    def among(candidates: Iterable[CandidateRecord]) -> Decision:
        found = sorted(candidates, key=_order)
        return Decision(tuple(found))

    @property
    def made(self) -> tuple[CandidateRecord, ...]:
        """Return the candidates that were made; none if the nodes were left as they are."""
        return tuple(one for one in self.candidates if one.fate == "made")

    @property
    def root(self) -> str:
        """Return the name of the node that stands for the place."""
        return self.candidates[0].root

    @property
    def is_compared(self) -> bool:
        """Return False if all candidates were made because nothing speaks against them."""
        return any(one.fate != "made" or one.worth.saved < inf for one in self.candidates)

    def inside(self, path: str) -> Decision:
        """Return the decision with its nodes prefixed by `path`."""
        moved = (
            replace(
                one,
                root=f"{path}.{one.root}",
                region=tuple(f"{path}.{name}" for name in one.region),
            )
            for one in self.candidates
        )
        return Decision(tuple(moved))

    def as_dict(self) -> Plain:
        """Return plain data for JSON."""
        found = [{**asdict(one), "worth": one.worth.as_dict()} for one in self.candidates]
        return {"made": [one.rule for one in self.made], "candidates": found}


def _order(one: CandidateRecord) -> tuple[Hashable, ...]:
    return one.fate != "made", -one.worth.saved, one.rule, one.region


def in_words(decisions: Iterable[Decision]) -> Iterator[str]:
    """Yield lines about decisions: equal ones once, and none about a single rewrite that was made,
    whose own record has its worth.
    """
    open_ones = (one for one in decisions if one.made != one.candidates or len(one.made) > 1)
    for sites, decision in _distinct(open_ones):
        chosen = ", ".join(one.rule for one in decision.made)
        what = f"chose {chosen} at {sites}" if chosen else f"left {sites} as it is"
        sources = {one.worth.why for one in decision.candidates}
        source = "".join(f"; {why}" for why in sources if why) if len(sources) == 1 else ""
        yield printable(f"{what}{source}", keep="")
        yield from (f"  {one.line(why=len(sources) > 1)}" for one in decision.candidates)


COLUMNS: Final = ("at", "candidate", "as it is", "replaced", "which is", "at best", "fate")


def in_rows(decisions: Iterable[Decision]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of a table with `COLUMNS`, a row for each candidate; equal decisions once."""
    for sites, decision in _distinct(decisions):
        for number, one in enumerate(decision.candidates):
            worth = one.worth
            times = (worth.before, worth.after, worth.bound)
            before, after, least = ("" if time is None else duration(time) for time in times)
            fate = ", ".join(filter(None, [one.fate, *worth.sides, worth.why]))
            yield "" if number else sites, one.rule, before, after, worth.comparison, least, fate


def _distinct(decisions: Iterable[Decision]) -> Iterator[tuple[str, Decision]]:
    """Yield the first of equal decisions, with the places of all."""
    equal: dict[Hashable, list[Decision]] = {}
    for decision in decisions:
        equal.setdefault(tuple(one._key for one in decision.candidates), []).append(decision)
    for found in equal.values():
        sites = ", ".join(decision.root for decision in found[:SITES])
        more = f" and {len(found) - SITES} more" if len(found) > SITES else ""
        yield f"{sites}{more}", found[0]
