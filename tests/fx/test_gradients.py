"""Gradients and tangents: replacements pass them on wherever the region does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import pattern, rule
from pypm.core.rules import Rule
from pypm.fx import aten, first, rewrite
from pypm.integrations import export, inductor
from pypm.kernels.support.registration import custom_operator
from tests.compiled import without_code
from tests.fx.test_effects import (
    Branches,
    fused_with_gradient,
    fused_without_gradient,
    linears,
)


class Weighted(torch.nn.Module):
    def __init__(self, trained: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3), requires_grad=trained)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.weight
        return y * y.sigmoid()


@pytest.mark.parametrize("program", [True, False], ids=["program", "module"])
@pytest.mark.parametrize("trained", [True, False], ids=["trained", "frozen"])
@pytest.mark.parametrize("fused", [fused_without_gradient, fused_with_gradient], ids=str)
def test_what_parameters_of_a_program_decide(fused: Rule, trained: bool, program: bool) -> None:
    exported = torch.export.export(Weighted(trained), (torch.randn(3),))
    gm = exported.module()
    report = export.rewrite(exported, fused) if program else rewrite(gm, fused)
    is_lost = trained and fused is fused_without_gradient
    assert len(report) == (not is_lost)
    if is_lost:
        (refusal,) = report.refusals
        assert refusal.kind == "effect"
        assert "needs a gradient, and `pypm_tests.silu_without_gradient" in refusal.reason
        assert refusal.reason.endswith("export the module after `requires_grad_(False)`")
    module = exported.module() if program else gm
    if trained:
        module(torch.randn(3)).sum().backward()
        assert all(x.grad is not None for x in module.parameters())


@pattern
def NegOfNeg(x):
    return aten.neg(aten.neg(x))


@rule(NegOfNeg)
def through_exp(x):
    return x.exp().log()


class Writing(torch.nn.Module):
    def __init__(self, trained: bool) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3), requires_grad=trained)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.weight
        z = y.neg().neg()
        y.add_(1)
        return z


@pytest.mark.parametrize("trained", [True, False])
def test_what_autograd_saves_of_a_program_is_not_written(trained: bool) -> None:
    gm = torch.export.export(Writing(trained), (torch.ones(3),)).module()
    report = rewrite(gm, through_exp)
    assert len(report) == (not trained)
    if trained:
        assert "autograd may save `mul` for `neg_1`, and it is written later" in [
            refusal.reason for refusal in report.refusals
        ]
        gm(torch.ones(3)).sum().backward()


@without_code()
@pytest.mark.parametrize(
    ("mode", "count"), [(torch.no_grad, 1), (torch.inference_mode, 1), (torch.enable_grad, 0)]
)
def test_no_gradient_flows_where_none_is_taken(
    mode: Callable[[], AbstractContextManager[None]], count: int
) -> None:
    torch._dynamo.reset()
    joining = inductor.Pass(linears, "pre_grad", choose=first)
    with mode(), inductor.uncached():
        torch.compile(Branches(trained=False), options=joining.options())(torch.randn(4, 4))
    report = joining.report()
    assert len(report) == count
    if not count:
        assert "needs no gradient, and its replacement would" in report.refusals[0].reason


# --- forward-mode derivatives --------------------------------------------------------------------


@pattern
def Gated(gate, up):
    return aten.mul(aten.silu(gate), up)


def product_with_gate(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


def like_the_gate(gate: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(gate)


ours = custom_operator("pypm_tests::ours", product_with_gate, outputs=like_the_gate)


@rule(Gated)
def by_ours(gate, up):
    return ours(gate, up)


@torch.library.custom_op("pypm_tests::gated", mutates_args=())
def gated_without_tangents(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


@gated_without_tangents.register_fake
def _(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(gate)


@rule(Gated)
def by_theirs(gate, up):
    return torch.ops.pypm_tests.gated(gate, up)


@rule(Gated)
def by_attention(gate, up):
    return F.scaled_dot_product_attention(gate[None], up[None], up[None])[0]


def moved(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.func.jvp(lambda x: F.silu(x) * up, (gate,), (torch.ones_like(gate),))[1]


def curved(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.func.hessian(lambda x: (F.silu(x) * up).sum())(gate)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize("function", [moved, curved])
def test_operators_of_ours_under_transforms(function: Callable[..., torch.Tensor]) -> None:
    gm, x, y = dynamo_graph(function)
    expected = gm(x, y)
    assert len(rewrite(gm, by_ours, dialect=inductor.STAGES["pre_grad"].dialect)) == 1
    torch.testing.assert_close(gm(x, y), expected)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
@pytest.mark.parametrize(
    ("fused", "name"),
    [(by_theirs, "`gated`"), (by_attention, "scaled_dot_product_attention")],
)
def test_operators_without_tangents_are_refused(fused: Rule, name: str) -> None:
    gm, _, _ = dynamo_graph(moved)
    (refusal,) = rewrite(gm, fused, dialect=inductor.STAGES["pre_grad"].dialect).refusals
    assert refusal.kind == "effect"
    assert "a tangent may arrive at" in refusal.reason
    assert name in refusal.reason
    assert refusal.reason.endswith("has no forward-mode derivative")


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_rewritten_graph_under_transforms() -> None:
    def function(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.silu(gate) * up

    given = torch.randn(3, 3), torch.randn(3, 3)
    gm = make_fx(function, tracing_mode="fake")(*given)
    assert len(rewrite(gm, by_ours)) == 1
    func = torch.func
    for transformed in (
        lambda f: func.jvp(f, given, given),
        lambda f: func.vmap(f)(*given),
        lambda f: func.jacrev(f)(*given),
        lambda f: func.vmap(func.grad(lambda x, y: f(x, y).sum()))(*given),
        lambda f: func.hessian(lambda x: f(x, given[1]).sum())(given[0]),
    ):
        torch.testing.assert_close(transformed(gm), transformed(function))


def dynamo_graph(function: Callable[..., torch.Tensor]) -> tuple[torch.fx.GraphModule, ...]:
    """Return the graph of a function, and inputs for it in the order of its placeholders."""
    given = {"gate": torch.randn(3, 3), "up": torch.randn(3, 3)}
    (gm,) = inductor.graphs(function, (given["gate"], given["up"]), "pre_grad")
    names = [node.name for node in gm.graph.find_nodes(op="placeholder")]
    return gm, *(given[name.strip("_").removeprefix("l_")] for name in names)
