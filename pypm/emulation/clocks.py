"""Vector clocks: what each agent of an emulated machine knows, and which accesses nothing orders.

A clock has a component for each agent, which counts up, and knows of each other as much as a wait
has told. Two accesses of one place of which one writes are a race unless a clock orders them, in
whichever order they happened to run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

__all__ = ["AccessHistory", "Clock", "ClockedAgent", "Fault", "access", "join"]

Clock: TypeAlias = dict[str, int]


class Fault(Exception):
    """A fault of the emulated kernel: a deadlock, a race, or a misuse of memory."""


def join(clock: Clock, other: Mapping[str, int]) -> None:
    """Let a clock know what another knows."""
    for name, time in other.items():
        if clock.get(name, 0) < time:
            clock[name] = time


@dataclass
class ClockedAgent:
    """One thread of control, which may be many threads of hardware, and its clock.

    Its own accesses of memory have a clock component of their own, since others may see them only
    after a fence: `name/own` counts them, and `fenced` is the last that others see.
    """

    name: str
    clock: Clock = field(default_factory=dict)
    fenced: int = 0

    def tick(self) -> None:
        self.clock[self.name] = self.clock.get(self.name, 0) + 1

    @property
    def own(self) -> str:
        return f"{self.name}/own"

    def fence(self) -> None:
        self.fenced = self.clock.get(self.own, 0)

    def released(self) -> Clock:
        """Return what others learn from this agent: its own accesses up to the last fence."""
        clock = dict(self.clock)
        if self.own in clock:
            clock[self.own] = self.fenced
        return clock


@dataclass
class AccessHistory:
    """The last accesses of one place: components of clocks, and their times."""

    written: tuple[str, int] | None = None
    read: dict[str, int] = field(default_factory=dict)


def access(
    by: tuple[str, int], clock: Mapping[str, int], history: AccessHistory, kind: str, label: str
) -> None:
    """Record an access by a component at a time, which is a `read` or a `write`.

    `clock` has what happened before it; `label` names the place. Raises Fault if it is a race.
    """
    before = dict([history.written] if history.written else [])
    if kind == "write":
        before.update(history.read)
    for other, time in before.items():
        if clock.get(other, 0) < time:
            raise Fault(f"race: {kind} of {label} by {by[0]}, accessed by {other}")
    if kind == "write":
        history.written, history.read = by, {}
    else:
        history.read[by[0]] = by[1]
