"""Kernels that are expected of a graph: which calls are together, and that each can be one call."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest
import torch
from torch import Tensor, fx
from torch.export import export
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.roofline.fusion import kernels


class Block(torch.nn.Module):
    """Attention and a gated layer, each with a norm before and a residual behind."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.project = torch.nn.Linear(width, 3 * width)
        self.gate = torch.nn.Linear(width, 2 * width)
        self.up = torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(self.norms[0](x)).chunk(3, -1)
        x = x + torch.softmax(q @ k.transpose(-2, -1) / 4, -1) @ v
        y = self.norms[1](x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


def graph_of(module: torch.nn.Module, *inputs: Tensor) -> fx.Graph:
    return export(module, inputs).graph


def names(graph: fx.Graph, taken: Collection[fx.Node] = ()) -> list[list[str]]:
    return [[node.name for node in nodes] for nodes in kernels(graph, taken)]


def node(graph: fx.Graph, name: str) -> fx.Node:
    (found,) = [each for each in graph.nodes if each.name == name]
    return found


def depends_on_itself(nodes: Sequence[fx.Node]) -> bool:
    """Whether a path leads from a kernel through something else into it again."""
    inside, behind = {*nodes}, set[fx.Node]()
    for each in nodes[0].graph.nodes:
        sources = {*each.all_input_nodes}
        if each in inside:
            if sources & behind:
                return True
        elif sources & (inside | behind):
            behind.add(each)
    return False


def test_a_block() -> None:
    found = names(graph_of(Block(), torch.randn(2, 6, 16)))
    assert found == [
        ["layer_norm"],
        ["linear"],
        ["transpose", "matmul"],
        ["div", "softmax"],
        ["matmul_1"],
        ["add", "layer_norm_1"],
        ["linear_1"],
        ["silu", "mul"],
        ["linear_2"],
        ["linear_3"],
        ["add_1"],
    ]


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (Block(), (2, 6, 16)),
        (torch.nn.Sequential(Block(), Block()), (2, 6, 16)),
        (torch.nn.TransformerEncoderLayer(16, 2, batch_first=True).eval(), (2, 6, 16)),
        (
            torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).eval(),
            (1, 3, 8, 8),
        ),
    ],
)
@pytest.mark.parametrize("is_decomposed", [False, True])
def test_each_kernel_can_run_at_once(
    module: torch.nn.Module, shape: tuple[int, ...], is_decomposed: bool
) -> None:
    program = export(module, (torch.randn(shape),))
    graph = (program.run_decompositions() if is_decomposed else program).graph
    found = kernels(graph)
    calls = [node for nodes in found for node in nodes]
    assert len(calls) == len({*calls})
    assert [nodes for nodes in found if depends_on_itself(nodes)] == []
    assert [nodes for nodes in found if [*nodes] != sorted(nodes)] == []


def test_taken_nodes_separate() -> None:
    def chain(x: Tensor) -> Tensor:
        y = x.exp()
        return y.sin() + y.cos()

    graph = make_fx(chain, tracing_mode="fake")(torch.randn(3)).graph
    assert names(graph) == [["exp", "sin", "cos", "add"]]
    assert names(graph, [node(graph, "sin")]) == [["exp", "cos"], ["add"]]


def test_views_are_where_they_are_read() -> None:
    def views(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        left, right = (x @ w).split(2, 1)
        return left.t().exp(), right.t()

    graph = make_fx(views, tracing_mode="fake")(torch.randn(3, 4), torch.randn(4, 4)).graph
    assert names(graph) == [["mm"], ["t", "exp"]]

    def items(x: Tensor) -> Tensor:
        values, _ = x.exp().max(1)
        return values.sin()

    graph = make_fx(items, tracing_mode="fake")(torch.randn(4, 4)).graph
    assert names(graph) == [["exp", "max_1", "getitem", "sin"]]


def test_calls_of_unknown_work_are_alone() -> None:
    graph = make_fx(lambda x: torch.linalg.svdvals(x.exp()).sin(), tracing_mode="fake")(
        torch.randn(4, 4)
    ).graph
    first, svd, last = names(graph)
    assert (first, svd[0], last) == (["exp"], "_linalg_svd", ["sin"])


def test_what_nothing_uses_is_in_no_kernel() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    with torch._subclasses.FakeTensorMode() as mode:
        x.meta["val"] = mode.from_tensor(torch.randn(3))
        dead = graph.call_function(torch.ops.aten.exp.default, (x,))
        deader = graph.call_function(torch.ops.aten.exp.default, (dead,))
        made = graph.call_function(torch.ops.aten.sin.default, (x,))
        for each in (dead, deader, made):
            each.meta["val"] = x.meta["val"]
    graph.output(made)
    assert names(graph) == [["sin_default"]]
