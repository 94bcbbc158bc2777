"""Branches, loop bodies and regions without gradients: rewritten by themselves, or noted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as map_rows
from torch.export import Dim, ExportedProgram, export, load, save
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.core.patterns import Op, Var
from pypm.core.rules import Decline, Rule
from pypm.diagnostics import RewriteError
from pypm.fx import aten, rewrite
from pypm.fx.subject.inner_graphs import bodies
from pypm.integrations import export as programs
from tests.fx.small_rules import TIDY

X = Var("x")
RELU_NEG = Op(aten.relu, (Op(aten.neg, (X,)),))
FUSED = Rule("fused", ("x",), (RELU_NEG,), lambda x: torch.clamp(-x, min=0))


def relu_neg(x):
    return x.neg().relu()


class Branches(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, relu_neg, lambda x: x.neg().relu() + 1, (x,))


class Rows(torch.nn.Module):
    def forward(self, x):
        return map_rows(relu_neg, x)


class Scanned(torch.nn.Module):
    def forward(self, x):
        return scan(lambda carry, row: (carry + row, relu_neg(carry) + row), x[0], x)


class Loop(torch.nn.Module):
    def forward(self, x):
        start = torch.zeros((), dtype=torch.int64)
        return while_loop(
            lambda i, x: (i < 3) & (relu_neg(x).sum() > -1),
            lambda i, x: (i + 1, relu_neg(x) - 1),
            (start, x),
        )


class WithoutGradients(torch.nn.Module):
    def forward(self, x):
        with torch.no_grad():
            y = relu_neg(x)
        return y * x


class WithGradients(torch.nn.Module):
    def forward(self, x):
        with torch.no_grad():
            z = x.sin()
            with torch.enable_grad():
                y = relu_neg(x)
        return y * z


class Nested(torch.nn.Module):
    def forward(self, x):
        def inner(x):
            return torch.cond(x.sum() > 1, relu_neg, torch.sin, (x,))

        return torch.cond(x.sum() > 0, inner, lambda x: x + 1, (x,)) + relu_neg(x)


class Converting(torch.nn.Module):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return relu_neg(x @ x.t())


def exported(model: torch.nn.Module) -> tuple[ExportedProgram, torch.Tensor]:
    x = torch.randn(3, 4)
    return export(model, (x,), strict=False), x


ENTERED = {
    Branches: 2,
    Rows: 1,
    Scanned: 1,
    Loop: 2,
    WithoutGradients: 1,
    Nested: 2,
}


@pytest.mark.parametrize(("model", "count"), ENTERED.items())
def test_bodies_are_rewritten(tmp_path, model: type[torch.nn.Module], count: int) -> None:
    program, x = exported(model())
    expected = [model()(value) for value in (x, -x)]
    for _ in range(2):
        report = programs.rewrite(program, FUSED)
        assert (len(report), report.note) == (count, "")
        assert report.unchecked == 0
        count = 0
    for gm in [program.graph_module, *(body.module for body in bodies(program.graph_module))]:
        gm.graph.lint()
        assert not gm.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)
    program.validate()
    save(program, tmp_path / "program.pt2")
    loaded = load(tmp_path / "program.pt2")
    for again in (program, loaded):
        for value, wanted in zip((x, -x), expected, strict=True):
            torch.testing.assert_close(again.module()(value), wanted)


def test_gradients_are_cut_where_they_were() -> None:
    for model in (WithoutGradients, WithGradients):
        program, x = exported(model())
        grads = []
        for run in (model(), program.module()):
            leaf = x.clone().requires_grad_()
            run(leaf).sum().backward()
            grads.append(leaf.grad)
        assert len(programs.rewrite(program, FUSED)) == 1
        leaf = x.clone().requires_grad_()
        program.module()(leaf).sum().backward()
        torch.testing.assert_close(leaf.grad, grads[0])


class ViewedWithoutGradients(torch.nn.Module):
    def forward(self, x, w):
        with torch.no_grad():
            y = x.view(3)
        return y * w


def test_no_input_of_a_body_without_gradients_is_its_output() -> None:
    args = [torch.ones(3, requires_grad=True) for _ in range(2)]
    program = torch.export.export(ViewedWithoutGradients(), (*args,))
    assert not len(programs.rewrite(program, TIDY))
    result = program.module()(*args).sum()
    assert torch.autograd.grad(result, args, allow_unused=True)[0] is None


def test_bodies_under_autocast_are_noted() -> None:
    program, x = exported(Converting())
    report = programs.rewrite(program, FUSED)
    note = "not rewritten: the bodies of `wrap_with_autocast`"
    assert (len(report), report.note) == (0, note)
    assert note in str(report)
    torch.testing.assert_close(program.module()(x), Converting()(x))


def test_bodies_of_which_nothing_is_known_are_noted() -> None:
    """Also where an operator that is known runs the same body."""
    body = make_fx(lambda x: (relu_neg(x),), tracing_mode="fake")(torch.ones(3))
    graph = fx.Graph()
    x, held = graph.placeholder("x"), graph.get_attr("body")
    graph.output([graph.call_function(op, args) for op, args in _calls(held, x)])
    gm = fx.GraphModule({"body": body}, graph)
    report = rewrite(gm, FUSED)
    assert (len(report), report.note) == (0, "not rewritten: the bodies of `wrap`")


def _calls(held: fx.Node, x: fx.Node) -> list[tuple[Any, tuple[object, ...]]]:
    operators = torch.ops.higher_order
    return [(operators.map_impl, (held, [x], [])), (operators.wrap, (held, x))]


def test_what_a_branch_gives_shares_no_memory_with_its_inputs() -> None:
    class Twice(torch.nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x.neg().neg(), torch.exp, (x,))

    program, x = exported(Twice())
    double = Rule("double", ("x",), (Op(aten.neg, (Op(aten.neg, (X,)),)),), X)
    assert len(programs.rewrite(program, double)) == 1
    given = x.abs()
    found = program.module()(given)
    assert found.data_ptr() != given.data_ptr()
    torch.testing.assert_close(found, given)
    assert program.run_decompositions().module()(-given).equal((-given).exp())


def test_records_name_the_body() -> None:
    program, _ = exported(Nested())
    no = Rule("no", ("x",), (Op(aten.sin, (X,)),), lambda x: Decline("no"))
    report = programs.rewrite(program, [FUSED, no])
    assert [record.root for record in report.rewrites] == [
        "relu",
        "true_graph_0.true_graph_0.relu",
    ]
    assert [refusal.node for refusal in report.refusals] == ["true_graph_0.false_graph_0.sin"]
    assert [rule.rewrites for rule in report.rules] == [2, 0]


def test_all_bodies_or_none() -> None:
    program, _ = exported(Branches())
    modules = [program.graph_module, *(body.module for body in bodies(program.graph_module))]
    before = [(gm.code, str(gm.graph), [*gm.graph.nodes]) for gm in modules]
    late = Rule("late", ("x",), (Op(aten.add, (X, Var("_"))),), lambda x: 1 / 0)
    with pytest.raises(RewriteError, match="ZeroDivisionError"):
        programs.rewrite(program, [FUSED, late])
    assert [(gm.code, str(gm.graph), [*gm.graph.nodes]) for gm in modules] == before


def test_a_graph_module_and_symbolic_sizes() -> None:
    shapes = {"x": {0: Dim("rows", min=2)}}
    gm = export(Branches(), (torch.randn(3, 4),), dynamic_shapes=shapes).module()
    assert len(rewrite(gm, FUSED)) == 2
    for rows in (2, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(gm(x), Branches()(x))
