"""Shared memory: a rewrite keeps what shares memory with what, wherever that can be seen."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.testing import assert_close

from pypm import pattern, rule
from pypm.fx import Report, aten, rewrite
from pypm.fx.subject import view
from pypm.fx.subject.memory import is_written, written
from tests.axes import axes
from tests.fx.small_rules import TIDY, LessItself, reshaped_twice, viewed_as_it_is, zeros
from tests.rules.capture import traced

A = torch.ops.aten


@pattern
def Once(x):
    return aten.mul(x, 1)


@rule(Once)
def once(x):
    return x


@pattern
def TurnedTwice(x):
    return aten.permute(aten.permute(x, [1, 0]), [1, 0])


@rule(TurnedTwice)
def as_a_copy(x):
    return x.clone()


@rule(TurnedTwice)
def as_it_was(x):
    return x


def item_of_broadcast(graph: fx.Graph, x: fx.Node) -> fx.Node:
    zeros = graph.call_function(torch.zeros, ((2, 2),))
    return graph.call_function(
        operator.getitem, (graph.call_function(torch.broadcast_tensors, (zeros, x)), 1)
    )


VIEWS: dict[str, Callable[[fx.Graph, fx.Node], fx.Node]] = {
    "T": lambda graph, x: graph.call_function(getattr, (x, "T")),
    "data": lambda graph, x: graph.call_function(getattr, (x, "data")),
    "real": lambda graph, x: graph.call_function(getattr, (x, "real")),
    "cpu": lambda graph, x: graph.call_method("cpu", (x,)),
    "float": lambda graph, x: graph.call_method("float", (x,)),
    "type_as": lambda graph, x: graph.call_method("type_as", (x, x)),
    "einsum": lambda graph, x: graph.call_function(torch.einsum, ("ij->ji", x)),
    "aten.einsum": lambda graph, x: graph.call_function(A.einsum.default, ("ij->ji", [x])),
    "broadcast_tensors": item_of_broadcast,
    "atleast_2d": lambda graph, x: graph.call_function(torch.atleast_2d, (x,)),
    "dropout": lambda graph, x: graph.call_function(F.dropout, (x, 0.5, False)),
    "in place": lambda graph, x: graph.call_method("relu_", (x,)),
    "out": lambda graph, x: graph.call_function(torch.exp, (x,), {"out": x}),
    "view of a view": lambda graph, x: graph.call_method("t", (graph.call_method("t", (x,)),)),
}


@axes(name=VIEWS, is_source_written=[True, False], rules=[once, TIDY])
def test_a_copy_stays_where_a_view_is_written(
    name: str, is_source_written: bool, rules: object
) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    view = VIEWS[name](graph, x)
    copy = graph.call_function(torch.mul, (view, 1))
    graph.call_method("add_", (x if is_source_written else view, 1))
    graph.output(copy)
    gm = fx.GraphModule(torch.nn.Module(), graph)
    value = torch.randn(2, 2)
    expected = gm(value.clone())
    rewrite(gm, rules)
    assert torch.equal(gm(value.clone()), expected)


def together(values: tuple[torch.Tensor, ...]) -> list[bool]:
    memory = [value.untyped_storage().data_ptr() for value in values]
    return [one == other for one in memory for other in memory]


@pytest.mark.parametrize("name", [n for n in VIEWS if n not in ("in place", "out")])
def test_outputs_share_memory_as_before(name: str) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    view = VIEWS[name](graph, x)
    graph.output((graph.call_function(torch.mul, (view, 1)), view, x))
    gm = fx.GraphModule(torch.nn.Module(), graph)
    value = torch.randn(2, 2)
    expected = together(gm(value))
    rewrite(gm, once)
    assert together(gm(value)) == expected


def turned(x):
    return x.permute(1, 0).permute(1, 0)


LEAVING: list[tuple[Callable[..., object], int, int]] = [
    # a function; how often a view may become a copy, and the view itself
    (lambda x: (turned(x),), 0, 1),
    (lambda x: (turned(x), x), 0, 1),
    (lambda x: (turned(x).exp(),), 1, 1),
    (lambda x: (turned(x.neg()),), 1, 1),
    (lambda x: (turned(n := x.neg()), n), 0, 1),
    (lambda x: (turned(n := x.neg()), n.exp()), 1, 1),
]


@pytest.mark.parametrize(("function", "copies", "views"), LEAVING)
@pytest.mark.parametrize("trace", [fx.symbolic_trace, make_fx], ids=["torch", "aten"])
def test_a_view_that_is_seen_stays_one(trace, function, copies: int, views: int) -> None:
    x = torch.randn(2, 2)
    for chosen, count in ((as_a_copy, copies), (as_it_was, views)):
        gm = trace(function)
        gm = gm(x) if trace is make_fx else gm
        expected = together((x, *gm(x)))
        assert len(rewrite(gm, chosen)) == count
        assert together((x, *gm(x))) == expected


def test_attributes_of_one_name_are_one_memory() -> None:
    graph = fx.Graph()
    one, other = graph.get_attr("held"), graph.get_attr("held")
    graph.call_method("add_", (graph.call_method("t", (other,)), 1))
    graph.output(one)
    gm = fx.GraphModule({"held": torch.zeros(2, 2)}, graph)
    assert all(is_written(node) for node in gm.graph.find_nodes(op="get_attr", target="held"))


def test_what_was_given_away_may_be_written_by_another() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    n, e = graph.call_function(torch.neg, (x,)), graph.call_function(torch.exp, (x,))
    graph.call_method("unknown", (n,))
    graph.output((n, e))
    assert is_written(n) and not is_written(e)


@pattern
def Negative(x):
    return aten.neg(x)


@rule(Negative)
def first_of_two(x):
    return torch.split(torch.cat([0 - x, x]), x.shape[0])[0]


@rule(Negative)
def turned_back(x):
    return (0 - x.t()).t()


@rule(Negative)
def of_other_strides(x):
    return (0 - x).contiguous()


@rule(Negative)
def rounded(x):
    return (0 - x.double()).to(x.dtype)


def detached(x, w):
    return x.neg().detach_() * w


def scaled(x, w):
    return x.neg().mul_(w) * 1


@pytest.mark.parametrize("chosen", [first_of_two, turned_back, of_other_strides])
@pytest.mark.parametrize("function", [detached, scaled])
def test_a_write_that_torch_refuses_for_views(function, chosen: object) -> None:
    args = [torch.randn(2, 3).t(), torch.randn(2, requires_grad=True)]
    report, result = traced(function, args, chosen)
    assert len(report) == 1
    assert torch.equal(result, function(*args))


@pattern
def Kept(x):
    return aten.dropout(x, 0.0, True)


@pattern
def KeptNegative(x):
    return Kept(aten.neg(x))


@pattern
def Row(x):
    return aten.select(x, 0, 0)


@rule(KeptNegative)
def one_of_two(x):
    return torch.split(torch.cat([0 - x, x]), x.shape[0])[0]


@rule(Kept)
def as_a_view(x):
    return x.view(x.shape)


@rule(Row)
def one_of_the_rows(x):
    return torch.unbind(x)[0]


def kept_and_detached(x, w):
    return F.dropout(x.neg(), 0.0, True).detach_() * w


def kept_and_scaled(x, w):
    return F.dropout(x.neg(), 0.0, True).mul_(w) * 1


def row_scaled(x, w):
    y = x.neg()
    y.select(0, 0).mul_(w)
    return y * 1


@pytest.mark.parametrize(
    ("function", "chosen", "rewrites"),
    [
        (kept_and_detached, one_of_two, 1),
        (kept_and_scaled, one_of_two, 1),
        (kept_and_detached, as_a_view, 0),
        (row_scaled, one_of_the_rows, 0),
    ],
)
def test_what_may_be_no_view_is_written(function, chosen: object, rewrites: int) -> None:
    args = [torch.randn(2, 3), torch.randn(3, requires_grad=True)]
    report, result = traced(function, args, chosen)
    assert len(report) == rewrites
    assert torch.equal(result, function(*args))


def test_only_views_are_copied_for_a_write() -> None:
    for chosen, copies in ((rounded, 0), (turned_back, 1)):
        gm = make_fx(lambda x: x.neg().relu_(), tracing_mode="fake")(torch.randn(3, 2))
        assert len(rewrite(gm, chosen)) == 1
        assert len(gm.graph.find_nodes(op="call_function", target=A.clone.default)) == copies


@pytest.mark.parametrize("write", ["copy", "source"])
def test_a_copy_that_other_strides_make_a_view_is_not_written_through(write: str) -> None:
    def function(x):
        y = x.neg()  # of the strides of x, so that the next one copies
        z = y.contiguous()
        (z if write == "copy" else y).mul_(2)
        return y.sum(0), z.sum(0)

    x = torch.randn(2, 3).t()
    report, result = traced(function, [x], of_other_strides)
    assert len(report) == 1
    for one, two in zip(result, function(x), strict=True):
        assert_close(one, two)


def reshaped(x):
    y = x.exp()
    z = y.view(y.shape)
    z.unsqueeze_(0)
    return y.sum(0), z, x.view(x.shape)


def test_a_view_that_is_reshaped_in_place_is_not_its_base() -> None:
    """Its base would be reshaped instead."""
    args = (torch.randn(3, 4),)
    report, result = traced(reshaped, args, viewed_as_it_is)
    assert len(report) == 1
    assert "effect" in [refusal.kind for refusal in report.refusals]
    for one, two in zip(result, reshaped(*args), strict=True):
        assert torch.equal(one, two)


def test_dynamo_shows_the_last_shape() -> None:
    def function(x):
        return x.exp().view(1, 1).squeeze_(1)

    def backend(gm: fx.GraphModule, inputs: object) -> fx.GraphModule:
        reports.append(rewrite(gm, viewed_as_it_is))
        return gm

    reports: list[Report] = []
    torch._dynamo.reset()
    x = torch.randn(1)
    assert torch.equal(torch.compile(function, backend=backend)(x), function(x))
    assert [len(report) for report in reports] == [0]


@pattern
def Contiguous(x):
    return aten.contiguous(x)


@rule(Contiguous)
def contiguous_anyway(x):
    return x


@pytest.mark.parametrize("several", [torch.max, torch.sort, torch.cummin])
def test_an_item_whose_metadata_was_made_anew_is_still_written(several: Callable) -> None:
    """The storage in the metadata of its views is another one then, as after any rewrite."""

    def function(x):
        item = several(x, 0)[0]
        item.contiguous().add_(1)
        return item

    x = torch.randn(3, 4)
    module = fx.symbolic_trace(function)
    FakeTensorProp(module).propagate(x)
    (found,) = (n for n in module.graph.nodes if n.target is several)
    (item,) = found.users
    found.meta["val"] = tuple(y.clone() for y in found.meta["val"])
    item.meta["val"] = found.meta["val"][0]
    report = rewrite(module, contiguous_anyway)
    assert [refusal.kind for refusal in report.refusals] == ["layout"]
    assert torch.equal(module(x), function(x))


@pytest.mark.parametrize("again", [
    lambda found: found[0],
    lambda found: found[-2],
    lambda found: found.values,
    lambda found: found[:1][0],
])  # fmt: skip
@pytest.mark.parametrize("described", [True, False])
def test_an_item_that_is_taken_twice_is_one_tensor(again: Callable, described: bool) -> None:
    def written(x):
        found = torch.sort(x)
        result = found[0] * 1
        again(found).add_(1)
        return result

    def returned(x):
        found = torch.sort(x)
        return found[0] * 1, again(found)

    def returned_whole(x):
        found = torch.sort(x)
        return found[0] * 1, found

    x = torch.randn(3, 4)
    for function in (written, returned, returned_whole):
        module = fx.symbolic_trace(function)
        if described:
            FakeTensorProp(module).propagate(x)
        assert len(rewrite(module, once)) == 1
        actual, expected = module(x), function(x)
        assert_close(actual, expected, rtol=0, atol=0)
        if function is not written:
            actual[0].zero_()
            assert_close(actual[1], expected[1], rtol=0, atol=0)


# --- memory that is shared, or written, where no schema says it -----------------------------------


def lifted(call: Callable) -> Callable:
    def function(x):
        y = x.exp()
        result = y * 1
        call(y).zero_()
        return result

    return function


def set_to(x, y):
    z = x.clone()
    z.set_(y)
    result = y * 1
    z.add_(1)
    return result + 2


def taken_by_a_truth_value(x, y):
    one, other = x[True], x[True]
    one.add_(1)
    return one - other


def statistics(x, mean, variance):
    before = mean * 1
    torch.batch_norm_update_stats(x, mean, variance, 0.5)
    return before


HIDDEN: list[tuple[Callable, tuple[torch.Tensor, ...]]] = [
    (set_to, (torch.ones(2), torch.ones(2))),
    (taken_by_a_truth_value, (torch.ones(2), torch.ones(2))),
    (lifted(A.lift.default), (torch.ones(2),)),
    (lifted(lambda x: torch.ops.prims.device_put(x, torch.device("cpu"))), (torch.ones(2),)),
    (statistics, (torch.ones(3, 2), torch.zeros(2), torch.ones(2))),
]


@pytest.mark.parametrize(("function", "args"), HIDDEN, ids=lambda x: getattr(x, "__name__", ""))
@pytest.mark.parametrize("described", [True, False])
def test_hidden_writes_and_views(function: Callable, args: tuple, described: bool) -> None:
    module = fx.symbolic_trace(function)
    if described:
        FakeTensorProp(module).propagate(*(x.clone() for x in args))
    rewrite(module, (once, zeros))
    ours, theirs = [[x.clone() for x in args] for _ in range(2)]
    assert_close(module(*ours), function(*theirs), rtol=0, atol=0)
    assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("target", "rest"), [(F.normalize, (2.0, 1, 1e-12)), (torch.norm, (2, 1, False))]
)
def test_a_place_for_the_result_that_is_no_keyword(target: Callable, rest: tuple) -> None:
    graph = fx.Graph()
    x, place = graph.placeholder("x"), graph.placeholder("place")
    before = graph.call_function(torch.mul, (place, 1))
    graph.call_function(target, (x, *rest, place))
    graph.output(graph.call_function(torch.add, (before, 0)))
    module = fx.GraphModule({}, graph)
    rewrite(module, once)
    given = torch.zeros(1) if target is torch.norm else torch.zeros(1, 1)
    assert torch.equal(module(torch.ones(1, 1), given), torch.zeros_like(given))
    assert torch.equal(given, torch.ones_like(given))


def test_an_item_of_an_input_may_be_another_input() -> None:
    graph = fx.Graph()
    items, x = graph.placeholder("items"), graph.placeholder("x")
    result = graph.call_function(torch.mul, (x, 1))
    graph.call_method("zero_", (graph.call_function(operator.getitem, (items, 0)),))
    graph.output(graph.call_function(torch.add, (result, 0)))
    module, value, mode = fx.GraphModule({}, graph), torch.ones(2), FakeTensorMode()
    fake = mode.from_tensor(value)
    FakeTensorProp(module, mode).propagate_dont_convert_inputs([fake], fake)
    assert len(rewrite(module, once)) == 1
    assert torch.equal(module([value], value), torch.ones(2))


class Held(torch.nn.Module):
    """A module without a known class, which writes what it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.running_mean = torch.nn.Buffer(torch.zeros(3))

    def forward(self, x):
        self.running_mean.add_(1)
        return x.clone()


@pytest.mark.parametrize("make", [lambda: torch.nn.BatchNorm1d(3), Held])
def test_what_a_module_holds_is_written_by_it(make: Callable[[], torch.nn.Module]) -> None:
    root, x = torch.nn.Module(), torch.arange(6.0).view(2, 3)
    root.part = make()
    graph = fx.Graph()
    given, mean = graph.placeholder("x"), graph.get_attr("part.running_mean")
    result = graph.call_function(torch.mul, (mean, 1))
    called = graph.call_module("part", (given,))
    graph.output((graph.call_function(torch.add, (result, 0)), called))
    module = fx.GraphModule(root, graph)
    given.meta["val"] = FakeTensorMode().from_tensor(x)
    mean.meta["val"] = result.meta["val"] = torch.zeros(3, device="meta")
    rewrite(module, once)
    assert torch.equal(module(x)[0], torch.zeros(3))


def test_what_a_rule_holds_is_not_written() -> None:
    held = torch.zeros(2)

    @rule(LessItself)
    def constant(x):
        return held

    @rule(LessItself)
    def view_of_it(x):
        return held.view(2, 1).view(2)

    def written(x):
        y = x - x
        y.add_(1)
        return y

    def returned(x):
        return x - x, x.exp() - x.exp()

    for each in (constant, view_of_it):
        module = make_fx(written)(torch.ones(2))
        assert len(rewrite(module, each)) == 1
        for _ in range(2):
            assert torch.equal(module(torch.ones(2)), torch.ones(2))
        module = make_fx(returned)(torch.ones(2))
        assert len(rewrite(module, each)) == 2
        one, other = module(torch.ones(2))
        one.add_(1)
        assert torch.equal(other, torch.zeros(2)) and torch.equal(held, torch.zeros(2))


def test_a_view_that_autograd_does_not_know_may_be_detached() -> None:
    """Of a view that it knows, `detach_` is refused."""

    def function(x):
        y = x.view(4)
        z = A._unsafe_view.default(y, [2, 2])
        A.detach_.default(z)
        return y, z

    x = torch.randn(2, 2)
    module = make_fx(function, pre_dispatch=True)(x)
    report = rewrite(module, reshaped_twice)
    assert [refusal.kind for refusal in report.refusals] == ["layout"]
    assert all(map(torch.equal, module(x), function(x)))


def with_writes(seed: int) -> fx.GraphModule:
    """Return a random graph of views, copies, writes, unknown calls, and modules' own tensors."""
    draw, graph, root = Random(seed), fx.Graph(), torch.nn.Module()
    root.norm, root.other, root.own = torch.nn.BatchNorm1d(2), Held(), torch.zeros(2, 2)
    root.tied = root.norm.running_mean
    names = ["own", "tied", "norm.running_mean", "norm.weight", "other.running_mean"]
    nodes = [graph.placeholder(f"x{i}") for i in range(draw.randrange(1, 4))]
    nodes += [graph.get_attr(draw.choice(names)) for _ in range(draw.randrange(4))]
    for node in nodes:
        if node.op == "placeholder" and draw.random() < 0.5:
            node.meta["val"] = torch.zeros(2, 2)
    calls = [
        (graph.call_function, A.neg.default, (any,)),
        (graph.call_function, torch.add, (any, any)),
        (graph.call_function, A.t.default, (any,)),
        (graph.call_method, "reshape", (any, 2, 2)),
        (graph.call_function, torch.broadcast_tensors, (any, any)),
        (graph.call_function, operator.getitem, (any, 0)),
        (graph.call_function, operator.getitem, (any, 1)),
        (graph.call_method, "neg", (any,)),
        (graph.call_method, "add_", (any, any)),
        (graph.call_method, "unknown", (any,)),
        (graph.call_module, "norm", (any,)),
        (graph.call_module, "other", (any,)),
    ]
    for _ in range(draw.randrange(2, 12)):
        call, target, given = draw.choice(calls)
        nodes.append(call(target, tuple(draw.choice(nodes) if a is any else a for a in given)))
    graph.output(draw.choice(nodes))
    return fx.GraphModule(root, graph)


def test_all_written_nodes_are_those_that_are_written_each_by_itself() -> None:
    counts: Counter[bool] = Counter()
    for seed in range(400):
        graph = with_writes(seed).graph
        each = {node: is_written(node) for node in graph.nodes}
        assert written(graph) == {node for node in each if each[node]}, seed
        counts.update(each.values())
    assert min(counts[True], counts[False]) > 800


def test_a_view_asks_for_written_nodes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[fx.Node] = []
    monkeypatch.setattr(view, "is_written", lambda node: asked.append(node) or False)
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.neg, (graph.call_method("add_", (x, 1)),))
    z = graph.call_function(torch.neg, (y,))
    graph.output((y, z))
    terms = view.View(fx.GraphModule({}, graph).graph)
    assert terms.occurrence(y).term is not terms.occurrence(z).term
    assert not asked
