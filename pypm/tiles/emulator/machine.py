"""The scheduler: partitions run in an order drawn from a seed, and copies and products end late.

A partition is a generator that yields a `Request` for every operation. The machine performs one
request at a time, of any partition that is ready, or completes a job that was started.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from pypm.tiles.emulator.memory import Agent, Fault, Job, SharedTile, access, join

__all__ = ["Body", "Event", "Machine", "Request", "Running"]

Body: TypeAlias = Generator["Request", object, None]
"""A partition, which is sent the result of each of its requests."""


class Event(NamedTuple):
    """An operation that was performed, in the order of the run."""

    kind: str
    agent: str
    place: str
    """The barrier, or the slots that were accessed."""


@dataclass(frozen=True, slots=True)
class Request:
    """An operation of a partition: when it can be performed, and its effect.

    The effect may return another request, for which the partition waits instead.
    """

    label: str
    act: Callable[[Agent], object]
    ready: Callable[[Agent], bool] = lambda agent: True


@dataclass
class Running:
    """A partition, and the operation that it is to perform next."""

    agent: Agent
    body: Body
    request: Request


@dataclass
class Machine:
    """One program of a grid, with its own shared memory.

    `lateness` is the chance that a job is left alone while any partition can go on: at 1, jobs end
    as late as waits allow.
    """

    seed: int
    lateness: float
    jobs: list[Job] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)
    log: list[Event] = field(default_factory=list)
    started: Counter[str] = field(default_factory=Counter)

    def run(self, body: Body) -> None:
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
                raise self.deadlock()
            if free and (not able or chance.random() >= self.lateness):
                self.complete(chance.choice(free))
            else:
                self.perform(chance.choice(able))
        self.check_end()

    def deadlock(self) -> Fault:
        """Return the fault that names who waits for what."""
        waits = (f"{each.agent.name} at {each.request.label}" for each in self.running)
        return Fault(f"deadlock: {'; '.join(waits)}")

    def check_end(self) -> None:
        """Raise Fault if a job is still under way."""
        if self.jobs:
            raise Fault(f"the kernel ends before {self.jobs[0].name} does")

    def spawn(self, name: str, body: Body, parent: Agent) -> Running:
        """Begin a partition, which knows what its parent knows."""
        agent = Agent(name, dict(parent.clock))
        agent.tick()
        each = Running(agent, body, Request("its begin", lambda agent: None))
        self.running.append(each)
        return each

    def fork(self, bodies: Sequence[tuple[str, Body]], parent: Agent) -> Request:
        children = [self.spawn(name, body, parent) for name, body in bodies]
        return Request(
            "the end of its partitions",
            lambda agent: None,
            lambda agent: not any(child in self.running for child in children),
        )

    def perform(self, each: Running) -> None:
        try:
            result = each.request.act(each.agent)
            each.request = result if isinstance(result, Request) else each.body.send(result)
        except StopIteration:
            self.running.remove(each)
            for job in (*each.agent.stores, *each.agent.products):
                raise Fault(f"{each.agent.name} does not wait for {job.name}") from None
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError) as error:
            raise Fault(f"{each.agent.name}: {type(error).__name__}: {error}") from error

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
        clock = dict(agent.clock)
        if agent.own in clock:
            clock[agent.own] = agent.fenced
        job = Job(name, self.started[name], clock, lambda: act(job), reads, writes, after)
        self.jobs.append(job)
        return job

    def complete(self, job: Job) -> None:
        self.jobs.remove(job)
        if job.after is not None:
            join(job.clock, job.after.clock)
        for kind, tiles in (("read", job.reads), ("write", job.writes)):
            for tile in tiles:
                access((job.name, job.time), job.clock, tile, kind)
        job.clock[job.name] = job.time
        job.done = True
        self.note("end", job.name, ", ".join(t.label for t in (*job.reads, *job.writes)))
        job.act()
