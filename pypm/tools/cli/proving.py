"""The command `prove`: the laws of rules."""

from __future__ import annotations

from typing import Annotated

import typer

from pypm.integrations.rule_files import load_rules
from pypm.tools.cli.options import RULES_HELP, Json
from pypm.tools.cli.terminal import say, working

__all__ = ["prove"]


def prove(
    rules: Annotated[list[str], typer.Argument(help=RULES_HELP, show_default=False)],
    as_json: Json = False,
) -> None:
    """Prove that replacements compute what they replace, for all sizes. Exit code 1: not all."""
    from pypm.laws.prove import prove as proved

    chosen = load_rules(rules)
    with working(f"proving {len(chosen)} rule{'s' * (len(chosen) != 1)}"):
        found = proved(chosen)
    say(found.to_json() if as_json else found)
    raise typer.Exit(0 if found.ok else 1)
