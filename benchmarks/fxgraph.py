"""Subjects as plain torch.fx graphs of ATen overloads, without metadata."""

from __future__ import annotations

import torch
from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

from benchmarks.terms import BINARY, UNARY, Subject

__all__ = ["OVERLOADS", "build", "operators"]

OVERLOADS = {name: getattr(torch.ops.aten, name).default for name in UNARY}
OVERLOADS |= {"add": torch.ops.aten.add.Tensor, "mul": torch.ops.aten.mul.Tensor}
OVERLOADS |= {"maximum": torch.ops.aten.maximum.default}
assert set(BINARY) <= OVERLOADS.keys()


def build(subject: Subject, *, lazy: bool = True) -> fx.GraphModule:
    """A new graph on every call; one that is lazy makes no Python code until it is called."""
    graph = fx.Graph()
    values = [graph.placeholder(f"input_{i}") for i in range(subject.inputs)]
    for name, arguments in subject.calls:
        node = graph.call_function(OVERLOADS[name], tuple([values[a] for a in arguments]))
        values.append(node)
    graph.output(tuple([values[i] for i in subject.outputs]))
    return (_LazyGraphModule if lazy else fx.GraphModule)(torch.nn.Module(), graph)


def operators(gm: fx.GraphModule) -> int:
    """The calls that an output needs."""
    seen: set[fx.Node] = set()
    todo = list(gm.graph.output_node().all_input_nodes)
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += node.all_input_nodes
    return sum(node.op == "call_function" for node in seen)
