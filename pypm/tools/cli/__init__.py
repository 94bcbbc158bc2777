"""The command `pypm`: rules tried on exported programs, checked, and formatted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

import pypm
from pypm.diagnostics import PyPMError
from pypm.integrations.rule_files import without
from pypm.tools.cli.checking import check, fmt
from pypm.tools.cli.event_graphs import events
from pypm.tools.cli.evolving import evolve
from pypm.tools.cli.pipelining import pipeline
from pypm.tools.cli.proving import prove
from pypm.tools.cli.reading import explain, match, nodes, packs, suggest
from pypm.tools.cli.rewriting import bench, rewrite, show, tune
from pypm.tools.cli.speed_of_light import sol
from pypm.tools.cli.terminal import say
from pypm.tools.cli.tiling import tiles

__all__ = ["app"]

COMMANDS: Final = (
    *(
        packs,
        nodes,
        rewrite,
        match,
        explain,
        show,
        suggest,
        bench,
        tune,
        sol,
        tiles,
        events,
        pipeline,
        evolve,
        check,
        prove,
    ),
    fmt,
)
"""In the order in which `pypm --help` lists them."""


class Diagnosing(TyperGroup):
    """A group of commands that print a user's mistake without a traceback: exit code 2."""

    def invoke(self, ctx: Any) -> object:
        try:
            with without(Path.cwd()):  # where `python -m` and `python -c` look first
                return super().invoke(ctx)
        except PyPMError as error:
            typer.echo(str(error), err=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=Diagnosing,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "Rewrite rules for tensor graphs, on exported programs (.pt2 files).\n\n"
        "Rules are Python modules or .py files, which are RUN: name only those you trust. Rules in "
        "PyPM's text syntax (.pypm files) run no code. "
        "Exit codes: 0 yes, 1 no (nothing matched, a wrong rule, not formatted), "
        "2 a mistake in what was given."
    ),
)


def _version(wanted: bool) -> None:
    if wanted:
        say(f"pypm {pypm.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Say which one this is."),
    ] = False,
) -> None:
    """Options of all commands."""


for command in COMMANDS:
    app.command()(command)
