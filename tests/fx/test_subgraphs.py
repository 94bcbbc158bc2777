"""Parts of graphs as graphs of their own: they compute what they do in the whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch.export import export

from pypm.fx import metadata
from pypm.fx.subject.subgraphs import extract, signature
from pypm.roofline.fusion import kernels


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor, n: int) -> tuple[Tensor, ...]:
        left, right = self.linear(x).split(4, -1)
        values, indices = torch.topk(left.exp(), 2)
        normed = F.layer_norm(x, (8,)) * n
        return values.sin(), indices, torch.cat([right, normed], -1), x + torch.ones(8)


class Values(fx.Interpreter):
    """Runs a graph, and keeps the value of each node by name."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.found: dict[str, Any] = {}

    def run_node(self, node: fx.Node) -> Any:
        self.found[node.name] = result = super().run_node(node)
        return result


def graph_module() -> fx.GraphModule:
    return export(Model(), (torch.randn(3, 8), 2)).module(check_guards=False)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_part_computes_what_it_does_in_the_whole(size: int) -> None:
    whole = graph_module()
    values = Values(whole)
    values.run(torch.randn(3, 8), 2)
    calls = [node for node in whole.graph.nodes if node.op == "call_function" and node.users]
    groups = [calls[start : start + size] for start in range(0, len(calls), size)]
    for nodes in [*groups, *kernels(whole.graph)]:
        module, inputs = extract(nodes)
        found = module(*(values.found[node.name] for node in inputs))
        outputs = module.graph.output_node().args[0]
        assert outputs, nodes
        for node, result in zip(outputs, found, strict=True):
            torch.testing.assert_close(result, values.found[node.name])


def test_results_are_what_is_used_outside() -> None:
    whole = graph_module()
    nodes = {node.name: node for node in whole.graph.nodes}
    module, inputs = extract([nodes["topk"], nodes["getitem_2"]])
    assert [node.name for node in inputs] == ["exp"]
    (results,) = module.graph.output_node().args
    assert [node.name for node in results] == ["topk", "getitem_2"]
    module, _ = extract([nodes["topk"], nodes["getitem_2"], nodes["getitem_3"]])
    (results,) = module.graph.output_node().args
    assert [node.name for node in results] == ["getitem_2", "getitem_3"]


def test_signatures_tell_functions_and_layouts() -> None:
    def signed(function: Any, x: Tensor) -> str:
        class Alone(torch.nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return function(x)

        graph = export(Alone(), (x,)).graph
        module, inputs = extract([node for node in graph.nodes if node.op == "call_function"])
        return signature(map(metadata, inputs), module.graph)

    x = torch.randn(4, 6)
    assert signed(torch.relu, x) == signed(torch.relu, x.clone())
    others = [
        signed(torch.relu, x),
        signed(torch.tanh, x),
        signed(torch.relu, x.double()),
        signed(torch.relu, torch.randn(6, 4).t()),
        signed(torch.relu, torch.randn(4, 7)),
        signed(lambda x: torch.relu(torch.relu(x)), x),
        signed(lambda x: x + 1, x),
        signed(lambda x: x + 2, x),
    ]
    assert len({*others}) == len(others)
