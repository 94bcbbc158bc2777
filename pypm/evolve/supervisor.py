"""The supervisor: hints for operators where a search stalls or goes round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pypm.evolve.trajectory import Attempt

__all__ = ["advice"]

STALLED: Final = 15
"""Attempts without a better candidate, after which a search stalls."""
RECENT: Final = 6


def advice(attempts: Sequence[Attempt]) -> str:
    """Return a hint, if the last attempts were in vain; an empty text otherwise.

    It depends on the attempts alone, so that a search that is resumed goes on as it would have.

    Arguments:
        attempts: all attempts of the search.
    """
    since = list(attempts)
    for each in attempts:
        if each.is_accepted:
            since = list(attempts[each.number + 1 :])
    recent = since[-RECENT:]
    if len(recent) < RECENT:
        return ""
    if sum(each.digest is None for each in recent) > RECENT // 2:
        reason = recent[-1].verdict.summary
        return f"most of the last {RECENT} attempts proposed nothing: {reason}"
    if sum(each.repeats is not None for each in recent) >= RECENT // 2:
        return f"half of the last {RECENT} attempts were candidates that were judged before"
    if not any(each.verdict.is_right for each in recent):
        reason = recent[-1].verdict.summary
        return f"the last {RECENT} candidates were wrong, the last one so: {reason}"
    if len(since) >= STALLED:
        best = max(since, key=lambda each: each.verdict.gain)
        return (
            f"nothing was better in {len(since)} attempts; attempt {best.number} came nearest, "
            f"with a gain of {best.verdict.gain:.3f}: try something of another kind"
        )
    return ""
