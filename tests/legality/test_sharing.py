"""Shared memory that a rewrite would change, as random graphs have shown it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.fx import rewrite
from pypm.fx.legality import unknown_strides
from pypm.fx.subject.memory import may_be_view
from tests.fx.small_rules import rejoined
from tests.legality.cases import NEG_TWICE, TURNED_TWICE, Planted

aten = torch.ops.aten


def rewritten(function: Callable[..., Any], planted: Planted) -> tuple[fx.GraphModule, list[str]]:
    """Return the graph of a function after the rule, and the kinds of the refusals."""
    gm = fx.symbolic_trace(function)
    report = rewrite(gm, (planted.rule,))
    return gm, [refusal.kind for refusal in report.refusals]


def test_two_inputs_may_be_one_tensor() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        kept = aten.neg(aten.neg(x))
        aten.fill_(y, 3.0)
        return aten.abs(kept)

    gm, _ = rewritten(function, Planted((NEG_TWICE,), ("x",)))
    x = torch.ones(2, 2)
    assert torch.equal(gm(x, x), torch.ones(2, 2))


def test_two_attributes_may_be_one_tensor() -> None:
    module = torch.nn.Module()
    module.register_buffer("one", torch.ones(2, 2))
    module.register_buffer("other", module.one)
    graph = fx.Graph()
    one, other = graph.get_attr("one"), graph.get_attr("other")
    kept = graph.call_function(aten.neg, (graph.call_function(aten.neg, (one,)),))
    graph.call_function(aten.fill_, (other, 3.0))
    graph.output(graph.call_function(aten.abs, (kept,)))
    gm = fx.GraphModule(module, graph)
    assert rewrite(gm, (Planted((NEG_TWICE,), ("x",)).rule,)).rewrites
    assert torch.equal(gm(), torch.ones(2, 2))


def test_what_may_be_its_operand_does_not_become_a_copy() -> None:
    """The contiguous form of a contiguous tensor is that tensor, and both are returned."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = aten.abs(x)
        return y, aten.contiguous(y)

    _, kinds = rewritten(function, Planted((("contiguous", "x"),), (("clone", "x"),)))
    assert kinds == ["layout"]


def test_a_part_that_leaves_does_not_share_the_whole() -> None:
    """A concatenation is a copy, also of one piece that is all of a tensor."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        part = aten.slice(aten.abs(x), 0, None, 3)
        return part, aten.cat([part])

    gm = make_fx(function, tracing_mode="fake")(torch.ones(3))
    assert len(rewrite(gm, rejoined)) == 1
    part, whole = gm(torch.ones(3))
    part.fill_(5.0)
    assert torch.equal(whole, torch.ones(3))


@pytest.mark.parametrize("x", [torch.ones(2, 3), torch.ones(3, 2).t()])
def test_a_view_does_not_become_what_may_be_a_copy(x: Tensor) -> None:
    def function(x: Tensor) -> Tensor:
        y = aten.t(aten.t(x))
        aten.fill_(x, 3.0)
        return aten.abs(y)

    gm, kinds = rewritten(function, Planted((TURNED_TWICE,), (("contiguous", "x"),)))
    assert kinds == ["layout"]
    assert torch.equal(gm(x), torch.full((2, 3), 3.0))


def test_outputs_that_share_memory_go_on_sharing_it() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = aten.neg(x)
        return y, aten.t(y)

    both = (("neg", "x"), ("t", ("neg", "x")))
    _, kinds = rewritten(function, Planted(both, (("neg", "x"), ("neg", ("t", "x")))))
    assert kinds == ["layout"]
    turned = ("maximum", ("neg", ("t", "x")), ("neg", ("t", "x")))
    gm, kinds = rewritten(function, Planted(both, (("t", turned), turned)))
    one, other = gm(torch.ones(2, 3))
    assert not kinds
    assert one.data_ptr() == other.data_ptr()


class Flattened(torch.nn.Module):
    """Returns what a rule may replace, or what is computed from it, with its flat form."""

    def __init__(self) -> None:
        super().__init__()
        self.flatten = torch.nn.Flatten(0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = aten.neg(aten.neg(x))
        return y, self.flatten(y)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (y := aten.neg(aten.neg(x)), aten.reshape(y, [-1])),
        lambda x: (y := aten.neg(aten.neg(x)), y.contiguous()),
        lambda x: (y := aten.neg(aten.neg(x)), torch.ravel(aten.t(y))),
        lambda x: (y := aten.abs(aten.neg(aten.neg(x))), aten.reshape(y, [-1])),
        Flattened(),
    ],
)
def test_a_view_by_strides_that_are_unknown_stays_one(function: Callable[..., Any]) -> None:
    """Both results are returned, so that the caller sees if one is a view of the other."""
    gm, kinds = rewritten(function, Planted((NEG_TWICE,), (("contiguous", "x"),)))
    assert kinds == ["layout"]
    for x in (torch.ones(2, 3), torch.ones(3, 2).t()):
        expected, actual = function(x), gm(x)
        assert (expected[0].data_ptr() == expected[1].data_ptr()) == (
            actual[0].data_ptr() == actual[1].data_ptr()
        )


@pytest.mark.parametrize(
    "function",
    [
        lambda x: aten.reshape(aten.neg(aten.neg(x)), [-1]),
        lambda x: (y := aten.neg(aten.neg(x)), aten.t(y)),
        lambda x: (y := aten.neg(aten.neg(x)), aten.neg(aten.reshape(y, [-1]))),
        lambda x: (y := aten.neg(aten.neg(x)), aten.neg_(aten.t(y))),
    ],
)
def test_unknown_strides_are_harmless_where_sharing_is_certain_or_unseen(
    function: Callable[..., Any],
) -> None:
    _, kinds = rewritten(function, Planted((NEG_TWICE,), (("contiguous", "x"),)))
    assert not kinds


def test_what_follows_many_rewrites_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without metadata, strides downstream matter where a call may be a view by them."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    for _ in range(30):
        x = graph.call_function(aten.neg.default, (graph.call_function(aten.abs.default, (x,)),))
        x = graph.call_function(aten.neg.default, (x,))
    graph.output(x)
    looked = Counter[str]()

    def counting(node: fx.Node) -> bool:
        looked[node.name] += 1
        return may_be_view(node)

    monkeypatch.setattr(unknown_strides, "may_be_view", counting)
    planted = Planted((NEG_TWICE,), ("x",))
    assert len(rewrite(fx.GraphModule({}, graph), (planted.rule,))) == 30
    assert max(looked.values()) <= 2


def test_an_unknown_call_may_keep_what_another_one_writes() -> None:
    kept: list[Tensor] = []

    def keep(x: Tensor) -> None:
        kept.append(x)

    def overwrite() -> None:
        kept.pop().fill_(7.0)

    graph = fx.Graph()
    y = graph.call_function(aten.abs, (graph.placeholder("x"),))
    graph.call_function(keep, (y,))
    result = graph.call_function(aten.neg, (graph.call_function(aten.neg, (y,)),))
    graph.call_function(overwrite)
    graph.output(result)
    gm = fx.GraphModule(torch.nn.Module(), graph)
    assert rewrite(gm, (Planted((NEG_TWICE,), ("x",)).rule,)).rewrites
    assert torch.equal(gm(torch.ones(2, 2)), torch.ones(2, 2))


def test_results_go_on_sharing_what_they_certainly_share() -> None:
    """The contiguous form of a tensor may be that tensor, and may be a copy."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = aten.neg(x)
        return y, aten.alias(y)

    made = ("neg", "x")
    planted = Planted((made, ("alias", made)), (made, ("contiguous", made)))
    gm, kinds = rewritten(function, planted)
    one, other = gm(torch.ones(2, 3).t())
    one.fill_(5.0)
    assert torch.equal(other, one)
    assert kinds == ["layout"]
