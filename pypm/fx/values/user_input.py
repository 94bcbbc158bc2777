"""Checks of users' arguments: graphs, and nodes as objects or names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

import torch
from torch import fx
from torch.export import ExportedProgram

from pypm.core.rules import Rule, RuleSet
from pypm.diagnostics import Diagnostic, PatternError, PyPMError, did_you_mean

__all__ = ["Nodes", "check_callable", "check_graph", "check_module", "check_program", "nodes_of"]

Nodes: TypeAlias = "fx.Node | str | Iterable[fx.Node | str]"
"""Nodes of a graph, as objects or names."""


def nodes_of(graph: fx.Graph, given: Nodes) -> list[fx.Node]:
    """Return the nodes of `graph` for objects or names. Raises PatternError for one not in the
    graph.
    """
    by_name = {node.name: node for node in graph.nodes}
    found = []
    for node in [given] if isinstance(given, str | fx.Node) else given:
        name = str(node)
        if name not in by_name:
            help = did_you_mean(name, by_name) or "`print(gm.graph)` shows its nodes"
            raise PatternError(Diagnostic(f"the graph has no node `{name}`", help=help))
        if isinstance(node, fx.Node) and by_name[name] is not node:
            help = "give nodes of the module that is passed, or their names"
            raise PatternError(Diagnostic(f"`{name}` is a node of another graph", help=help))
        found.append(by_name[name])
    return found


_PROGRAMS: Final = {
    "pypm.fx.rewrite": "`pypm.integrations.export.rewrite(program, rules)` rewrites a program",
    "pypm.fx.partition": "pass `program.module()`",
}
_MODELS: Final = {
    "pypm.fx.rewrite": "export it and use `pypm.integrations.export.rewrite`, or compile it with "
    "the options that `pypm.integrations.inductor.options(rules)` gives",
    "pypm.fx.explain": "pass `torch.export.export(model, inputs).graph_module`, or ask "
    "`pypm.integrations.inductor.explain(model, inputs, rules)`",
    "pypm.fx.suggest": "`pypm.fx.suggest_function(model, inputs)` takes a model",
}


def check_module(given: object, function: str) -> None:
    """Raise PyPMError unless the argument of `function` is a graph module."""
    if isinstance(given, fx.GraphModule):
        return
    help = "`torch.export.export(model, inputs).graph_module` is one"
    if isinstance(given, ExportedProgram):
        help = _PROGRAMS.get(function, "pass `program.graph_module`")
    elif isinstance(given, torch.nn.Module):
        help = _MODELS.get(function, "pass `torch.export.export(model, inputs).graph_module`")
    elif isinstance(given, fx.Graph):
        help = "pass the module that holds the graph: `graph.owning_module`"
    elif isinstance(given, Rule | RuleSet):
        help = "the graph module comes first"
    raise PyPMError(_not_taken(function, "a torch.fx.GraphModule", given, help))


def check_program(given: object, function: str) -> None:
    """Raise PyPMError unless the argument of `function` is an exported program."""
    if isinstance(given, ExportedProgram):
        return
    help = "`torch.export.export(model, inputs)` is one"
    if isinstance(given, fx.GraphModule):
        help = "`pypm.fx.rewrite(gm, rules)` rewrites a graph module"
    elif isinstance(given, Rule | RuleSet):
        help = "the program comes first"
    raise PyPMError(_not_taken(function, "a torch.export.ExportedProgram", given, help))


def check_graph(given: object, function: str) -> None:
    """Raise PyPMError unless the argument of `function` is a graph."""
    if not isinstance(given, fx.Graph):
        help = "pass `gm.graph`, or rewrite the module by `pypm.fx.rewrite(gm, rules)`"
        raise PyPMError(_not_taken(function, "a torch.fx.Graph", given, help))


def check_callable(given: object, function: str) -> None:
    """Raise PyPMError unless the argument of `function` is a model, or a function of tensors."""
    if isinstance(given, ExportedProgram):
        raise PyPMError(_not_taken(function, "a model", given, "pass `program.module()`"))
    if not callable(given):
        help = "pass a module, or a function of tensors"
        raise PyPMError(_not_taken(function, "a model", given, help))


def _not_taken(function: str, taken: str, given: object, help: str) -> Diagnostic:
    """Return a diagnostic for an argument whose type `function` does not take."""
    return Diagnostic(f"`{function}` takes {taken}, not `{type(given).__name__}`", help=help)
