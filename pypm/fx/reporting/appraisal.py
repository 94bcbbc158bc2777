"""The worth of a rewrite: the time that it saves, and how that is known."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import isfinite

from pypm.fields import Plain

__all__ = ["Appraisal", "duration", "factor"]


@dataclass(frozen=True, slots=True)
class Appraisal:
    """The worth of a rewrite."""

    saved: float
    """The seconds that it saves in each run. The rewrite is applied only if they are positive."""
    why: str = ""
    """The source of the figures, as a phrase."""
    before: float | None = None
    """The seconds that the region takes, if they are known."""
    after: float | None = None
    """The seconds that the replacement takes, if they are known."""
    bound: float | None = None
    """The seconds below which no kernel for the region can be, if they are known."""
    device: tuple[float, float] | None = None
    """The seconds that a GPU computes, for the region and for the replacement, if one was timed."""
    host: tuple[float, float] | None = None
    """The seconds that the CPU takes to call both on that GPU."""

    def as_dict(self) -> Plain:
        """Return plain data for JSON, with None for what is saved if that was not compared."""
        return {**asdict(self), "saved": self.saved if isfinite(self.saved) else None}

    @property
    def speedup(self) -> float | None:
        """Return how many times as fast the replacement is as the region; None if unknown."""
        return self.before / self.after if self.before is not None and self.after else None

    @property
    def figures(self) -> tuple[str, ...]:
        """Return what is known of the times, as phrases."""
        if self.before is None or self.after is None:
            return tuple(filter(None, [*self._times, self.comparison, *self.sides]))
        instead = f"{duration(self.after)} instead of {duration(self.before)}"
        least = "" if self.bound is None else f"at best {duration(self.bound)}"
        return tuple(filter(None, [instead, self.comparison, *self.sides, least]))

    @property
    def sides(self) -> tuple[str, ...]:
        """Return the times of device and host, as phrases; none if no GPU was timed."""
        return tuple(
            f"{name} {duration(pair[1])} instead of {duration(pair[0])}"
            for name, pair in (("device", self.device), ("host", self.host))
            if pair is not None
        )

    @property
    def verdict(self) -> str:
        """Return how the replacement compares with leaving the region, as a phrase."""
        text = self.comparison
        if text:
            text += f" {'as' if text.endswith('as fast') else 'than'} leaving it"
        return ", ".join(filter(None, [text, self.why]))

    @property
    def comparison(self) -> str:
        """Return how fast the replacement is beside the region, as a phrase; empty if unknown."""
        if self.speedup is not None:
            return f"{factor(self.speedup)} times as fast"
        if not isfinite(self.saved):
            return ""
        if not self.saved:
            return "as fast"
        return f"{duration(abs(self.saved))} {'faster' if self.saved > 0 else 'slower'}"

    @property
    def _times(self) -> tuple[str, ...]:
        return tuple(
            f"{name} {duration(value)}"
            for name, value in (
                ("as it is", self.before),
                ("replaced", self.after),
                ("at best", self.bound),
            )
            if value is not None
        )

    def __str__(self) -> str:
        return ", ".join([*self._times, *self.sides, *filter(None, [self.why])])


def factor(ratio: float) -> str:
    """Return a ratio as text, with two digits behind the point or, of large ones, three in all.

    >>> factor(0.184), factor(24.31)
    ('0.18', '24.3')
    """
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.3g}"


def duration(seconds: float) -> str:
    """Return seconds as text, with three digits and a unit.

    >>> duration(0.00123), duration(4.5e-7)
    ('1.23 ms', '0.45 us')
    """
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} us"
