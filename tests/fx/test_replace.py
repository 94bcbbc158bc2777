"""Replacement: what a rewritten graph looks like, and that a failed one is as it was."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from pypm import decline, pattern, rule
from pypm.core.operators import Operator
from pypm.core.patterns import Constrained, Op, Var
from pypm.core.rules import Build, Rule
from pypm.diagnostics import BudgetError, RewriteError
from pypm.fx import Match, Reading, aten, partition, rewrite
from pypm.fx.rewriting import driver as driver_module
from pypm.fx.rewriting.journal import Journal
from pypm.fx.subject.view import View

X, Y = Var("x"), Var("y")
NEG = Op(aten.neg, (X,))
A, B = torch.randn(3, 4), torch.randn(3, 4)


def traced(function, *arguments) -> fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(*(arguments or (A, B)))


def state(gm: fx.GraphModule) -> object:
    """All that a user can see of a graph."""
    nodes = [
        (n, n.name, n.op, n.target, n.args, n.kwargs, list(n.users), list(n.meta.items()))
        for n in gm.graph.nodes
    ]
    return nodes, gm.code, gm.graph.python_code("self").src, sorted(dict(gm.named_buffers()))


def sites(a, b):
    x = (a.neg() + b).neg() * b
    return x.exp().neg() + a.neg(), b.neg() * b.neg()


FLIP = Rule("flip", ("x",), (NEG,), lambda x: torch.mul(x, torch.tensor(-1.0)))


def test_rewritten_graphs_are_whole() -> None:
    gm = traced(sites)
    expected = gm(A, B)
    stack = '  File "model.py", line 7, in forward\n    return -x'
    for node in gm.graph.nodes:
        node.meta |= {"stack_trace": stack, "seq_nr": 5, "partitioner_tag": "is_forward"}
    report = rewrite(gm, FLIP)
    gm.graph.lint()
    assert len(report) == 6
    assert report.rewrites[0].source == 'File "model.py", line 7, in forward return -x'
    torch.testing.assert_close(gm(A, B), expected)
    for node in gm.graph.nodes:
        if node.op == "call_function":
            assert node.meta["stack_trace"] == stack
            assert (node.meta["seq_nr"], node.meta["partitioner_tag"]) == (5, "is_forward")
            assert node.meta["val"].shape == node.meta["tensor_meta"].shape
            assert node.target is not torch.ops.aten.neg.default


class Boom(Exception):
    pass


@pytest.mark.parametrize("method", ["splice", "_emit", "_redirect", "_describe", "_bury", "commit"])
@pytest.mark.parametrize("call", [1, 2, 5])
def test_rollback(monkeypatch: pytest.MonkeyPatch, method: str, call: int) -> None:
    gm = traced(sites)
    before = state(gm)
    original, calls = getattr(Journal, method), 0

    def failing(self, *args):
        nonlocal calls
        calls += 1
        if calls == min(call, 1 if method == "commit" else call):
            raise Boom
        return original(self, *args)

    monkeypatch.setattr(Journal, method, failing)
    with pytest.raises(Boom):
        rewrite(gm, FLIP)
    assert state(gm) == before


def test_rollback_when_a_body_raises() -> None:
    gm = traced(sites)
    before = state(gm)
    seen = []

    def body(x):
        seen.append(x)
        return torch.mul(x, -1) if len(seen) < 2 else x.no_such_attribute

    rule = Rule("faulty", ("x",), (Op(aten.neg, (X,)),), body)
    other = Rule("exp", ("x",), (Op(aten.exp, (X,)),), lambda x: torch.pow(torch.e, x))
    with pytest.raises(
        RewriteError, match="the body of rule `faulty` raised AttributeError"
    ) as info:
        rewrite(traced(lambda a, b: a.neg() + b.sum(0).neg()), rule)
    assert isinstance(info.value.__cause__, AttributeError)
    seen.clear()
    with pytest.raises(RewriteError):
        rewrite(gm, [other, Rule("bad", ("x",), (NEG,), lambda x: 1 / 0)])
    assert state(gm) == before


def test_rollback_when_rules_do_not_settle() -> None:
    gm = traced(lambda a, b: (a + b).relu())
    before = state(gm)
    swap = Rule("swap", ("x", "y"), (Op(aten.add, (X, Y)),), lambda x, y: y + x)
    with pytest.raises(BudgetError, match=r"they repeat: swap -> swap") as info:
        rewrite(gm, swap, budget=20)
    assert "`swap` 20 times" in str(info.value)
    assert state(gm) == before


def test_the_cycle_of_several_rules() -> None:
    gm = traced(lambda a, b: a.neg().exp())
    there = Rule("there", ("x",), (NEG,), lambda x: torch.mul(x, -1))
    back = Rule("back", ("x",), (Op(aten.mul, (X, Var("c"))),), torch.neg)
    with pytest.raises(
        BudgetError, match=r"they repeat: (there -> back -> there|back -> there -> back)"
    ):
        rewrite(gm, [there, back], budget=31)


def test_new_users_keep_the_root() -> None:
    # Calculus C11: a replacement that uses the value it replaces does not get its own output.
    gm = traced(lambda a, b: a.neg().relu().exp())
    inner = Constrained(Var("r"), Op(aten.relu, (Var("n"),)), "r")
    rule = Rule("more", ("r", "n"), (Constrained(inner, NEG, "n"),), lambda r, n: r + n)
    report = rewrite(gm, rule)
    gm.graph.lint()
    assert len(report) == 1
    assert [refusal.kind for refusal in report.refusals] == ["escape"]  # n has another user now
    torch.testing.assert_close(gm(A, B), (A.neg().relu() + A.neg()).exp())


def test_interior_nodes_that_stay() -> None:
    gm = traced(lambda a, b: (a.t().neg(), a.t().exp()))
    t = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.t.default)
    t[1].replace_all_uses_with(t[0])
    gm.graph.erase_node(t[1])
    rule = Rule("r", ("x",), (Op(aten.neg, (Op(aten.t, (X,)),)),), lambda x: torch.neg(x).t())
    assert len(rewrite(gm, rule)) == 1
    gm.graph.lint()
    assert "t" in {node.name for node in gm.graph.nodes}
    torch.testing.assert_close(gm(A, B), (A.t().neg(), A.t().exp()))


# --- several outputs ----------------------------------------------------------------------------

PAIR = Rule(
    "pair",
    ("x", "y", "z"),
    (Op(aten.add, (X, Y)), Op(aten.maximum, (X, Var("z")))),
    lambda x, y, z: (x - (-y), torch.where(x > z, x, z)),
)


def test_two_outputs_and_an_input_that_comes_late() -> None:
    def function(a, b):
        first = a + b
        late = b.exp()
        return first.relu(), torch.maximum(a, late)

    gm = traced(function)
    assert len(rewrite(gm, PAIR)) == 1
    gm.graph.lint()
    torch.testing.assert_close(gm(A, B), function(A, B))


def test_one_output_is_computed_from_the_other() -> None:
    def function(a, b):
        first = a + b
        return torch.maximum(a, first.exp())

    gm = traced(function)
    assert len(rewrite(gm, PAIR)) == 1
    gm.graph.lint()
    torch.testing.assert_close(gm(A, B), function(A, B))


def test_a_cycle_is_refused() -> None:
    def function(a, b):
        first = a + b
        return first.relu(), torch.maximum(a, first.exp())

    def together(x, y, z):
        both = torch.stack([x - (-y), torch.where(x > z, x, z)])
        return both[0], both[1]

    gm = traced(function)
    before = state(gm)
    report = rewrite(gm, Rule("together", PAIR.parameters, PAIR.roots, together))
    assert [r.kind for r in report.refusals] == ["cycle"]
    assert state(gm)[0] == before[0]


def test_values_taken_one_by_one() -> None:
    gm = traced(lambda a, b: torch.ops.aten.var_mean.correction(a, [1], correction=0))
    rule = Rule(
        "split",
        ("x",),
        (Op(aten.var_mean, (X,)),),
        lambda x: (x.var(1, correction=0), x.mean(1)),
    )
    assert len(rewrite(gm, rule)) == 1
    gm.graph.lint()
    torch.testing.assert_close(gm(A, B), torch.var_mean(A, 1, correction=0))


# --- strides and aliasing -----------------------------------------------------------------------


def transposed(x):
    """Equal to neg, in column order."""
    return torch.neg(x.t().clone(memory_format=torch.contiguous_format)).t()


OTHER_STRIDES = Rule(
    "other_strides", ("x",), (Op(aten.relu, (NEG,)),), lambda x: transposed(x).relu()
)


@pytest.mark.parametrize(
    ("function", "copied"),
    [
        (lambda a, b: a.neg().relu(), True),  # seen at the output
        (lambda a, b: a.neg().relu().view(12), True),  # a view that would fail
        (lambda a, b: a.neg().relu().as_strided((4, 3), (1, 4)), True),
        (lambda a, b: a.neg().relu().sum(0), False),
        (lambda a, b: (a.neg().relu() + 1).sum(0), False),
        (lambda a, b: (a.neg().relu() + 1).exp(), True),
        (lambda a, b: a.neg().relu() @ b.t(), False),
    ],
)
def test_strides_where_they_are_observed(function, copied: bool) -> None:
    gm = traced(function)
    expected = gm(A, B)
    assert len(rewrite(gm, OTHER_STRIDES)) == 1
    gm.graph.lint()
    result = gm(A, B)
    torch.testing.assert_close(result, expected)
    assert result.stride() == expected.stride()
    copies = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)
    assert len(copies) == 1 + copied


@pytest.mark.parametrize("draw", [torch.rand_like, torch.randn_like])
def test_each_element_draws_what_it_drew(draw) -> None:
    """Numbers are drawn in the order of memory."""
    gm = traced(lambda a, b: draw(a.neg().relu()).sum(0))
    torch.manual_seed(0)
    expected = gm(A, B)
    assert len(rewrite(gm, OTHER_STRIDES)) == 1
    torch.manual_seed(0)
    torch.testing.assert_close(gm(A, B), expected)


def test_metadata_downstream_follows_strides() -> None:
    gm = traced(lambda a, b: (a.neg().relu() + 1).sum(0))
    rewrite(gm, OTHER_STRIDES)
    (add,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor)
    assert add.meta["val"].stride() == (1, 3) == add.meta["tensor_meta"].stride


def test_what_leaves_the_graph_sees_no_strides() -> None:
    """The view of twelve elements, which other strides do not allow, goes with the match."""

    rule = Rule(
        "both",
        ("x",),
        (NEG, Op(aten.relu, (Op(aten.view, (NEG,)),))),
        lambda x: (transposed(x), torch.clamp(-x, min=0).reshape(12)),
    )

    def function(a, b):
        negative = a.neg()
        return negative.sum(0), negative.view(12).relu()

    gm = traced(function)
    assert len(rewrite(gm, rule)) == 1
    copies = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)
    assert len(copies) == 1  # that of the replacement
    torch.testing.assert_close(gm(A, B), function(A, B))


def test_strides_change_along_many_ways() -> None:
    """There are 2^40 of them, but each node is computed once."""

    def function(a, b):
        a = a.neg().relu()
        for _ in range(40):
            a = a.sin() + a.cos()
        return a.sum()

    gm = traced(function)
    assert len(rewrite(gm, OTHER_STRIDES)) == 1
    torch.testing.assert_close(gm(A, B), function(A, B))


def test_strides_in_another_order() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    gm = traced(lambda x: x.neg().relu(), x)
    rule = Rule(
        "contiguous",
        ("x",),
        (Op(aten.relu, (NEG,)),),
        lambda x: torch.clamp(-x, min=0).contiguous(),
    )
    assert len(rewrite(gm, rule)) == 1
    assert gm(x).stride() == x.stride()
    torch.testing.assert_close(gm(x), x.neg().relu())


@pytest.mark.parametrize("inferring", [False, True])
@pytest.mark.parametrize("in_body", [False, True])
def test_strides_behind_dropout_that_drops_nothing(in_body: bool, inferring: bool) -> None:
    """In inference mode, torch's fake dropout copies; the real one returns its argument."""

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.neg().relu()
        return y if in_body else torch.nn.functional.dropout(y, 0.5, False)

    def padded(x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.pad((-x).clamp(min=0), (0, 2))[..., :-2]
        return torch.nn.functional.dropout(y, 0.5, False) if in_body else y

    with torch.inference_mode(inferring):
        gm = fx.symbolic_trace(function)
        with FakeTensorMode() as mode:
            FakeTensorProp(gm, mode).propagate(torch.empty(A.shape))
        assert len(rewrite(gm, Rule("padded", ("x",), (Op(aten.relu, (NEG,)),), padded))) == 1
        assert torch.is_inference_mode_enabled() == inferring
        assert gm(A).stride() == function(A).stride()
        torch.testing.assert_close(gm(A), function(A))


DROP = Rule("drop", ("x",), (Op(aten.neg, (NEG,)),), Var("x"))


@pytest.mark.parametrize(
    ("function", "copies"),
    [
        (lambda a, b: a.neg().neg(), 1),  # the input would be returned
        (lambda a, b: a.exp().neg().neg(), 0),
        (lambda a, b: a.neg().neg() + b, 0),
        (lambda a, b: (e := a.exp(), e.neg().neg()), 1),  # one tensor would be returned twice
        (lambda a, b: a.neg().neg().t(), 1),
    ],
)
def test_aliasing_that_would_show(function, copies: int) -> None:
    gm = traced(function)
    expected = gm(A, B)
    assert len(rewrite(gm, DROP)) == 1
    gm.graph.lint()
    torch.testing.assert_close(gm(A, B), expected)
    clones = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.clone.default)
    assert len(clones) == copies


class LaterWrite(torch.nn.Module):
    def forward(self, a, b):
        n = a.neg().neg()
        a.add_(b)
        return n + b


def test_aliasing_of_memory_written_later() -> None:
    gm = fx.symbolic_trace(LaterWrite())
    assert len(rewrite(gm, DROP)) == 1
    torch.testing.assert_close(gm(A.clone(), B), A + B)


def test_templates_build_calls() -> None:
    gm = traced(lambda a, b: a.neg().exp() @ b.t())
    rule = Rule(
        "template",
        ("x",),
        (Op(aten.exp, (NEG,)),),
        Build(aten.reciprocal, (Build(aten.exp, (X,)),)),
    )
    assert len(rewrite(gm, rule)) == 1
    torch.testing.assert_close(gm(A, B), A.neg().exp() @ B.t())


def test_constants_of_a_body_become_buffers() -> None:
    scale = torch.arange(4.0)
    gm = traced(lambda a, b: a.neg().relu())
    rule = Rule("r", ("x",), (Op(aten.relu, (NEG,)),), lambda x: torch.clamp(-x, min=0) + 0 * scale)
    assert len(rewrite(gm, rule)) == 1
    torch.testing.assert_close(gm(A, B), A.neg().relu())


def test_the_module_is_only_recompiled_when_all_is_done() -> None:
    assert driver_module.rewrite.__doc__ is not None
    gm = traced(lambda a, b: a.neg().relu())
    code = gm.code
    rewrite(gm, [])
    assert gm.code == code


@pytest.mark.parametrize("change", [rewrite, partition])
def test_what_nobody_reads_stays_where_no_rule_fires(change) -> None:
    gm = traced(lambda a, b: (a.exp(), a.neg().relu())[1])
    before = state(gm)
    assert len(change(gm, Rule("absent", ("x",), (Op(aten.cos, (X,)),), torch.sin))) == 0
    assert gm.graph.find_nodes(op="call_function", target=torch.ops.aten.exp.default)
    assert state(gm) == before


@settings(max_examples=200)
@given(st.data())
def test_an_output_node_reads_what_single_changes_would_make_it_read(data: st.DataObject) -> None:
    graph = fx.Graph()
    nodes = [graph.placeholder(f"x{index}") for index in range(5)]
    output = graph.output(tuple(data.draw(st.lists(st.sampled_from(nodes), max_size=6))))
    journal = Journal(graph, View(graph))
    reads = list(output.args[0])
    for _ in range(data.draw(st.integers(0, 8))):
        if nodes_read := [node for node in nodes if output in node.users]:
            old = data.draw(st.sampled_from(nodes_read))
            new = data.draw(st.sampled_from([1.5, *(node for node in nodes if node is not old)]))
            journal._redirect(output, old, new)
            reads = [new if node is old else node for node in reads]
        assert [output in node.users for node in nodes] == [node in reads for node in nodes]
    journal.commit()
    assert output.args == (tuple(reads),)
    assert [output in node.users for node in nodes] == [node in reads for node in nodes]


def test_templates_build_calls_of_operators_alone() -> None:
    build = Build(Operator("load_library.__call__"), (X,))
    gm = traced(lambda a, b: a.neg())
    with pytest.raises(RewriteError, match="is no operator of torch"):
        rewrite(gm, Rule("loads", ("x",), (NEG,), build))


# --- what is computed in between -----------------------------------------------------------------


@pytest.mark.parametrize("between", [lambda y: y, torch.exp], ids=["read", "computed from"])
def test_random_numbers_are_not_drawn_in_another_order(between) -> None:
    """Both products at once stand where the first stood, and so would what the second reads."""

    def function(x, v):
        return x @ v, torch.rand(3, 4), x @ between(torch.rand(4, 4))

    x, v, w = Var("x"), Var("v"), Var("w")
    rule = Rule(
        "both",
        ("x", "v", "w"),
        (Op(aten.mm, (x, v)), Op(aten.mm, (x, w))),
        lambda x, v, w: torch.split(x @ torch.cat([v, w], 1), [v.shape[1], w.shape[1]], 1),
    )
    gm = make_fx(function)(torch.ones(3, 4), torch.ones(4, 4))
    (refusal,) = rewrite(gm, rule).refusals
    assert refusal.kind == "random"
    assert refusal.reason == "`rand_1` would have to be computed before `mm`"


# --- memory that two outputs share ---------------------------------------------------------------


def written(x):
    one, two = x.neg(), x.neg()
    one.add_(1)
    return one.sum(), two.sum()


def leaving(x):
    return x.neg(), x.neg()


def inside(x):
    one, two = x.neg(), x.neg()
    return one.exp(), two


@pytest.mark.parametrize(("function", "copies"), [(written, 1), (leaving, 1), (inside, 0)])
def test_two_outputs_do_not_come_to_share_memory(function, copies: int) -> None:
    rule = Rule("once", ("x",), (NEG, NEG), lambda x: [x * -1] * 2)
    gm = make_fx(function)(A)
    assert len(rewrite(gm, rule)) == 1
    assert [n.target for n in gm.graph.nodes].count(torch.ops.aten.clone.default) == copies
    for one, two in zip(gm(A), function(A), strict=True):
        torch.testing.assert_close(one, two)


def test_what_was_a_copy_does_not_become_a_view() -> None:
    """The transpose cannot be viewed in that shape: `reshape` copies it."""

    def function(x):
        y = torch.ops.aten.reshape(torch.ops.aten.reshape(x.t(), [12]), [4, 3])
        y.add_(1)
        return x.sum(), y

    twice = Op(aten.reshape, (Op(aten.reshape, (X,)),))
    gm = make_fx(function, pre_dispatch=True)(A.clone())
    assert len(rewrite(gm, Rule("r", ("x",), (twice,), X))) == 1
    for one, two in zip(gm(A.clone()), function(A.clone()), strict=True):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("numbers", [(2.0, 2), (0.0, -0.0)])
def test_what_a_body_reads_of_one_match_is_not_what_it_reads_of_another(
    numbers: tuple[float, float],
) -> None:
    def factor(match: Match) -> Reading:
        (user,) = (n for n in match.bindings["x"].users if n.target is torch.ops.aten.mul.Tensor)
        return Reading(value=(user.args[1],))

    @pattern
    def Negated(x):
        return aten.neg(x)

    @rule(Negated, reads=factor)
    def scaled(x, match):
        return aten.mul(x, match.reading.value[0])

    gm = make_fx(lambda a, b: (a.neg(), b.neg(), a * numbers[0], b * numbers[1]))(A, A.t())
    assert len(rewrite(gm, scaled)) == 2
    ours = [node.args[1] for node in gm.graph.output_node().args[0]]
    assert [(type(n), str(n)) for n in ours] == [(type(n), str(n)) for n in numbers * 2]


@pytest.mark.parametrize("what", ["requires_grad", "is_conj", "is_neg"])
def test_what_a_body_sees_of_one_match_is_not_what_it_sees_of_another(what: str) -> None:
    def seen(x):
        found = getattr(x, what)
        return found() if callable(found) else found

    @pattern
    def Twice(x):
        return aten.neg(aten.neg(x))

    @rule(Twice)
    def plain(x):
        return decline("it is special") if seen(x) else aten.mul(x, 1)

    numbers = torch.tensor([1j, 2 + 1j])
    special = {
        "requires_grad": numbers.clone().requires_grad_(),
        "is_conj": numbers.conj(),
        "is_neg": torch._neg_view(numbers),
    }[what]
    for pair in ((numbers, special), (special, numbers)):
        graph, mode = fx.Graph(), FakeTensorMode(allow_non_fake_inputs=True)
        results = []
        for number, value in enumerate(pair):
            node = graph.placeholder(f"x{number}")
            for _ in range(3):
                node.meta["val"] = mode.from_tensor(value)
                node = graph.call_function(torch.ops.aten.neg.default, (node,))
            results.append(node.args[0])
            graph.erase_node(node)
        graph.output(tuple(results))
        report = rewrite(fx.GraphModule(torch.nn.Module(), graph), plain)
        assert [refusal.reason for refusal in report.refusals] == ["it is special"]
        assert len(report) == 1
