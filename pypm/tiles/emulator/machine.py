"""The scheduler: partitions run in an order drawn from a seed, and copies and products end late.

A partition is a generator that yields a `Request` for every operation. The machine performs one
request at a time, of any partition that is ready, or completes a job that was started.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pypm.emulation.clocks import Fault, join
from pypm.emulation.requests import Body, Request, Running, begun, deadlock
from pypm.tiles.emulator.memory import Agent, Job, SharedTile, access_tile

__all__ = ["Event", "Machine"]


class Event(NamedTuple):
    """An operation that was performed, in the order of the run."""

    kind: str
    agent: str
    place: str
    """The barrier, or the slots that were accessed."""


@dataclass
class Machine:
    """One program of a grid, with its own shared memory.

    `lateness` is the chance that a job is left alone while any partition can go on: at 1, jobs end
    as late as waits allow.
    """

    seed: int
    lateness: float
    jobs: list[Job] = field(default_factory=list)
    running: list[Running[Agent]] = field(default_factory=list)
    log: list[Event] = field(default_factory=list)
    started: Counter[str] = field(default_factory=Counter)

    def run(self, body: Body[Agent]) -> None:
        """Run a kernel to its end.

        Raises Fault for a deadlock, a race, a misuse of a barrier, an error in the text, and for a
        copy or product that is still under way at the end.
        """
        chance = random.Random(self.seed)
        self.spawn("kernel", body, Agent("kernel"))
        while self.running:
            free = [job for job in self.jobs if job.after is None or job.after.done]
            able = [each for each in self.running if each.request.ready(each.agent)]
            if not able and not free:
                raise deadlock(self.running)
            if free and (not able or chance.random() >= self.lateness):
                self.complete(chance.choice(free))
            else:
                self.perform(chance.choice(able))
        self.check_end()

    def check_end(self) -> None:
        """Raise Fault if a job is still under way."""
        if self.jobs:
            raise Fault(f"the kernel ends before {self.jobs[0].name} does")

    def spawn(self, name: str, body: Body[Agent], parent: Agent) -> Running[Agent]:
        """Begin a partition, which knows what its parent knows."""
        agent = Agent(name, dict(parent.clock))
        agent.tick()
        each = begun(agent, body)
        self.running.append(each)
        return each

    def fork(self, bodies: Sequence[tuple[str, Body[Agent]]], parent: Agent) -> Request[Agent]:
        children = [self.spawn(name, body, parent) for name, body in bodies]
        return Request(
            "the end of its partitions",
            lambda agent: None,
            lambda agent: not any(child in self.running for child in children),
        )

    def perform(self, each: Running[Agent]) -> None:
        if each.perform():
            return
        self.running.remove(each)
        for job in (*each.agent.stores, *each.agent.products):
            raise Fault(f"{each.agent.name} does not wait for {job.name}")

    def note(self, kind: str, agent: str, place: str) -> None:
        self.log.append(Event(kind, agent, place))

    # --- jobs ------------------------------------------------------------------------------------

    def start(
        self, name: str, agent: Agent, act: Callable[[Job], None], after: Job | None = None,
        reads: Sequence[SharedTile] = (), writes: Sequence[SharedTile] = (),
    ) -> Job:  # fmt: skip
        """Start a job with the clock of its agent; it sees the agent's own accesses up to a fence.

        `name` is the job's component of clocks.
        """
        agent.tick()
        self.started[name] += 1
        job = Job(
            name, self.started[name], agent.released(), lambda: act(job), reads, writes, after
        )
        self.jobs.append(job)
        return job

    def complete(self, job: Job) -> None:
        self.jobs.remove(job)
        if job.after is not None:
            join(job.clock, job.after.clock)
        for kind, tiles in (("read", job.reads), ("write", job.writes)):
            for tile in tiles:
                access_tile((job.name, job.time), job.clock, tile, kind)
        job.clock[job.name] = job.time
        job.done = True
        self.note("end", job.name, ", ".join(t.label for t in (*job.reads, *job.writes)))
        job.act()
