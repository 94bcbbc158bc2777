"""Commands that only read a model: its nodes, matches of rules or why there are none, patterns."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from pypm.core.rules import as_exactness
from pypm.integrations.rule_files import load_rules, other_packs, shipped_packs
from pypm.tools.cli.choice_names import Choose, choice_named
from pypm.tools.cli.options import Exactness, Imports, Json, Model, Rules, Trust, loaded
from pypm.tools.cli.terminal import each, say

if TYPE_CHECKING:
    from pypm.fields import Plain
    from pypm.fx import Match

__all__ = ["explain", "match", "nodes", "packs", "suggest"]


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
    gm = loaded(model, trust, modules).graph_module
    per_rule = each(chosen.rules, "matching")
    found = [m for rule in per_rule for m in find(gm, rule, all=every)]
    if as_json:
        say(json.dumps([*map(_match, found)], indent=2))
    else:
        for line in map(_match_line, found):
            say(line)
        say(f"{len(found)} match" + "es" * (len(found) != 1))
    raise typer.Exit(0 if found else 1)


def _match(found: Match) -> Plain:
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


def explain(
    model: Model,
    rules: Rules,
    at: Annotated[
        str | None, typer.Option("--at", metavar="NODE", help="One node; else the whole graph.")
    ] = None,
    exactness: Exactness = "reassociated",
    choose: Choose = "first",
    as_json: Json = False,
    trust: Trust = False,
    modules: Imports = None,
) -> None:
    """Say why rules match or do not, at a node or nearly anywhere. Exit code 1: no match."""
    from pypm.fx import PROGRAM
    from pypm.fx.explaining.explain import Explainer
    from pypm.fx.values.user_input import nodes_of

    chosen, choice = load_rules(rules), choice_named(choose)
    graph = loaded(model, trust, modules).graph
    explainer = Explainer(graph, chosen, as_exactness(exactness), PROGRAM, choice)
    if at is not None:
        (node,) = nodes_of(graph, at)
        explanation = explainer.at(node)
        say(explanation.to_json() if as_json else explanation)
        raise typer.Exit(0 if explanation else 1)
    misses = explainer.near_misses(each(explainer.calls, "explaining"))
    say(misses.to_json() if as_json else misses)
    raise typer.Exit(0 if misses.matches else 1)


def packs(as_json: Json = False) -> None:
    """List the rule packs that come with PyPM or that others declare. None of them is run."""
    found = shipped_packs() | other_packs()
    if as_json:
        say(json.dumps(found, indent=2))
    else:
        width = max(map(len, found))
        for name, summary in found.items():
            say(f"{name:{width}}  {summary}")


def nodes(
    model: Model, as_json: Json = False, trust: Trust = False, modules: Imports = None
) -> None:
    """List the nodes of a model, by the names that `--at` and `suggest` take."""
    from pypm.fx.reporting.node_records import records_of, source_of

    graph = loaded(model, trust, modules).graph
    records = zip(records_of(graph.nodes), map(source_of, graph.nodes), strict=True)
    if as_json:
        found = [
            {"name": r.name, "call": str(r), "source": source and asdict(source)}
            for r, source in records
        ]
        say(json.dumps(found, indent=2))
    else:
        for record, source in records:
            say(f"{record}  [{source}]" if source else record)


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

    gm = loaded(model, trust, modules).graph_module
    made = suggest_pattern(gm, nodes, inputs=inputs, keep=keep or (), name=name, kernel=kernel)
    say(json.dumps({"source": str(made)}, indent=2) if as_json else made, nl=as_json)
