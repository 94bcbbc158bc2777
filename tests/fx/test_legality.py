"""Legality: which matches may be replaced, judged on the nodes they cover."""

from __future__ import annotations

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.core.patterns import Exists, Op, Pattern, Var
from pypm.core.rules import Decline, Rule
from pypm.diagnostics import RewriteError
from pypm.fx import aten, find, partition, rewrite
from pypm.fx.legality.judge import depends_on
from pypm.fx.legality.replacement import judge_outputs
from pypm.fx.operators.effects import is_pure, is_random
from pypm.fx.operators.targets import torch_operator

X, Y, Z = Var("x"), Var("y"), Var("z")
ARGUMENTS = (torch.randn(3, 4), torch.randn(3, 4))


def traced(function, *arguments) -> fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(*(arguments or ARGUMENTS))


RELU_NEG = Op(aten.relu, (Op(aten.neg, (X,)),))
RELU_KEPT = Op(aten.relu, (Op(aten.neg, (X,), keep=True),))
RELU_VIEW = Op(aten.relu, (Op(aten.t, (X,)),))
RELU_VIEW_NEG = Op(aten.relu, (Op(aten.t, (Op(aten.neg, (X,)),)),))
RELU_DROPOUT = Op(aten.relu, (Op(aten.bernoulli, (X,)),))
BOTH = Op(aten.mul, (Op(aten.neg, (X,)), Op(aten.exp, (Op(aten.neg, (X,)),))))


def escaping(a, b):
    n = a.neg()
    return n.relu(), n


def shared_view(a, b):
    t = a.t()
    return t.relu(), t.exp()


def view_of_computed(a, b):
    t = a.neg().t()
    return t.relu(), t.exp()


def equal_twice(a, b):
    return a.neg() * a.neg().exp()


def diamond(a, b):
    n = a.neg()
    return n * n.exp()


def equal_elsewhere(a, b):
    return a.neg().relu(), a.neg().exp()


def random_inside(a, b):
    return a.sigmoid().bernoulli().relu()


TABLE = [
    # pattern, function, refusal (None: legal), the words it must say
    (RELU_NEG, lambda a, b: a.neg().relu(), None, ""),
    (RELU_NEG, escaping, "escape", "`neg` is also used by `output`"),
    (RELU_KEPT, escaping, None, ""),
    (RELU_VIEW, shared_view, None, ""),
    (RELU_VIEW_NEG, view_of_computed, "escape", "`neg` is also used by `exp`"),
    (RELU_NEG, equal_elsewhere, None, ""),
    (RELU_DROPOUT, random_inside, "random", "`bernoulli` is random"),
    (BOTH, diamond, None, ""),
    (BOTH, equal_twice, None, ""),
]


@pytest.mark.parametrize(("pattern", "function", "refusal", "words"), TABLE)
def test_table(pattern: Pattern, function, refusal: str | None, words: str) -> None:
    gm = traced(function)
    found = find(gm, pattern)
    assert len(found) == (refusal is None)
    report = rewrite(gm, Rule("rule", ("x",), (pattern,), _refused))
    kinds = {(r.kind, words in r.reason) for r in report.refusals}
    assert kinds == ({("declined", True)} if refusal is None else {(refusal, True)})


def _refused(x):
    return Decline("not today")


# --- randomness -----------------------------------------------------------------------------------

RELU_KEPT_DROPOUT = Op(aten.relu, (Op(aten.bernoulli, (X,), keep=True),))


def random_used_elsewhere(a, b):
    drawn = a.sigmoid().bernoulli()
    return drawn.relu(), drawn


def random_twice(a, b):
    return a.sigmoid().bernoulli().relu() + a.sigmoid().bernoulli().relu()


def drawing(x):
    return torch.rand_like(x).lt(x).to(x.dtype)


def draws(gm: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in gm.graph.nodes if is_random(node)]


@pytest.mark.parametrize(
    ("pattern", "function", "body", "refusal", "words"),
    [
        # refusal None: legal
        (RELU_DROPOUT, random_inside, drawing, None, ""),
        (RELU_DROPOUT, random_twice, drawing, None, ""),
        (RELU_DROPOUT, random_inside, torch.relu, "random", "the replacement is not"),
        (RELU_NEG, lambda a, b: a.neg().relu(), torch.relu, None, ""),
        (RELU_NEG, lambda a, b: a.neg().relu(), drawing, "random", "the replacement is random"),
        (RELU_DROPOUT, random_used_elsewhere, drawing, "escape", "also used by `output`"),
        (RELU_KEPT_DROPOUT, random_inside, drawing, None, ""),
        (RELU_KEPT_DROPOUT, random_used_elsewhere, drawing, "random", "also used outside"),
    ],
)
def test_rules_that_redraw(
    pattern: Pattern, function, body, refusal: str | None, words: str
) -> None:
    gm = traced(function)
    code, before = gm.code, draws(gm)
    report = rewrite(gm, Rule("r", ("x",), (pattern,), body, redraws=True))
    gm.graph.lint()
    kinds = {(r.kind, words in r.reason) for r in report.refusals}
    assert kinds == (set() if refusal is None else {(refusal, True)})
    if refusal is None:
        assert len(draws(gm)) == len(before)
        assert aten.bernoulli.name not in {torch_operator(n.target).name for n in gm.graph.nodes}
        gm(*ARGUMENTS)
    else:
        assert gm.code == code


def test_random_writes_are_writes() -> None:
    gm = fx.symbolic_trace(lambda a: a.sigmoid().bernoulli_().relu())
    pattern = Op(aten.relu, (Op(aten.bernoulli_, (X, Y)),))
    report = rewrite(gm, Rule("r", ("x",), (pattern,), drawing, redraws=True))
    (refusal,) = report.refusals
    assert (refusal.kind, "writes memory" in refusal.reason) == ("effect", True), refusal


def test_redrawing_is_undone() -> None:
    gm = traced(lambda a, b: a.neg().relu().sigmoid().bernoulli().relu())
    code = gm.code
    redraw = Rule("redraw", ("x",), (RELU_DROPOUT,), drawing, redraws=True)
    fail = Rule("fail", ("x",), (RELU_NEG,), lambda x: x.no_such_method())
    with pytest.raises(RewriteError):
        rewrite(gm, [redraw, fail])
    gm.recompile()
    gm.graph.lint()
    assert gm.code == code


def test_a_part_that_draws_is_not_pure() -> None:
    gm = traced(random_twice)
    partition(gm, Rule("r", ("x",), (RELU_DROPOUT,), drawing, redraws=True))
    calls = gm.graph.find_nodes(op="call_module", target="region_0")
    assert [is_pure(call) for call in calls] == [False]


# --- writes --------------------------------------------------------------------------------------


class Written(torch.nn.Module):
    def forward(self, a, b):
        n = a.neg()
        a.add_(b)
        return n.relu()


class WrittenBefore(torch.nn.Module):
    def forward(self, a, b):
        a.add_(b)
        return a.neg().relu()


class WrittenInside(torch.nn.Module):
    def forward(self, a, b):
        return a.neg().relu_()


@pytest.mark.parametrize(
    ("module", "count"), [(Written(), 0), (WrittenBefore(), 1), (WrittenInside(), 0)]
)
def test_writes_in_between(module: torch.nn.Module, count: int) -> None:
    gm = fx.symbolic_trace(module)
    a, b = ARGUMENTS
    expected = module(a.clone(), b)
    report = rewrite(gm, Rule("r", ("x",), (RELU_NEG,), lambda x: torch.clamp(-x, min=0)))
    assert len(report) == count
    torch.testing.assert_close(gm(a.clone(), b), expected)


def test_no_match_of_a_bare_variable() -> None:
    gm = traced(lambda a, b: a + b)
    report = rewrite(gm, Rule("anything", ("x",), (X,), lambda x: x * 1))
    assert {r.kind for r in report.refusals} == {"uncovered"}


def silu(a, w):
    m = a @ w
    return m * m.sigmoid()


def silu_with_softmax(a, w):
    m = a @ w
    return m * m.softmax(-1)


EPILOGUE = Op(aten.mul, (Op(aten.mm, (X, Y)), Exists("s", Var("s"))))


@pytest.mark.parametrize(
    ("function", "absorb", "names"),
    [
        (silu, "pointwise", ["mm", "sigmoid", "mul"]),
        (silu, None, None),
        (silu_with_softmax, "pointwise", None),
    ],
)
def test_absorb(function, absorb: str | None, names: list[str] | None) -> None:
    gm = traced(function, torch.randn(3, 4), torch.randn(4, 4))
    rule = Rule("r", ("x", "y"), (EPILOGUE,), lambda x, y: x, absorb=absorb)
    found = find(gm, rule)
    assert [[n.name for n in match.region.nodes] for match in found] == ([names] if names else [])


def test_the_region_as_a_module() -> None:
    gm = traced(lambda a, w: silu(a, w) + w, torch.randn(4, 4), torch.randn(4, 4))
    rule = Rule("r", ("x", "y"), (EPILOGUE,), lambda x, y: x, absorb="pointwise")
    (match,) = find(gm, rule)
    a, w = torch.randn(4, 4), torch.randn(4, 4)
    assert [n.name for n in match.region.inputs] == [str(n) for n in match.inputs]
    torch.testing.assert_close(match.region.module(a, w), silu(a, w))


def test_side_inputs() -> None:
    gm = traced(lambda a, b: (a.neg() + b) * 2)
    pattern = Op(aten.mul, (Op(aten.add, (X, Exists("o", Var("o")))), Exists("c", Var("c"))))
    (match,) = find(gm, Rule("r", ("x",), (pattern,), lambda x: x))
    assert [n.name for n in match.region.variables] == ["neg"]
    assert [n.name for n in match.region.side_inputs] == ["b_1"]


def test_an_equal_node_counts_as_earliest() -> None:
    def function(a, b):
        first, second = a.neg(), a.neg()
        return first.exp(), second * second.relu()

    gm = traced(function)
    n = Op(aten.mul, (X, Op(aten.relu, (X,))))
    (match,) = find(gm, n)
    assert str(match.bindings["x"]) == "neg_1"  # reached from the root; the equal `neg` is not


def test_depends_on_stops_at_other_roots() -> None:
    gm = traced(lambda a, b: ((a.neg()).exp() + b).relu())
    nodes = {node.name: node for node in gm.graph.nodes}
    assert depends_on(nodes["relu"], [nodes["neg"]]) == {nodes["neg"]}
    assert depends_on(nodes["relu"], [nodes["neg"], nodes["exp"]]) == {nodes["exp"]}
    assert depends_on(nodes["b_1"], [nodes["neg"]]) == set()


def test_values_of_an_output_that_are_none_are_kept() -> None:
    """As of the gradients that the backward of a convolution is not asked for."""
    graph = fx.Graph()
    root, values = graph.placeholder("x"), (torch.ones(2), None, 3)
    assert judge_outputs([root], [values], [(torch.zeros(2), None, 3)]) is None
    refusal = judge_outputs([root], [values], [(torch.zeros(2), None, None)])
    assert refusal is not None
    assert refusal.reason == "the replacement is None, the graph has 3"


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (
            lambda x: torch.relu(x).double(),
            "mismatch",
            "dtype torch.float64, the graph has torch.float32",
        ),
        (lambda x: torch.relu(x).sum(0), "mismatch", "shape [4], the graph has [3, 4]"),
        (lambda x: (x, x), "mismatch", "2 values"),
        (lambda x: 1.0, "mismatch", "1.0"),
        (torch.rand_like, "random", "random"),
        (lambda x: x.new_empty((3, 4)).bernoulli_(), "random", "random"),
    ],
)
def test_replacements_that_do_not_do(body, kind: str, words: str) -> None:
    gm = traced(lambda a, b: a.neg().relu())
    code = gm.code
    report = rewrite(gm, Rule("r", ("x",), (RELU_NEG,), body))
    (refusal,) = report.refusals
    assert (refusal.kind, words in refusal.reason) == (kind, True), refusal
    assert gm.code == code
