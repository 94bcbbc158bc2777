"""Times of parts of a program, as `torch.compile` makes them, on this machine."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import torch

from pypm.choice.clock import Clock
from pypm.kept_figures import processor
from pypm.roofline import Hardware
from pypm.tools.headroom.parts import Part

__all__ = ["PartClock", "PartTimes", "is_here"]

_COMPILED: Final = "compiled"
_REWRITTEN: Final = "rewritten"


@dataclass(frozen=True, slots=True)
class PartTimes:
    """Seconds of a part, compiled."""

    compiled: float
    rewritten: float | None = None
    """The seconds after the rewrites; None for a part that no rule takes."""


class PartClock:
    """Times parts; a part and its replacement in turn."""

    def __init__(self, seconds: float) -> None:
        """`seconds` is the time for all rounds of one part."""
        self._clock = Clock(seconds)

    def __call__(self, part: Part) -> PartTimes:
        """Return the times of a part. Raises what compiling or running it raises."""
        versions = {_COMPILED: part.nodes}
        if part.replacement:
            versions[_REWRITTEN] = part.replacement
        found = self._clock(versions)
        rewritten = found.get(_REWRITTEN, 0.0 if part.rules else None)
        return PartTimes(found[_COMPILED], rewritten)


def is_here(device: Hardware, kinds: Collection[str]) -> bool:
    """Return whether times on this machine are times on some hardware.

    Arguments:
        device: the hardware.
        kinds: the types of the devices that a program runs on, as "cpu".
    """
    if [*kinds] == ["cpu"]:
        return device.name.startswith(processor())
    if [*kinds] == ["cuda"] and torch.cuda.is_available():
        return device.name.split()[0] in torch.cuda.get_device_name()
    return False
