"""Commands that list: rule packs, and the nodes of a model."""

from __future__ import annotations

import json
from dataclasses import asdict

from pypm.tools.cli.options import Imports, Json, Model, Trust, loaded
from pypm.tools.cli.terminal import say
from pypm.tools.files.rule_files import shipped_packs

__all__ = ["nodes", "packs"]


def packs(as_json: Json = False) -> None:
    """List the rule packs that come with PyPM. None of them is run."""
    found = shipped_packs()
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
    from pypm.fx.reporting.model_origins import source_of
    from pypm.fx.reporting.node_records import records_of

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
