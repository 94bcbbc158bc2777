"""Regions of matches, and refusals with their reasons."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

import torch
from torch import fx

__all__ = ["Refusal", "Region"]

Kind: TypeAlias = Literal[
    "declined",  # the body said so
    "budget",  # the search was given up
    "uncovered",  # a root is no part of what was matched
    "metadata",  # some of its values have metadata, and others none
    "escape",  # an interior value is used outside
    "effect",  # a write or another effect inside or in between
    "random",  # randomness would be dropped or duplicated
    "cycle",  # the replacement would depend on itself
    "symbolic",  # not decided for every size
    "kernel",  # the replacement does not hold the kernel it is for
    "constant",  # the replacement holds a tensor, and the graph may not
    "mismatch",  # shape, dtype or device differ
    "layout",  # strides or aliasing cannot be kept
    "cost",  # it would be no faster
    "exactness",  # the values would be less near than was asked for
]


@dataclass(frozen=True, slots=True)
class Refusal:
    """The refusal of a match: its kind, the reason as a sentence, and the nodes concerned."""

    kind: Kind
    reason: str
    nodes: tuple[fx.Node, ...] = ()

    @property
    def node(self) -> fx.Node | None:
        return self.nodes[0] if self.nodes else None


@dataclass(frozen=True)
class Region:
    """The nodes of one match, in graph order."""

    roots: tuple[fx.Node, ...]
    """The pattern's outputs that exist in the graph, and the kept values that the rule returns."""
    nodes: tuple[fx.Node, ...]
    variables: tuple[fx.Node, ...]
    """Nodes outside to which the pattern's variables are bound, in order."""
    side_inputs: tuple[fx.Node, ...]
    """Other nodes outside that the region reads."""
    alive: frozenset[fx.Node] = field(default=frozenset(), repr=False)
    """Nodes inside that stay alive for other users."""
    drawing: frozenset[fx.Node] = field(default=frozenset(), repr=False)
    """Nodes inside that sample random numbers; only for rules that declare `redraws`."""
    communicating: frozenset[fx.Node] = field(default=frozenset(), repr=False)
    """Nodes inside that issue collectives or wait for them; only if the rule declares
    `communicates`.
    """
    inner: tuple[fx.Node, ...] = field(default=(), repr=False)
    """Nodes inside to which variables are bound: a replacement may read nodes that it replaces."""
    together: bool = False
    """True if what the graph issues as a whole decides about the collectives."""

    @property
    def inputs(self) -> tuple[fx.Node, ...]:
        return self.variables + self.side_inputs

    @property
    def effectful(self) -> frozenset[fx.Node]:
        """Return the nodes inside with an effect, which the replacement has instead."""
        return self.drawing | self.communicating

    @property
    def operands(self) -> tuple[fx.Node, ...]:
        """Return every node that a replacement may read."""
        return self.variables + self.side_inputs + self.inner

    @cached_property
    def module(self) -> fx.GraphModule:
        """Return the region as a graph module: from the values of `inputs` to those of `roots`."""
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for node in self.inputs:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        for node in self.nodes:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
        results = tuple(copies[root] for root in self.roots)
        graph.output(results[0] if len(results) == 1 else results)
        owner = self.roots[0].graph.owning_module
        return fx.GraphModule(torch.nn.Module() if owner is None else owner, graph)
