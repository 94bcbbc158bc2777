"""The shipped schedules by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from pypm.diagnostics import Diagnostic, PyPMError, did_you_mean
from pypm.pipeline.schedules import Eager1F1B, GPipe, Interleaved1F1B, InterleavedGPipe, Std1F1B
from pypm.pipeline.tasks import Schedule
from pypm.pipeline.zero_bubble import ZBH1, ZBV, DualPipeV

__all__ = ["SCHEDULES", "schedule"]

SCHEDULES: Final[Mapping[str, tuple[Callable[..., Schedule], int | None]]] = MappingProxyType(
    {
        "gpipe": (GPipe, 1),
        "1f1b": (Std1F1B, 1),
        "eager-1f1b": (Eager1F1B, 1),
        "zb-h1": (ZBH1, 1),
        "interleaved-gpipe": (InterleavedGPipe, None),
        "interleaved-1f1b": (Interleaved1F1B, None),
        "zbv": (ZBV, 2),
        "dual-pipe-v": (DualPipeV, 2),
    }
)
"""Classes of schedules, and the number of stages that each has on a rank; None for any number."""


def schedule(name: str, *, stages: int, ranks: int | None = None) -> Schedule:
    """Return a shipped schedule.

    Arguments:
        name: a key of `SCHEDULES`.
        stages: the number of stages.
        ranks: the number of ranks; by default the one that the schedule has for these stages, and
            half as many as stages for one that is interleaved.

    Raises PyPMError for another name, or for a number of ranks that does not fit.
    """
    if name not in SCHEDULES:
        listed = ", ".join(f"`{each}`" for each in SCHEDULES)
        help = f"{did_you_mean(name, SCHEDULES)} the schedules are {listed}".lstrip()
        raise PyPMError(Diagnostic(f"there is no schedule `{name}`", help=help))
    make, share = SCHEDULES[name]
    if share is None:
        return make(stages, stages // 2 if ranks is None else ranks)
    if ranks not in (None, stages // share):
        message = f"`{name}` has {share} stage{'s' * (share > 1)} on each rank"
        help = f"{stages} stages are for {stages // share} ranks"
        raise PyPMError(Diagnostic(f"{message}, not {stages} on {ranks} ranks", help=help))
    return make(stages)
