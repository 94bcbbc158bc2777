"""Patterns with several outputs: matched and replaced together, whichever of them are used."""

from collections.abc import Callable

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import pattern, rule, var
from pypm.fx import aten, find, partition, rewrite
from pypm.integrations import inductor
from tests.fx.small_rules import TIDY

X, R = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64)


@pattern
def Moments(x):
    variance, mean = aten.var_mean(x, [-1], correction=0, keepdim=True)
    return variance, mean


@rule(Moments)
def by_hand(x):
    mean = x.mean(-1, keepdim=True)
    return ((x - mean) ** 2).mean(-1, keepdim=True), mean


@pattern
def AddNorm(x, r):
    s = x + r
    return s * aten.rsqrt(aten.mean(aten.pow(s, 2), [-1], True)), s


@rule(AddNorm)
def add_norm(x, r):
    s = r + x
    return s / (s**2).mean(-1, keepdim=True).sqrt(), s


@pattern
def SinCos(x):
    return aten.sin(x), aten.cos(x)


def test_both_outputs_of_one_operator() -> None:
    def both(x, r):
        variance, mean = torch.var_mean(x, -1, correction=0, keepdim=True)
        return variance * mean

    gm = make_fx(both, tracing_mode="fake")(X, R)
    assert len(rewrite(gm, by_hand)) == 1
    assert "var_mean" not in gm.code
    torch.testing.assert_close(gm(X, R), both(X, R))


@pytest.mark.parametrize("index", [0, 1])
def test_one_output_of_two(index: int) -> None:
    def one(x, r):
        return torch.var_mean(x, -1, correction=0, keepdim=True)[index].clone()

    gm = make_fx(one, tracing_mode="fake")(X, R)
    gm.graph.eliminate_dead_code()
    assert len(rewrite(gm, by_hand)) == 1
    assert "var_mean" not in gm.code
    torch.testing.assert_close(gm(X, R), one(X, R))


def test_an_output_inside_of_another() -> None:
    def norm(x, r):
        s = x + r
        return s * torch.rsqrt(s.pow(2).mean(-1, True))

    def norm_and_sum(x, r):
        s = x + r
        return s * torch.rsqrt(s.pow(2).mean(-1, True)), s.relu()

    for function in (norm, norm_and_sum):
        gm = make_fx(function, tracing_mode="fake")(X, R)
        assert len(rewrite(gm, add_norm)) == 1
        assert "rsqrt" not in gm.code
        torch.testing.assert_close(gm(X, R), function(X, R))


def test_a_computation_of_its_own_is_never_absent() -> None:
    def either(x, r):
        return x.cos() + x.sin(), r.sin()

    gm = make_fx(either, tracing_mode="fake")(X, R)
    (match,) = find(gm, SinCos)
    assert [str(root.target) for root in match.roots] == ["aten.sin.default", "aten.cos.default"]


@pattern
def SinExp(x, y):
    a, b = aten.sin(x), aten.exp(y)
    assert a.rank == b.rank
    return a, b


@rule(SinExp)
def swapped(x, y):
    assert x.dtype == y.dtype
    return y.exp().sin(), x.sin().exp()


def test_outputs_that_have_only_a_guard_in_common() -> None:
    gm = make_fx(lambda x, r: (x.sin(), r.exp()), tracing_mode="fake")(X, R)
    assert len(find(gm, SinExp)) == len(find(gm, swapped)) == 1


def found(wanted: object, function: object, *inputs: torch.Tensor) -> int:
    return len(find(make_fx(function, tracing_mode="fake")(*inputs), wanted))


@pattern
def ExpSin(v):
    return aten.exp(v), aten.sin(v)


@pattern
def ConstrainedLast(x, u):
    v = var()
    v <= aten.relu(x)
    return aten.maximum(v, x), aten.sin(u)


@pattern
def SinOf(y, x):
    assert x.rank == 2
    return aten.sin(y) | aten.exp(SinOf(y, x))


@pattern
def Reads(x, y):
    return aten.relu(x), SinOf(y, x)


TWICE = {
    "two levels deep": lambda x: (x.neg().relu().exp(), x.neg().relu().sin()),
    "three levels deep": lambda x: (x.neg().relu().cos().exp(), x.neg().relu().cos().sin()),
    "by an operator without inputs": lambda x: (
        torch.arange(4).relu().exp(),
        torch.arange(4).relu().sin(),
    ),
    "in lists": lambda x: (torch.cat([x, x.neg()]).exp(), torch.cat([x, x.neg()]).sin()),
    "with numbers written in two ways": lambda x: (
        (x.neg() * torch.full((), 2.0, dtype=torch.float64)).exp(),
        (x.neg() * 2.0).sin(),
    ),
}


@pytest.mark.parametrize("name", TWICE)
def test_what_two_outputs_share_may_be_computed_twice(name: str) -> None:
    assert found(ExpSin, TWICE[name], X) == 1


def test_outputs_do_not_share_what_differs() -> None:
    assert found(ExpSin, lambda x: (x.neg().relu().exp(), x.abs().relu().sin()), X) == 0


@pytest.mark.parametrize("wanted", [ConstrainedLast, Reads])
def test_an_output_that_shares_nothing_is_looked_for_everywhere(wanted: object) -> None:
    assert found(wanted, lambda x, r: (torch.maximum(x.relu(), x), r.sin()), X, R) == 1


# --- inputs among the outputs ---------------------------------------------------------------------


@pattern
def Scaled(x, y):
    return y, aten.mm(x, y), x


@rule(Scaled)
def batched(x, y):
    return y, torch.bmm(x[None], y[None])[0], x


@rule(Scaled)
def another(x, y):
    return y, torch.bmm(x[None], y[None])[0], x * 1


def products(x, y):
    z = x.sin()
    return (z @ y - z) * y


S = torch.randn(4, 4)


@pytest.mark.parametrize("stage", inductor.STAGES)
def test_a_region_that_gives_its_inputs(stage: str) -> None:
    gm = make_fx(products, tracing_mode="fake")(S, S)
    hook = inductor.Pass(batched, stage)
    hook(gm.graph)
    (record,) = hook.report().rewrites
    assert dict(record.bindings) == {"x": "sin", "y": "y_1"}
    torch.testing.assert_close(gm(S, S), products(S, S))


def test_after_all_passes_of_inductor() -> None:
    """Where torch's own matcher is tried on such a pattern."""
    torch._dynamo.reset()
    hook = inductor.Pass(batched, "post_grad_post")
    with torch.no_grad():
        found = torch.compile(lambda x, y: x @ y @ y, options=hook.options())(S, S)
    assert len(hook.report()) == 2
    torch.testing.assert_close(found, S @ S @ S)


def test_such_a_region_is_found_and_parted() -> None:
    gm = make_fx(products, tracing_mode="fake")(S, S)
    (match,) = find(gm, Scaled)
    assert [str(root) for root in match.roots] == ["None", "mm", "None"]
    (region,) = partition(gm, Scaled)
    assert (region.inputs, region.outputs) == (("sin", "y_1"), ("mm",))
    torch.testing.assert_close(gm(S, S), products(S, S))


def test_a_parameter_that_is_looked_into_is_an_output() -> None:
    @pattern
    def Negated(x, y):
        x <= aten.neg(y)
        return aten.exp(x), x

    @rule(Negated)
    def negated(x, y):
        return torch.exp(y).reciprocal(), y * -1

    def function(x, y):
        z = x.neg()
        return z.exp(), z.sin()

    gm = make_fx(function, tracing_mode="fake")(S, S)
    assert len(rewrite(gm, negated)) == 1
    assert "neg" not in gm.code
    for found, wanted in zip(gm(S, S), function(S, S), strict=True):
        torch.testing.assert_close(found, wanted)


def test_an_input_that_the_replacement_changes() -> None:
    gm = make_fx(products, tracing_mode="fake")(S, S)
    report = rewrite(gm, another)
    assert [(r.kind, r.reason) for r in report.refusals] == [
        ("mismatch", "the region gives its input `sin` as it is, and the replacement does not")
    ]
    assert len(report) == 0


def viewed(x):
    return x.view(x.shape)


def hooked(x):
    y = x.view(x.shape)
    y.register_hook(lambda grad: grad * 3)
    return y + x * 2


def viewed_beside(x):
    y = x.sin()
    return y.view(y.shape), y


@pytest.mark.parametrize("function", [viewed, hooked, viewed_beside])
def test_a_view_that_is_seen_is_another_tensor(function: Callable) -> None:
    """Hooks and changes in place are those of one tensor, not of its memory."""

    def backend(gm: fx.GraphModule, _: object) -> Callable:
        rewrite(gm, TIDY)
        return gm.forward

    gradients = []
    for each in (function, torch.compile(function, backend=backend)):
        x = torch.ones(3, requires_grad=True)
        results = each(x)
        results = results if isinstance(results, tuple) else (results,)
        assert len({id(y) for y in (x, *results)}) == 1 + len(results)
        sum(results).sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


@pattern
def NegAbs(x):
    return aten.neg(x), aten.abs(x)


@rule(NegAbs)
def one_call(x):
    return torch.stack([x * -1, x.sign() * x]).unbind(0)


@rule(NegAbs)
def a_list(x):
    return [x * -1, x.sign() * x]


@rule(NegAbs)
def too_many(x):
    return torch.stack([x * -1, x.sign() * x, x]).unbind(0)


@pattern
def Largest(x):
    return aten.amax(x, [-1]), aten.argmax(x, -1)


@rule(Largest)
def named_tuple(x):
    return torch.max(x, -1)


@pattern
def Pieces(x):
    return aten.split(x, 2, -1)


@rule(Pieces)
def pieces(x):
    return torch.stack([x[..., :2], x[..., 2:]]).unbind(0)


def neg_abs(x):
    return -x + x.abs()


WHOLE = {
    "an operator's tuple": (one_call, neg_abs),
    "a list": (a_list, neg_abs),
    "a named tuple": (named_tuple, lambda x: x.amax(-1) * x.argmax(-1)),
    "of one node": (pieces, lambda x: torch.mul(*x.split(2, -1))),
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("stage", inductor.STAGES)
def test_a_body_returns_what_a_call_returns(stage: str, name: str) -> None:
    wanted, function = WHOLE[name]
    gm = make_fx(function, tracing_mode="fake")(X)
    hook = inductor.Pass(wanted, stage)
    hook(gm.graph)
    assert len(hook.report()) == 1
    torch.testing.assert_close(gm(X), function(X))


@pytest.mark.parametrize("name", [*WHOLE][:3])
def test_a_body_returns_what_a_call_returns_without_metadata(name: str) -> None:
    wanted, function = WHOLE[name]
    gm = fx.symbolic_trace(function)
    assert len(rewrite(gm, wanted)) == 1
    torch.testing.assert_close(gm(X), function(X))


@pytest.mark.parametrize("stage", inductor.STAGES)
def test_a_call_that_returns_too_many_values(stage: str) -> None:
    gm = make_fx(neg_abs, tracing_mode="fake")(X)
    hook = inductor.Pass(too_many, stage)
    hook(gm.graph)
    (refusal,) = hook.report().refusals
    assert refusal.reason == "the replacement has 3 values, not 2"
