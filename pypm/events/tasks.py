"""The tasks of a graph for given sizes, with the events that they wait for and notify."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pypm.events.grids import ElementsOf, Grid, Sizes, TileGraph, Tiles
from pypm.events.tensors import EventTensor, all_events, event_tensors, signature

__all__ = ["GridTask", "TaskTable", "in_order", "lowered"]


@dataclass(frozen=True, slots=True)
class GridTask:
    """One task of a grid."""

    grid: Grid
    at: Tiles

    def __str__(self) -> str:
        return f"{self.grid.name}[{', '.join(map(str, self.at))}]"


@dataclass(frozen=True)
class TaskTable:
    """Tasks by number, in the order of tickets."""

    graph: TileGraph
    sizes: Sizes
    tasks: tuple[GridTask, ...]
    events: tuple[str, ...]
    """Names of the events by number."""
    waits: tuple[tuple[tuple[int, int], ...], ...]
    """For each task, events and the arrivals that it waits for."""
    notes: tuple[tuple[int, ...], ...]
    """For each task, the events that it notifies."""
    data: ElementsOf | None = None
    """The numbers by which tasks choose tiles; without them, tasks wait for all they may choose."""

    @cached_property
    def notified_by(self) -> Mapping[int, frozenset[int]]:
        """Return the tasks that notify each event."""
        found: dict[int, set[int]] = defaultdict(set)
        for task, notes in enumerate(self.notes):
            for event in notes:
                found[event].add(task)
        return {event: frozenset(tasks) for event, tasks in found.items()}

    @cached_property
    def before(self) -> tuple[frozenset[int], ...]:
        """Return for each task those that notify an event for which it waits."""
        nobody: frozenset[int] = frozenset()
        return tuple(
            nobody.union(*(self.notified_by.get(event, nobody) for event, _ in waits))
            for waits in self.waits
        )


def in_order(graph: TileGraph) -> tuple[Grid, ...]:
    """Return the grids in a topological order, as near to the given one as it can be.

    Grids that depend on each other come last, as they are: `pypm.events.checks` refuses them.
    """
    makers = {name: [grid.name for grid, _ in graph.writers(name)] for name in graph.tensors}
    missing = {g.name: {m for each in g.inputs for m in makers[each.tensor]} for g in graph.grids}
    place = {grid.name: n for n, grid in enumerate(graph.grids)}
    ready = [place[name] for name, others in missing.items() if not others]
    order = []
    while ready:
        name = graph.grids[heapq.heappop(ready)].name
        order.append(name)
        for other, others in missing.items():
            if name in others:
                others.discard(name)
                if not others:
                    heapq.heappush(ready, place[other])
    done = {*order}
    return tuple(
        graph.grids[place[name]] for name in (*order, *(n for n in place if n not in done))
    )


def lowered(
    graph: TileGraph,
    sizes: Sizes,
    grids: Sequence[Grid] | None = None,
    data: ElementsOf | None = None,
) -> TaskTable:
    """Return the tasks of a graph, with its events and their counts.

    Arguments:
        graph: the graph.
        sizes: numbers for the names of sizes.
        grids: the order of grids; by default `in_order`.
        data: elements of the tensors by which tasks choose tiles.

    Raises EventError if a name has no number, or if runs do not divide an axis.
    """
    tensors = event_tensors(graph)
    numbers: dict[tuple[EventTensor, Tiles], int] = {}
    for each in tensors:
        for at in all_events(each, graph, sizes):
            numbers[each, at] = len(numbers)
    counts = {each: each.count(graph, sizes) for each in tensors}
    tasks, waits, notes = [], [], []
    for grid in in_order(graph) if grids is None else grids:
        told = [(m, e) for m in grid.outputs for e in tensors if e.tensor == m.tensor]
        for at in grid.tasks(sizes):
            needed: dict[int, int] = {}
            for reads in grid.inputs:
                event = signature(reads)
                for tile in reads.tiles(at, graph.shape(reads.tensor, sizes), data):
                    number = numbers.get((event, event.of(tile)))
                    if number is not None:
                        needed[number] = counts[event]
            tells = {
                numbers[event, of]
                for writes, event in told
                for of in event.notified(graph, writes, at, sizes)
                if (event, of) in numbers
            }
            tasks.append(GridTask(grid, at))
            waits.append(tuple(needed.items()))
            notes.append(tuple(sorted(tells)))
    names = tuple(f"{event}[{', '.join(map(str, at))}]" for event, at in numbers)
    return TaskTable(graph, sizes, tuple(tasks), names, tuple(waits), tuple(notes), data)
