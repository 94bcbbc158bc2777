"""A bare loop over the nodes: the floor under everything that looks at a torch.fx graph."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from benchmarks import fxgraph
from benchmarks.terms import Rule, Subject


class _Traversal:
    def subject(self, subject: Subject) -> fx.GraphModule:
        return fxgraph.build(subject)

    def run(self, graph: fx.GraphModule) -> None:
        for _node in graph.graph.nodes:
            pass

    def operators(self, graph: fx.GraphModule) -> int:
        return fxgraph.operators(graph)


class _Peer:
    title = "traversal"

    def version(self) -> str:
        return torch.__version__

    def compile(self, rules: Sequence[Rule], *, fixpoint: bool = False) -> _Traversal:
        return _Traversal()


PEER = _Peer()
