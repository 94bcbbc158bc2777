"""Choices between rewrites, and hardware, by the names that they have on the command line."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.integrations.rule_files import existing_file

if TYPE_CHECKING:
    from pypm.choice import Choice
    from pypm.roofline import Hardware

__all__ = ["THIS_MACHINE", "Choose", "choice_named", "hardware_named"]

THIS_MACHINE: Final = "this-machine"
CHOICES: Final = ("first", "every", "worthwhile", "measured", "kept")
"""The choices of `pypm.choice` that need nothing else; `bounds:HARDWARE` is another."""

Choose: TypeAlias = Annotated[
    str,
    typer.Option(
        "--choose",
        metavar="CHOICE",
        help="Which legal rewrites are made. `first`: all, in the order of the rules, whatever "
        "they cost. `every`: also those of rules that pay sometimes. `measured`: those that are "
        "faster on this machine, compiled and timed. `worthwhile`: those of rules that always pay, "
        "and of others if measured to be faster: what `torch.compile` is given by default. "
        "`kept`: as `measured`, by times that are known; nothing is timed. "
        "`bounds:HARDWARE`: those with a smaller bound on some hardware, as `bounds:H100`, "
        "`bounds:mine.toml` or `bounds:this-machine`.",
        autocompletion=lambda: (*CHOICES, "bounds:"),
    ),
]


def choice_named(name: str) -> Choice:
    """Return a choice by its name, which is "bounds:" and hardware, or one of `CHOICES`.

    Raises PyPMError for another name, with the nearest, and as `hardware_named` does.
    """
    from pypm import choice

    kind, separator, device = name.partition(":")
    if kind == "bounds" and device:
        return choice.bounds(hardware_named(device))
    if kind not in CHOICES or separator:
        raise PyPMError(_unknown_choice(name))
    known: dict[str, Choice] = {
        "first": choice.first,
        "every": choice.every,
        "worthwhile": choice.worthwhile(),
        "measured": choice.measured(),
        "kept": choice.measured(seconds=0),
    }
    return known[kind]


def hardware_named(name: str, threads: int | None = None) -> Hardware:
    """Return the hardware of a name: a shipped one, this machine, or what a TOML file describes.

    `threads` is for this machine: as many as torch computes on if it is None. Raises PyPMError if
    there is no such hardware or file, or the file does not describe any.
    """
    from pypm import roofline

    if name == THIS_MACHINE:
        return roofline.this_machine(threads)
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        return roofline.Hardware.from_file(existing_file(path))
    try:
        return roofline.hardware(name)
    except PyPMError as error:
        help = f"{error.diagnostic.help}; `{THIS_MACHINE}` is the CPU at hand"
        raise PyPMError(replace(error.diagnostic, help=help)) from None


def _unknown_choice(name: str) -> Diagnostic:
    kind = name.partition(":")[0]
    if kind == "bounds":
        help = "name the hardware, as `bounds:H100`"
    elif kind in CHOICES:
        help = f"`{kind}` takes nothing more"
    else:
        close = get_close_matches(kind, (*CHOICES, "bounds"), n=1, cutoff=0.5)
        nearest = {"bounds": "bounds:HARDWARE"}.get(*close, *close) if close else ""
        listed = ", ".join(f"`{each}`" for each in (*CHOICES, "bounds:HARDWARE"))
        help = f"{f'did you mean `{nearest}`? ' if close else ''}the choices are {listed}"
    return Diagnostic(f"there is no choice `{name}`", help=help)
