"""Event tensors, derived from the maps of a graph.

Between the grids that write a tensor and those that read it stands a tensor of events. An axis that
readers read as a whole has no coordinate there; an axis that they read by tiles, or by runs of
them, has one for each run; an axis of which they read tiles that data choose, one for each tile. A
task that wrote notifies the events of its tiles; a task that reads
waits until the events of the tiles that it needs have counted all their writers.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from pypm.events.grids import ChosenTiles, Grid, Sizes, TileGraph, TileMap, Tiles, refuse

__all__ = ["EventTensor", "event_tensors"]


@dataclass(frozen=True, slots=True)
class EventTensor:
    """Events for one tensor of tiles and one way to read it."""

    tensor: str
    runs: tuple[int, ...]
    """For each axis of the tensor, the tiles of one event; 0 for all."""

    def __str__(self) -> str:
        return f"{self.tensor}/{','.join(map(str, self.runs))}"

    def shape(self, graph: TileGraph, sizes: Sizes) -> Tiles:
        """Return the number of events along each axis that has a coordinate.

        Raises EventError if a run does not divide its axis.
        """
        found = []
        for size, run in zip(graph.shape(self.tensor, sizes), self.runs, strict=True):
            if run and size % run:
                raise refuse(
                    f"events of `{self.tensor}` would be uneven: {size} tiles in runs of {run}"
                )
            if run:
                found.append(size // run)
        return tuple(found)

    def of(self, tile: Tiles) -> Tiles:
        """Return the event of a tile."""
        return tuple(at // run for at, run in zip(tile, self.runs, strict=True) if run)

    def count(self, graph: TileGraph, sizes: Sizes) -> int:
        """Return how many tasks notify each event, by the maps of its writers alone."""
        shape = graph.shape(self.tensor, sizes)
        return sum(self._arrivals(grid, each, shape) for grid, each in graph.writers(self.tensor))

    def _arrivals(self, grid: Grid, writes: TileMap, shape: Tiles) -> int:
        """Return how many tasks of a grid notify one event, where the map is one to one."""
        tasks = [
            1 if part.index is None else max((run or size) // part.length, 1)
            for part, size, run in zip(writes.parts, shape, self.runs, strict=True)
        ]
        return math.prod(tasks)

    def notified(self, graph: TileGraph, writes: TileMap, task: Tiles, sizes: Sizes) -> set[Tiles]:
        """Return the events that a task notifies for what it wrote by a map."""
        shape = graph.shape(self.tensor, sizes)
        return {self.of(tile) for tile in writes.tiles(task, shape)}


def signature(reads: TileMap) -> EventTensor:
    """Return the event tensor for a way to read."""
    return EventTensor(
        reads.tensor,
        tuple(
            part.length if part.index is not None or isinstance(part, ChosenTiles) else 0
            for part in reads.parts
        ),
    )


def event_tensors(graph: TileGraph) -> tuple[EventTensor, ...]:
    """Return the event tensors of a graph: one for each tensor that is written and each way in
    which grids read it.
    """
    found = dict.fromkeys(
        signature(each)
        for grid in graph.grids
        for each in grid.inputs
        if each.tensor not in graph.inputs
    )
    return tuple(found)


def all_events(event: EventTensor, graph: TileGraph, sizes: Sizes) -> list[Tiles]:
    """Return the coordinates of all events of a tensor."""
    return list(itertools.product(*map(range, event.shape(graph, sizes))))
