"""Commands about rules alone: they are checked, and formatted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pypm.integrations.rule_files import formatted, load_rules, read_text
from pypm.tools.cli.options import RULES_HELP, Json
from pypm.tools.cli.terminal import say, working

if TYPE_CHECKING:
    from pypm.core.rules import RuleSet
    from pypm.laws.verdicts import Laws

__all__ = ["check", "fmt"]


def check(
    rules: Annotated[list[str], typer.Argument(help=RULES_HELP, show_default=False)],
    samples: Annotated[int, typer.Option(min=1, help="Samples of each rule.")] = 100,
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 0,
    gradients: Annotated[bool, typer.Option("--gradients", help="Compare these too.")] = False,
    proving: Annotated[
        bool,
        typer.Option("--prove", help="Prove them for all sizes: takes seconds."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check rules on graphs made from their own patterns. Exit code 1: one is wrong, or untried."""
    from pypm.tools.verification.verify import verify

    chosen = load_rules(rules)
    with working(f"checking {len(chosen)} rule{'s' * (len(chosen) != 1)}"):
        found = verify(chosen, samples=samples, seed=seed, gradients=gradients)
    laws = _laws(chosen) if proving else None
    if as_json:
        listed = {} if laws is None else {"laws": laws.as_list()}
        say(json.dumps(found.as_dict() | listed, indent=2))
    else:
        say(found)
        if laws is not None:
            say(laws)
    raise typer.Exit(0 if found.ok and not (laws and laws.refuted) else 1)


def _laws(rules: RuleSet) -> Laws:
    from pypm.laws.prove import prove

    with working(f"proving {len(rules)} rule{'s' * (len(rules) != 1)}"):
        return prove(rules)


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
        say(json.dumps({"changed": [*map(str, changed)], "written": not checking}, indent=2))
    else:
        for path in changed:
            say(f"{'would format' if checking else 'formatted'} {path}")
    raise typer.Exit(1 if checking and changed else 0)
