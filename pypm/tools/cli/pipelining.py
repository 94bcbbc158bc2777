"""The command `pipeline`: a program cut into stages, and a schedule of them on a clock."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.integrations.rule_files import existing_file, load_pattern
from pypm.tools.cli.choice_names import hardware_named
from pypm.tools.cli.options import Imports, Json, Model, Trust, loaded
from pypm.tools.cli.terminal import say, working

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from pypm.fields import Plain
    from pypm.pipeline import Cut, Simulation

__all__ = ["pipeline"]


_SCHEDULE: Final = typer.Option(
    metavar="NAME",
    help="`gpipe`, `1f1b`, `eager-1f1b` or `zb-h1`, with a stage on each rank; "
    "`interleaved-gpipe` or `interleaved-1f1b`; `zbv` or `dual-pipe-v`, with two.",
)
_AT: Final = typer.Option(
    metavar="PATTERN",
    help="A pattern whose root is the last value of a block, as `module:NAME` or "
    "`file.py:NAME`: RUN as Python.",
    show_default="marks, or layers",
)


def pipeline(
    model: Model,
    stages: Annotated[int, typer.Option(min=1, help="The number of stages.")],
    schedule: Annotated[str, _SCHEDULE] = "1f1b",
    microbatches: Annotated[int, typer.Option(min=1, help="Parts of a batch.")] = 8,
    ranks: Annotated[
        int | None,
        typer.Option(min=1, help="Of an interleaved schedule; by default half of the stages."),
    ] = None,
    hardware: Annotated[
        str, typer.Option(metavar="NAME", help="As for `sol`: stages are balanced by its bounds.")
    ] = "H100",
    bandwidth: Annotated[
        float, typer.Option(min=1, help="Bytes a second between ranks.", show_default="unlimited")
    ] = math.inf,
    measure: Annotated[
        bool, typer.Option("--measure", help="Balance by times on this machine, of each block.")
    ] = False,
    at: Annotated[str | None, _AT] = None,
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the timeline as a picture.")
    ] = None,
    as_json: Json = False,
    trust: Trust = False,
    modules: Imports = None,
) -> None:
    """Cut a model into stages, and simulate a schedule that trains them.

    The inputs with which the model was exported are those of one microbatch. Nothing is run but,
    with --measure, each block on made-up values.
    """
    from pypm import pipeline as pipelines

    existing_file(model)
    chosen = pipelines.schedule(schedule, stages=stages, ranks=ranks)
    plan = pipelines.plan(chosen, stages=stages, microbatches=microbatches)
    end = None if at is None else load_pattern(at)
    program = loaded(model, trust, modules)
    with working("timing and cutting" if measure else "cutting"):
        cost = pipelines.measured() if measure else None
        device = hardware_named(hardware)
        cut = pipelines.stages(program, end, count=stages, hardware=device, cost=cost)
        costs = pipelines.stage_costs(cut, *_inputs(program))
    found = pipelines.simulate(plan, costs, bandwidth=bandwidth)
    if svg is not None:
        svg.write_text(pipelines.timeline_svg(found), encoding="utf-8")
    if as_json:
        say(json.dumps(_record(cut, found), indent=2))
    else:
        say(f"{cut}\n\n{found}\n\n{pipelines.timeline(found)}")


def _inputs(program: ExportedProgram) -> list[object]:
    """Return the inputs with which a program was exported, in order."""
    from pypm.torch_internals import pytree

    if program.example_inputs is None:
        help = "export it with inputs, and keep them"
        raise PyPMError(Diagnostic("the program has no example inputs", help=help))
    return [*pytree.tree_leaves(program.example_inputs)]


def _record(cut: Cut, found: Simulation) -> Plain:
    tasks = [
        [
            {"task": task.label, "start": start, "end": end}
            for task, (start, end) in zip(tasks, spans, strict=True)
        ]
        for tasks, spans in zip(found.plan.ranks, found.spans, strict=True)
    ]
    return {
        "stages": [
            {"blocks": blocks, "seconds": seconds, "sends": stage.sent}
            for stage, seconds, blocks in zip(cut.stages, cut.seconds, cut.blocks, strict=True)
        ],
        "ties": [[{"stage": s, "weight": name} for s, name in tie] for tie in cut.ties],
        "seconds": found.makespan,
        "bubble": found.bubble,
        "ranks": [
            {"busy": busy, "activations": peak, "sent": sent, "tasks": each}
            for busy, peak, sent, each in zip(
                found.busy, found.peaks, found.sent, tasks, strict=True
            )
        ],
    }
