"""The command `suggest`: a pattern from a region of a model."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from pypm.tools.cli.options import Imports, Json, Model, Trust, loaded
from pypm.tools.cli.terminal import say

__all__ = ["suggest"]


def suggest(
    model: Model,
    nodes: Annotated[
        list[str],
        typer.Argument(help="The region's nodes; its outputs, with --input.", show_default=False),
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", metavar="NODE", help="Where the region begins.  [several]"),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="NODE", help="What may stay alive.  [several]"),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the pattern.")] = None,
    kernel: Annotated[
        str | None, typer.Option(metavar="LIBRARY::OP", help="An operator the rule calls.")
    ] = None,
    as_json: Json = False,
    trust: Trust = False,
    modules: Imports = None,
) -> None:
    """Write the pattern of a region of a model, and a rule to fill in, as Python."""
    from pypm.fx import suggest as suggest_pattern

    gm = loaded(model, trust, modules).graph_module
    made = suggest_pattern(gm, nodes, inputs=inputs, keep=keep or (), name=name, kernel=kernel)
    say(json.dumps({"source": str(made)}, indent=2) if as_json else made, nl=as_json)
