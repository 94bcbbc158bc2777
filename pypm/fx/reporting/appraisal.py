"""The worth of a rewrite: the time that it saves, and how that is known."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import isfinite

__all__ = ["Appraisal", "duration"]


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

    def as_dict(self) -> dict[str, object]:
        """Return plain data for JSON, with None for what is saved if that was not compared."""
        return {**asdict(self), "saved": self.saved if isfinite(self.saved) else None}

    def __str__(self) -> str:
        times = [
            f"{name} {duration(value)}"
            for name, value in (
                ("as it is", self.before),
                ("replaced", self.after),
                ("at best", self.bound),
            )
            if value is not None
        ]
        return ", ".join([*times, *filter(None, [self.why])])


def duration(seconds: float) -> str:
    """Return seconds as text, with three digits and a unit.

    >>> duration(0.00123), duration(4.5e-7)
    ('1.23 ms', '0.45 us')
    """
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} us"
