"""The states that raw nodes are given by lookups are those of the terms that the nodes are."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.core.guards import FUNCTIONS, Apply, Attribute, Constant, Holds
from pypm.core.operators import CONS
from pypm.core.patterns import Alt, Constrained, Exists, Fun, Guarded, Op, Pattern, Var
from pypm.fx import LITERAL, aten
from pypm.fx.subject.index_states import StateReader
from pypm.fx.subject.view import View
from pypm.match.compile.lower import Compiler
from pypm.match.index import Index
from pypm.match.lint.term_subjects import Trees
from pypm.match.matcher import Matcher

X, Y = Var("x"), Var("y")
NUMBER = Op(LITERAL, ())
IS_POINTWISE = Holds(Apply(FUNCTIONS["in"], (Constant("pointwise"), Attribute("n", "tags"))))
POINTWISE = Exists("n", Constrained(Guarded(Var("n"), IS_POINTWISE), Fun("F", (X,)), "n"))
PATTERNS: list[Pattern] = [
    Op(aten.mul, (X, NUMBER)),
    Op(aten.add, (Op(aten.mul, (X, NUMBER)), Y)),
    Op(aten.sub, (NUMBER, X)),
    Op(aten.cat, (Op(CONS, (Op(aten.relu, (X,)), Y)),)),
    Op(aten.addmm, (X, Y, Op(aten.t, (Var("w"),)))),
    Op(aten.linear, (X, Y, NUMBER)),
    Op(aten.where, (X, NUMBER, Y)),
    Alt(Op(aten.exp, (POINTWISE,)), POINTWISE),
    Op(aten.clamp, (X, NUMBER, NUMBER)),
]
A, B = torch.randn(4, 4), torch.randn(4, 4)


def view_of(graph: fx.Graph) -> tuple[View, Trees]:
    compiler = Compiler(Index())
    for number, pattern in enumerate(PATTERNS):
        compiler.index.root(Matcher((pattern,), compiler).items[0], number, 1)
    return View(graph, StateReader(compiler.index)), Trees(compiler.index)


def assert_states(view: View, trees: Trees) -> None:
    for node in [node for node in view.graph.nodes if node.op != "output"]:
        assert view.states[node] is trees.tree(view.occurrence(node).term).state, node.format_node()


FUNCTIONS_TRACED: list[Callable[..., object]] = [
    lambda a, b: (2 * a + b * 2.0, 1 - a, a - 1, torch.rsub(a, 3)),
    lambda a, b: torch.cat([a.relu(), b, a])[:4] + torch.cat([b.relu()]),
    lambda a, b: (torch.addmm(a, a, b.t()), F.linear(a, b), F.linear(a, b, a[0])),
    lambda a, b: (torch.where(a > 0, 0.0, b), torch.where(a > 0, b, a), a.clamp(min=0.0)),
    lambda a, b: (a.relu().exp(), a.softmax(-1).exp(), (a @ b).exp().sin()),
    lambda a, b: (a.split(2)[0].exp(), torch.var_mean(a, 1)[1].exp()),
    lambda a, b: torch.add(a, b, alpha=2) + torch.add(2, a) * torch.tensor(3.0),
    lambda a, b: (a[[0, 1]], a[:, 1:], torch.full((), 2.0) * a, a * torch.full((4,), 2.0)),
]


@pytest.mark.parametrize("function", FUNCTIONS_TRACED)
@pytest.mark.parametrize("style", ["aten", "torch"])
def test_states_are_those_of_the_terms(function: Callable[..., object], style: str) -> None:
    if style == "aten":
        graph = make_fx(function, tracing_mode="fake")(A, B).graph
    else:
        graph = fx.symbolic_trace(function).graph
    assert_states(*view_of(graph))


def test_keywords_say_the_same_as_positions() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    call, ops = graph.call_function, torch.ops.aten
    one = call(ops.mul.Tensor, (), {"other": x, "self": y})
    two = call(ops.add.Tensor, (call(ops.mul.Tensor, (y, 2)),), {"other": one})
    three = call(ops.linear.default, (x,), {"weight": y})
    four = call(ops.linear.default, (x, y, None))
    graph.output((two, three, four))
    view, trees = view_of(graph)
    assert_states(view, trees)
    assert view.states[three] is view.states[four]


def test_states_follow_the_graph() -> None:
    """After random edits, told to the view, every state is what a new view finds."""
    draw = random.Random(0)
    ops = torch.ops.aten
    unary = [ops.relu.default, ops.exp.default, ops.sin.default, ops.t.default]
    for _ in range(40):
        graph = fx.Graph()
        nodes = [graph.placeholder("x"), graph.placeholder("y")]
        for _ in range(25):
            if draw.random() < 0.5:
                nodes.append(graph.call_function(draw.choice(unary), (draw.choice(nodes),)))
            else:
                second = draw.choice([2.0, draw.choice(nodes)])
                target = draw.choice([ops.add.Tensor, ops.mul.Tensor])
                nodes.append(graph.call_function(target, (draw.choice(nodes), second)))
        graph.output(tuple(nodes))
        view, trees = view_of(graph)
        for _ in range(5):
            old = draw.choice(nodes[2:])
            with graph.inserting_before(old):
                new = graph.call_function(draw.choice(unary), (old.args[0],))
            readers = list(old.users)
            old.replace_all_uses_with(new)
            view.invalidate([new, *readers])
            assert_states(view, trees)
            assert dict(view.states) == dict(View(graph, view.states.reader).states)
