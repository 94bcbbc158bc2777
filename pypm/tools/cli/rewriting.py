"""Commands that rewrite a model: into a file, as a page, and to time it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from pypm.core.rules import as_exactness
from pypm.integrations.rule_files import load_rules
from pypm.tools.cli.choice_names import Choose, choice_named
from pypm.tools.cli.options import (
    STAGES,
    Exactness,
    Imports,
    Json,
    Model,
    Rules,
    Threads,
    Trust,
    loaded,
)
from pypm.tools.cli.terminal import say, working
from pypm.tools.files.exported_programs import save_program

__all__ = ["bench", "rewrite", "show", "tune"]


def rewrite(
    model: Model,
    rules: Rules,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to write the result; nowhere, if left out."),
    ] = None,
    exactness: Exactness = "reassociated",
    choose: Choose = "first",
    as_json: Json = False,
    trust: Trust = False,
    modules: Imports = None,
) -> None:
    """Rewrite a model by rules until none matches. Exit code 1: nothing was rewritten."""
    from pypm.integrations.export import rewrite as rewrite_program

    chosen, choice = load_rules(rules), choice_named(choose)
    program = loaded(model, trust, modules)
    with working("rewriting"):
        report = rewrite_program(program, chosen, exactness=as_exactness(exactness), choose=choice)
    if output is not None:
        with working(f"writing {output}"):
            save_program(program, output)
    say(report.to_json() if as_json else report)
    raise typer.Exit(0 if len(report) else 1)


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
    exactness: Exactness = "reassociated",
    choose: Choose = "first",
    prove: Annotated[
        bool, typer.Option("--prove", help="Prove the rules that fire: takes seconds.")
    ] = False,
    as_json: Json = False,
    trust: Trust = False,
    modules: Imports = None,
) -> None:
    """Draw what rules do to a model, step by step. Exit code 1: nothing was rewritten."""
    from pypm.tools.report_page.page import check_output
    from pypm.tools.report_page.page import show as show_rewrites

    check_output(output)
    chosen, choice = load_rules(rules), choice_named(choose)
    program = loaded(model, trust, modules)
    with working("rewriting, and looking for near misses" if near else "rewriting"):
        page = show_rewrites(
            program,
            chosen,
            exactness=as_exactness(exactness),
            near=near,
            title=model.name,
            choose=choice,
            prove=prove,
        )
    with working(f"writing {output}"):
        page.save(output)
    count = len(page.report)
    said = f"{count} rewrite{'s' * (count != 1)}, drawn in {output}"
    say(page.report.to_json() if as_json else said)
    raise typer.Exit(0 if count else 1)


Stage: TypeAlias = Annotated[
    str, typer.Option(help="Inductor's hook for the rules.", autocompletion=lambda: STAGES)
]


def tune(
    model: Model,
    rules: Rules,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Where to write the answers, for `tuned(answers=...)` on machines that must not "
            "time. They are kept beside Inductor's caches, too.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.01, help="How long two graphs are timed in turn.")
    ] = 2.0,
    threads: Threads = 1,
    stage: Stage = "joint",
    exactness: Exactness = "reassociated",
    as_json: Json = False,
    trust: Trust = False,
    modules: Imports = None,
) -> None:
    """Find the fastest set of rewrites by timing whole graphs, compiled. Takes minutes.

    Exit code 1: no rewrite makes the model faster.
    """
    from pypm.choice import tuned
    from pypm.tools.bench import bench as bench_program

    chosen, choice = load_rules(rules), tuned(seconds=seconds)
    program = loaded(model, trust, modules)
    with working("timing whole graphs"):
        found = bench_program(
            program,
            chosen,
            seconds=seconds,
            threads=threads,
            stage=stage,
            choose=choice,
            exactness=as_exactness(exactness),
        )
    if output is not None:
        choice.save(output)
    if as_json:
        data = {"tried": [asdict(each) for each in choice.tried], **found.as_dict()}
        say(json.dumps(data, indent=2))
    else:
        tried = "\n".join(map(str, choice.tried)) or "what was found before is kept"
        say(f"{tried}\n\n{found}")
    raise typer.Exit(0 if len(found.report) else 1)


def bench(
    model: Model,
    rules: Rules,
    seconds: Annotated[float, typer.Option(min=0, help="How long to measure.")] = 10.0,
    threads: Threads = 1,
    stage: Stage = "joint",
    exactness: Exactness = "reassociated",
    choose: Choose = "first",
    as_json: Json = False,
    trust: Trust = False,
    modules: Imports = None,
) -> None:
    """Time a model eager, compiled, and compiled with rules. Exit code 1: nothing was rewritten."""
    from pypm.tools.bench import bench as bench_program

    chosen, choice = load_rules(rules), choice_named(choose)
    program = loaded(model, trust, modules)
    with working("timing"):
        found = bench_program(
            program,
            chosen,
            seconds=seconds,
            threads=threads,
            stage=stage,
            choose=choice,
            exactness=as_exactness(exactness),
        )
    say(found.to_json() if as_json else found)
    raise typer.Exit(0 if len(found.report) else 1)
