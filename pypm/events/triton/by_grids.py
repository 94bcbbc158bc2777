"""The same tiles with a launch for each grid, to compare with: what one kernel of all saves."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from pypm.events.triton.tables import BoundStep
from pypm.events.triton.text import TASK

__all__ = ["by_grids"]


def by_grids(step: BoundStep) -> list[BoundStep]:
    """Return a launch for each grid of a step, in its order, into the same buffers.

    The launches compute the step one after the other on one stream: no task waits in them.
    """
    arguments = step.arguments
    tasks = arguments["tasks"]
    assert isinstance(tasks, Tensor)
    found = []
    for name in dict.fromkeys(task.grid.name for task in step.table.tasks):
        places = [n for n, task in enumerate(step.table.tasks) if task.grid.name == name]
        some = tasks[places].clone()
        some[:, TASK - 4 :] = 0  # no events
        given = {
            n: x.clone() if isinstance(x, Tensor) and n in ("tickets", "counters") else x
            for n, x in arguments.items()
        }
        none = ((),) * len(places)
        own = tuple(step.table.tasks[n] for n in places)
        table = replace(step.table, tasks=own, events=(), waits=none, notes=none)
        programs = min(step.programs, len(places))
        given |= {"tasks": some, "count": len(places)}
        found.append(replace(step, programs=programs, table=table, arguments=given))
    return found
