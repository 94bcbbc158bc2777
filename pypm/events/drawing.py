"""Pictures of simulated schedules: a lane for each worker, a bar for each task."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pypm.events.grids import Grid
from pypm.events.schedules import Cost, Simulated, critical
from pypm.events.tasks import TaskTable
from pypm.lanes import TONES, BarKind, Lane, LaneBar, LanePanel, Lanes

__all__ = ["schedule_lanes"]


def schedule_lanes(
    title: str, table: TaskTable, runs: Mapping[str, Simulated], cost: Cost, unit: str
) -> Lanes:
    """Return schedules of one table, one below the other, with a lane for each worker.

    Arguments:
        title: the heading of the picture.
        table: the tasks.
        runs: simulated runs by the names of their schedules.
        cost: the time of a task.
        unit: the unit of times.

    Grids whose names differ in a number at the end, as those of layers, have one color.
    """
    grids = {task.grid.name: task.grid for task in table.tasks}
    words = {_kind(name): _words(grid) for name, grid in grids.items()}
    kinds = {
        kind: BarKind(TONES[n % len(TONES)], said) for n, (kind, said) in enumerate(words.items())
    }
    path = {*map(str, critical(table, cost)[1])}
    panels = []
    for name, run in runs.items():
        lanes: list[list[LaneBar]] = [[] for _ in range(run.workers)]
        for n, (task, place) in enumerate(zip(table.tasks, run.places, strict=True)):
            text, kind, span = str(task), _kind(task.grid.name), (run.starts[n], run.ends[n])
            lanes[place].append(LaneBar(kind, *span, text, text, is_marked=text in path))
        heading = f"{name}: {run.makespan:,.0f}, idle {run.idle:.0%}"
        named = (Lane(f"worker {n}", tuple(bars)) for n, bars in enumerate(lanes))
        panels.append(LanePanel(heading, tuple(named)))
    return Lanes(title, tuple(panels), kinds, unit, "critical path")


def _kind(name: str) -> str:
    """Return the name of a grid without its number, as a class of CSS."""
    return re.sub(r"\W", "-", name.rstrip("0123456789")) or "grid"


def _words(grid: Grid) -> str:
    """Return the name and the computation of a grid."""
    name = _kind(grid.name)
    if grid.body is None:
        return name
    kind = type(grid.body).__name__.removesuffix("Body")
    return f"{name}: {re.sub(r'(?<=[a-z])(?=[A-Z])', ' ', kind).lower()}"
