"""Findings of verification, as values, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, assert_never

from pypm.fields import Plain

if TYPE_CHECKING:
    from rich.table import Table

    from pypm.diagnostics import Diagnostic

__all__ = [
    "Bitwise",
    "Counterexample",
    "FewSolved",
    "Finding",
    "NeverFired",
    "Refused",
    "StaticProblem",
    "Trials",
    "Unexercised",
    "UpToRounding",
    "Verification",
    "Wrong",
]


@dataclass(frozen=True)
class Counterexample:
    """A graph on which a rule is wrong: `code` is a Python program that shows it."""

    code: str
    operators: int
    """The number of operators of the graph to which the rule is applied."""


@dataclass(frozen=True)
class Wrong:
    """A rule that does not preserve what it replaces.

    `kind` is the difference: value, nonfinite (only if a NaN or an infinity occurs), exactness (the
    values are right, and not as near as the rule says), law (right up to rounding, and other real
    numbers), strides, aliasing, write (an input is changed), gradient; or the replacement raises
    when it is traced (raises) or run (crash); or the rules do not terminate (loops). Errors are
    relative to the largest value; the tolerance is measured.
    """

    rule: str
    kind: str
    detail: str
    counterexample: Counterexample
    error: float = 0.0
    tolerance: float = 0.0


@dataclass(frozen=True)
class Bitwise:
    """The same values, bit for bit, in all samples."""

    rule: str
    samples: int


@dataclass(frozen=True)
class UpToRounding:
    """The same values up to rounding: the largest error met, and what was allowed there."""

    rule: str
    samples: int
    error: float
    tolerance: float
    zeros: bool = False
    """Some zeros have another sign."""
    exactly: int = 0
    """Samples that were also compared over the real numbers, without a tolerance."""


@dataclass(frozen=True)
class NeverFired:
    """No sample was rewritten, so nothing is known of the rule; and why not."""

    rule: str
    reasons: Mapping[str, int]
    depth: int = 0
    """The largest number of levels of recursion in the samples; 0 without recursion."""


@dataclass(frozen=True)
class FewSolved:
    """Most terms of the pattern could not be filled in, so little was tried; and why not."""

    rule: str
    drawn: int
    solved: int
    reasons: Mapping[str, int]


@dataclass(frozen=True)
class Unexercised:
    """Alternates that no rewritten sample went through, and guards of theirs, by their places."""

    rule: str
    alternates: tuple[str, ...]
    guards: tuple[str, ...]


@dataclass(frozen=True)
class Refused:
    """Matches that were not replaced, for one reason; that may well be meant."""

    rule: str
    reason: str
    count: int


@dataclass(frozen=True)
class StaticProblem:
    """Something that can be seen without running the rule."""

    rule: str
    diagnostic: Diagnostic


Finding: TypeAlias = (
    Wrong | Bitwise | UpToRounding | NeverFired | FewSolved | Unexercised | Refused | StaticProblem
)


@dataclass(frozen=True)
class Trials:
    """Counts of a rule's samples: sampled, with guards satisfied, and rewritten."""

    rule: str
    drawn: int
    solved: int
    fired: int
    seconds: float


@dataclass(frozen=True)
class Verification:
    """All that was found about some rules."""

    findings: tuple[Finding, ...]
    trials: tuple[Trials, ...]

    @property
    def ok(self) -> bool:
        """Return whether every rule fired and nothing is wrong with any."""
        return not any(isinstance(f, (Wrong, NeverFired, StaticProblem)) for f in self.findings)

    @property
    def wrong(self) -> tuple[Wrong, ...]:
        return tuple(f for f in self.findings if isinstance(f, Wrong))

    def of(self, rule: str) -> Verification:
        """Return the findings about one rule, given by its name."""
        return replace(
            self,
            findings=tuple(f for f in self.findings if f.rule == rule),
            trials=tuple(t for t in self.trials if t.rule == rule),
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "findings": [{"finding": type(f).__name__, **_plain(f)} for f in self.findings],
            "trials": [asdict(t) for t in self.trials],
        }

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), indent=2)

    def __str__(self) -> str:
        tried = {trials.rule for trials in self.trials}
        lines = [f"{f.rule}: {_line(f)}" for f in self.findings if f.rule not in tried]
        for trials in self.trials:
            lines.append(
                f"{trials.rule}: {trials.drawn} drawn, {trials.solved} solved, "
                f"{trials.fired} rewritten, in {trials.seconds:.1f} s"
            )
            lines += [_indented(f) for f in self.findings if f.rule == trials.rule]
        return "\n".join(lines)

    def __rich__(self) -> Table:
        from rich.table import Table

        table = Table()
        for column in ("rule", "drawn", "solved", "rewritten", "found"):
            table.add_column(column, justify="left" if column in ("rule", "found") else "right")
        for trials in self.trials:
            found = "\n".join(_line(f) for f in self.findings if f.rule == trials.rule)
            numbers = (trials.drawn, trials.solved, trials.fired)
            table.add_row(trials.rule, *map(str, numbers), found)
        return table


UNMADE: Final = "not made: "
"""The prefix of reasons about terms for which no sample was found."""
SHOWN: Final = 6
"""Alternates and guards named in the text; all of them are in the finding."""


def _plain(finding: Finding) -> Plain:
    if isinstance(finding, StaticProblem):
        return {"rule": finding.rule, "diagnostic": finding.diagnostic.render()}
    return asdict(finding)


def _indented(finding: Finding) -> str:
    return "\n".join(f"  {line}".rstrip() for line in _line(finding).split("\n"))


def _counted(reasons: Mapping[str, int]) -> str:
    return "".join(f"\n  {count} × {reason}" for reason, count in reasons.items())


def _line(finding: Finding) -> str:
    match finding:
        case Wrong(_, kind, detail, counterexample, error, tolerance):
            measured = f" (error {error:.2g}, tolerance {tolerance:.2g})" if error else ""
            return f"wrong: {kind}: {detail}{measured}\n{counterexample.code}"
        case Bitwise(_, samples):
            return f"bitwise in {samples} samples"
        case UpToRounding(_, samples, 0.0):
            return f"right up to the sign of zeros in {samples} samples"
        case UpToRounding(_, samples, error, tolerance, exactly=exactly):
            without = f"; without rounding the same in {exactly} of them" * bool(exactly)
            return (
                f"right up to rounding in {samples} samples: "
                f"error {error:.2g}, tolerance {tolerance:.2g}{without}"
            )
        case NeverFired(_, reasons, depth):
            levels = f" in samples of up to {depth} levels of recursion" if depth else ""
            help = (
                "; give `examples=`"
                if depth or any(reason.startswith(UNMADE) for reason in reasons)
                else ""
            )
            return f"never fired{levels}{help}{_counted(reasons)}"
        case FewSolved(_, drawn, solved, reasons):
            few = f"only {solved} of {drawn} samples could be made; give `examples=` as well"
            return f"{few}{_counted(reasons)}"
        case Unexercised(_, places, guards):
            missed = [*(f"alternate {p}" for p in places), *(f"guard {g}" for g in guards)]
            lines = [f"never exercised: {what}" for what in missed[:SHOWN]]
            rest = len(missed) - len(lines)
            return "\n".join([*lines, f"and {rest} more"] if rest else lines)
        case Refused(_, reason, count):
            return f"refused {count} times: {reason}"
        case StaticProblem(_, diagnostic):
            return diagnostic.render("problem")
        case _:
            assert_never(finding)
