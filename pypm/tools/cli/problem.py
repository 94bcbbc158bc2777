"""The command `sol` for problems in the files of SOL-ExecBench."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn, TypeAlias

import typer

from pypm.tools.cli.terminal import say, working

__all__ = ["Output", "Solutions", "Timeout", "run_problem"]

Solutions: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--solution",
        metavar="FILE",
        help="A solution of the problem, which is RUN as Python.  [several]",
    ),
]
Output: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="The file to which trace lines are appended; `traces.jsonl` beside the problem, if "
        "left out.",
    ),
]
Timeout: TypeAlias = Annotated[
    float,
    typer.Option(min=1, help="Seconds for importing, compiling or one call of a problem."),
]


def run_problem(
    folder: Path,
    rules: Sequence[str] | None,
    solutions: Sequence[Path],
    output: Path | None,
    timeout: float,
    threads: int,
    as_json: bool,
) -> NoReturn:
    """Run a problem, append trace lines, and print a table, or the traces as JSON.

    Raises typer.Exit, with code 1 if a version failed, and PyPMError for a mistake in a file.
    """
    from pypm.problems.harness import Settings, SolProblem, run
    from pypm.problems.jail import is_possible
    from pypm.problems.table import table
    from pypm.problems.traces import append

    problem = SolProblem.from_files(folder, solutions)
    settings = Settings(threads=threads, timeout=timeout)
    settings = replace(settings, jail=replace(settings.jail, is_open=not is_possible()))
    if rules is not None:
        settings = replace(settings, rules=rules)
    path = folder / "traces.jsonl" if output is None else output
    append([], path)  # a file that cannot be written is found before minutes of work
    traces = []
    with working(f"running {folder}"):
        for trace in run(problem, settings):
            append([trace], path)
            traces.append(trace)
    if as_json:
        say(json.dumps([trace.as_dict() for trace in traces], indent=2))
    else:
        say(table(traces))
    raise typer.Exit(0 if all(trace.performance for trace in traces) else 1)
