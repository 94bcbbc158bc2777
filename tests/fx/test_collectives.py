"""Regions with functional collectives: a replacement issues the same ones in the same order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed._functional_collectives  # defines operators
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import keep, pattern, rule
from pypm.core.rules import Rule, print_rule
from pypm.fx import Namespace, aten, find, partition, rewrite
from pypm.fx.operators.effects import is_pure
from tests.process_group import process_group_of_one

c10d = torch.ops._c10d_functional
collective = Namespace("_c10d_functional")


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    """A group of this process alone."""
    with process_group_of_one():
        yield


def reduced(x: torch.Tensor, operation: str = "sum", group: str = "0") -> torch.Tensor:
    return c10d.wait_tensor(c10d.all_reduce(x, operation, group))


def norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w


@pattern
def ReducedNorm(x, w, operation, group):
    y = collective.wait_tensor(collective.all_reduce(x, operation, group))
    return y * aten.rsqrt(aten.mean(aten.pow(y, 2), [-1], True) + 1e-6) * w


@rule(ReducedNorm, communicates=True)
def fused(x, w, operation, group):
    return torch.nn.functional.rms_norm(reduced(x, operation, group), w.shape, w, 1e-6)


@rule(ReducedNorm)
def without_the_option(x, w, operation, group):
    return torch.nn.functional.rms_norm(reduced(x, operation, group), w.shape, w, 1e-6)


def model(x, w):
    return norm(reduced(x), w)


X, W = torch.randn(3, 4, dtype=torch.float64), torch.rand(4, dtype=torch.float64)


def traced(function: Callable[..., object]) -> fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(X, W)


def issued(gm: fx.GraphModule) -> list[str]:
    calls = [n for n in gm.graph.nodes if str(n.target).startswith("_c10d_functional")]
    return [f"{str(n.target).split('.')[1]} {n.args[1:]}" for n in calls]


def test_a_rule_that_communicates_replaces_a_collective() -> None:
    gm = traced(model)
    before, expected = issued(gm), gm(X, W)
    report = rewrite(gm, fused)
    gm.graph.lint()
    assert (len(report), report.refusals) == (1, ())
    assert issued(gm) == before == ["all_reduce ('sum', '0')", "wait_tensor ()"]
    assert not gm.graph.find_nodes(op="call_function", target=torch.ops.aten.rsqrt.default)
    torch.testing.assert_close(gm(X, W), expected)


@pattern
def AddedNorm(x, r, w, operation, group):
    y = collective.wait_tensor(collective.all_reduce(x, operation, group)) + r
    return y, y * aten.rsqrt(aten.mean(aten.pow(y, 2), [-1], True) + 1e-6) * w


@rule(AddedNorm, communicates=True)
def added(x, r, w, operation, group):
    y = reduced(x, operation, group) + r
    return y, torch.nn.functional.rms_norm(y, w.shape, w, 1e-6)


def test_a_region_of_two_outputs_communicates_once() -> None:
    def residual(x, w):
        y = reduced(x) + x
        return y, norm(y, w)

    gm = traced(residual)
    before, expected = issued(gm), gm(X, W)
    assert len(rewrite(gm, added)) == 1
    assert issued(gm) == before
    torch.testing.assert_close(gm(X, W), expected)


def scattered(body: Callable[..., torch.Tensor]) -> Rule:
    @pattern
    def Scattered(x, w, n, group):
        y = aten.mm(x, w)
        return collective.wait_tensor(collective.reduce_scatter_tensor(y, "sum", n, group))

    @rule(Scattered, communicates=True)
    def scatter(x, w, n, group):
        return body(x, w, n, group)

    return scatter


def test_other_collectives_and_their_arguments_are_bound() -> None:
    def product(x, w):
        y = c10d.reduce_scatter_tensor(x @ x.t(), "sum", 1, "0")
        return c10d.wait_tensor(y)

    def body(x, w, n, group):
        y = torch.nn.functional.linear(x, w.t())
        return c10d.wait_tensor(c10d.reduce_scatter_tensor(y, "sum", n, group))

    gm = traced(product)
    expected = gm(X, W)
    assert len(rewrite(gm, scattered(body))) == 1
    assert issued(gm) == ["reduce_scatter_tensor ('sum', 1, '0')", "wait_tensor ()"]
    torch.testing.assert_close(gm(X, W), expected)


# --- near misses ---------------------------------------------------------------------------------


def nothing(x, w, operation, group):
    return torch.nn.functional.rms_norm(x, w.shape, w, 1e-6)


def other_group(x, w, operation, group):
    return torch.nn.functional.rms_norm(reduced(x, operation, "1"), w.shape, w, 1e-6)


def other_operation(x, w, operation, group):
    return torch.nn.functional.rms_norm(reduced(x, "avg", group), w.shape, w, 1e-6)


def twice(x, w, operation, group):
    y = reduced(reduced(x, operation, group), operation, group)
    return torch.nn.functional.rms_norm(y, w.shape, w, 1e-6)


def in_single(x, w, operation, group):
    y = reduced(x.float(), operation, group).double()
    return torch.nn.functional.rms_norm(y, w.shape, w, 1e-6)


def in_place(x, w, operation, group):
    y = c10d.wait_tensor(c10d.all_reduce_(x.clone(), operation, group))
    return torch.nn.functional.rms_norm(y, w.shape, w, 1e-6)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (nothing, "the replacement issues no collective, the region _c10d_functional.all_reduce"),
        (other_group, "'group_name': '1'"),
        (other_operation, "'reduce_op': 'avg'"),
        (twice, "issues _c10d_functional.all_reduce, _c10d_functional.all_reduce, the region"),
        (in_single, "on tensors of other shapes or dtypes"),
        (in_place, "the replacement has an effect"),
    ],
)
def test_other_collectives_are_refused(body: Callable[..., object], words: str) -> None:
    gm = traced(model)
    before = issued(gm)
    named = Rule("r", fused.parameters, fused.roots, body, communicates=True)
    report = rewrite(gm, named)
    assert (len(report), issued(gm)) == (0, before)
    (refusal,) = report.refusals
    assert refusal.kind == "effect"
    assert words in refusal.reason


@pattern
def ReducedBoth(x, y):
    first = collective.wait_tensor(collective.all_reduce(x, "sum", "0"))
    return first - collective.wait_tensor(collective.all_reduce(y, "sum", "0"))


def in_order(x, y):
    return -(reduced(x) * -1 + reduced(y))


def exchanged(x, y):
    return -reduced(y) + reduced(x)


def test_equal_collectives_are_not_exchanged() -> None:
    """A process that declines would add one operand to the other of those that do not."""
    gm = traced(lambda x, w: reduced(x) - reduced(x.exp()))
    exchanging, ordered = (
        rule(ReducedBoth, communicates=True)(body) for body in (exchanged, in_order)
    )
    (refusal,) = rewrite(gm, exchanging).refusals
    assert refusal.kind == "effect"
    assert "issues `all_reduce` on `exp`, not on `x_1`" in refusal.reason
    assert len(rewrite(gm, ordered)) == 1


def test_without_the_option_it_is_refused_with_what_to_say() -> None:
    gm = traced(model)
    (refusal,) = rewrite(gm, without_the_option).refusals
    assert refusal.kind == "effect"
    assert "only rules with `communicates=True` replace" in refusal.reason
    assert find(gm, ReducedNorm) == []


def test_a_pure_region_may_not_begin_to_communicate() -> None:
    @pattern
    def Doubled(x):
        return aten.neg(aten.neg(x))

    @rule(Doubled, communicates=True)
    def communicating(x):
        return reduced(x)

    (refusal,) = rewrite(traced(lambda x, w: x.neg().neg()), communicating).refusals
    assert "the replacement has an effect" in refusal.reason


def another_between(x, w):
    y = c10d.all_reduce(x, "sum", "0")
    z = c10d.all_reduce(w, "sum", "0")
    return norm(c10d.wait_tensor(y), w), c10d.wait_tensor(z)


def sent_between(x, w):
    y = c10d.all_reduce(x, "sum", "0")
    z = c10d.isend(w, 0, 0, "0")
    return norm(c10d.wait_tensor(y), w), c10d.wait_tensor(z)


def gathered_later(x, w):
    y = reduced(x)
    z = y.pow(2)
    v = c10d.all_gather_into_tensor(w, 1, "0")
    y = y * torch.rsqrt(z.mean(-1, keepdim=True) + 1e-6) * w
    return y, c10d.wait_tensor(v)


@pytest.mark.parametrize("function", [another_between, sent_between, gathered_later])
def test_no_collective_moves_over_another(function: Callable[..., object]) -> None:
    gm = traced(function)
    before = issued(gm)
    (refusal,) = rewrite(gm, fused).refusals
    assert issued(gm) == before
    assert (refusal.kind, "their order would change" in refusal.reason) == ("effect", True)


@pytest.mark.parametrize(
    "target",
    [
        torch.ops._dtensor.shard_dim_alltoall.default,
        torch.ops.c10d_functional.all_reduce.default,
        torch.ops.symm_mem.one_shot_all_reduce.default,
        torch.ops._c10d_functional_autograd.all_to_all_single.default,
    ],
    ids=str,
)
def test_nor_over_one_of_another_namespace(target: object) -> None:
    gm = traced(another_between)
    *_, between = gm.graph.find_nodes(
        op="call_function", target=torch.ops._c10d_functional.all_reduce.default
    )
    between.target = target
    (refusal,) = rewrite(gm, fused).refusals
    assert (refusal.kind, "their order would change" in refusal.reason) == ("effect", True)


def test_waiting_in_between_is_no_collective() -> None:
    def waiting(x, w):
        z = c10d.all_reduce(w, "sum", "0")
        y = c10d.all_reduce(x, "sum", "0")
        z = c10d.wait_tensor(z)
        return norm(c10d.wait_tensor(y), w), z

    gm = traced(waiting)
    expected = gm(X, W)
    assert len(rewrite(gm, fused)) == 1
    sent = [n.args[0].name for n in gm.graph.nodes if "all_reduce" in str(n.target)]
    assert sent == ["w_1", "x_1"]
    torch.testing.assert_close(gm(X, W), expected)


def test_what_is_used_outside_is_not_issued_twice() -> None:
    def shared(x, w):
        y = reduced(x)
        return norm(y, w), y

    (refusal,) = rewrite(traced(shared), fused).refusals
    assert refusal.kind == "escape"

    @pattern
    def KeptNorm(x, w, operation, group):
        y = keep(collective.wait_tensor(collective.all_reduce(x, operation, group)))
        return y * aten.rsqrt(aten.mean(aten.pow(y, 2), [-1], True) + 1e-6) * w

    @rule(KeptNorm, communicates=True)
    def kept(x, w, operation, group):
        return fused.replacement(x, w, operation, group)

    (refusal,) = rewrite(traced(shared), kept).refusals
    assert refusal.reason == "`all_reduce` communicates and is also used outside"


def test_a_region_that_communicates_is_not_pure() -> None:
    gm = traced(model)
    partition(gm, fused)
    (call,) = gm.graph.find_nodes(op="call_module")
    assert not is_pure(call)


def test_the_option_is_printed() -> None:
    assert print_rule(fused).startswith("rule fused(x, w, operation, group) communicates ")
