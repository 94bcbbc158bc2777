"""Rules on exported programs."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim, export, load, save, unflatten

import pypm.fx
from pypm.core.patterns import Op, Var
from pypm.core.rules import Rule
from pypm.fx import aten
from pypm.integrations.export import rewrite

X, W, B = Var("x"), Var("w"), Var("b")
RELU = Rule("relu", ("x",), (Op(aten.relu, (X,)),), lambda x: torch.clamp(x, min=0))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.count.add_(1)
        y = torch.relu(self.linear(x))
        return y, torch.relu(y.sum(-1) - 1)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("decomposed", [False, True])
def test_outputs_and_signature(tmp_path, dynamic: bool, decomposed: bool) -> None:
    x = torch.randn(5, 8)
    model = Model()
    shapes = {"x": {0: Dim("batch", min=2)}} if dynamic else None
    program = export(model, (x,), dynamic_shapes=shapes)
    if decomposed:
        program = program.run_decompositions()
    report = rewrite(program, RELU)
    program.graph.lint()
    program.validate()
    assert (len(report), report.unchecked) == (2, 0)
    (results,) = program.graph.output_node().args
    names = [spec.arg.name for spec in program.graph_signature.output_specs]
    assert names == [node.name for node in results]
    for size in (5, 9) if dynamic else (5,):
        x = torch.randn(size, 8)
        torch.testing.assert_close(program.module()(x), model(x))
    save(program, tmp_path / "program.pt2")
    torch.testing.assert_close(load(tmp_path / "program.pt2").module()(x), model(x))


def test_composites_stay_whole() -> None:
    class Attention(torch.nn.Module):
        def forward(self, q):
            return torch.softmax(q @ q.mT, -1) @ q

    q = torch.randn(1, 2, 8, 8)
    program = export(Attention(), (q,))
    scores = Op(aten.matmul, (X, Var("t")))
    pattern = Op(aten.matmul, (Op(aten.softmax, (scores,)), X))
    rule = Rule(
        "sdpa", ("x",), (pattern,), lambda x: F.scaled_dot_product_attention(x, x, x, scale=1.0)
    )
    assert len(rewrite(program, rule)) == 1
    targets = {node.target for node in program.graph.nodes}
    assert torch.ops.aten.scaled_dot_product_attention.default in targets
    torch.testing.assert_close(program.module()(q), Attention()(q))


def test_tensors_made_by_a_body() -> None:
    x = torch.randn(5, 8)
    program = export(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Softmax(0)), (x,))
    number = Rule("number", ("x",), RELU.roots, lambda x: torch.maximum(x, torch.tensor(0.0)))
    assert len(rewrite(program, number)) == 1
    program.validate()
    torch.testing.assert_close(program.module()(x), x.relu().softmax(0))


def test_tensors_that_a_program_cannot_hold() -> None:
    program = export(torch.nn.ReLU(), (torch.randn(5, 8),))
    held = torch.zeros(8)
    report = rewrite(program, Rule("held", ("x",), RELU.roots, lambda x: torch.maximum(x, held)))
    assert [refusal.kind for refusal in report.refusals] == ["constant"]
    program.validate()


class Nested(torch.nn.Module):
    def __init__(self, *inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = torch.nn.ModuleList(inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for each in self.inner:
            x = each(x)
        return x.sin()


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr")
def test_preserved_calls_of_submodules(tmp_path) -> None:
    model, x = Nested(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Tanh()), torch.randn(5, 8)
    paths = tuple(f"inner.{i}" for i in range(3))
    program = export(model, (x,), preserve_module_call_signature=paths)
    assert len(rewrite(program, RELU)) == 1
    preserved = [entry.fqn for entry in program.module_call_graph if entry.signature is not None]
    assert preserved == ["", "inner.0"]
    torch.testing.assert_close(unflatten(program)(x), model(x))
    save(program, tmp_path / "program.pt2")
    torch.testing.assert_close(load(tmp_path / "program.pt2").module()(x), model(x))


def test_it_takes_the_options_of_rewrite() -> None:
    ours, theirs = (inspect.signature(f).parameters for f in (rewrite, pypm.fx.rewrite))
    assert [*ours][1:] == [*theirs][1:]
