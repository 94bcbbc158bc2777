"""The CPU time at which proofs are given up: asked wherever one may take long."""

from __future__ import annotations

import math
from contextvars import ContextVar
from time import monotonic, process_time
from typing import Final

__all__ = ["DEADLINE", "TimeIsUp", "check_time"]

DEADLINE: Final[ContextVar[float]] = ContextVar("deadline", default=math.inf)
"""The CPU time of the process at which proofs are given up."""


class TimeIsUp(Exception):
    """The `DEADLINE` has passed."""


PAUSE: Final = 0.2
"""Seconds within which the CPU time is asked for once: that takes milliseconds on some systems."""
_ASKED: Final = [-math.inf]


def check_time() -> None:
    """Raise TimeIsUp after the `DEADLINE`, or up to a `PAUSE` later."""
    now = monotonic()
    if now - _ASKED[0] < PAUSE:
        return
    _ASKED[0] = now
    if process_time() > DEADLINE.get():
        raise TimeIsUp
