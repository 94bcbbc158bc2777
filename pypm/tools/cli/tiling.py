"""The command `tiles`: the kernel for Hopper of a region of a program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pypm.diagnostics import Diagnostic, PyPMError, did_you_mean
from pypm.tools.cli.options import Imports, Model, Trust, loaded
from pypm.tools.cli.terminal import say

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
    from pypm.fx import find
    from pypm.rules.tiles import Epilogue
    from pypm.tiles.build import built
    from pypm.tiles.configurations import configured_for
    from pypm.tiles.emit import emitted
    from pypm.tiles.partition import partitioned
    from pypm.tiles.plain.kernel import plain
    from pypm.tiles.plain.launch import plain_built
    from pypm.tiles.program import TileError
    from pypm.tiles.regions import tile_region
    from pypm.tiles.timeline import timeline as drawn

    gm = loaded(model, trust, modules).graph_module
    found = {match.root.name: match.region.nodes for match in find(gm, Epilogue)}
    if region is not None and region not in found:
        help = did_you_mean(region, found) or "`pypm tiles MODEL` lists the regions"
        raise PyPMError(Diagnostic(f"no product and epilogue end at `{region}`", help=help))
    if region is None:
        if build or is_plain or timeline is not None:
            help = "name a region: `pypm tiles MODEL --region NODE --build`"
            what = "`--build`, `--plain` and `--timeline` are of one region"
            raise PyPMError(Diagnostic(what, help=help))
        for name, nodes in found.items():
            try:
                say(f"{name}: {len(tile_region(nodes).program.before)} products")
            except TileError as error:
                say(f"{name}: {error.diagnostic.message}")
        return
    program, rings = configured_for(tile_region(found[region]))
    source = partitioned(program, rings)
    kernel, peer = emitted(source), plain(source)
    say(f"{program}\n{source}\n{(peer if is_plain else kernel).text}", nl=False)
    if build:
        say(f"\n{plain_built(peer) if is_plain else built(kernel)}")
    if timeline is not None:
        timeline.write_text(drawn(kernel), encoding="utf-8")
        say(f"\nthe pipeline over time is in {timeline}")
