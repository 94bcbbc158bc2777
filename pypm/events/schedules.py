"""Schedules of tables of tasks, simulated: how long workers run, and how long they wait.

Times are in units of `cost`. What a notification takes, and the bandwidth that workers share, is
not simulated.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pypm.events.tasks import GridTask, TaskTable

__all__ = ["Cost", "Simulated", "by_barriers", "by_queues", "by_tickets", "critical", "queues"]

Cost: TypeAlias = Callable[[GridTask], float]


@dataclass(frozen=True, slots=True)
class Simulated:
    """A simulated run."""

    workers: int
    starts: tuple[float, ...]
    """The start of each task, by its number."""
    ends: tuple[float, ...]
    places: tuple[int, ...]
    """The worker of each task."""

    @property
    def makespan(self) -> float:
        return max(self.ends, default=0.0)

    @property
    def idle(self) -> float:
        """Return the share of the workers' time in which they wait."""
        busy = sum(end - start for start, end in zip(self.starts, self.ends, strict=True))
        whole = self.workers * self.makespan
        return 1 - busy / whole if whole else 0.0


def after(table: TaskTable, cost: Cost) -> list[float]:
    """Return for each task how long it and the longest chain of those after it take."""
    found = [cost(task) for task in table.tasks]
    for n in reversed(range(len(found))):
        for before in table.before[n]:
            found[before] = max(found[before], cost(table.tasks[before]) + found[n])
    return found


def critical(table: TaskTable, cost: Cost) -> tuple[float, tuple[GridTask, ...]]:
    """Return the length of the longest chain of tasks, and the chain."""
    left = after(table, cost)
    following: dict[int, list[int]] = {}
    for n, before in enumerate(table.before):
        for other in before:
            following.setdefault(other, []).append(n)
    candidates, path = [*range(len(left))], []
    while candidates:
        path.append(max(candidates, key=lambda n: left[n]))
        candidates = following.get(path[-1], [])
    return max(left, default=0.0), tuple(table.tasks[n] for n in path)


def queues(table: TaskTable, workers: int, cost: Cost) -> list[list[int]]:
    """Return a queue for each worker: the worker that is free first takes, of the tasks whose
    inputs are there, the one before the longest chain.
    """
    left = after(table, cost)
    missing = [len(before) for before in table.before]
    following: list[list[int]] = [[] for _ in table.tasks]
    for n, before in enumerate(table.before):
        for other in before:
            following[other].append(n)
    ready = [(-left[n], n) for n, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    found: list[list[int]] = [[] for _ in range(workers)]
    free = [*range(workers)]
    running: list[tuple[float, int, int]] = []
    now = 0.0
    while ready or running:
        while ready and free:
            task, worker = heapq.heappop(ready)[1], heapq.heappop(free)
            found[worker].append(task)
            heapq.heappush(running, (now + cost(table.tasks[task]), task, worker))
        now, task, worker = heapq.heappop(running)
        heapq.heappush(free, worker)
        for other in following[task]:
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(ready, (-left[other], other))
    return found


def by_queues(table: TaskTable, given: Sequence[Sequence[int]], cost: Cost) -> Simulated:
    """Return the run in which each worker does its queue, in order."""
    ends: dict[int, float] = {}
    starts: dict[int, float] = {}
    done, times = [0] * len(given), [0.0] * len(given)
    while len(ends) < sum(map(len, given)):
        for worker, queue in enumerate(given):
            while done[worker] < len(queue):
                task = queue[done[worker]]
                if any(other not in ends for other in table.before[task]):
                    break
                since = [times[worker], *(ends[other] for other in table.before[task])]
                starts[task] = max(since)
                ends[task] = times[worker] = starts[task] + cost(table.tasks[task])
                done[worker] += 1
    places = {task: worker for worker, queue in enumerate(given) for task in queue}
    return _simulated(len(given), starts, ends, places)


def by_tickets(table: TaskTable, workers: int, cost: Cost) -> Simulated:
    """Return the run in which a worker that is free takes the next task, then waits for it."""
    return _taken(table, workers, cost, [[*before] for before in table.before])


def by_barriers(table: TaskTable, workers: int, cost: Cost) -> Simulated:
    """Return the run by tickets in which a grid waits for the whole of each grid that it reads."""
    of_grid: dict[str, list[int]] = {}
    for n, task in enumerate(table.tasks):
        of_grid.setdefault(task.grid.name, []).append(n)
    waits: dict[str, set[int]] = {name: set() for name in of_grid}
    for task, before in zip(table.tasks, table.before, strict=True):
        for other in before:
            waits[task.grid.name].update(of_grid[table.tasks[other].grid.name])
    return _taken(table, workers, cost, [[*waits[task.grid.name]] for task in table.tasks])


def _taken(
    table: TaskTable, workers: int, cost: Cost, before: Sequence[Sequence[int]]
) -> Simulated:
    starts: dict[int, float] = {}
    ends: dict[int, float] = {}
    places: dict[int, int] = {}
    free = [(0.0, worker) for worker in range(workers)]
    for n, task in enumerate(table.tasks):
        since, places[n] = heapq.heappop(free)
        starts[n] = max([since, *(ends[other] for other in before[n])])
        ends[n] = starts[n] + cost(task)
        heapq.heappush(free, (ends[n], places[n]))
    return _simulated(workers, starts, ends, places)


def _simulated(
    workers: int, starts: dict[int, float], ends: dict[int, float], places: dict[int, int]
) -> Simulated:
    order = range(len(starts))
    return Simulated(
        workers,
        tuple(starts[n] for n in order),
        tuple(ends[n] for n in order),
        tuple(places[n] for n in order),
    )
