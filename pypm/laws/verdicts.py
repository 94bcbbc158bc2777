"""Verdicts on rules, as values, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final, TypeAlias, assert_never

from pypm.fields import Plain

__all__ = [
    "WORDS",
    "Law",
    "Laws",
    "Open",
    "Parted",
    "ProofExtent",
    "Proved",
    "Refuted",
    "extent",
    "parting",
]


@dataclass(frozen=True)
class ProofExtent:
    """The extent of a verdict."""

    cases: int
    """Equations between pattern and replacement, one for each choice of alternates and shapes."""
    lemmas: int
    """Equations between a pattern that is called and its meaning, of one kind of arguments each."""
    ranks: tuple[int, ...]
    """Ranks of the results."""
    conditions: tuple[str, ...]
    """Comparisons of sizes and numbers that came out true in the rule's body."""
    assumed: tuple[str, ...]
    """Kernels that are taken to compute their references."""
    is_bounded: bool
    """True if a recursive pattern without a meaning was entered to depth 1 alone."""
    limits: tuple[str, ...] = ()
    """Predicates whose numbers are taken to be their limit, such as minus infinity."""
    parts: int | None = None
    """The most parts of the lists that names stand for, such as steps; None if there are none."""
    narrow: tuple[str, ...] = ()
    """Patterns of which an alternate is proved where the size of an argument is 1, or that of
    another, alone.
    """


@dataclass(frozen=True)
class Parted:
    """The normal forms of the sides where they differ, which does not say that the values do."""

    left: str
    right: str
    only_left: str = ""
    only_right: str = ""
    """The terms that the other side lacks, if there are fewer."""


@dataclass(frozen=True)
class Proved:
    """Both sides are equal over the reals, for all sizes within the extent."""

    rule: str
    scope: ProofExtent


@dataclass(frozen=True)
class Refuted:
    """Both sides differ, in exact arithmetic and in floats."""

    rule: str
    counterexample: str
    scope: ProofExtent


@dataclass(frozen=True)
class Open:
    """Neither was shown, or not for all that the pattern matches."""

    rule: str
    reason: str
    scope: ProofExtent
    sides: Parted | None = None
    """The normal forms of both sides, if they part."""
    help: str = ""
    """Advice on how to close it."""


Law: TypeAlias = Proved | Refuted | Open
WORDS: Final = {Proved: "proved", Refuted: "refuted", Open: "open"}


@dataclass(frozen=True)
class Laws:
    """Verdicts on rules, in their order."""

    verdicts: tuple[Law, ...]

    @property
    def ok(self) -> bool:
        """Return whether all rules are proved."""
        return all(isinstance(verdict, Proved) for verdict in self.verdicts)

    def of(self, rule: str) -> Law:
        """Return the verdict on the rule of this name. Raises KeyError."""
        for verdict in self.verdicts:
            if verdict.rule == rule:
                return verdict
        raise KeyError(rule)

    @property
    def refuted(self) -> tuple[Refuted, ...]:
        """Return the verdicts on rules that are refuted."""
        return tuple(v for v in self.verdicts if isinstance(v, Refuted))

    def as_list(self) -> list[Plain]:
        """Return the verdicts in a form for JSON."""
        return [{**asdict(v), "verdict": WORDS[type(v)]} for v in self.verdicts]

    def to_json(self) -> str:
        """Return the verdicts as JSON."""
        return json.dumps(self.as_list(), indent=2)

    def __str__(self) -> str:
        return "\n".join(line for verdict in self.verdicts for line in _lines(verdict))


def _lines(verdict: Law) -> Iterator[str]:
    match verdict:
        case Proved(rule, scope):
            yield f"{rule}: proved for {extent(scope)}"
        case Refuted(rule, counterexample):
            yield f"{rule}: REFUTED: {counterexample}"
        case Open(rule, reason, scope, sides, help):
            yield f"{rule}: open: {reason}"
            if scope.cases:
                yield f"    proved for {extent(scope)}"
            yield from (f"    {line}" for line in parting(sides))
            if help:
                yield f"    help: {help}"
        case _:
            assert_never(verdict)


def parting(sides: Parted | None) -> Iterator[str]:
    """Yield lines with both normal forms, and the terms in which they differ."""
    if sides is None:
        return
    yield f"pattern:     {sides.left}"
    yield f"replacement: {sides.right}"
    if sides.only_left:
        yield f"only pattern:     {sides.only_left}"
        yield f"only replacement: {sides.only_right}"


def extent(scope: ProofExtent) -> str:
    """Return an extent in words."""
    ranks = ", ".join(map(str, scope.ranks))
    parts = [f"all sizes of rank {ranks}", f"{scope.cases} cases by {scope.lemmas} lemmas"]
    if scope.is_bounded:
        parts.append("recursion to depth 1")
    if scope.parts is not None:
        parts.append(f"lists of at most {scope.parts} parts".replace("1 parts", "1 part"))
    if scope.narrow:
        parts.append(
            "an alternate with a size of 1, or equal sizes, alone of " + ", ".join(scope.narrow)
        )
    if scope.limits:
        parts.append("the limit for numbers of " + ", ".join(scope.limits))
    if scope.assumed:
        parts.append("assuming the reference of " + ", ".join(scope.assumed))
    if scope.conditions:
        parts.append("each case under some of: " + ", ".join(scope.conditions))
    return "; ".join(parts)
