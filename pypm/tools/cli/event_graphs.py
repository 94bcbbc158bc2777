"""The command `events`: the grids, events and schedules of decoder stacks in a program."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.tools.cli.options import Imports, Model, Trust, loaded
from pypm.tools.cli.terminal import say

if TYPE_CHECKING:
    from pypm.events.grids import TileGraph
    from pypm.events.schedules import Cost, Simulated
    from pypm.events.tasks import TaskTable
    from pypm.lanes import Lanes

__all__ = ["events"]


def events(
    model: Model,
    workers: Annotated[
        str, typer.Option(metavar="N,N", help="Numbers of workers to simulate.")
    ] = "1,2,4",
    keys: Annotated[
        int | None,
        typer.Option(metavar="N", help="Keys that are filled; all by default.", show_default=False),
    ] = None,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the schedules as a picture.")
    ] = None,
    trust: Trust = False,
    modules: Imports = None,
) -> None:
    """Print the grids of each decoder stack, its events and critical path, and schedules of its
    tasks: how long they take for each number of workers, and the last number over time.
    """
    from pypm.events.decoder import cost_of, decoder_graph
    from pypm.fx import find
    from pypm.rules.events.patterns import Layers
    from pypm.rules.events.stacks import Misfit, step_of_match

    counts = _counts(workers)
    gm = loaded(model, trust, modules).graph_module
    covered: set[object] = set()
    drawn: list[Lanes] = []
    for match in find(gm, Layers):
        if match.root in covered:  # a stack within a larger one
            continue
        covered |= {*match.region.nodes}
        try:
            step, rows, size = step_of_match(match)
        except Misfit as reason:
            say(f"{match.root}: {reason}")
            continue
        heads = f"{step.groups * step.heads} heads of {step.size} in {step.groups} groups"
        say(f"{match.root}: {len(step.layers)} layers of width {step.width}, {heads}, {rows} rows")
        cost = cost_of(size if keys is None else min(keys, size))
        drawn.append(_shown(str(match.root), decoder_graph(step), rows, cost, counts))
    if not covered:
        raise PyPMError(
            Diagnostic(
                "the program has no step of a decoder stack over caches",
                help="save it after `run_decompositions({})`: writes into caches are values then",
            )
        )

    if svg is not None and drawn:
        svg.write_text(_joined(drawn).svg(), encoding="utf-8")
        say(f"\nthe schedules over time are in {svg}")


def _counts(workers: str) -> list[int]:
    counts = [int(word) if word.isdecimal() else 0 for word in workers.split(",")]
    if not all(counts):
        raise PyPMError(Diagnostic(f"`{workers}` are no numbers of workers", help="such as 1,2,4"))
    return counts


def _shown(root: str, graph: TileGraph, rows: int, cost: Cost, counts: list[int]) -> Lanes:
    """Print a graph and its schedules; return those of the last number of workers over time."""
    from pypm.events.checks import checked
    from pypm.events.decoder import ROWS
    from pypm.events.drawing import schedule_lanes

    table = checked(graph, {ROWS: rows})
    runs = {count: _runs(table, count, cost) for count in counts}
    for line in (*_lines(graph, table, cost), *_compared(runs)):
        say(line)
    title = f"{root}: {len(table.tasks):,} tasks, {counts[-1]} workers"
    lanes = schedule_lanes(title, table, runs[counts[-1]], cost, "elements read")
    say(f"\n{lanes.text(100)}")
    return lanes


def _joined(drawn: list[Lanes]) -> Lanes:
    """Return the lanes of several stacks in one picture."""
    if len(drawn) == 1:
        return drawn[0]
    panels = [
        replace(panel, heading=f"{lanes.title}: {panel.heading}")
        for lanes in drawn
        for panel in lanes.panels
    ]
    kinds = {kind: look for lanes in drawn for kind, look in lanes.kinds.items()}
    return replace(drawn[0], title=f"{len(drawn)} stacks", panels=tuple(panels), kinds=kinds)


def _lines(graph: TileGraph, table: TaskTable, cost: Cost) -> Iterator[str]:
    from pypm.events.schedules import critical
    from pypm.events.tensors import event_tensors

    for grid in graph.grids:
        ways = "; ".join(map(str, (*grid.inputs, *grid.outputs)))
        sized = ", ".join(f"{index}: {size}" for index, size in grid.sizes.items())
        yield f"  grid {grid.name} ({sized})  {ways}"
    for event in event_tensors(graph):
        shape = list(event.shape(graph, table.sizes))
        yield f"  events {event} {shape}  {event.count(graph, table.sizes)} arrivals"
    length, path = critical(table, cost)
    whole = sum(map(cost, table.tasks))
    yield f"  {len(table.tasks)} tasks read {whole:,.0f} elements of weights and caches"
    yield f"  critical path {length:,.0f}: {', '.join(map(str, path))}"


def _runs(table: TaskTable, count: int, cost: Cost) -> dict[str, Simulated]:
    from pypm.events import schedules
    from pypm.events.checks import check_queues

    given = schedules.queues(table, count, cost)
    check_queues(table, given)
    return {
        "queues": schedules.by_queues(table, given, cost),
        "tickets": schedules.by_tickets(table, count, cost),
        "barriers": schedules.by_barriers(table, count, cost),
    }


def _compared(runs: dict[int, dict[str, Simulated]]) -> Iterator[str]:
    yield "  workers  schedule  makespan  idle"
    for count, each in runs.items():
        for name, run in each.items():
            yield f"  {count:7}  {name:8}  {run.makespan:8,.0f}  {run.idle:4.0%}"
