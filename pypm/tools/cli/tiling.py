"""The command `tiles`: the kernel for Hopper of a region of a program."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pypm.diagnostics import Diagnostic, PyPMError, did_you_mean
from pypm.tools.cli.options import Imports, Model, Trust, loaded
from pypm.tools.cli.terminal import say

if TYPE_CHECKING:
    from torch import fx

    from pypm.tiles.emit import Emitted

__all__ = ["tiles"]


def tiles(
    model: Model,
    region: Annotated[
        str | None,
        typer.Option(metavar="NODE", help="The last node of a region.", show_default=False),
    ] = None,
    build: Annotated[
        bool, typer.Option("--build", help="Compile it, and print registers and spills.")
    ] = False,
    is_plain: Annotated[
        bool, typer.Option("--plain", help="Print it in plain Triton, with no specialized warps.")
    ] = False,
    timeline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw its pipeline over time, as an SVG.")
    ] = None,
    trust: Trust = False,
    modules: Imports = None,
) -> None:
    """Print a region's tile program, its partition, and its kernel for Hopper; or list regions."""
    from pypm.tiles.build import built
    from pypm.tiles.plain.kernel import plain
    from pypm.tiles.plain.launch import plain_built
    from pypm.tiles.timeline import timeline as drawn

    kernels, others = _regions(loaded(model, trust, modules).graph_module)
    if region is None:
        if build or is_plain or timeline is not None:
            help = "name a region: `pypm tiles MODEL --region NODE --build`"
            what = "`--build`, `--plain` and `--timeline` are of one region"
            raise PyPMError(Diagnostic(what, help=help))
        for name, (rule, _) in kernels.items():
            say(f"{name}: {rule}")
        for name, reason in others.items():
            say(f"{name}: {reason}")
        return
    if region in others:
        raise PyPMError(Diagnostic(f"the region of `{region}` has no kernel: {others[region]}"))
    if region not in kernels:
        help = did_you_mean(region, kernels) or "`pypm tiles MODEL` lists the regions"
        raise PyPMError(Diagnostic(f"no region that has a kernel ends at `{region}`", help=help))
    kernel = kernels[region][1]
    source = kernel.source
    peer = plain(source)
    say(f"{source.program}\n{source}\n{(peer if is_plain else kernel).text}", nl=False)
    if build:
        say(f"\n{plain_built(peer) if is_plain else built(kernel)}")
    if timeline is not None:
        timeline.write_text(drawn(kernel), encoding="utf-8")
        say(f"\nthe pipeline over time is in {timeline}")


def _regions(gm: fx.GraphModule) -> tuple[dict[str, tuple[str, Emitted]], dict[str, str]]:
    """Return by its last node the rule and kernel of each region, and of others the reason."""
    from pypm.fx import Reading, find
    from pypm.rules.tiles import RULES
    from pypm.rules.tiles.kernels import CalledKernel

    kernels: dict[str, tuple[str, Emitted]] = {}
    others: dict[str, str] = {}
    for rule in RULES:
        for match in find(gm, rule):
            reading = None if rule.reads is None else rule.reads(match)
            assert isinstance(reading, Reading)
            parts = reading.value if isinstance(reading.value, tuple) else (reading.value,)
            called = next((part for part in parts if isinstance(part, CalledKernel)), None)
            if called is None:
                others.setdefault(match.root.name, str(reading.declined))
            else:
                kernels.setdefault(match.root.name, (rule.name, called.emitted))
    return kernels, {name: reason for name, reason in others.items() if name not in kernels}
