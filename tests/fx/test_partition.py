"""Partitioning: which regions become submodules, what stays as it was, and that results agree."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import keep, op_var, pattern, rule
from pypm.core.operators import Operator
from pypm.core.patterns import Op, Var
from pypm.diagnostics import RewriteError
from pypm.fx import aten, find, partition, rewrite
from pypm.fx.operators.effects import is_pure
from pypm.fx.rewriting.journal import Journal

A, B = torch.randn(4, 4, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)


@pattern
def Chain(x, w):  # a product and any pointwise computation on it, longest first
    f = op_var(tag="pointwise")
    return f(..., Chain(x, w), ...)


@pattern
def Chain(x, w):
    return aten.mm(x, w)


@pattern
def Pointwise(x):
    f = op_var(tag="pointwise")
    return f(..., Pointwise(x), ...)


@pattern
def Pointwise(x):
    return x  # of anything, so every operator is a root


@pattern
def KeptProduct(x, w):
    return aten.relu(keep(aten.mm(x, w)))


@pattern
def Two(x, y):
    return aten.sin(x), aten.cos(y)


@pattern
def Turned(x):
    return aten.permute(x, [1, 0])


@pattern
def Split(x):
    return aten.split(aten.relu(x), 2)


def traced(function: Callable[..., Any], *arguments: torch.Tensor) -> fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(*(arguments or (A, B)))


def state(gm: fx.GraphModule) -> object:
    nodes = [
        (n, n.name, n.op, n.target, n.args, n.kwargs, list(n.users), list(n.meta.items()))
        for n in gm.graph.nodes
    ]
    return nodes, str(gm.graph), gm.code, list(dict(gm.named_modules()))


def calls(gm: fx.GraphModule) -> list[str]:
    named = {"call_function": lambda t: t.__name__.split(".")[0], "call_module": str}
    return [named[n.op](n.target) for n in gm.graph.nodes if n.op in named]


def two_layers(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y = (a @ b).relu() * 2
    return (y @ b).sigmoid() + y.sum(0)


class Interpreted:
    """A compiler that keeps what it was asked for."""

    def __init__(self) -> None:
        self.modules: list[fx.GraphModule] = []
        self.examples: list[list[Any]] = []
        self.runs = 0

    def __call__(self, module: fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        self.modules.append(module)
        self.examples.append(examples)

        def run(*inputs: Any) -> Any:
            self.runs += 1
            return fx.Interpreter(module).run(*inputs)

        return run


# --- regions ------------------------------------------------------------------------------------


def test_regions_are_maximal_and_called_where_they_were() -> None:
    gm = traced(two_layers)
    stack = '  File "model.py", line 7, in forward\n    return y'
    for node in gm.graph.nodes:
        node.meta["stack_trace"] = stack
    values = {n.name: n.meta["val"] for n in gm.graph.nodes if n.op == "call_function"}
    made = partition(gm, Chain)
    gm.graph.lint()
    assert calls(gm) == ["region_1", "sum", "region_0"]
    assert [(r.name, r.nodes, r.inputs, r.outputs) for r in made] == [
        ("region_0", ("mm_1", "sigmoid", "add"), ("mul", "b_1", "sum_1"), ("add",)),
        ("region_1", ("mm", "relu", "mul"), ("a_1", "b_1"), ("mul",)),
    ]
    assert calls(gm.region_1) == ["mm", "relu", "mul"]
    assert isinstance(gm.region_0, fx.GraphModule)
    for target, root in (("region_0", "add"), ("region_1", "mul")):
        (call,) = gm.graph.find_nodes(op="call_module", target=target)
        assert call.meta["val"] is values[root]
        assert call.meta["stack_trace"] == stack
    assert made.refusals == ()
    assert torch.equal(gm(A, B), two_layers(A, B))


def test_the_report_as_text() -> None:
    gm = traced(lambda a, b: ((a @ b).relu(), (a @ b.relu()).sum()))
    made = partition(gm, Chain, name="linear")
    assert str(made) == "2 regions\n  mm_1 = linear_0(a_1, relu_1), 1 nodes\n" + (
        "  relu = linear_1(a_1, b_1), 2 nodes"
    )
    assert (len(made), bool(partition(gm, Two))) == (2, True)


def test_a_compiler_gets_the_region_and_examples() -> None:
    gm, compiler = traced(two_layers), Interpreted()
    made = partition(gm, Chain, compile=compiler)
    assert [[tuple(e.shape) for e in examples] for examples in compiler.examples] == [
        [(4, 4), (4, 4), (4,)],
        [(4, 4), (4, 4)],
    ]
    assert [calls(module)[0] for module in compiler.modules] == ["mm", "mm"]
    assert torch.equal(gm(A, B), two_layers(A, B))
    assert compiler.runs == len(made) == 2
    twice = copy.deepcopy(gm)
    assert torch.equal(twice(A, B), two_layers(A, B))


def test_a_module_from_the_compiler_is_called_itself() -> None:
    gm = traced(lambda a, b: (a @ b).relu())
    module = torch.nn.Module()
    module.forward = lambda a, b: (a @ b).relu()
    partition(gm, Chain, compile=lambda region, examples: module)
    assert gm.region_0 is module
    assert torch.equal(gm(A, B), (A @ B).relu())


def test_without_metadata_examples_are_none() -> None:
    gm, compiler = fx.symbolic_trace(lambda a, b: torch.mm(a, b).relu()), Interpreted()
    partition(gm, Chain, compile=compiler)
    assert compiler.examples == [[None, None]]
    assert torch.equal(gm(A, B), (A @ B).relu())


def test_modules_of_the_model_go_into_the_region() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Tanh()).double()
    gm = fx.symbolic_trace(model)
    relu, tanh = (Operator(f"torch.nn.modules.activation.{name}") for name in ("ReLU", "Tanh"))
    made = partition(gm, Op(tanh, (Op(relu, (Var("x"),)),)))
    assert [r.nodes for r in made] == [("_1", "_2")]
    torch.testing.assert_close(gm(A), model(A))
    assert is_pure(gm.graph.find_nodes(op="call_module", target="region_0")[0])


def test_names_that_are_taken() -> None:
    gm = traced(two_layers)
    gm.region_0 = torch.nn.Identity()
    made = partition(gm, Chain)
    assert [r.name for r in made] == ["region_1", "region_2"]
    assert isinstance(gm.region_0, torch.nn.Identity)


def test_one_partition_after_another() -> None:
    def function(a, b):
        early = a.exp()
        return (early + a @ b).sin()

    gm = traced(function)
    first = partition(gm, Op(aten.mm, (Var("x"), Var("y"))), name="product")
    second = partition(gm, Pointwise, name="pointwise")
    assert [r.nodes for r in first] == [("mm",)]
    assert [r.nodes for r in second] == [("exp", "add", "sin")]  # a call of a region is no write
    assert torch.equal(gm(A, B), function(A, B))


def test_a_rule_and_its_absorb() -> None:
    def function(a, b):
        m = a @ b
        return m * m.sigmoid()

    @rule(Chain, absorb="pointwise")
    def absorbing(x, w):
        return x

    for arguments in ((absorbing, None), (Chain, "pointwise")):
        gm = traced(function)
        made = partition(gm, arguments[0], absorb=arguments[1])
        assert [r.nodes for r in made] == [("mm", "sigmoid", "mul")]
        assert torch.equal(gm(A, B), function(A, B))


def test_several_outputs() -> None:
    def function(a, b):
        return a.sin() + 1, b.cos() * 2

    gm = traced(function)
    (region,) = partition(gm, Two)
    assert (region.outputs, region.inputs) == (("sin", "cos"), ("a_1", "b_1"))
    assert calls(gm) == ["region_0", "getitem", "add", "getitem", "mul"]
    (call,) = gm.graph.find_nodes(op="call_module")
    assert [tuple(v.shape) for v in call.meta["val"]] == [(4, 4), (4, 4)]
    gm.graph.lint()
    for ours, theirs in zip(gm(A, B), function(A, B), strict=True):
        assert torch.equal(ours, theirs)


def test_an_output_of_several_tensors() -> None:
    def function(a, b):
        left, right = a.relu().split(2)
        return left + right

    gm = traced(function)
    assert len(partition(gm, Split)) == 1
    assert torch.equal(gm(A, B), function(A, B))


def test_regions_may_share_what_may_stay() -> None:
    def function(a, b):
        m = a @ b
        return m.relu(), m.relu() + m

    gm = traced(function)
    made = partition(gm, KeptProduct)
    assert [r.nodes for r in made] == [("mm", "relu_1"), ("mm", "relu")]
    assert calls(gm) == ["mm", "region_1", "region_0", "add"]
    assert_same(gm, function)


def test_what_only_regions_use_goes_away() -> None:
    def function(a, b):
        m = a @ b
        return m.relu(), m.relu() + 1

    gm = traced(function)
    made = partition(gm, KeptProduct)
    assert [r.nodes for r in made] == [("mm", "relu_1"), ("mm", "relu")]
    assert calls(gm) == ["region_1", "region_0", "add"]
    assert_same(gm, function)


def assert_same(gm: fx.GraphModule, function: Callable[..., Any]) -> None:
    for ours, theirs in zip(gm(A, B), function(A, B), strict=True):
        assert torch.equal(ours, theirs)


# --- near misses --------------------------------------------------------------------------------


def escaping(a, b):
    m = a @ b
    return m.relu(), m.sum()


def outside_in_between(a, b):
    s = a.sin()
    return s, (s + b).cos()


def random_between(a, b):
    s = a.sin()
    return s, torch.rand_like(b).cos(), torch.rand_like(s)


def random_inside(a, b):
    return torch.bernoulli((a @ b).sigmoid()).relu()


def pure_between(a, b):
    s = a.sin()
    return s, (b * 2).cos()


def view_written_later(a, b):
    v = (a @ b).relu().permute(1, 0)
    v.add_(1)
    return v


TABLE = [
    # function, pattern, the nodes of the regions, the kinds of refusals
    (escaping, Chain, [("mm",)], ["escape"]),
    (outside_in_between, Two, [], ["cycle"]),
    (random_between, Two, [], ["effect"]),
    (pure_between, Two, [("sin", "cos")], []),
    (random_inside, Chain, [("mm", "sigmoid")], []),
    (view_written_later, Turned, [], ["layout"]),
]


@pytest.mark.parametrize(("function", "wanted", "nodes", "kinds"), TABLE)
def test_near_misses(function, wanted, nodes: list[tuple[str, ...]], kinds: list[str]) -> None:
    gm = traced(function)
    made = partition(gm, wanted)
    assert [region.nodes for region in made] == nodes
    assert sorted({refusal.kind for refusal in made.refusals}) == kinds
    gm.graph.lint()
    torch.manual_seed(0)
    ours = gm(A, B)
    torch.manual_seed(0)
    torch.testing.assert_close(ours, function(A, B), rtol=0, atol=0)


def test_the_refusal_says_which_value_escapes() -> None:
    made = partition(traced(escaping), Chain)
    (refusal,) = made.refusals
    assert (refusal.node, refusal.reason) == (
        "relu",
        "`mm` is also used by `sum_1`, outside of the match",
    )
    assert "Chain refused at relu: `mm` is also used" in str(made)


class WrittenBetween(torch.nn.Module):
    def forward(self, a, b):
        m = torch.mm(a, b)
        a.add_(b)
        return m.relu() + a


class WrittenBefore(torch.nn.Module):
    def forward(self, a, b):
        a.add_(b)
        return torch.mm(a, b).relu() + b


class WrittenInside(torch.nn.Module):
    def forward(self, a, b):
        return torch.mm(a, b).relu_() + b


@pytest.mark.parametrize(
    ("module", "regions"),
    [(WrittenBetween(), [1]), (WrittenBefore(), [3]), (WrittenInside(), [1])],
)
def test_writes(module: torch.nn.Module, regions: list[int]) -> None:
    gm = fx.symbolic_trace(module)
    made = partition(gm, Chain)
    assert [len(region.nodes) for region in made] == regions
    assert torch.equal(gm(A.clone(), B), module(A.clone(), B))


def test_regions_that_would_wait_for_each_other() -> None:
    def function(a, b):
        one, other = a.sin(), b.sin()
        return (one * 2).cos(), (other * 2).cos()

    gm = traced(function)
    made = partition(gm, Two)
    gm.graph.lint()
    assert [region.nodes for region in made] == [("sin_1", "cos")]
    assert {(r.node, r.kind) for r in made.refusals} >= {("sin", "cycle")}
    for ours, theirs in zip(gm(A, B), function(A, B), strict=True):
        assert torch.equal(ours, theirs)


# --- errors -------------------------------------------------------------------------------------


class Boom(Exception):
    pass


@pytest.mark.parametrize("call", [1, 2])
def test_an_error_leaves_the_graph_as_it_was(call: int) -> None:
    gm, count = traced(two_layers), 0
    before = state(gm)

    def failing(module, examples):
        nonlocal count
        count += 1
        if count == call:
            raise Boom("no kernel")
        return module.forward

    with pytest.raises(RewriteError, match=rf"region_{call - 1}") as info:
        partition(gm, Chain, compile=failing)
    assert isinstance(info.value.__cause__, Boom)
    assert state(gm) == before
    assert torch.equal(gm(A, B), two_layers(A, B))


def test_what_cannot_be_called() -> None:
    gm = traced(two_layers)
    before = state(gm)
    with pytest.raises(RewriteError, match="`compile` gave None, which cannot be called"):
        partition(gm, Chain, compile=lambda module, examples: None)
    assert state(gm) == before


@pytest.mark.parametrize("method", ["splice", "_submodule", "_redirect", "_bury", "commit"])
@pytest.mark.parametrize("call", [1, 2])
def test_rollback(monkeypatch: pytest.MonkeyPatch, method: str, call: int) -> None:
    gm = traced(two_layers)
    before = state(gm)
    original, count = getattr(Journal, method), 0

    def failing(self, *arguments):
        nonlocal count
        count += 1
        if count == (1 if method == "commit" else call):
            raise Boom
        return original(self, *arguments)

    monkeypatch.setattr(Journal, method, failing)
    with pytest.raises(Boom):
        partition(gm, Chain)
    assert state(gm) == before


# --- other graphs -------------------------------------------------------------------------------


def test_symbolic_sizes() -> None:
    gm = make_fx(two_layers, tracing_mode="symbolic")(A, B)
    compiler = Interpreted()
    assert len(partition(gm, Chain, compile=compiler)) == 2
    gm.graph.lint()
    for size in (4, 7):
        a, b = torch.randn(size, size).double(), torch.randn(size, size).double()
        assert torch.equal(gm(a, b), two_layers(a, b))


class Flattening(torch.nn.Module):
    def forward(self, x, w):
        rows = x.shape[0] * x.shape[1]
        return (torch.mm(x.reshape(rows, 4), w) * rows).relu()


def test_an_exported_program_with_dynamic_sizes() -> None:
    dynamic = ({0: torch.export.Dim("n"), 1: torch.export.Dim("m")}, None)
    example = (torch.randn(3, 5, 4, dtype=torch.float64), B)
    gm = torch.export.export(Flattening(), example, dynamic_shapes=dynamic).module()
    compiler = Interpreted()
    (region,) = partition(gm, Chain, compile=compiler)
    assert len(region.nodes) == 3
    assert any(isinstance(e, torch.SymInt) for e in compiler.examples[0])
    for shape in ((3, 5, 4), (2, 9, 4)):
        x = torch.randn(shape, dtype=torch.float64)
        assert torch.equal(gm(x, B), Flattening()(x, B))
    assert compiler.runs == 2


def test_rules_after_a_partition() -> None:
    gm = traced(two_layers)
    partition(gm, Chain)

    @rule(Summed)
    def by_mean(x):
        return x.mean(0) * 4

    assert len(rewrite(gm, by_mean)) == 1
    torch.testing.assert_close(gm(A, B), two_layers(A, B))


@pattern
def Summed(x):
    return aten.sum(x, [0])


UNARY = (torch.relu, torch.sin, torch.sigmoid, torch.t, lambda x: x.sum(0, keepdim=True) + x)
BINARY = (torch.add, torch.mul, torch.mm, torch.maximum, lambda x, y: torch.cos(x) - y)


def random_program(seed: int) -> Callable[..., Any]:
    """A program of 24 operators on square matrices, of which four values are returned.

    Every fourth one writes to some of its values.
    """

    def program(a, b):
        draw = random.Random(seed)
        values = [a, b]
        for _ in range(24):
            if draw.random() < 0.6:
                value = draw.choice(UNARY)(draw.choice(values[-6:]))
            else:
                value = draw.choice(BINARY)(draw.choice(values[-4:]), draw.choice(values))
            values.append(value)
            if seed % 4 == 3 and draw.random() < 0.3:
                draw.choice(values).mul_(0.5)
        return values[-1], *draw.sample(values[2:], 3)

    return program


PATTERNS = (Chain, Pointwise, KeptProduct, Two)


@pytest.mark.parametrize(
    ("seed", "wanted"),
    [
        pytest.param(seed, wanted, marks=() if seed // 2 % 4 == at else pytest.mark.soak)
        for seed in range(40)
        for at, wanted in enumerate(PATTERNS)
    ],
)
def test_random_graphs(seed: int, wanted) -> None:
    program = random_program(seed)
    gm = traced(program)
    found = {match.root.name for match in find(gm, wanted)}
    compiler = Interpreted()
    absorb = "pointwise" if seed % 2 else None
    made = partition(gm, wanted, compile=compiler, absorb=absorb)
    gm.graph.lint()
    if absorb is None and wanted is not Two:
        assert bool(len(made)) == bool(found - {r.node for r in made.refusals})
        assert {region.outputs[0] for region in made} <= found
    inside = [n for n in gm.graph.nodes if n.op == "call_module"]
    assert len(inside) == len(compiler.modules) == len(made)
    ours, theirs = (f(A.clone(), B.clone()) for f in (gm, program))
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)
    assert compiler.runs == len(made)
