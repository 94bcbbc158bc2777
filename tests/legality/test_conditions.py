"""Conditions of PyPM's judge for which `python -m tests.mutants legality` asked a test each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from pypm.fx import Reading, rewrite
from pypm.fx.legality.replacement import judge_outputs
from tests.legality.cases import NEG_TWICE, Planted

aten = torch.ops.aten


def described(function: Callable[..., Any], *inputs: Tensor) -> fx.GraphModule:
    """Return the graph of a function, with metadata."""
    gm = fx.symbolic_trace(function)
    FakeTensorProp(gm, FakeTensorMode()).propagate(*inputs)
    return gm


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        (torch.ones(2), torch.ones(2, device="meta"), "on meta"),
        (torch.ones(2), torch.ones(2).to_sparse(), "layout torch.sparse_coo"),
        ((torch.ones(2),), (torch.ones(2), torch.ones(2)), "2 values"),
        (torch.ones(2), 3, "is a int, the graph has a tensor"),
        (3, torch.ones(2), "is a tensor, the graph has a int"),
    ],
)
def test_what_an_output_is_stays(before: object, after: object, reason: str) -> None:
    refusal = judge_outputs((fx.Graph().placeholder("x"),), [before], [after])
    assert refusal is not None
    assert refusal.kind == "mismatch"
    assert reason in refusal.reason


def test_outputs_that_become_one_are_written_apart() -> None:
    def function(x: Tensor) -> Tensor:
        one, other = aten.abs(x), aten.abs(aten.neg(x))
        aten.fill_(other, 3.0)
        return aten.neg(one)

    roots = (("abs", "x"), ("abs", ("neg", "x")))
    gm = fx.symbolic_trace(function)
    assert rewrite(gm, (Planted(roots, (("abs", "x"), ("abs", "x"))).rule,)).rewrites
    assert torch.equal(gm(torch.ones(2)), -torch.ones(2))


def test_what_is_a_view_by_its_metadata_does_not_become_a_copy() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = aten.abs(x)
        return y, aten.contiguous(y)

    gm = described(function, torch.ones(2, 3))
    report = rewrite(gm, (Planted((("contiguous", "x"),), (("clone", "x"),)).rule,))
    assert [refusal.kind for refusal in report.refusals] == ["layout"]


def test_two_views_of_memory_of_the_region_stay_views_of_one() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = aten.neg(x)
        return aten.t(y), aten.alias(y)

    roots = (("t", ("neg", "x")), ("alias", ("neg", "x")))
    gm = fx.symbolic_trace(function)
    report = rewrite(gm, (Planted(roots, (("neg", ("t", "x")), ("neg", "x"))).rule,))
    assert [refusal.kind for refusal in report.refusals] == ["layout"]


@pytest.mark.parametrize(
    "observer",
    [
        lambda y: aten.as_strided(y, [24], [1]),
        lambda y: aten.clone(aten.rand_like(y), memory_format=torch.contiguous_format),
    ],
)
def test_strides_that_are_read_are_kept(observer: Callable[[Tensor], Tensor]) -> None:
    def function(x: Tensor) -> Tensor:
        return observer(aten.neg(aten.neg(x)))

    x = torch.arange(24.0).reshape(2, 3, 4).transpose(1, 2)
    torch.manual_seed(0)
    expected = function(x)
    gm = described(function, x)
    assert rewrite(gm, (Planted((NEG_TWICE,), (("contiguous", "x"),)).rule,)).rewrites
    torch.manual_seed(0)
    assert torch.equal(gm(x), expected)


@pytest.mark.parametrize("is_own", [True, False])
def test_strides_that_are_not_known_are_kept_for_a_write_of_an_own_view(is_own: bool) -> None:
    """They decide whether torch refuses it."""

    def function(x: Tensor, y: Tensor) -> Tensor:
        z = aten.maximum(aten.neg(x), aten.neg(y))
        return aten.copy_(z, aten.select(z if is_own else x, 0, 0))

    rule = Planted(
        (("maximum", ("neg", "x"), ("neg", "y")),), (("neg", ("minimum", "x", "y")),)
    ).rule
    report = rewrite(fx.symbolic_trace(function), (rule,))
    assert [refusal.kind for refusal in report.refusals] == ["layout"] * is_own
    assert len(report.rewrites) == (not is_own)


@pytest.mark.parametrize(
    ("before", "reading", "reason"),
    [
        (aten.rand_like, "through", "does more than compute"),
        (lambda y: aten.fill_(y, 3.0), "through", "does more than compute"),
        (lambda y: (aten.abs(y), aten.fill_(y, 3.0))[0], "through", "memory may be written"),
        (lambda y: (z := aten.abs(y), aten.squeeze_(z))[0], "nodes", "another shape in place"),
    ],
)
def test_what_a_rule_reads_is_as_it_was(
    before: Callable[[Tensor], Tensor], reading: str, reason: str
) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        read = before(y)
        return aten.neg(aten.neg(x)), read

    gm = fx.symbolic_trace(function)
    read = gm.graph.output_node().all_input_nodes[1]
    rule = replace(
        Planted((NEG_TWICE,), (("clone", "x"),)).rule,
        reads=lambda match: Reading(None, **{reading: (read,)}),
    )
    report = rewrite(gm, (rule,))
    assert not report.rewrites
    assert reason in report.refusals[0].reason
