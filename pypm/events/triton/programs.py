"""The scheduler: programs of a launch take turns, in an order drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pypm.emulation.clocks import ClockedAgent
from pypm.emulation.requests import Body, Running, begun, deadlock

__all__ = ["ProgramAgent", "Programs"]

SWITCHES: Final = (0.03, 0.3, 0.9)
"""Chances that another program has the next turn; a run draws one."""


@dataclass
class ProgramAgent(ClockedAgent):
    """A program of the grid."""

    number: int = 0
    looked: tuple[tuple[int, int], int] | None = None
    """The counter at which it looked in its last turn, and the value there: unless this changes,
    a loop that waits looks in vain."""


@dataclass
class Programs:
    """The programs of a launch, and the order in which they have turns."""

    chance: random.Random
    running: list[Running[ProgramAgent]] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)

    def run(self, bodies: Sequence[Body[ProgramAgent]], resident: int) -> None:
        """Run programs to their end, so many at the same time; another begins when one ends.

        Raises Fault for a deadlock, and what operations raise.
        """
        switch = self.chance.choice(SWITCHES)
        waiting = [
            begun(ProgramAgent(f"program {n}", number=n), body) for n, body in enumerate(bodies)
        ]
        self.running, waiting = waiting[:resident], waiting[resident:]
        each = self.chance.choice(self.running)
        while self.running:
            able = [each for each in self.running if each.request.ready(each.agent)]
            if not able:
                raise deadlock(self.running)
            if each not in able or self.chance.random() < switch:
                each = self.chance.choice(able)
            self.turns.append(each.agent.number)
            if not each.perform():
                self.running.remove(each)
                self.running += waiting[:1]
                del waiting[:1]
