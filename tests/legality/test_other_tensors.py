"""Tensors that are not dense, have no strides, or run operators in their own way: refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.two_tensor import TwoTensor  # type: ignore[import-untyped]

from pypm import pattern, rule
from pypm.fx import aten, every, rewrite
from pypm.integrations import export, inductor
from tests.compiled import without_code
from tests.fx.small_rules import turned_back
from tests.rules.shipped import SHIPPED

pytestmark = pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta")

RULES = [turned_back, *SHIPPED.values()]


def dense() -> Tensor:
    return torch.randn(4, 6).relu()


def jagged() -> Tensor:
    parts = [torch.randn(2, 6), torch.randn(3, 6)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


OTHERS: dict[str, Callable[[], Tensor]] = {
    "layout `torch.sparse_coo`": lambda: dense().to_sparse(),
    "layout `torch.sparse_csc`": lambda: dense().to_sparse_csc(),
    "layout `torch.sparse_bsr`": lambda: dense().to_sparse_bsr((2, 2)),
    "layout `torch._mkldnn`": lambda: dense().to_mkldnn(),
    "class `TwoTensor`": lambda: TwoTensor(dense(), dense()),
}


def turned_twice(x: Tensor) -> Tensor:
    return x.transpose(0, 1).transpose(0, 1)


@pytest.mark.parametrize("kind", [kind for kind in OTHERS if "mkldnn" not in kind])
def test_a_match_of_other_tensors_is_refused(kind: str) -> None:
    gm = make_fx(turned_twice, tracing_mode="fake")(OTHERS[kind]())
    before = str(gm.graph)
    report = rewrite(gm, RULES, choose=every)
    refusals = {refusal.rule: refusal for refusal in report.refusals}
    refusal = refusals["turned_back"]
    assert refusal.kind == "metadata" and str(gm.graph) == before
    assert f"{kind}, and rules are for dense tensors with strides" in refusal.reason
    assert refusal.reason.startswith("`x_1` is a tensor of ")


@pattern
def Doubled(x):
    return aten.relu(x) + aten.relu(x)


@rule(Doubled)
def doubled(x):
    return torch.relu(x) * 2


@pytest.mark.parametrize("kind", OTHERS)
def test_a_body_that_would_not_fail_is_not_asked(kind: str) -> None:
    """A rule of a user's, at a graph whose metadata come from the operators."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    with torch.no_grad():
        value = OTHERS[kind]()
        x.meta["val"] = value
        relu = graph.call_function(torch.ops.aten.relu.default, (x,))
        relu.meta["val"] = value
        result = graph.call_function(torch.ops.aten.add.Tensor, (relu, relu))
    result.meta["val"] = value
    graph.output(result)
    report = rewrite(fx.GraphModule({}, graph), [doubled])
    assert not report.rewrites
    (refusal,) = report.refusals
    assert kind in refusal.reason


def test_results_of_another_layout_are_refused() -> None:
    def sparse(x: Tensor) -> Tensor:
        return torch.relu(torch.relu(x).to_sparse())

    @pattern
    def Sparse(x):
        return aten.relu(aten._to_sparse(aten.relu(x)))

    @rule(Sparse)
    def once(x):
        return torch.relu(x).to_sparse()

    gm = make_fx(sparse, tracing_mode="fake")(dense())
    (refusal,) = rewrite(gm, [once]).refusals
    assert refusal.kind == "metadata" and "layout `torch.sparse_coo`" in refusal.reason


WEIGHT = torch.ones(6)


def rms_norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * WEIGHT


def layer_norm(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-5) * WEIGHT


@without_code()
@pytest.mark.parametrize("stage", ["pre_grad", "joint"])
@pytest.mark.parametrize("function", [rms_norm, layer_norm])
@pytest.mark.parametrize("make", [jagged, OTHERS["class `TwoTensor`"]], ids=["jagged", "subclass"])
def test_compiled(
    stage: str, function: Callable[[Tensor], Tensor], make: Callable[[], Tensor]
) -> None:
    """Where they reach a pass they are refused; behind autograd they are dense parts."""
    x = make()
    made = inductor.Pass(RULES, stage, choose=every)
    found = torch.compile(function, options=made.options())(x)
    expected = function(x)
    for ours, theirs in zip(parts(found), parts(expected), strict=True):
        torch.testing.assert_close(ours, theirs)
    report = made.report()
    assert stage == "joint" or not report.rewrites


@pytest.mark.parametrize("function", [rms_norm, layer_norm])
@pytest.mark.parametrize("make", [jagged, OTHERS["class `TwoTensor`"]], ids=["jagged", "subclass"])
def test_a_graph_of_dynamo(
    function: Callable[[Tensor], Tensor], make: Callable[[], Tensor]
) -> None:
    graphs: list[fx.GraphModule] = []

    def backend(gm: fx.GraphModule, inputs: object) -> Callable[..., object]:
        graphs.append(gm)
        return gm.forward

    torch.compile(function, backend=backend)(make())
    (gm,) = graphs  # rewritten outside of `torch.compile`, under which norms are left to it
    report = rewrite(gm, RULES, choose=every)
    assert not report.rewrites
    assert any("rules are for dense tensors" in each.reason for each in report.refusals)


def parts(x: Tensor) -> list[Tensor]:
    return list(x.unbind()) if x.is_nested else [x.a, x.b]  # type: ignore[attr-defined]


def test_exported() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return turned_twice(x.to_sparse()).to_dense()

    program = torch.export.export(Model(), (dense(),))
    report = export.rewrite(program, RULES, choose=every)
    x = dense()
    assert torch.equal(program.module()(x), x)
    assert any("layout `torch.sparse_coo`" in each.reason for each in report.refusals)
