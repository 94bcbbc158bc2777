"""The command `sol`: how far a program is from the limits of some hardware, region by region."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.tools.cli.costs import THIS_MACHINE, Choose, choice_named, hardware_named
from pypm.tools.cli.options import Imports, Json, MaybeRules, Model, Threads, Trust, loaded
from pypm.tools.cli.terminal import each, say, working
from pypm.tools.files.rule_files import load_rules

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from pypm.cost import Hardware
    from pypm.tools.headroom.analysis import Timer

__all__ = ["sol"]


def sol(
    model: Model,
    rules: MaybeRules = None,
    hardware: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="A name, as `H100`, a TOML file, or this machine's CPU. Only what runs on this "
            "machine is measured.",
        ),
    ] = THIS_MACHINE,
    choose: Choose = "first",
    seconds: Annotated[float, typer.Option(min=0, help="How long to time one region.")] = 0.2,
    threads: Threads = 1,
    as_json: Json = False,
    trust: Trust = False,
    modules: Imports = None,
) -> None:
    """List the regions of a model by what they take, and could take at least, on some hardware."""
    from pypm.cost.timing import on_threads
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


def _timer(program: ExportedProgram, device: Hardware, name: str, seconds: float) -> Timer | None:
    """Return what times regions; None if the hardware is not that of this machine."""
    from pypm.cost.regions import tensors
    from pypm.tools.headroom.clock import Clock, is_here

    kinds = {value.device.type for node in program.graph.nodes for value in tensors(node)}
    if is_here(device, kinds):
        return Clock(seconds)
    if name == THIS_MACHINE:
        found = ", ".join(sorted(kinds))
        help = "name its hardware, as `--hardware H100`"
        what = f"the program runs on {found}, and `{THIS_MACHINE}` is this machine's CPU"
        raise PyPMError(Diagnostic(what, help=help))
    return None
