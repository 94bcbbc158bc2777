"""The command `prove`: the laws of rules."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pypm.integrations.rule_files import load_rules
from pypm.tools.cli.options import RULES_HELP, Json
from pypm.tools.cli.terminal import say, working

__all__ = ["prove"]


def prove(
    rules: Annotated[list[str], typer.Argument(help=RULES_HELP, show_default=False)],
    as_json: Json = False,
    certificates: Annotated[
        Path | None,
        typer.Option(
            help="A file to write the proved equations to, for the checker that is proved in Coq.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Prove that replacements compute what they replace, for all sizes. Exit code 1: not all."""
    from pypm.laws.certified.certificates import certificates as certificates_of
    from pypm.laws.contracts import Contracts
    from pypm.laws.prove import prove as proved

    chosen, contracts = load_rules(rules), Contracts()
    with working(f"proving {len(chosen)} rule{'s' * (len(chosen) != 1)}"):
        found = proved(chosen, contracts=contracts)
        if certificates is not None:
            listed = certificates_of(chosen, contracts=contracts)
            certificates.write_text("".join(f"{query}\n" for query in listed.queries))
            for rule, reason in listed.missing:
                typer.echo(f"{rule}: an equation has no certificate: {reason}", err=True)
    say(found.to_json() if as_json else found)
    raise typer.Exit(0 if found.ok else 1)
