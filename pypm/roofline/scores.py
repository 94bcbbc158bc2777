"""The score of a time between a baseline and its bound, after SOL-ExecBench."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.roofline.lower_bound import Bound

__all__ = ["Score", "score"]


@dataclass(frozen=True, slots=True)
class Score:
    """The place of a time between a baseline and a bound, and what an audit should look at."""

    value: float | None
    """0.5 for the baseline, 1 for the bound; None if the baseline is not above the bound."""
    flags: tuple[str, ...] = ()
    """Reasons to distrust the figures; empty if there are none."""


def score(time: float, baseline: float, bound: Bound | float) -> Score:
    """Return 1 / (1 + (time - bound) / (baseline - bound)), and audit flags.

    Arguments:
        time: measured seconds.
        baseline: measured seconds of the same computation as `torch.compile` makes it.
        bound: the bound, or its seconds.

    A time below the bound scores 1 and gets a flag; so does a baseline at or below the bound, for
    which there is no score. Raises PyPMError for a time that is not a positive number, or a bound
    that is negative.
    """
    least = bound.seconds if isinstance(bound, Bound) else bound
    for name, seconds in (("time", time), ("baseline", baseline)):
        if not (math.isfinite(seconds) and seconds > 0):
            raise PyPMError(Diagnostic(f"the {name} {seconds!r} is not a positive number"))
    if not (math.isfinite(least) and least >= 0):
        raise PyPMError(Diagnostic(f"the bound {least!r} is not a number of seconds"))
    flags = []
    if time < least:
        flags.append(f"the time {time:.3g} s is below the bound {least:.3g} s")
    if baseline <= least:
        flags.append(f"the baseline {baseline:.3g} s is not above the bound {least:.3g} s")
        return Score(None, tuple(flags))
    return Score(1 / (1 + max(time - least, 0) / (baseline - least)), tuple(flags))
