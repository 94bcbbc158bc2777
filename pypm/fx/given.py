"""Nodes of a graph as they are given: by themselves or by their names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TypeAlias

from torch import fx

from pypm.diagnostics import Diagnostic, PatternError

__all__ = ["Nodes", "nodes_of"]

Nodes: TypeAlias = "fx.Node | str | Iterable[fx.Node | str]"
"""Nodes of a graph, by themselves or by their names."""


def nodes_of(graph: fx.Graph, given: Nodes) -> list[fx.Node]:
    """The nodes that are meant. Raises PatternError for one not in the graph."""
    by_name = {node.name: node for node in graph.nodes}
    found = []
    for node in [given] if isinstance(given, str | fx.Node) else given:
        name = str(node)
        if name not in by_name:
            close = get_close_matches(name, by_name, n=1)
            help = f"did you mean `{close[0]}`?" if close else "`print(gm.graph)` shows its nodes"
            raise PatternError(Diagnostic(f"the graph has no node `{name}`", help=help))
        if isinstance(node, fx.Node) and by_name[name] is not node:
            help = "give nodes of the module that is passed, or their names"
            raise PatternError(Diagnostic(f"`{name}` is a node of another graph", help=help))
        found.append(by_name[name])
    return found
