"""The command `pypm`: rules tried on exported programs, checked, and formatted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, track
from typer.core import TyperGroup

import pypm
from pypm.diagnostics import PyPMError, printable
from pypm.tools.files.exported_programs import load_program, save_program
from pypm.tools.files.rule_files import (
    completions,
    formatted,
    load_rules,
    read_text,
    run_module,
    shipped_packs,
    without,
)

if TYPE_CHECKING:
    from torch.export import ExportedProgram

    from pypm.fx import Match

__all__ = ["app"]

T = TypeVar("T")


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

RULES_HELP = (
    "A module (its RULES), module:NAME, or the path of a .py file: these are RUN as Python. Or the "
    "path of a file in the text syntax, which runs nothing."
)
STAGES = ("pre_grad", "joint", "joint_post", "post_grad", "post_grad_post")
Model: TypeAlias = Annotated[
    Path, typer.Argument(help="An exported program, by torch.export.save.", show_default=False)
]
Rules: TypeAlias = Annotated[
    list[str],
    typer.Option(
        "--rules",
        "-r",
        help=f"{RULES_HELP} May be given several times.",
        show_default=False,
        autocompletion=completions,
    ),
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]
Trust: TypeAlias = Annotated[
    bool,
    typer.Option("--trust-model", help="Load a model that holds pickled objects: runs its code."),
]
Imports: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="MODULE",
        help="A module or .py file to RUN first: it registers types or operators of the model. "
        " [several]",
    ),
]
Exact: TypeAlias = Annotated[
    bool, typer.Option("--exact", help="Hold back rules that do not keep every NaN.")
]


def _version(wanted: bool) -> None:
    if wanted:
        _say(f"pypm {pypm.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Say which one this is."),
    ] = False,
) -> None:
    """Options of all commands."""


@app.command()
def packs(as_json: Json = False) -> None:
    """List the rule packs that come with PyPM. None of them is run."""
    found = shipped_packs()
    if as_json:
        _say(json.dumps(found, indent=2))
    else:
        width = max(map(len, found))
        for name, summary in found.items():
            _say(f"{name:{width}}  {summary}")


@app.command()
def nodes(
    model: Model, as_json: Json = False, trust: Trust = False, modules: Imports = None
) -> None:
    """List the nodes of a model, by the names that `--at` and `suggest` take."""
    from pypm.fx.reporting.model_origins import source_of
    from pypm.fx.reporting.node_records import records_of

    graph = _loaded(model, trust, modules).graph
    records = zip(records_of(graph.nodes), map(source_of, graph.nodes), strict=True)
    if as_json:
        found = [
            {"name": r.name, "call": str(r), "source": source and asdict(source)}
            for r, source in records
        ]
        _say(json.dumps(found, indent=2))
    else:
        for record, source in records:
            _say(f"{record}  [{source}]" if source else record)


@app.command()
def rewrite(
    model: Model,
    rules: Rules,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to write the result; nowhere, if left out."),
    ] = None,
    exact: Exact = False,
    as_json: Json = False,
    trust: Trust = False,
    modules: Imports = None,
) -> None:
    """Rewrite a model by rules until none matches. Exit code 1: nothing was rewritten."""
    from pypm.integrations.export import rewrite as rewrite_program

    chosen = load_rules(rules)
    program = _loaded(model, trust, modules)
    with _working("rewriting"):
        report = rewrite_program(program, chosen, exact=exact)
    if output is not None:
        with _working(f"writing {output}"):
            save_program(program, output)
    _say(report.to_json() if as_json else report)
    raise typer.Exit(0 if len(report) else 1)


@app.command()
def match(
    model: Model,
    rules: Rules,
    every: Annotated[
        bool, typer.Option("--all", help="All matches at a root, not only the first.")
    ] = False,
    as_json: Json = False,
    trust: Trust = False,
    modules: Imports = None,
) -> None:
    """List the legal matches of rules. Their bodies are not run. Exit code 1: there are none."""
    from pypm.fx import find

    chosen = load_rules(rules)
    gm = _loaded(model, trust, modules).graph_module
    per_rule = _each(chosen.rules, "matching")
    found = [m for rule in per_rule for m in find(gm, rule, all=every)]
    if as_json:
        _say(json.dumps([*map(_match, found)], indent=2))
    else:
        for line in map(_match_line, found):
            _say(line)
        _say(f"{len(found)} match" + "es" * (len(found) != 1))
    raise typer.Exit(0 if found else 1)


def _match(found: Match) -> dict[str, object]:
    """Return a match as plain data."""
    return {
        "rule": found.rule,
        "roots": [None if root is None else root.name for root in found.roots],
        "bindings": {name: str(value) for name, value in found.bindings.items()},
        "region": [node.name for node in found.region.nodes],
    }


def _match_line(found: Match) -> str:
    bound = ", ".join(f"{name}={value}" for name, value in found.bindings.items())
    at = ", ".join(root.name for root in found.roots if root is not None)
    return f"{found.rule} at {at}({bound}): {', '.join(node.name for node in found.region.nodes)}"


@app.command()
def explain(
    model: Model,
    rules: Rules,
    at: Annotated[
        str | None, typer.Option("--at", metavar="NODE", help="One node; else the whole graph.")
    ] = None,
    exact: Exact = False,
    as_json: Json = False,
    trust: Trust = False,
    modules: Imports = None,
) -> None:
    """Say why rules match or do not, at a node or nearly anywhere. Exit code 1: no match."""
    from pypm.fx import PROGRAM
    from pypm.fx.explaining.explain import Explainer
    from pypm.fx.values.user_input import nodes_of

    chosen = load_rules(rules)
    graph = _loaded(model, trust, modules).graph
    explainer = Explainer(graph, chosen, exact, PROGRAM)
    if at is not None:
        (node,) = nodes_of(graph, at)
        explanation = explainer.at(node)
        _say(explanation.to_json() if as_json else explanation)
        raise typer.Exit(0 if explanation else 1)
    misses = explainer.near_misses(_each(explainer.calls, "explaining"))
    _say(misses.to_json() if as_json else misses)
    raise typer.Exit(0 if misses.matches else 1)


@app.command()
def show(
    model: Model,
    rules: Rules,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A page (.html) or a picture (.svg).")
    ] = Path("report.html"),
    near: Annotated[
        bool,
        typer.Option("--near/--no-near", help="Say where rules nearly match: takes longer."),
    ] = True,
    exact: Exact = False,
    as_json: Json = False,
    trust: Trust = False,
    modules: Imports = None,
) -> None:
    """Draw what rules do to a model, step by step. Exit code 1: nothing was rewritten."""
    from pypm.tools.report_page.page import check_output
    from pypm.tools.report_page.page import show as show_rewrites

    check_output(output)
    chosen = load_rules(rules)
    program = _loaded(model, trust, modules)
    with _working("rewriting, and looking for near misses" if near else "rewriting"):
        page = show_rewrites(program, chosen, exact=exact, near=near, title=model.name)
    with _working(f"writing {output}"):
        page.save(output)
    count = len(page.report)
    said = f"{count} rewrite{'s' * (count != 1)}, drawn in {output}"
    _say(page.report.to_json() if as_json else said)
    raise typer.Exit(0 if count else 1)


@app.command()
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

    gm = _loaded(model, trust, modules).graph_module
    made = suggest_pattern(gm, nodes, inputs=inputs, keep=keep or (), name=name, kernel=kernel)
    _say(json.dumps({"source": str(made)}, indent=2) if as_json else made, nl=as_json)


@app.command()
def bench(
    model: Model,
    rules: Rules,
    seconds: Annotated[float, typer.Option(min=0, help="How long to measure.")] = 10.0,
    threads: Annotated[int, typer.Option(min=1, help="That torch computes on.")] = 1,
    stage: Annotated[
        str, typer.Option(help="Inductor's hook for the rules.", autocompletion=lambda: STAGES)
    ] = "joint",
    as_json: Json = False,
    trust: Trust = False,
    modules: Imports = None,
) -> None:
    """Time a model eager, compiled, and compiled with rules. Exit code 1: nothing was rewritten."""
    from pypm.tools.bench import bench as bench_program

    chosen = load_rules(rules)
    program = _loaded(model, trust, modules)
    with _working("timing"):
        found = bench_program(program, chosen, seconds=seconds, threads=threads, stage=stage)
    _say(found.to_json() if as_json else found)
    raise typer.Exit(0 if len(found.report) else 1)


@app.command()
def check(
    rules: Annotated[list[str], typer.Argument(help=RULES_HELP, show_default=False)],
    samples: Annotated[int, typer.Option(min=1, help="Samples of each rule.")] = 100,
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 0,
    gradients: Annotated[bool, typer.Option("--gradients", help="Compare these too.")] = False,
    exact: Exact = False,
    as_json: Json = False,
) -> None:
    """Check rules on graphs made from their own patterns. Exit code 1: one is wrong, or untried."""
    from pypm.tools.verification.verify import verify

    chosen = load_rules(rules)
    with _working(f"checking {len(chosen)} rule{'s' * (len(chosen) != 1)}"):
        found = verify(chosen, samples=samples, seed=seed, gradients=gradients, exact=exact)
    _say(found.to_json() if as_json else found)
    raise typer.Exit(0 if found.ok else 1)


@app.command()
def fmt(
    files: Annotated[
        list[Path], typer.Argument(help="Rules in the text syntax.", show_default=False)
    ],
    checking: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit code 1 if something would.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Put files of rules in the text syntax into their printed form. Nothing in them is run."""
    texts = {path: read_text(path) for path in files}
    results = {path: formatted(text, str(path)) for path, text in texts.items()}
    changed = [path for path in texts if results[path] != texts[path]]
    if not checking:
        for path in changed:
            path.write_text(results[path], encoding="utf-8")
    if as_json:
        _say(json.dumps({"changed": [*map(str, changed)], "written": not checking}, indent=2))
    else:
        for path in changed:
            _say(f"{'would format' if checking else 'formatted'} {path}")
    raise typer.Exit(1 if checking and changed else 0)


# --- progress, on a terminal only ---------------------------------------------------------------


def _say(what: object, nl: bool = True) -> None:
    """Print on stdout, without the control characters that names in a file may hold."""
    typer.echo(printable(str(what)), nl=nl)


def _terminal() -> Console:
    return Console(stderr=True)


def _loaded(model: Path, trust: bool, modules: list[str] | None) -> ExportedProgram:
    for name in modules or ():
        run_module(name)
    with _working(f"loading {model}"):
        return load_program(model, trust)


@contextmanager
def _working(on: str) -> Iterator[None]:
    """Say what is being done, and for how long."""
    console = _terminal()
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        bar.add_task(printable(on, keep=""), total=None)
        yield


def _each(items: Iterable[T], doing: str) -> Iterable[T]:
    """Yield the items, with a bar that shows how many are done."""
    console = _terminal()
    hidden = not console.is_terminal
    return track([*items], doing, console=console, transient=True, disable=hidden)
