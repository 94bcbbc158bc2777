"""Timelines of simulations: a line or a row of boxes for each rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pypm.lanes import AMBER, BLUE, GREEN, PALE_GREEN, BarKind, Lane, LaneBar, LanePanel, Lanes
from pypm.pipeline.plan import Kind, Task
from pypm.pipeline.simulation import Simulation

__all__ = ["timeline", "timeline_svg"]

KINDS: Final = {
    Kind.FORWARD.value: BarKind(BLUE, "forward", " "),
    Kind.BACKWARD.value: BarKind(GREEN, "backward"),
    Kind.BACKWARD_INPUT.value: BarKind(PALE_GREEN, "backward, inputs"),
    Kind.BACKWARD_WEIGHT.value: BarKind(AMBER, "backward, weights"),
}


def timeline(simulation: Simulation, *, width: int = 240) -> str:
    """Return a simulation as a line of text for each rank, of about `width` characters at most.

    A task is its kind and its microbatch, as `F3`; with several stages on a rank, the stage comes
    first, as `2F3`. A task with less room is its kind alone. Dots are idle time.
    """
    return _lanes(simulation, with_stages=True).text(width)


def timeline_svg(simulation: Simulation, *, width: int = 1200) -> str:
    """Return a simulation as an SVG of `width` pixels: a row for each rank, a box for each task.

    A box has the number of the microbatch if there is room; its title names the task and its times.
    Tasks of later stages on a rank are darker.
    """
    return _lanes(simulation, with_stages=False).svg(width)


def _lanes(simulation: Simulation, with_stages: bool) -> Lanes:
    def bar(task: Task, start: float, end: float) -> LaneBar:
        text = _label(simulation, task) if with_stages else str(task.microbatch)
        return LaneBar(task.kind.value, start, end, str(task), text, _opacity(simulation, task))

    lanes = tuple(
        Lane(f"rank {rank}", tuple(bar(task, *span) for task, span in _spans(simulation, rank)))
        for rank in range(len(simulation.busy))
    )
    title = f"Time {simulation.makespan:.6g}, bubble {simulation.bubble:.1%}"
    return Lanes(title, (LanePanel("", lanes),), KINDS)


def _opacity(simulation: Simulation, task: Task) -> float:
    rank_of = simulation.plan.rank_of
    own = [s for s, rank in enumerate(rank_of) if rank == rank_of[task.stage]]
    return 0.6 + 0.4 * (own.index(task.stage) + 1) / len(own)


def _label(simulation: Simulation, task: Task) -> str:
    rank_of = simulation.plan.rank_of
    is_alone = rank_of.count(rank_of[task.stage]) == 1
    return task.label[len(str(task.stage)) :] if is_alone else task.label


def _spans(simulation: Simulation, rank: int) -> Iterator[tuple[Task, tuple[float, float]]]:
    """Yield the tasks of a rank, each with its start and its end."""
    yield from zip(simulation.plan.ranks[rank], simulation.spans[rank], strict=True)
