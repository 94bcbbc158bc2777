"""Calls of torch's own modules are read as the calls of functions that they make."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import fx, nn
from torch._subclasses import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.module import register_module_forward_hook

from pypm import operator, pattern, rule
from pypm.diagnostics import RewriteError
from pypm.fx import aten, describe, explain, find, partition, rewrite
from pypm.fx.matching.opened_modules import OpenedModules
from pypm.fx.operators.effects import is_pure
from pypm.fx.operators.known_modules import MODULES
from pypm.fx.subject.transaction import Transaction
from pypm.rules import attention

ROW = torch.randn(2, 4)
SIGNAL = {n: torch.randn(2, 4, *(6,) * n) for n in (1, 2, 3)}

EXAMPLES: list[tuple[nn.Module, torch.Tensor]] = [
    (nn.AdaptiveAvgPool2d((2, 3)), SIGNAL[2]),
    (nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), SIGNAL[2]),
    (nn.BatchNorm1d(4), SIGNAL[1]),
    (nn.BatchNorm2d(4, eps=0.1), SIGNAL[2]),
    (nn.BatchNorm3d(4, affine=False), SIGNAL[3]),
    (nn.CELU(0.5), ROW),
    (nn.Conv1d(4, 6, 3, stride=2, groups=2), SIGNAL[1]),
    (nn.Conv2d(4, 6, 3, padding="same", dilation=2, bias=False), SIGNAL[2]),
    (nn.Conv3d(4, 6, 3, padding=1), SIGNAL[3]),
    (nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1), SIGNAL[1]),
    (nn.ConvTranspose2d(4, 6, 3, groups=2, dilation=2), SIGNAL[2]),
    (nn.ConvTranspose3d(4, 6, 3, bias=False), SIGNAL[3]),
    (nn.Dropout(), ROW),
    (nn.ELU(0.5), ROW),
    (nn.Embedding(7, 3, padding_idx=2), torch.tensor([[0, 2, 6]])),
    (nn.Flatten(2), SIGNAL[2]),
    (nn.GELU("tanh"), ROW),
    (nn.GLU(1), ROW),
    (nn.GroupNorm(2, 4), SIGNAL[2]),
    (nn.Hardshrink(0.7), ROW),
    (nn.Hardsigmoid(), ROW),
    (nn.Hardswish(), ROW),
    (nn.Hardtanh(-0.3, 0.2), ROW),
    (nn.Identity(), ROW),
    (nn.LayerNorm((4, 6), bias=False), SIGNAL[1]),
    (nn.LeakyReLU(0.3), ROW),
    (nn.Linear(4, 3), ROW),
    (nn.LogSigmoid(), ROW),
    (nn.LogSoftmax(0), ROW),
    (nn.MaxPool1d(3, 2), SIGNAL[1]),
    (nn.MaxPool2d(3, padding=1), SIGNAL[2]),
    (nn.MaxPool3d(2, dilation=2, ceil_mode=True), SIGNAL[3]),
    (nn.Mish(), ROW),
    (nn.PReLU(4), ROW),
    (nn.RMSNorm(4), ROW),
    (nn.ReLU(), ROW),
    (nn.ReLU6(), 9 * ROW),
    (nn.SELU(), ROW),
    (nn.SiLU(), ROW),
    (nn.Sigmoid(), ROW),
    (nn.Softmax(0), ROW),
    (nn.Softplus(2.0, 1.0), ROW),
    (nn.Softshrink(0.7), ROW),
    (nn.Tanh(), ROW),
]


def varied(module: nn.Module) -> nn.Module:
    """The module in eval mode, with random parameters and statistics: none is a default."""
    for name, value in module.state_dict().items():
        if value.dtype.is_floating_point and name != "num_batches_tracked":
            value.uniform_(0.5, 1.5)
    return module.eval()


def traced(module: nn.Module) -> fx.GraphModule:
    return fx.symbolic_trace(nn.Sequential(module))


def opened(gm: fx.GraphModule) -> OpenedModules:
    return OpenedModules(gm.graph, frozenset(), Transaction())


def calls(gm: fx.GraphModule, op: str = "call_module") -> list[str]:
    return [str(node.target) for node in gm.graph.nodes if node.op == op]


def test_every_module_of_the_table_has_a_row_here() -> None:
    assert {type(module) for module, _ in EXAMPLES} == set(MODULES)


@pytest.mark.parametrize(("module", "x"), EXAMPLES, ids=[type(m).__name__ for m, _ in EXAMPLES])
def test_an_opened_call_computes_the_same_by_one_operator(
    module: nn.Module, x: torch.Tensor
) -> None:
    gm = traced(varied(module))
    graph, expected = str(gm.graph), gm(x)
    modules = opened(gm)
    gm.recompile()
    (node,) = (n for n in gm.graph.nodes if n.op.startswith("call_"))
    assert describe(node).operator.name.startswith("aten.")
    assert torch.equal(gm(x), expected)
    modules.close(has_changed=True)
    assert str(gm.graph) == graph


# --- near misses ---------------------------------------------------------------------------------


class Doubling(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Marked(torch.Tensor):
    pass


def with_hook(name: str) -> nn.Module:
    module = nn.Linear(4, 4)
    getattr(module, name)(lambda *_: None)
    return module


def with_own_forward() -> nn.Module:
    module = nn.Linear(4, 4)
    module.forward = lambda x: x
    return module


def with_own_convolution() -> nn.Module:
    module = nn.Conv1d(4, 4, 1)
    module._conv_forward = lambda x, weight, bias: x
    return module


def with_marked_weight() -> nn.Module:
    module = nn.Linear(4, 4)
    module.weight = nn.Parameter(torch.ones(4, 4).as_subclass(Marked))
    return module


def compiled() -> nn.Module:
    module = nn.Linear(4, 4)
    module.compile()
    return module


CLOSED: dict[str, Callable[[], nn.Module]] = {
    "subclass": lambda: Doubling(4, 4),
    "forward hook": lambda: with_hook("register_forward_hook"),
    "forward pre-hook": lambda: with_hook("register_forward_pre_hook"),
    "backward hook": lambda: with_hook("register_full_backward_hook"),
    "backward pre-hook": lambda: with_hook("register_full_backward_pre_hook"),
    "its own forward": with_own_forward,
    "its own method": with_own_convolution,
    "compiled": compiled,
    "parametrization": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
    "weight of another class": with_marked_weight,
    "dropout in training": nn.Dropout,
    "batch norm in training": lambda: nn.BatchNorm1d(4),
    "statistics of the batch": lambda: nn.BatchNorm1d(4, track_running_stats=False).eval(),
    "cumulative average": lambda: nn.BatchNorm1d(4, momentum=None).eval(),
    "max_norm": lambda: nn.Embedding(4, 4, max_norm=1.0),
    "circular": lambda: nn.Conv1d(4, 4, 3, padding=1, padding_mode="circular"),
    "implicit dim": nn.Softmax,
    "indices": lambda: nn.MaxPool1d(2, return_indices=True),
    "lazy": lambda: nn.LazyLinear(4),
    "unknown": lambda: nn.Bilinear(4, 4, 4),
}


@pytest.mark.parametrize("make", CLOSED.values(), ids=CLOSED)
def test_what_computes_something_else_stays_whole(make: Callable[[], nn.Module]) -> None:
    graph = fx.Graph()
    graph.output(graph.create_node("call_module", "inner", (graph.placeholder("x"),)))
    root = nn.Module()
    root.inner = make()
    gm = fx.GraphModule(root, graph)
    opened(gm)
    assert calls(gm) == ["inner"]


def test_other_arguments_keep_a_module_whole() -> None:
    class Sized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.grow = nn.ConvTranspose1d(4, 4, 3, stride=2)

        def forward(self, x):
            return self.grow(x, output_size=[14])

    gm = fx.symbolic_trace(Sized())
    opened(gm)
    assert calls(gm) == ["grow"]


@contextmanager
def hooked() -> Iterator[None]:
    handle = register_module_forward_hook(lambda *_: None)
    try:
        yield
    finally:
        handle.remove()


def test_a_hook_of_all_modules_keeps_all_whole() -> None:
    gm = traced(nn.Linear(4, 4))
    with hooked():
        opened(gm)
    assert calls(gm) == ["0"]
    opened(gm)
    assert calls(gm) == []


@pytest.mark.parametrize(
    ("kind", "name", "make"),
    [
        (nn.Linear, "forward", lambda: nn.Linear(4, 4)),
        (nn.Conv1d, "_conv_forward", lambda: nn.Conv1d(4, 4, 1)),
        (_BatchNorm, "forward", lambda: nn.BatchNorm1d(4).eval()),
    ],
)
def test_a_replaced_method_of_a_class_keeps_its_modules_whole(
    kind: type[nn.Module], name: str, make: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    gm = traced(make())
    (node,) = gm.graph.find_nodes(op="call_module")
    assert is_pure(node)
    method = getattr(kind, name)
    monkeypatch.setattr(kind, name, functools.wraps(method)(lambda *args: 2 * method(*args)))
    assert not is_pure(node)
    opened(gm)
    assert calls(gm) == ["0"]


# --- rewriting -----------------------------------------------------------------------------------


@pattern
def Layer(x, w, b):
    return aten.gelu(aten.linear(x, w, b), approximate="none")


@rule(Layer)
def layer(x, w, b):
    return nn.functional.gelu(torch.addmm(b, x, w.t()))


def perceptron() -> nn.Module:
    torch.manual_seed(0)
    parts = nn.Linear(4, 8), nn.GELU(), nn.Dropout(), nn.Linear(8, 4), nn.Tanh()
    return nn.Sequential(*parts).double().eval()


X = torch.randn(3, 4, dtype=torch.float64)


def test_what_is_rewritten_reads_the_parameters_and_the_rest_stays_whole() -> None:
    gm = fx.symbolic_trace(perceptron())
    expected, names = gm(X), set(gm.state_dict())
    report = rewrite(gm, layer)
    gm.graph.lint()
    assert (len(report), report.note) == (1, "")
    assert calls(gm) == ["2", "3", "4"]
    assert calls(gm, "get_attr") == ["0.weight", "0.bias"]
    torch.testing.assert_close(gm(X), expected)
    assert set(gm.state_dict()) == names
    gm.train()
    assert gm.get_submodule("2").training


def test_where_nothing_is_rewritten_the_graph_is_as_it_was() -> None:
    @rule(Layer)
    def never(x, w, b):
        assert x.rank == 17
        return x

    gm = fx.symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.GELU()))
    nodes, code = [*gm.graph.nodes], gm.code
    names = set(gm.graph._graph_namespace._used_names)
    assert len(rewrite(gm, never)) == 0
    gm.recompile()
    assert ([*gm.graph.nodes], gm.code) == (nodes, code)
    assert gm.graph._graph_namespace._used_names == names


def test_where_a_body_raises_the_graph_is_as_it_was() -> None:
    @rule(Layer)
    def broken(x, w, b):
        raise ValueError("no")

    gm = fx.symbolic_trace(perceptron())
    code = gm.code
    with pytest.raises(RewriteError):
        rewrite(gm, broken)
    gm.recompile()
    assert gm.code == code


def test_find_and_explain_look_inside_and_leave_the_graph() -> None:
    gm = fx.symbolic_trace(perceptron())
    graph = str(gm.graph)
    (match,) = find(gm, Layer)
    assert str(gm.graph) == graph
    assert [node.name for node in match.region.nodes] == ["_0", "_1"]
    assert [node.target for node in match.bindings.values()] == ["input", "0.weight", "0.bias"]
    assert match.inputs == (match.bindings["x"],)
    torch.testing.assert_close(match.region.module(X), nn.functional.gelu(gm.get_submodule("0")(X)))
    assert "match" in str(explain(gm, layer, "_1"))
    assert str(gm.graph) == graph


def test_a_partition_passes_the_parameters_to_its_region() -> None:
    gm = fx.symbolic_trace(perceptron())
    expected = gm(X)
    (region,) = partition(gm, Layer)
    assert len(region.inputs) == 3
    assert calls(gm) == ["region_0", "2", "3", "4"]
    torch.testing.assert_close(gm(X), expected)


def test_a_module_that_a_rule_names_stays_whole() -> None:
    linear = operator("torch.nn.modules.linear.Linear", ["x"])

    @pattern
    def Whole(x):
        return aten.gelu(linear(x))

    (match,) = find(fx.symbolic_trace(perceptron()), Whole)
    assert [node.op for node in match.region.nodes] == ["call_module", "call_module"]


def test_a_module_that_is_called_twice_is_opened_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x):
            return nn.functional.gelu(self.inner(nn.functional.gelu(self.inner(x))))

    gm = fx.symbolic_trace(Twice().double())
    expected = gm(X)
    assert len(rewrite(gm, layer)) == 2
    torch.testing.assert_close(gm(X), expected)


def test_an_activation_in_place_is_a_write() -> None:
    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.ReLU(inplace=True)

        def forward(self, x):
            y = x.neg()
            self.act(x)
            return y.exp()

    @pattern
    def ExpNeg(x):
        return aten.exp(aten.neg(x))

    assert find(fx.symbolic_trace(Written()), ExpNeg) == []


class Block(nn.Module):
    """A block of a transformer, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(16), nn.LayerNorm(16)])
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.up, self.act, self.down = nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)
        self.softmax, self.drop = nn.Softmax(-1), nn.Dropout()

    def forward(self, x):
        h = self.norms[0](x)
        q, k, v = (f(h).view(2, 8, 4, 4).transpose(1, 2) for f in (self.q, self.k, self.v))
        a = self.drop(self.softmax(q @ k.transpose(-1, -2) / 2.0)) @ v
        x = x + self.out(a.transpose(1, 2).reshape(2, 8, 16))
        return x + self.down(self.act(self.up(self.norms[1](x))))


def test_a_pack_rewrites_a_model_that_was_traced_with_its_modules() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 8, 16, dtype=torch.float64)
    gm = fx.symbolic_trace(varied(Block()).double())
    FakeTensorProp(gm, FakeTensorMode(allow_non_fake_inputs=True)).propagate(x)
    expected = gm(x)
    report = rewrite(gm, attention.RULES)
    gm.graph.lint()
    assert [record.rule for record in report.rewrites] == ["sdpa"]
    assert all(record.checked for record in report.rewrites)
    assert "softmax" not in calls(gm)
    torch.testing.assert_close(gm(x), expected, rtol=1e-12, atol=1e-12)


def test_a_pack_declines_where_only_summaries_of_tensors_are_known() -> None:
    gm = fx.symbolic_trace(Block().eval())
    ShapeProp(gm).propagate(torch.randn(2, 8, 16))
    report = rewrite(gm, attention.RULES)
    assert (len(report), {refusal.kind for refusal in report.refusals}) == (0, {"symbolic"})
