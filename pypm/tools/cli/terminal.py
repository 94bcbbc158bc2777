"""Results on stdout, and progress on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, track

from pypm.diagnostics import printable

__all__ = ["each", "say", "terminal", "working"]

T = TypeVar("T")


def say(what: object, nl: bool = True) -> None:
    """Print on stdout, without the control characters that names in a file may hold."""
    typer.echo(printable(str(what)), nl=nl)


def terminal() -> Console:
    """Return the terminal for progress, which is stderr."""
    return Console(stderr=True)


@contextmanager
def working(on: str) -> Iterator[None]:
    """Say what is being done, and for how long."""
    console = terminal()
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        bar.add_task(printable(on, keep=""), total=None)
        yield


def each(items: Iterable[T], doing: str) -> Iterable[T]:
    """Yield the items, with a bar that shows how many are done."""
    console = terminal()
    hidden = not console.is_terminal
    return track([*items], doing, console=console, transient=True, disable=hidden)
