"""The command `events`: the grids, events and schedules of decoder stacks in a program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.tools.cli.options import Imports, Model, Trust, loaded
from pypm.tools.cli.terminal import say

if TYPE_CHECKING:
    from pypm.events.grids import TileGraph

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
    trust: Trust = False,
    modules: Imports = None,
) -> None:
    """Print the grids of each decoder stack, its events and critical path, and how long schedules
    of them take.
    """
    from pypm.events.decoder import decoder_graph
    from pypm.fx import find
    from pypm.rules.events.patterns import Layers
    from pypm.rules.events.stacks import Misfit, step_of_match

    counts = _counts(workers)
    gm = loaded(model, trust, modules).graph_module
    covered: set[object] = set()
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
        filled = size if keys is None else min(keys, size)
        for line in _lines(decoder_graph(step), rows, filled, counts):
            say(line)
    if not covered:
        raise PyPMError(
            Diagnostic(
                "the program has no step of a decoder stack over caches",
                help="save it after `run_decompositions({})`: writes into caches are values then",
            )
        )


def _counts(workers: str) -> list[int]:
    counts = [int(word) if word.isdecimal() else 0 for word in workers.split(",")]
    if not all(counts):
        raise PyPMError(Diagnostic(f"`{workers}` are no numbers of workers", help="such as 1,2,4"))
    return counts


def _lines(graph: TileGraph, rows: int, filled: int, counts: list[int]) -> Iterator[str]:
    from pypm.events import checks, schedules
    from pypm.events.decoder import ROWS, cost_of
    from pypm.events.tensors import event_tensors

    sizes = {ROWS: rows}
    table = checks.checked(graph, sizes)
    for grid in graph.grids:
        ways = "; ".join(map(str, (*grid.inputs, *grid.outputs)))
        sized = ", ".join(f"{index}: {size}" for index, size in grid.sizes.items())
        yield f"  grid {grid.name} ({sized})  {ways}"
    for event in event_tensors(graph):
        shape = list(event.shape(graph, sizes))
        yield f"  events {event} {shape}  {event.count(graph, sizes)} arrivals"
    cost = cost_of(filled)
    length, path = schedules.critical(table, cost)
    whole = sum(map(cost, table.tasks))
    yield f"  {len(table.tasks)} tasks read {whole:,.0f} elements of weights and caches"
    yield f"  critical path {length:,.0f}: {', '.join(map(str, path))}"
    yield "  workers  schedule  makespan  idle"
    for count in counts:
        given = schedules.queues(table, count, cost)
        checks.check_queues(table, given)
        for name, run in (
            ("queues", schedules.by_queues(table, given, cost)),
            ("tickets", schedules.by_tickets(table, count, cost)),
            ("barriers", schedules.by_barriers(table, count, cost)),
        ):
            yield f"  {count:7}  {name:8}  {run.makespan:8,.0f}  {run.idle:4.0%}"
