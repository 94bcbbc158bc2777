"""Matches as bodies of rules see them: symbolic tensors, and no operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import fx

from pypm.core.records import Record, as_tuple, mapped
from pypm.core.rules import Rule
from pypm.fx import Match, Reading
from pypm.fx.legality.region import Region
from pypm.laws.algebra import Given, NoMeaning
from pypm.laws.equations import Equation, compared
from pypm.laws.formulas import Formula, Formulas, narrow_type
from pypm.laws.numbers import Real
from pypm.laws.tracing import SymbolicTensor, formulas_of, running, tensor_of

__all__ = ["MATCH", "match_of"]

MATCH = "its match"
"""The name of what a body assumes that computes its match again."""


@dataclass(frozen=True)
class _WholeRegion(Region):
    """A region without nodes, whose module computes the results of the match, whatever they are."""

    formulas: Formulas | None = None

    @cached_property
    def module(self) -> fx.GraphModule:
        """Return a graph module with one node, which takes all inputs."""
        graph, formulas = fx.Graph(), self.formulas
        assert formulas is not None
        own = [node.meta["val"] for node in self.variables]
        results = [node.meta.get("val") for node in self.roots]

        def matched(*given: Given) -> Given:
            sides = (formulas_of(tuple(side), formulas) for side in (own, given))
            if compared(Equation(formulas, *sides)) is not None:
                raise NoMeaning("the match is computed for other values")
            formulas.references.add(MATCH)
            return results[0] if len(results) == 1 else tuple(results)

        copies = [graph.placeholder(node.name) for node in self.variables]
        for copy, node in zip(copies, self.variables, strict=True):
            copy.meta = dict(node.meta)
        made = graph.call_function(matched, tuple(copies))
        made.meta = dict(self.roots[0].meta)
        graph.output(made)
        return fx.GraphModule(torch.nn.Module(), graph)


def match_of(
    rule: Rule, given: Mapping[str, Given], results: Sequence[Given], formulas: Formulas
) -> Match:
    """Return a match whose bindings and roots have shapes and types alone, with its reading.

    `given` has the values of the rule's parameters. Raises NoMeaning if the reading raises.
    """
    graph, nodes = fx.Graph(), dict[fx.Node, Given]()

    def noded(value: Given) -> Given:
        match value:
            case torch.Tensor():
                node = graph.placeholder("x")
                node.meta["val"] = nodes[node] = value
                return node
            case Record():
                return mapped(noded, value)
            case tuple() | list():
                return type(value)(map(noded, value))
        return value

    bindings = {name: noded(value) for name, value in given.items()}
    types = [value.dtype_ for value in given.values() if isinstance(value, SymbolicTensor)]
    variables, roots = tuple(nodes), []
    for result in results:
        roots.append(graph.placeholder("root"))
        if isinstance(result, Formula) and not isinstance(result.value, tuple):
            dtype = narrow_type(result) or (*types, torch.float32)[0]
            roots[-1].meta["val"] = tensor_of(result, formulas, dtype)
    region = _WholeRegion(tuple(roots), (), variables, (), formulas=formulas)
    found = Match(rule.name, bindings, tuple(roots), region, variables, ())
    reading = None if rule.reads is None else _read(rule, found, nodes, formulas)
    return replace(found, bindings=given, inputs=tuple(nodes.values()), reading=reading)


def _numbers(value: Given) -> list[Real]:
    """Return the numbers that are symbols in a value."""
    parts = as_tuple(value) if isinstance(value, Record) else value
    if isinstance(parts, tuple):
        return [number for part in parts for number in _numbers(part)]
    return [parts] if isinstance(parts, Real) else []


def _read(rule: Rule, match: Match, nodes: Mapping[fx.Node, Given], formulas: Formulas) -> Reading:
    """Return a rule's reading of a match. Where it declines the body runs: more may be proved."""
    assert rule.reads is not None
    with running(formulas), formulas.world.reading(_numbers(tuple(match.bindings.values()))):
        found = rule.reads(match)
    assert isinstance(found, Reading)
    formulas.declined = found.declined or ""
    return replace(
        found, nodes=tuple(nodes[node] for node in found.nodes if isinstance(node, fx.Node))
    )
