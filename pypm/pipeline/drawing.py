"""Timelines of simulations: a line or a row of boxes for each rank."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pypm.pipeline.plan import Kind, Task
from pypm.pipeline.simulation import Simulation

__all__ = ["timeline", "timeline_svg"]


def timeline(simulation: Simulation, *, width: int = 240) -> str:
    """Return a simulation as a line of text for each rank, of about `width` characters at most.

    A task is its kind and its microbatch, as `F3`; with several stages on a rank, the stage comes
    first, as `2F3`. A task with less room is its kind alone. Dots are idle time.
    """
    shortest = min(end - start for _, _, start, end in _boxes(simulation) if end > start)
    longest = max(len(_label(simulation, task)) for _, task, _, _ in _boxes(simulation))
    scale = min((longest + 1) / shortest, width / simulation.makespan)
    lines = [["."] * round(simulation.makespan * scale) for _ in simulation.busy]
    for rank, task, start, end in _boxes(simulation):
        first, last = round(start * scale), round(end * scale)
        label = _label(simulation, task)
        if len(label) > last - first:
            label = task.kind.value
        fill = " " if task.kind is Kind.FORWARD else "-"
        lines[rank][first:last] = label.ljust(last - first, fill)[: last - first]
    return "\n".join(f"rank {rank} {''.join(line)}" for rank, line in enumerate(lines))


ROW: Final = 26
HEIGHT: Final = 22
LEFT: Final = 56
COLORS: Final = {
    Kind.FORWARD: "#8fb8de",
    Kind.BACKWARD: "#a5d6a7",
    Kind.BACKWARD_INPUT: "#c5e1a5",
    Kind.BACKWARD_WEIGHT: "#ffcc80",
}
NAMES: Final = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.BACKWARD_INPUT: "backward, inputs",
    Kind.BACKWARD_WEIGHT: "backward, weights",
}


def timeline_svg(simulation: Simulation, *, width: int = 1200) -> str:
    """Return a simulation as an SVG of `width` pixels: a row for each rank, a box for each task.

    A box has the number of the microbatch if there is room; its title names the task and its times.
    Tasks of later stages on a rank are darker.
    """
    scale = (width - LEFT) / simulation.makespan
    ranks = len(simulation.busy)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{ROW * (ranks + 1)}">',
        "<style>text { font: 11px sans-serif; fill: #222 } rect { stroke: #607d8b }</style>",
        '<rect width="100%" height="100%" style="fill: white; stroke: none"/>',
    ]
    parts += [f'<text x="4" y="{ROW * r + 16}">rank {r}</text>' for r in range(ranks)]
    for rank, task, start, end in _boxes(simulation):
        x, y, size = LEFT + start * scale, ROW * rank + 2, (end - start) * scale
        parts.append(
            f'<g><title>{task}, {start:.6g} to {end:.6g}</title><rect x="{x:.1f}" y="{y}" '
            f'width="{size:.1f}" height="{HEIGHT}" fill="{COLORS[task.kind]}" '
            f'fill-opacity="{_opacity(simulation, task):.2f}"/>'
        )
        if size >= 8 * len(str(task.microbatch)):
            parts.append(f'<text x="{x + 2:.1f}" y="{y + 15}">{task.microbatch}</text>')
        parts.append("</g>")
    return "\n".join([*parts, *_legend(simulation), "</svg>\n"])


def _legend(simulation: Simulation) -> Iterator[str]:
    kinds = {task.kind for tasks in simulation.plan.ranks for task in tasks}
    y = ROW * len(simulation.busy) + 4
    for number, kind in enumerate(each for each in Kind if each in kinds):
        x = LEFT + 150 * number
        yield f'<rect x="{x}" y="{y}" width="14" height="14" fill="{COLORS[kind]}"/>'
        yield f'<text x="{x + 20}" y="{y + 11}">{NAMES[kind]}</text>'


def _opacity(simulation: Simulation, task: Task) -> float:
    rank_of = simulation.plan.rank_of
    own = [s for s, rank in enumerate(rank_of) if rank == rank_of[task.stage]]
    return 0.6 + 0.4 * (own.index(task.stage) + 1) / len(own)


def _label(simulation: Simulation, task: Task) -> str:
    rank_of = simulation.plan.rank_of
    is_alone = rank_of.count(rank_of[task.stage]) == 1
    return task.label[len(str(task.stage)) :] if is_alone else task.label


def _boxes(simulation: Simulation) -> Iterator[tuple[int, Task, float, float]]:
    """Yield the rank, the task, its start and its end."""
    for rank, tasks in enumerate(simulation.plan.ranks):
        for task, (start, end) in zip(tasks, simulation.spans[rank], strict=True):
            yield rank, task, start, end
