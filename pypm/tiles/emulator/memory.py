"""Shared memory of the emulated machine: slots, barriers, and what completes late.

A clock has a component for each partition, for the products of a partition, for its stores, and for
the copies into a slot. An arrival at a barrier releases the clock of a partition, and a wait for
the phase acquires it; a job carries the clock of the partition that started it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from pypm.emulation.clocks import AccessHistory, Clock, ClockedAgent, Fault, access, join

__all__ = ["Agent", "Barrier", "Job", "SharedTile", "access_tile", "shared_tile"]


@dataclass
class Agent(ClockedAgent):
    """One partition of a kernel. Copies and products see its own accesses after a fence."""

    products: list[Job] = field(default_factory=list)
    """Products that it issued and has not waited for, in order; each ends after those before it."""
    stores: list[Job] = field(default_factory=list)
    """Stores likewise, which end in any order."""


@dataclass
class Job:
    """A copy or a product that has been started, and completes later."""

    name: str
    """Its component of clocks."""
    time: int
    clock: Clock
    """At first that of the partition; its own time is in it when it has completed."""
    act: Callable[[], None]
    """The effect, when it completes; what it reads is read only then."""
    reads: Sequence[SharedTile] = ()
    writes: Sequence[SharedTile] = ()
    after: Job | None = None
    """The job that completes before this one."""
    done: bool = False
    awaited: bool = False
    """True if the partition that started it has waited for it."""


@dataclass
class SharedTile:
    """A view of shared memory: a buffer of slots, or one slot."""

    data: Tensor
    histories: Sequence[AccessHistory]
    label: str

    def index(self, n: int) -> SharedTile:
        label = f"slot {n} of {self.label}"
        return SharedTile(self.data[n], [self.histories[n]], label)

    def reshape(self, shape: Sequence[int]) -> SharedTile:
        return SharedTile(self.data.view(*shape), self.histories, self.label)

    def permute(self, order: Sequence[int]) -> SharedTile:
        return SharedTile(self.data.permute(*order), self.histories, self.label)


def shared_tile(data: Tensor, label: str) -> SharedTile:
    """Return a buffer whose slots are indexed by the first dimension of `data`."""
    return SharedTile(data, [AccessHistory() for _ in range(data.shape[0])], label)


def access_tile(by: tuple[str, int], clock: Mapping[str, int], tile: SharedTile, kind: str) -> None:
    """Record an access of all slots of a tile, as `pypm.emulation.clocks.access` does of one."""
    for history in tile.histories:
        access(by, clock, history, kind, tile.label)


@dataclass
class Barrier:
    """An mbarrier: it completes a phase when all have arrived and all expected bytes have come."""

    label: str
    count: int = 0
    left: int = 0
    expected: int = 0
    """Bytes that are still to come."""
    phase: int = 0
    arriving: Clock = field(default_factory=dict)
    completed: Clock = field(default_factory=dict)

    def init(self, count: int) -> None:
        self.count = self.left = count

    def arrive(self, clock: Mapping[str, int], count: int) -> None:
        """Raises Fault if more arrive than the barrier counts."""
        join(self.arriving, clock)
        self.left -= count
        if self.left < 0:
            raise Fault(f"more arrivals at {self.label} than the {self.count} that it counts")
        self.settle()

    def receive(self, clock: Mapping[str, int], size: int) -> None:
        """Take `size` bytes of a copy."""
        join(self.arriving, clock)
        self.expected -= size
        self.settle()

    def settle(self) -> None:
        if self.left == 0 and self.expected == 0:
            self.phase += 1
            self.left = self.count
            self.completed = dict(self.arriving)

    def is_complete(self, parity: int) -> bool:
        """Return whether a wait for this parity goes on: all that hardware can tell."""
        return self.phase & 1 != parity & 1
