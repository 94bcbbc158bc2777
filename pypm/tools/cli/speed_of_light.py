"""The command `sol`: how far programs and problems are from the limits of some hardware."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.integrations.rule_files import load_rules
from pypm.tools.cli.choice_names import THIS_MACHINE, Choose, choice_named, hardware_named
from pypm.tools.cli.options import Imports, Json, MaybeRules, Threads, Trust, loaded
from pypm.tools.cli.problem import Output, Solutions, Timeout, run_problem
from pypm.tools.cli.terminal import each, say, working

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from pypm.roofline import Hardware
    from pypm.tools.headroom.analysis import Timer

__all__ = ["sol"]


OF_PROGRAMS: Final = ("hardware", "choose", "seconds", "trust", "modules")
OF_PROBLEMS: Final = ("solution", "output", "timeout")
"""Options that one of both kinds has alone, by their names in `sol`."""
ProgramOrProblem: TypeAlias = Annotated[
    Path,
    typer.Argument(
        help="An exported program, or the folder of a problem: definition.json and "
        "workload.jsonl, whose reference is RUN as Python.",
        show_default=False,
    ),
]
HardwareName: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="A name, as `H100`, a TOML file, or this machine's CPU. Only what runs on this "
        "machine is measured.",
    ),
]


def sol(
    context: typer.Context,
    model: ProgramOrProblem,
    rules: MaybeRules = None,
    hardware: HardwareName = THIS_MACHINE,
    choose: Choose = "first",
    seconds: Annotated[float, typer.Option(min=0, help="How long to time one region.")] = 0.2,
    threads: Threads = 1,
    as_json: Json = False,
    trust: Trust = False,
    modules: Imports = None,
    solution: Solutions = None,
    output: Output = None,
    timeout: Timeout = 300.0,
) -> None:
    """List the regions of a model by what they take, and could take at least, on some hardware.

    Or run a problem in the files of SOL-ExecBench: its reference, compiled, rewritten by rules, and
    solutions. Exit code 1: one of them failed.
    """
    if model.is_dir():
        _refuse(context, OF_PROGRAMS, "a program, not of a problem")
        run_problem(model, rules, solution or [], output, timeout, threads, as_json)
    _refuse(context, OF_PROBLEMS, "a problem, not of a program")
    from pypm.timing import on_threads
    from pypm.tools.headroom.analysis import headroom

    chosen, choice = load_rules(rules or []), choice_named(choose)
    program = loaded(model, trust, modules)
    with working("finding out what the hardware can do"):
        device = hardware_named(hardware, threads)
    timer = _timer(program, device, hardware, seconds)
    with on_threads(threads):
        found = headroom(
            program,
            device,
            chosen,
            choose=choice,
            timer=timer,
            progress=lambda groups: each(groups, "timing regions" if timer else "regions"),
        )
    options = [
        *(["--trust-model"] if trust else []),
        *(f"--import={name}" for name in modules or ()),
    ]
    command = shlex.join(["pypm", "suggest", str(model), *found.start, *options])
    if as_json:
        say(json.dumps({**found.as_dict(), "suggest": command if found.start else None}, indent=2))
    else:
        say(found)
        if found.start:
            say(f"\na rule for the first region that no rule takes starts with\n  {command}")


def _refuse(context: typer.Context, names: tuple[str, ...], others: str) -> None:
    """Raise PyPMError for an option that was given, although others have it."""
    options = {each.name: each.opts[0] for each in context.command.params}
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name != "DEFAULT":
            raise PyPMError(Diagnostic(f"`{options[name]}` is an option of {others}"))


def _timer(program: ExportedProgram, device: Hardware, name: str, seconds: float) -> Timer | None:
    """Return what times regions; None if the hardware is not that of this machine."""
    from pypm.roofline.regions import tensors
    from pypm.tools.headroom.clock import PartClock, is_here

    kinds = {value.device.type for node in program.graph.nodes for value in tensors(node)}
    if is_here(device, kinds):
        return PartClock(seconds)
    if name == THIS_MACHINE:
        found = ", ".join(sorted(kinds))
        help = "name its hardware, as `--hardware H100`"
        what = f"the program runs on {found}, and `{THIS_MACHINE}` is this machine's CPU"
        raise PyPMError(Diagnostic(what, help=help))
    return None
