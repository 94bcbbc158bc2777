"""Verdicts: the outcome of a candidate by configuration, and its test against the incumbent.

A candidate is better if it is right everywhere, and faster than the incumbent by more than the
noise of interleaved runs. Each round calls both on every configuration. It counts as a win if the
geometric mean of the ratios of times is above 1 + margin. A one-sided sign test over the rounds
asks for a probability of at most `ALPHA` under "a win is no likelier than a loss". It does so for
the configurations that are shown and for those held out, each by itself, and once more in a second
measurement, in new processes. Timing ends early where `may_be_better` rules that out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

from pypm.fields import Plain

__all__ = [
    "ALPHA",
    "RIGHT",
    "ConfigurationVerdict",
    "Verdict",
    "is_faster",
    "may_be_better",
    "may_be_faster",
    "sign_test",
]

ALPHA: Final = 0.01
RIGHT: Final = "right"
LAW: Final = "law"
"""The note on the proofs of a candidate's rules."""


@dataclass(frozen=True, slots=True)
class ConfigurationVerdict:
    """A candidate on one configuration."""

    name: str
    is_held_out: bool
    status: str
    """`right`, or the status of a trace of `pypm sol`."""
    reason: str = ""
    score: float = 0.0
    """0 where wrong, 0.5 for the time of `torch.compile`, 1 for the bound."""
    milliseconds: float | None = None
    compiled: float | None = None
    """The time of the reference as `torch.compile` makes it, over that of the candidate."""
    eager: float | None = None
    """The time of the reference, over that of the candidate."""
    gains: tuple[float, ...] = ()
    """The time of the incumbent over that of the candidate, for each round."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a candidate on all configurations."""

    configurations: Sequence[ConfigurationVerdict] = ()
    reason: str = ""
    """The reason why there are no configurations, or why they do not count."""
    margin: float = 0.0
    notes: Mapping[str, str] = field(default_factory=dict)
    is_cut_short: bool = False
    """Timing ended early, since no further round could have made the candidate better."""

    @property
    def is_right(self) -> bool:
        """Return whether it was right on all configurations, and nothing else is wrong."""
        each = self.configurations
        return bool(each) and not self.reason and all(one.status == RIGHT for one in each)

    @property
    def score(self) -> float:
        """Return the geometric mean of all scores: 0 if one is wrong."""
        if not self.is_right:
            return 0.0
        scores = [each.score for each in self.configurations]
        return math.prod(scores) ** (1 / len(scores))

    @property
    def gain(self) -> float:
        """Return the incumbent's time over its own: the median of the rounds, and its geometric
        mean over configurations; 0 if there was no incumbent, or the candidate is wrong.
        """
        gains = [each.gains for each in self.configurations]
        if not self.is_right or not all(gains):
            return 0.0
        return statistics.geometric_mean(map(statistics.median, gains))

    @property
    def is_better(self) -> bool:
        """Return whether it is right, and faster than the incumbent by more than noise."""
        groups = _groups(self.configurations)
        return self.is_right and all(is_faster(rounds(group), self.margin) for group in groups)

    @property
    def summary(self) -> str:
        """Return a line that says what is wrong, or how fast it is."""
        for each in self.configurations:
            if each.status != RIGHT:
                if each.is_held_out:
                    return f"{each.status} on a configuration that is held out"
                return f"{each.status} on {each.name}: {each.reason}"
        if not self.is_right:
            return self.reason or "no configuration was run"
        text = ", ".join(("right", *filter(None, [self.notes.get(LAW)]), f"score {self.score:.3f}"))
        if not self.gain:
            return text
        better = "better" if self.is_better else "not better by more than noise"
        better += ", timing ended early" if self.is_cut_short else ""
        return f"{text}, {self.gain:.3f} times as fast as the incumbent: {better}"

    def as_dict(self) -> Plain:
        """Return the verdict in a form for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(value: Plain) -> Verdict:
        """Return the verdict of `as_dict`."""
        found: dict[str, object] = dict(value)
        each = found.pop("configurations")
        assert isinstance(each, list)
        made = [ConfigurationVerdict(**{**one, "gains": tuple(one["gains"])}) for one in each]
        return Verdict(configurations=made, **found)  # type: ignore[arg-type]

    def shown(self) -> Plain:
        """Return what whoever proposes may see: nothing of what is held out."""
        each = [asdict(one) for one in self.configurations if not one.is_held_out]
        for one in each:
            del one["gains"]
        return {
            "is_right": self.is_right,
            "score": self.score,
            "gain": self.gain,
            "is_cut_short": self.is_cut_short,
            "summary": self.summary,
            "configurations": each,
        }


def _groups(configurations: Sequence[ConfigurationVerdict]) -> list[list[ConfigurationVerdict]]:
    """Return the configurations that are shown, and those held out, where there are any."""
    halves = [
        [each for each in configurations if each.is_held_out == is_held_out]
        for is_held_out in (False, True)
    ]
    return [half for half in halves if half]


def rounds(configurations: Sequence[ConfigurationVerdict]) -> list[float]:
    """Return for each round the mean over configurations of the logarithm of the gain.

    Only rounds that all configurations have count.
    """
    columns = zip(*(each.gains for each in configurations), strict=False)
    return [sum(map(math.log, column)) / len(column) for column in columns]


def is_faster(logarithms: Sequence[float], margin: float) -> bool:
    """Return whether rounds show a gain above 1 + margin, by a sign test with `ALPHA`.

    Arguments:
        logarithms: the logarithm of the gain in each round.
        margin: the gain that does not count.
    """
    return may_be_faster(logarithms, margin, 0)


def may_be_faster(logarithms: Sequence[float], margin: float, left: int) -> bool:
    """Return whether `is_faster` could hold for these rounds and `left` more, if all more were won.

    If it returns False, then `is_faster` is False for every continuation, and for these rounds
    alone: with X heads among m tosses and Y among n more, P(X >= w) >= P(X + Y >= w + n).

    Arguments:
        logarithms: the logarithm of the gain in each round so far.
        margin: the gain that does not count.
        left: the number of rounds that remain.
    """
    wins = sum(each > math.log1p(margin) for each in logarithms)
    return sign_test(wins + left, len(logarithms) + left) <= ALPHA


def may_be_better(
    configurations: Sequence[ConfigurationVerdict], margin: float, count: int
) -> bool:
    """Return whether a candidate could still be better, if it won all rounds that remain.

    If it returns False, no further round changes that. A measurement that ends there has the same
    verdict as one with all rounds: right, and not better.

    Arguments:
        configurations: all configurations of the task, with the gains so far: of one that was not
            begun there are none.
        margin: the gain that does not count.
        count: the rounds of a whole measurement.
    """
    known = map(rounds, _groups(configurations))
    return all(may_be_faster(each, margin, count - len(each)) for each in known)


def sign_test(wins: int, count: int) -> float:
    """Return the probability of at least so many wins among rounds won by the toss of a coin.

    >>> sign_test(8, 8) == 2**-8
    True
    """
    ways = sum(math.comb(count, k) for k in range(wins, count + 1))
    return float(ways / 2**count)
