"""Checks of graphs and of tables of tasks, before anything runs.

A table that passes runs to its end with any number of workers, each task after all that it reads,
if workers take tasks in the order of the table, or keep queues that agree with one order.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import networkx as nx

from pypm.events.grids import ElementsOf, EventError, Sizes, TileGraph, TileMap, Tiles, refuse
from pypm.events.tasks import GridTask, TaskTable, lowered

__all__ = ["check_events", "check_order", "check_queues", "check_tiles", "checked"]

Tile = tuple[str, Tiles]


def checked(graph: TileGraph, sizes: Sizes, data: ElementsOf | None = None) -> TaskTable:
    """Return the table of tasks of a graph that passes all checks. Raises EventError otherwise.

    Without data, tasks wait for all tiles that they may choose: if this table passes, so do those
    for data with numbers of tiles that exist, with the same order of tasks.
    """
    check_tiles(graph, sizes, data)
    table = lowered(graph, sizes, data=data)
    check_events(table)
    check_order(table)
    return table


def check_tiles(
    graph: TileGraph, sizes: Sizes, data: ElementsOf | None = None
) -> dict[Tile, GridTask]:
    """Return the task that writes each tile.

    Raises EventError unless every tile of a tensor that is no input is written once, and no map
    leaves its tensor.
    """
    written: dict[Tile, GridTask] = {}
    for grid in graph.grids:
        for at in grid.tasks(sizes):
            task = GridTask(grid, at)
            for each in grid.outputs:
                for tile in _inside(graph, sizes, task, each, None):
                    other = written.setdefault((each.tensor, tile), task)
                    if other is not task:
                        what = _tile(each.tensor, tile)
                        raise refuse(f"{what} is written by {other} and again by {task}")
            for each in grid.inputs:
                _inside(graph, sizes, task, each, data)
    for name in graph.tensors:
        if name not in graph.inputs:
            for tile in _all(graph.shape(name, sizes)):
                if (name, tile) not in written:
                    raise refuse(f"no task writes {_tile(name, tile)}", _readers(graph, name))
    return written


def _inside(
    graph: TileGraph, sizes: Sizes, task: GridTask, each: TileMap, data: ElementsOf | None
) -> list[Tiles]:
    shape = graph.shape(each.tensor, sizes)
    tiles = [*each.tiles(task.at, shape, data)]
    for tile in tiles:
        if any(not 0 <= at < size for at, size in zip(tile, shape, strict=True)):
            what = f"{_tile(each.tensor, tile)} of a tensor of {shape} tiles"
            raise refuse(f"`{each}` of {task} is out of range: {what}")
    return tiles


def _all(shape: Tiles) -> list[Tiles]:
    found: list[Tiles] = [()]
    for size in shape:
        found = [(*at, n) for at in found for n in range(size)]
    return found


def _tile(tensor: str, tile: Tiles) -> str:
    return f"tile {tensor}[{', '.join(map(str, tile))}]"


def _readers(graph: TileGraph, tensor: str) -> str:
    names = [g.name for g in graph.grids if any(each.tensor == tensor for each in g.inputs)]
    return f"read by {', '.join(names)}" if names else "nothing reads it; leave it out"


def check_events(table: TaskTable) -> None:
    """Raise EventError unless each wait is for as many arrivals as its event gets, and these
    include all tasks that write what is read.
    """
    written = check_tiles(table.graph, table.sizes, table.data)
    numbers = {(task.grid.name, task.at): n for n, task in enumerate(table.tasks)}
    for n, (task, waits) in enumerate(zip(table.tasks, table.waits, strict=True)):
        for event, count in waits:
            arrivals = len(table.notified_by.get(event, ()))
            if arrivals != count:
                name = table.events[event]
                raise refuse(f"{task} waits for {count} arrivals at {name}, which gets {arrivals}")
        for each in task.grid.inputs:
            shape = table.graph.shape(each.tensor, table.sizes)
            for tile in each.tiles(task.at, shape, table.data):
                writer = written.get((each.tensor, tile))
                if writer and numbers[writer.grid.name, writer.at] not in table.before[n]:
                    what = _tile(each.tensor, tile)
                    raise refuse(f"{task} does not wait for {writer}, which writes {what}")


def check_order(table: TaskTable) -> None:
    """Raise EventError unless each task comes after those for which it waits."""
    for n, (task, before) in enumerate(zip(table.tasks, table.before, strict=True)):
        late = [other for other in before if other >= n]
        if late:
            raise _disorder(table, task, max(late))


def _disorder(table: TaskTable, task: GridTask, late: int) -> EventError:
    waiting = nx.DiGraph([(b, n) for n, before in enumerate(table.before) for b in before])
    try:
        cycle = [table.tasks[a] for a, _ in nx.find_cycle(waiting)]
    except nx.NetworkXNoCycle:
        return refuse(f"{task} waits for {table.tasks[late]}, which comes later")
    return refuse("tasks wait for each other: " + ", ".join(map(str, [*cycle, cycle[0]])))


def check_queues(table: TaskTable, queues: Sequence[Sequence[int]]) -> None:
    """Raise EventError unless each task is in one queue, and no worker could wait forever."""
    placed = Counter(task for queue in queues for task in queue)
    for n, task in enumerate(table.tasks):
        if placed[n] != 1:
            raise refuse(f"{task} is in {placed[n]} queues")
    waiting: nx.DiGraph[int] = nx.DiGraph()
    waiting.add_edges_from((b, n) for n, before in enumerate(table.before) for b in before)
    for queue in queues:
        waiting.add_edges_from(itertools.pairwise(queue))
    if not nx.is_directed_acyclic_graph(waiting):
        cycle = [str(table.tasks[a]) for a, _ in nx.find_cycle(waiting)]
        raise refuse(f"queues wait for each other: {', '.join([*cycle, cycle[0]])}")
