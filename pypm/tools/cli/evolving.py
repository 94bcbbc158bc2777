"""The command `evolve`: a search for a kernel or for rules, and its report."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.tools.cli.options import Json
from pypm.tools.cli.terminal import say, terminal, working

if TYPE_CHECKING:
    from pypm.evolve import Attempt, Jail, VariationOperator

__all__ = ["evolve"]


Operators: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--operator",
        help="`parameters`, `regions`, `optuna`, or a command to RUN, as './my_agent.sh'; "
        "several take turns.  [several]",
        show_default="parameters",
    ),
]
Run: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--run",
        help="The folder of the search. One that exists is gone on with.",
        show_default="evolve-NAME",
    ),
]
Knowledge: TypeAlias = Annotated[
    Path | None, typer.Option(exists=True, file_okay=False, help="A folder for operators to read.")
]
Evaluations: TypeAlias = Annotated[
    int, typer.Option(min=0, help="Evaluations that one run of a command may ask for.")
]
Network: TypeAlias = Annotated[
    bool, typer.Option("--network", help="Commands may use the network; candidates never.")
]
Seen: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(exists=True, help="A folder or file that commands may read.  [several]"),
]
Variables: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(help="A variable of the environment that commands get.  [several]"),
]
NoJail: TypeAlias = Annotated[
    bool, typer.Option("--no-jail", help="Isolate nothing: all code runs with your rights.")
]
Report: TypeAlias = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write a page about the search, and search no more."),
]


def evolve(
    task: Annotated[Path, typer.Argument(help="The folder of a task.", show_default=False)],
    operator: Operators = None,
    hours: Annotated[
        float | None, typer.Option(min=0, help="The time of all attempts together.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="The same, in minutes.")] = None,
    attempts: Annotated[int | None, typer.Option(min=0, help="Attempts in all.")] = None,
    run: Run = None,
    knowledge: Knowledge = None,
    turn: Annotated[float, typer.Option(min=0.1, help="Minutes of one run of a command.")] = 30.0,
    evaluations: Evaluations = 20,
    network: Network = False,
    see: Seen = None,
    variable: Variables = None,
    no_jail: NoJail = False,
    seed: Annotated[
        int | None, typer.Option(help="Of the operators.", show_default="drawn")
    ] = None,
    report: Report = None,
    as_json: Json = False,
) -> None:
    """Search for a faster candidate of a task, or go on with a search.

    Each candidate is RUN, in a jail. Exit code 1: nothing was better than the first candidate.
    """
    from pypm.evolve import CandidateSearch, SearchLimits, SearchTask
    from pypm.evolve.page import page

    found = SearchTask.from_folder(task)
    folder = Path(f"evolve-{found.name}") if run is None else run
    if report is not None:
        report.write_text(page(folder), encoding="utf-8")
        say(f"wrote {report}")
        return
    seconds = None if hours is minutes is None else 3600 * (hours or 0) + 60 * (minutes or 0)
    if seconds is None and attempts is None:
        help = "give `--hours`, `--minutes` or `--attempts`"
        raise PyPMError(Diagnostic("the search has no budget", help=help))
    jail = _jail(found.folder, folder, see or (), network, no_jail)
    operators = [_operator(name, jail, variable or ()) for name in operator or ["parameters"]]
    limits = SearchLimits(attempts, seconds, 60 * turn, evaluations)
    with working("getting ready"):
        from pypm.evolve.judge_process import JudgeProcess

        judge = JudgeProcess(found, jail.hidden, jail.is_open)
    try:
        search = CandidateSearch(
            found, folder, operators, judge, limits, knowledge=knowledge, seed=seed
        )
        with working(f"searching in {folder}"):
            best = search.run(_progress)
    finally:
        judge.close()
    _say_result(search.trajectory.attempts, best, folder, as_json)
    raise typer.Exit(0 if best.number else 1)


def _jail(task: Path, run: Path, see: Sequence[Path], network: bool, is_open: bool) -> Jail:
    from pypm.evolve import Jail
    from pypm.problems.jail import check_possible

    if not is_open:
        check_possible()
    return Jail(readable=tuple(see), hidden=(task, run), has_network=network, is_open=is_open)


def _operator(name: str, jail: Jail, variables: Sequence[str]) -> VariationOperator:
    from pypm.evolve import Parameters, ProgramOperator, Regions, TreeSampler

    match name:
        case "parameters":
            return Parameters()
        case "regions":
            return Regions()
        case "optuna":
            return TreeSampler()
    try:
        command = shlex.split(name)
    except ValueError as error:
        raise PyPMError(Diagnostic(f"the command `{name}` cannot be read: {error}")) from None
    if not command:
        raise PyPMError(Diagnostic("an operator has no name"))
    return ProgramOperator(command, jail, variables)


def _progress(attempt: Attempt, best: Attempt) -> None:
    """Say what came of an attempt; on stderr."""
    what = "accepted" if attempt.is_accepted else attempt.verdict.summary.splitlines()[0]
    line = f"{attempt.number:5} {attempt.operator}: {what}"
    terminal().print(
        f"{line}  [best {best.verdict.score:.3f} of attempt {best.number}]",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _say_result(attempts: Sequence[Attempt], best: Attempt, folder: Path, as_json: bool) -> None:
    from pypm.evolve.page import outcomes

    if as_json:
        found = {
            "run": str(folder),
            "attempts": len(attempts),
            "outcomes": outcomes(attempts),
            "best": best.as_dict(),
        }
        say(json.dumps(found, indent=2))
        return
    accepted = sum(each.is_accepted for each in attempts)
    say(f"{len(attempts)} attempts, {accepted} accepted; best score {best.verdict.score:.3f}\n")
    rows: list[tuple[str, ...]] = [("configuration", "", "ms", "compiled", "eager", "score")]
    for each in best.verdict.configurations:
        ratios = ["-" if x is None else f"{x:.2f}x" for x in (each.compiled, each.eager)]
        shown = "held out" if each.is_held_out else "shown"
        time = "-" if each.milliseconds is None else f"{each.milliseconds:.4f}"
        rows.append((each.name, shown, time, *ratios, f"{each.score:.3f}"))
    widths = [max(len(row[i]) for row in rows) for i in range(6)]
    for row in rows:
        say("  ".join(text.ljust(w) for text, w in zip(row, widths, strict=True)).rstrip())
    say(f"\nthe best version is attempt {best.number}: git -C {folder / 'lineage'} log")
