"""What a rule's body may call, and what is said of mistakes in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

import pypm.rules.norm
from pypm import operator, pattern, rule
from pypm.core.rules import Rule
from pypm.diagnostics import RewriteError
from pypm.fx import GETITEM, aten, find, prims, rewrite
from tests.fx.small_rules import zeros

X = torch.randn(4, 4)
GELU = operator("bodies.gelu", ["x"])


@pattern
def Sum(x, y):
    return x + y


@rule(Sum)
def by_operators(x, y):
    return aten.neg(aten.rsub(x, -y))


@rule(Sum)
def by_several(x, y):
    larger = aten.maximum(aten.square(x), prims.abs(y))
    return aten.multiply(aten.clamp_min(x, 0), larger)


@pytest.mark.parametrize("used", [by_operators, by_several])
@pytest.mark.parametrize("capture", [make_fx, lambda f: lambda *_: fx.symbolic_trace(f)])
def test_a_body_calls_operators(used: Rule, capture: Callable[..., Any]) -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x + y).relu()

    gm = capture(model)(X, X.t())
    assert len(rewrite(gm, used)) == 1
    x, y = X, X.t()
    expected = x + y if used is by_operators else x.clamp_min(0) * torch.maximum(x * x, y.abs())
    torch.testing.assert_close(gm(x, y), expected.relu())


@pytest.mark.parametrize("called", [aten.relu, aten.rsub, prims.abs])
def test_elsewhere_the_error_names_the_operator(called: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=rf"operator `{called}` is read .*: call `torch\.ops\."):
        called(X)


@rule(Sum)
def by_a_declared_one(x, y):
    return GELU(x)


@rule(Sum)
def by_an_item(x, y):
    return GETITEM(x, 0)


@rule(Sum)
def without_return(x, y):
    x + y


@rule(Sum)
def with_a_branch(x, y):
    if x.sum() > 0:
        return x
    return y


@rule(Sum)
def with_a_float(x, y):
    return x * float(y.max())


@pytest.mark.parametrize("broken", [with_a_branch, with_a_float])
def test_a_body_of_torch_functions_may_not_ask_for_values_either(broken: Rule) -> None:
    gm = torch.export.export(_Sum(), (X, X)).module()
    with pytest.raises(RewriteError, match="asks for the value of a tensor"):
        rewrite(gm, broken)


class _Sum(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (by_a_declared_one, r"TypeError: operator `bodies\.gelu` was declared for patterns"),
        (by_an_item, "TypeError: operator `getitem` was declared for patterns"),
        (without_return, "the body of rule `without_return` returns nothing"),
        (with_a_branch, "the body of rule `with_a_branch` asks for the value of a tensor"),
        (with_a_float, "the body of rule `with_a_float` asks for the value of a tensor"),
    ],
)
def test_a_mistake_in_a_body(broken: Rule, said: str) -> None:
    gm = make_fx(lambda x, y: x + y)(X, X.t())
    before = gm.code
    with pytest.raises(RewriteError, match=said) as raised:
        rewrite(gm, broken)
    assert gm.code == before
    assert raised.value.diagnostic.span is not None
    assert "decline(...)" not in raised.value.diagnostic.help


@rule(Sum)
def with_two_values(x, y):
    return x + y, y


@pytest.mark.parametrize("capture", [make_fx, lambda f: lambda *_: fx.symbolic_trace(f)])
def test_a_body_of_more_values_than_outputs(capture: Callable[..., Any]) -> None:
    (refusal,) = rewrite(capture(lambda x, y: x + y)(X, X.t()), with_two_values).refusals
    assert (refusal.kind, refusal.reason) == ("mismatch", "the replacement has 2 values, not 1")


def test_what_was_meant_by_what_is_no_rule() -> None:
    gm = make_fx(lambda x, y: x + y)(X, X)
    with pytest.raises(TypeError, match=r"did you mean `pypm\.rules\.norm\.RULES`\?"):
        rewrite(gm, pypm.rules.norm)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="make a rule of it with `@rule`"):
        rewrite(gm, Sum)  # type: ignore[arg-type]


def test_a_diagnostic_comes_without_the_frames_that_read_the_pattern() -> None:
    @pattern
    def Inner(x):
        return aten.relu(unknown)  # noqa: F821

    @pattern
    def Outer(x):
        return aten.neg(aten.exp(Inner(x)))

    with pytest.raises(pypm.PyPMError, match="unknown name") as raised:
        find(make_fx(torch.neg)(X), Outer)
    assert len(raised.traceback) <= 8
    (shown,) = raised.value._render_traceback_()
    assert shown == f"PatternError: {raised.value}"


@pattern
def LargestAndPlace(x):
    y, i = aten.max(x, 1)
    return y * i


@rule(LargestAndPlace)
def by_two_reductions(x):
    return x.amax(1) * x.argmax(1)


def test_equal_calls_of_several_results_are_one() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.max(1)[0] * x.max(1)[1]

    for module in (make_fx(function, tracing_mode="fake")(X), fx.symbolic_trace(function)):
        assert len(rewrite(module, by_two_reductions)) == 1
        torch.testing.assert_close(module(X), function(X))


@pattern
def SumAt(x, index):
    return aten.sum(x[index])


@rule(SumAt)
def mean_at(x, index):
    return x[index].mean() * x[index].numel()


@pytest.mark.parametrize("described", [True, False])
@pytest.mark.parametrize(
    "index", [1, [1, 0], (1, 0), slice(1, 3), (slice(None), 2), ([0, 1, 2, 3], 2)]
)
def test_an_index_is_what_it_was(index: Any, described: bool) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[index].sum(), x[index] - x[[1, 0]]

    module, x = fx.symbolic_trace(function), torch.randn(4, 4, 4)
    if described:
        FakeTensorProp(module).propagate(x)
    assert len(rewrite(module, [mean_at, zeros])) == (2 if index == [1, 0] else 1)
    torch.testing.assert_close(module(x), function(x))


@pattern
def Twice(f, x, y):
    return aten.cat([f(x), f(y)], 1)


@rule(Twice)
def at_once(f, x, y):
    return f(torch.cat([x, y], 1))


ATTRIBUTES: list[tuple[Callable[..., torch.Tensor], int]] = [
    (torch.relu, 1),
    (torch.nn.functional.leaky_relu, 1),
    (lambda x: torch.nn.functional.leaky_relu(x, 0.5), 0),
    (lambda x: torch.nn.functional.gelu(x, approximate="tanh"), 0),
]


@pytest.mark.parametrize(("called", "count"), ATTRIBUTES)
def test_an_operator_is_not_called_without_its_attributes(
    called: Callable[..., torch.Tensor], count: int
) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        plain = torch.cat([x.sigmoid(), y.sigmoid()], 1)
        return torch.cat([called(x), called(y)], 1) + plain

    module = make_fx(function)(X, X.t())
    report = rewrite(module, at_once)
    assert len(report) == count + 1
    assert all("without the attributes" in refusal.reason for refusal in report.refusals)
    torch.testing.assert_close(module(X, X.t()), function(X, X.t()))


def test_an_operator_that_is_none_of_torch_is_not_called() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([F.tanhshrink(x), F.tanhshrink(y)], 1)

    module = fx.symbolic_trace(function)
    report = rewrite(module, at_once)
    assert [r.reason for r in report.refusals] == [
        "a body cannot call `torch.nn.functional.tanhshrink`, which is no operator of torch"
    ]
