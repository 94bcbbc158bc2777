"""Options that several commands take, and the model that they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from pypm.core.rules import EXACTNESS
from pypm.integrations.rule_files import completions, run_module
from pypm.tools.cli.terminal import working
from pypm.tools.files.exported_programs import load_program

if TYPE_CHECKING:
    from torch.export import ExportedProgram

__all__ = [
    "RULES_HELP",
    "STAGES",
    "Exactness",
    "Imports",
    "Json",
    "MaybeRules",
    "Model",
    "Rules",
    "Threads",
    "Trust",
    "loaded",
]

RULES_HELP = (
    "A module (its RULES), module:NAME, or the path of a .py file: these are RUN as Python. Or the "
    "path of a file in the text syntax, which runs nothing."
)
STAGES = ("pre_grad", "joint", "joint_post", "post_grad", "post_grad_post")
Model: TypeAlias = Annotated[
    Path, typer.Argument(help="An exported program, by torch.export.save.", show_default=False)
]
_RULES = typer.Option(
    "--rules",
    "-r",
    help=f"{RULES_HELP} May be given several times.",
    show_default=False,
    autocompletion=completions,
)
Rules: TypeAlias = Annotated[list[str], _RULES]
MaybeRules: TypeAlias = Annotated[list[str] | None, _RULES]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]
Trust: TypeAlias = Annotated[
    bool,
    typer.Option("--trust-model", help="Load a model that holds pickled objects: runs its code."),
]
Threads: TypeAlias = Annotated[int, typer.Option(min=1, help="That torch computes on.")]
Imports: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="A module or .py file to RUN first: it registers types or operators of the model. "
        " [several]",
    ),
]
Exactness: TypeAlias = Annotated[
    str,
    typer.Option(
        "--exactness",
        metavar="WORD",
        help="The least that rules must keep of values. `reassociated`: accept all rules. "
        "`rounding`: those of the same operations with fewer roundings. `bitwise`: those of the "
        "same bits.",
        autocompletion=lambda: EXACTNESS,
    ),
]


def loaded(model: Path, trust: bool, modules: list[str] | None) -> ExportedProgram:
    """Run modules, then load a model."""
    for name in modules or ():
        run_module(name)
    with working(f"loading {model}"):
        return load_program(model, trust)
