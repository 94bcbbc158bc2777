"""Autocast around a match: a replacement computes in the types in which the graph does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from pypm import pattern, rule
from pypm.core.rules import Rules
from pypm.fx import JOINT, PRE_GRAD, Report, aten, rewrite
from pypm.rules import attention
from pypm.torch_internals import enter_autocast, exit_autocast
from tests.axes import axes


def under_autocast(dtype: torch.dtype, inside: int) -> fx.GraphModule:
    """A product plus a row, of which the first `inside` calls are under autocast."""
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    entered = graph.call_function(enter_autocast, ("cpu", torch.bfloat16, True, True))
    product = graph.call_function(torch.matmul, (x, x))
    if inside == 1:
        graph.call_function(exit_autocast, (entered,))
    total = graph.call_function(torch.add, (product, y))
    if inside == 2:
        graph.call_function(exit_autocast, (entered,))
    graph.output(total)
    gm = fx.GraphModule(torch.nn.Module(), graph)
    FakeTensorProp(gm).propagate(torch.ones(4, 4), torch.ones(4, dtype=dtype))
    return gm


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("inside", [1, 2])
def test_a_replacement_is_of_the_type_that_it_has_under_autocast(dtype, inside: int) -> None:
    @pattern
    def Sum(x, y):
        return aten.matmul(x, x) + y

    @rule(Sum)
    def fused(x, y):
        return torch.addmm(y, x, x)

    gm = under_autocast(dtype, inside)
    args = torch.randn(4, 4), torch.randn(4).to(dtype)
    before = gm(*args)
    report = rewrite(gm, fused)
    assert len(report) == (1 if (dtype, inside) == (torch.bfloat16, 2) else 0), str(report)
    assert gm(*args).dtype == before.dtype
    torch.testing.assert_close(gm(*args), before, atol=0.05, rtol=0.05)


def compiled(function: Callable[..., Any], args: list[Tensor], rules: Rules) -> tuple[Report, Any]:
    """The report at the first hook, and the result of the graph, by the modes of the caller."""
    reports = []

    def backend(module: fx.GraphModule, _: object) -> Callable[..., Any]:
        reports.append(rewrite(module, rules, dialect=PRE_GRAD))
        return module.forward

    torch._dynamo.reset()
    result = torch.compile(function, backend=backend)(*args)
    return reports[0], result


def attend(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) * 0.35 + m, -1) @ v


def filled(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    scores = (q @ k.transpose(-2, -1) * 0.35).float()
    return torch.softmax(scores.masked_fill(m < 0, -1e9), -1) @ v


def plain(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) * 0.35, -1) @ v


LOWEST = torch.zeros(4, 4).masked_fill(torch.arange(4)[:, None] < 1, torch.finfo(torch.float32).min)
FAR = torch.arange(4.0) * 0.7 - 1000


Rounding = tuple[Callable[..., Tensor], Tensor, torch.dtype, int]
"""A function, its mask, a type, and how often a rule is applied."""
ROUNDINGS: Final[list[Rounding]] = [
    (attend, LOWEST, torch.bfloat16, 0),
    (attend, FAR, torch.bfloat16, 0),
    (filled, LOWEST, torch.float16, 0),
    (plain, LOWEST, torch.bfloat16, 1),
    (attend, torch.ones(4).bfloat16(), torch.bfloat16, 1),
]


@axes(case=ROUNDINGS, inside=[True, False])
def test_what_autocast_does_not_round_in_the_graph_is_not_rounded(
    case: Rounding, inside: bool
) -> None:
    """The graph adds a mask of float32 to the scores; the kernel's is cast, as its queries are."""
    function, mask, dtype, count = case
    args = [*torch.randn(3, 1, 2, 4, 8).to(dtype), mask]

    def under(*args: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype):
            return function(*args)

    with torch.no_grad(), torch.autocast("cpu", dtype, enabled=not inside):
        report, result = compiled(under if inside else function, args, attention.RULES)
        expected = under(*args)
    assert len(report) == count
    assert [r.reason.partition(" of ")[0] for r in report.refusals] == [
        "autocast would round an operand"
    ] * (1 - count)
    torch.testing.assert_close(result, expected, atol=0.02, rtol=0.02)


def test_after_autograd_graphs_run_without_autocast() -> None:
    args = [*torch.randn(3, 1, 2, 4, 4), LOWEST]
    gm = make_fx(attend, tracing_mode="fake")(*args)
    before = gm(*args)
    with torch.autocast("cpu", torch.bfloat16):
        assert len(rewrite(gm, attention.RULES, dialect=JOINT)) == 1
    torch.testing.assert_close(gm(*args), before)


@pattern
def Product(x, w):
    return aten.sum(aten.mul(aten.unsqueeze(x, 2), w), [1])


@rule(Product)
def product(x, w):
    return x @ w


@pytest.mark.parametrize("enabled", [False, True])
def test_bodies_under_autocast_stay(enabled: bool) -> None:
    def branch(x: Tensor, w: Tensor) -> Tensor:
        return (x.unsqueeze(2) * w).sum([1])

    def function(x: Tensor, w: Tensor) -> Tensor:
        if not enabled:
            return torch.cond(x.sum() > 0, branch, torch.matmul, (x, w))
        with torch.autocast("cpu", torch.bfloat16):
            return torch.cond(x.sum() > 0, branch, lambda x, w: branch(x, w) + 1, (x, w))

    args = [torch.ones(3, 4) / 3, torch.ones(4, 5) / 7]
    with torch.no_grad():
        report, result = compiled(function, args, product)
        expected = function(*args)
    assert len(report) == (0 if enabled else 1)
    assert report.note == ("not rewritten: the bodies of `cond`" if enabled else "")
    torch.testing.assert_close(result, expected)
