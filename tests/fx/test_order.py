"""Graphs in which nodes read later ones: put in order, or refused."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx
from torch._inductor.pattern_matcher import stable_topological_sort
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import PyPMError
from pypm.core.patterns import Op, Var
from pypm.core.rules import Rule
from pypm.fx import aten, explain, find, partition, rewrite, suggest
from pypm.integrations import inductor
from pypm.tools import show

X = Var("x")
NEG = Op(aten.neg, (X,))
FLIP = Rule("flip", ("x",), (NEG,), lambda x: torch.mul(x, -1))
A = torch.randn(3, 4)


def model(a):
    b = a.neg() + a.exp()
    return b.relu().neg() * a.sin(), b.cos()


TRACED = make_fx(model, tracing_mode="fake")(A)


def shuffled(order: list[int]) -> fx.GraphModule:
    """A graph whose calls are in another order."""
    gm = copy.deepcopy(TRACED)
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    for place in order:
        gm.graph.output_node().prepend(calls[place])
    return gm


ORDERS = st.permutations(range(8))


@settings(max_examples=40, deadline=None)
@given(ORDERS)
def test_the_order_is_the_one_of_torch(order: list[int]) -> None:
    ours, theirs = shuffled(order), shuffled(order)
    rewrite(ours, [])
    stable_topological_sort(theirs.graph)
    assert [node.name for node in ours.graph.nodes] == [node.name for node in theirs.graph.nodes]
    assert [*ours.graph.nodes] == sorted(ours.graph.nodes)


@settings(max_examples=20, deadline=None)
@given(ORDERS)
def test_a_graph_is_rewritten_in_any_order(order: list[int]) -> None:
    gm = shuffled(order)
    assert len(rewrite(gm, FLIP)) == 2
    gm.graph.lint()
    torch.testing.assert_close(gm(A), model(A))


BACKWARDS = [*reversed(range(8))]


@pytest.mark.parametrize("stage", inductor.STAGES)
def test_hooks_get_such_graphs(stage: str) -> None:
    gm = shuffled(BACKWARDS)
    hook = inductor.Pass(FLIP, stage)
    hook(gm.graph)
    gm.graph.lint()
    assert len(hook.report()) == 2


def test_a_partition_puts_them_in_order() -> None:
    gm = shuffled(BACKWARDS)
    assert len(partition(gm, NEG)) == 2
    torch.testing.assert_close(gm(A), model(A))


@pytest.mark.parametrize(
    "look",
    [
        lambda gm: find(gm, NEG),
        lambda gm: explain(gm, FLIP),
        lambda gm: suggest(gm, ["neg"]),
        lambda gm: show(gm, FLIP),
    ],
)
def test_what_only_looks_refuses_them(look) -> None:
    gm = shuffled(BACKWARDS)
    before = [*gm.graph.nodes]
    with pytest.raises(PyPMError, match=r"`cos` reads a node that comes after it") as info:
        look(gm)
    assert "`pypm.fx.rewrite(gm, [])` puts it in order" in str(info.value)
    assert [*gm.graph.nodes] == before


def test_a_cycle_is_named_and_left() -> None:
    gm = copy.deepcopy(TRACED)
    neg, relu = (next(n for n in gm.graph.nodes if n.name == name) for name in ("neg", "relu"))
    neg.args = (relu,)
    before = [(node, node.args) for node in gm.graph.nodes]
    with pytest.raises(PyPMError, match="each other: `neg` reads `relu` reads `add` reads `neg`"):
        rewrite(gm, FLIP)
    assert [(node, node.args) for node in gm.graph.nodes] == before
