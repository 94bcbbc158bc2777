"""The CPU time at which proofs are given up: asked wherever one may take long."""

from __future__ import annotations

import math
from contextvars import ContextVar
from time import process_time
from typing import Final

__all__ = ["DEADLINE", "TimeIsUp", "check_time"]

DEADLINE: Final[ContextVar[float]] = ContextVar("deadline", default=math.inf)
"""The CPU time of the process at which proofs are given up."""


class TimeIsUp(Exception):
    """The `DEADLINE` has passed."""


def check_time() -> None:
    """Raise TimeIsUp after the `DEADLINE`."""
    if process_time() > DEADLINE.get():
        raise TimeIsUp
