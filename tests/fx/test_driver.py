"""Finding and rewriting: order, priority, fixpoint, budget, reports, and the rule's body."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

from pypm import RuleSet, decline, let, pattern, rule
from pypm.core.guards import Attribute, Constant, Equal, Reference, Tuple
from pypm.core.patterns import Alt, Exists, Fun, Guarded, Let, Op, Var
from pypm.core.rules import Build, Decline, Rule
from pypm.diagnostics import RewriteError
from pypm.fx import (
    EXPORT,
    INDUCTOR,
    TORCH,
    Dialect,
    Reading,
    Report,
    aten,
    describe,
    expect,
    find,
    rewrite,
)
from pypm.fx.operators.dialects import dialect_of

X, Y, C = Var("x"), Var("y"), Var("c")
NEG = Op(aten.neg, (X,))
RELU = Op(aten.relu, (X,))
RELU_NEG = Op(aten.relu, (NEG,))
A, B = torch.randn(3, 4), torch.randn(3, 4)


def traced(function, *arguments) -> fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(*(arguments or (A, B)))


def symbolic(function, *shape: int) -> tuple[fx.GraphModule, ShapeEnv]:
    """A graph with every size symbolic."""
    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment)
    dynamic = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * len(shape))
    x = mode.from_tensor(torch.randn(shape), source=ConstantSource("x"), symbolic_context=dynamic)
    with mode:
        return make_fx(function, tracing_mode="real", pre_dispatch=True)(x), environment


def targets(gm: fx.GraphModule) -> list[str]:
    calls = [node for node in gm.graph.nodes if node.op.startswith("call_")]
    return [getattr(node.target, "__name__", str(node.target)).split(".")[0] for node in calls]


# --- find ---------------------------------------------------------------------------------------


def test_find_goes_from_the_outputs_up() -> None:
    gm = traced(lambda a, b: a.neg().relu().neg().relu())
    found = find(gm, RELU_NEG)
    assert [str(match.root) for match in found] == ["relu_1", "relu"]
    assert [str(match.bindings["x"]) for match in found] == ["relu", "a_1"]


def test_find_all_lists_distinct_answers() -> None:
    gm = traced(lambda a, b: a + b)
    pattern = Alt(Op(aten.add, (X, Y)), Alt(Op(aten.add, (Y, X)), Op(aten.add, (X, Y))))
    assert [str(m.bindings["x"]) for m in find(gm, pattern)] == ["a_1"]
    assert [str(m.bindings["x"]) for m in find(gm, pattern, all=True)] == ["a_1", "b_1"]


def test_the_first_legal_answer_is_the_match() -> None:
    def function(a, b):
        shared = a.neg()
        return shared + b.neg(), shared

    gm = traced(function)
    either = Alt(Op(aten.add, (NEG, Y)), Op(aten.add, (Y, NEG)))
    (match,) = find(gm, either)
    assert str(match.bindings["x"]) == "b_1"
    report = rewrite(gm, Rule("r", ("x", "y"), (either,), lambda x, y: y - x))
    assert [record.bindings["x"] for record in report.rewrites] == ["b_1"]
    torch.testing.assert_close(gm(A, B), function(A, B))


def test_guards_decide_and_unknown_does_not_pass() -> None:
    rank = Guarded(RELU, Equal(Attribute("x", "rank"), Constant(2)))
    size = Guarded(RELU, Equal(Attribute("x", "nonsense"), Constant(2)))
    gm = traced(lambda a, b: a.relu())
    assert (len(find(gm, rank)), len(find(gm, size))) == (1, 0)
    rule = Rule("r", ("x",), (RELU,), lambda x: x, Equal(Attribute("x", "rank"), Constant(3)))
    assert find(gm, rule) == []


# --- rewrite ------------------------------------------------------------------------------------

COLLAPSE = Rule("collapse", ("x",), (Op(aten.relu, (RELU,)),), Build(aten.relu, (X,)))
DOUBLE = Rule("double", ("x",), (Op(aten.neg, (NEG,)),), X)


def test_chains_collapse_to_a_fixpoint() -> None:
    def function(x):
        for _ in range(8):
            x = x.relu()
        return x

    gm = traced(function, A)
    assert len(rewrite(gm, COLLAPSE)) == 7
    assert targets(gm) == ["relu"]


def test_rules_have_priority_in_order() -> None:
    one = Rule("one", ("x",), (RELU_NEG,), lambda x: torch.clamp(-x, min=0))
    two = Rule("two", ("x",), (RELU,), lambda x: torch.maximum(x, torch.zeros_like(x)))
    first, second = traced(lambda a, b: a.neg().relu()), traced(lambda a, b: a.neg().relu())
    assert [r.rule for r in rewrite(first, [one, two]).rewrites] == ["one"]
    with pytest.warns(RuntimeWarning, match="`one` never fires"):
        report = rewrite(second, [two, one])
    assert [r.rule for r in report.rewrites] == ["two"]


def test_work_is_linear_in_the_graph_and_the_rewrites() -> None:
    """Each rewrite looks again at what is near it, and not at all that follows."""
    collapse = Rule("collapse", ("x",), (Op(aten.neg, (NEG,)),), X)
    fuse = Rule("fuse", ("x",), (RELU_NEG,), lambda x: torch.clamp(-x, min=0))
    for length in (200, 400):
        gm = traced(partial(_chain, length), A)
        report = rewrite(gm, [collapse, fuse])
        assert len(report) == length
        assert sum(rule.attempts for rule in report.rules) <= 4 * length
        assert len(rewrite(gm, [collapse, fuse])) == 0


def _chain(length: int, x):
    for _ in range(length // 2):
        x = x.neg().neg().neg().relu().exp()
    return x


def test_a_body_that_edits_the_graph_is_found_out() -> None:
    gm = traced(lambda a, b: a.neg().relu())

    def body(x, match):
        with match.root.graph.inserting_before(match.root):
            match.root.graph.call_function(torch.ops.aten.exp.default, (match.region.inputs[0],))
        return torch.clamp(-x, min=0)

    with pytest.raises(RewriteError, match="the body of rule `r` changed the graph itself"):
        rewrite(gm, Rule("r", ("x",), (RELU_NEG,), body))


def test_a_declined_answer_makes_way() -> None:
    gm = traced(lambda a, b: a.neg().relu())
    rules = RuleSet(
        (
            Rule("no", ("x",), (RELU_NEG,), lambda x: Decline("too small to pay")),
            Rule("yes", ("x",), (RELU_NEG,), lambda x: torch.clamp(-x, min=0)),
        )
    )
    report = rewrite(gm, rules)
    assert [(r.rule, r.kind, r.reason) for r in report.refusals] == [
        ("no", "declined", "too small to pay")
    ]
    assert report.count("yes") == 1


def test_several_answers_at_a_root_are_one_match() -> None:
    gm = traced(lambda a, b: a + b)
    either = Alt(Op(aten.add, (X, Y)), Op(aten.add, (Y, X)))
    rule = Rule("no", ("x", "y"), (either,), lambda x, y: Decline("no"))
    (tally,) = rewrite(gm, rule).rules
    assert (tally.attempts, tally.matches, tally.rewrites) == (1, 1, 0)


@pytest.mark.parametrize("name", ["a_1", "relu"])
def test_metadata_that_is_there_in_part_is_a_refusal(name: str) -> None:
    """A pass that left it out may have changed a type: no rewrite could be compared with it."""
    gm = traced(lambda a, b: a.neg().relu())
    (node,) = [node for node in gm.graph.nodes if node.name == name]
    node.meta.clear()
    report = rewrite(gm, Rule("r", ("x",), (RELU_NEG,), lambda x: torch.clamp(-x, min=0)))
    (refusal,) = report.refusals
    assert refusal.kind == "metadata"
    assert f"`{name}` has no metadata" in refusal.reason


@pytest.mark.parametrize("numbers", [(2, 2.0), (True, 1.0), (0.0, -0.0)], ids=str)
def test_numbers_that_are_equal_are_not_one_trace(numbers: tuple[float, float]) -> None:
    """They may be of two types, or of two signs: the body computes with each."""
    seen = []

    def body(x, c):
        seen.append(repr(c))
        return torch.mul(x, c)

    one, other = numbers
    gm = traced(lambda a, b: (torch.add(a, one), torch.add(a, other)))
    rewrite(gm, Rule("r", ("x", "c"), (Op(aten.add, (X, C)),), body))
    assert sorted(seen) == sorted(map(repr, numbers))


def test_a_rule_is_not_tried_unless_it_may_apply() -> None:
    asked = []

    def unless(value: torch.Tensor, dialect: Dialect) -> str | None:
        asked.append((value.shape, dialect))
        return "too small" if value.shape[0] == 3 else None

    replaced = Rule("r", ("x",), (RELU_NEG,), lambda x: torch.clamp(-x, min=0), unless=unless)
    gm = traced(lambda a, b: (a.neg().relu(), a.neg().relu(), b[:2].neg().relu()))
    report = rewrite(gm, replaced)
    assert set(asked) == {((3, 4), EXPORT), ((2, 4), EXPORT)}
    assert [(r.rule, r.kind, r.reason) for r in report.refusals] == [("r", "declined", "too small")]
    assert [(r.attempts, r.matches, r.rewrites) for r in report.rules] == [(1, 1, 1)]


def test_a_body_that_declined_is_traced_only_where_it_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is called without a tracer first: of many matches most are declined alike."""
    tracing = []

    def body(x: torch.Tensor) -> torch.Tensor | Decline:
        tracing.append((x.shape[0], get_proxy_mode() is not None))
        return decline("too small") if x.shape[0] < 4 else torch.clamp(-x, min=0)

    gm = traced(lambda a: [a[:n].neg().relu() for n in (4, 1, 2, 3)], torch.randn(4))
    report = rewrite(gm, Rule("r", ("x",), (RELU_NEG,), body))
    assert sorted(tracing) == [(1, False), (2, False), (3, True), (4, False), (4, True)]
    assert {r.reason for r in report.refusals} == {"too small"}
    assert len(report) == 1


def test_a_rehearsal_that_fails_is_left_to_the_trace() -> None:
    def body(x: torch.Tensor) -> torch.Tensor | Decline:
        if get_proxy_mode() is None:
            raise AssertionError("not traced")
        return decline("too small") if x.shape[0] < 4 else torch.clamp(-x, min=0)

    gm = traced(lambda a: [a[:n].neg().relu() for n in (4, 1, 2)], torch.randn(4))
    assert len(rewrite(gm, Rule("r", ("x",), (RELU_NEG,), body))) == 1


def test_without_metadata_a_rule_is_tried() -> None:
    gm = fx.symbolic_trace(lambda x: torch.relu(torch.neg(x)))

    def unless(value: object, dialect: Dialect) -> str:
        raise AssertionError("there is no value to ask about")

    negated = Rule("r", ("x",), (RELU_NEG,), lambda x: torch.clamp(-x, min=0), unless=unless)
    assert rewrite(gm, negated).count("r") == 1


def test_a_rewrite_makes_another_possible_below_and_above() -> None:
    # exp(-(-x)): dropping the double negation makes log(exp(x)) visible above it.
    log_exp = Rule("log_exp", ("x",), (Op(aten.log, (Op(aten.exp, (X,)),)),), X)
    gm = traced(lambda a, b: a.exp().neg().neg().log() + b)
    assert [r.rule for r in rewrite(gm, [log_exp, DOUBLE]).rewrites] == ["double", "log_exp"]
    assert targets(gm) == ["add"]


def test_lost_users_make_matches_legal() -> None:
    # relu(neg) is not legal while the difference, visited after it, reads neg.
    def function(a, b):
        n = a.neg()
        return (n - n) * b, n.relu() + b

    gm = traced(function)
    rule = Rule("r", ("x",), (RELU_NEG,), lambda x: torch.clamp(x, max=0).abs())
    zero = Rule("zero", ("x",), (Op(aten.sub, (X, X)),), lambda x: torch.zeros(x.shape))
    report = rewrite(gm, [rule, zero])
    assert [r.rule for r in report.rewrites] == ["zero", "r"]
    assert "neg" not in targets(gm)
    torch.testing.assert_close(gm(A, B), function(A, B))


def test_what_a_rewrite_frees_is_looked_at_again() -> None:
    """`neg` loses its other user when `fmin` goes, two operators away from what is replaced."""

    def function(a, b):
        n = a.neg()
        first = torch.fmax(b, torch.fmin(b, n.exp().sin()))
        return first, n.relu()

    absorbed = Rule("absorbed", ("x",), (Op(aten.fmax, (X, Op(aten.fmin, (X, Y)))),), Var("x"))
    fused = Rule("fused", ("x",), (RELU_NEG,), lambda x: (-x).clamp(min=0))
    gm = traced(function)
    report = rewrite(gm, [fused, absorbed])
    assert [record.rule for record in report.rewrites] == ["absorbed", "fused"]


OPERATIONS = {
    "neg": torch.neg,
    "relu": torch.relu,
    "exp": torch.sigmoid,
    "t": lambda x: x.t().contiguous().t(),
}


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 3)), max_size=10))
def test_the_fixpoint_is_exact_and_outputs_are_kept(program: list[tuple[str, int]]) -> None:
    def function(a, b):
        values = [a, b]
        for name, back in program:
            values.append(OPERATIONS[name](values[-1 - back % len(values)]))
        return values[-1] + values[-2], values[len(values) // 2] * 2

    gm = traced(function)
    expected = function(A, B)
    rules = [
        COLLAPSE,
        DOUBLE,
        Rule("r", ("x",), (RELU_NEG,), lambda x: torch.clamp(x, max=0).abs()),
    ]
    rewrite(gm, rules)
    gm.graph.lint()
    torch.testing.assert_close(gm(A, B), expected)
    assert len(rewrite(gm, rules)) == 0


def test_equal_layers_are_traced_once() -> None:
    calls = []

    def body(x):
        calls.append(x)
        return torch.clamp(-x, min=0)

    def function(x):
        for _ in range(6):
            x = x.neg().relu().sin()
        return x

    gm = traced(function, A)
    assert (len(rewrite(gm, Rule("r", ("x",), (RELU_NEG,), body))), len(calls)) == (6, 1)
    storages = {
        id(node.meta["val"].untyped_storage()) for node in gm.graph.nodes if "val" in node.meta
    }
    assert len(storages) == len(gm.graph.nodes) - 1  # no two share memory that the graph does not


# --- what a body gets ---------------------------------------------------------------------------


def test_values_in_a_body() -> None:
    seen: dict[str, object] = {}
    f = Fun("f", (Op(aten.mul, (X, C)),))
    steps = Tuple(
        (Tuple((Constant("mul"), Reference("c"))), Tuple((Constant("of"), Reference("x"))))
    )
    pattern = Let(f, "steps", steps)

    def body(x, c, f, steps, match):
        seen.update(x=x, c=c, f=f, steps=steps, match=match)
        return torch.sin(x + c)

    gm = traced(lambda a, b: (a * 2.5).relu())
    rewrite(gm, Rule("r", ("x", "c", "f", "steps"), (pattern,), body))
    assert (seen["c"], seen["f"].name) == (2.5, "aten.relu")
    assert seen["steps"] == (("mul", 2.5), ("of", seen["x"]))
    assert isinstance(seen["x"], torch.Tensor)
    assert seen["x"].shape == (3, 4)
    assert seen["match"].rule == "r"
    assert seen["match"].inputs == (seen["x"],)


def test_lists_in_a_body() -> None:
    gm = traced(lambda a, b: torch.cat([a, b, a.neg()], 1))
    rule = Rule("r", ("xs",), (Op(aten.cat, (Var("xs"),)),), lambda xs: torch.hstack(xs).sin())
    (match,) = find(gm, rule)
    assert [str(node) for node in match.bindings["xs"]] == ["a_1", "b_1", "neg"]


def test_the_region_in_a_body() -> None:
    chain = Op(aten.mul, (Op(aten.mm, (X, Y)), Exists("s", Var("s"))))

    def body(x, y, match):
        return match.region.module(*match.inputs) * 1.0

    def function(a, w):
        m = a @ w
        return m * torch.sigmoid(m)

    gm = traced(function, torch.randn(3, 4), torch.randn(4, 4))
    rule = Rule("r", ("x", "y"), (chain,), body, absorb="pointwise")
    with pytest.raises(Exception, match="do not settle"):
        rewrite(gm, rule, budget=3)
    assert targets(gm) == ["mm", "sigmoid", "mul"]


# --- dialects -----------------------------------------------------------------------------------


def attend(q, k, v):
    expect(frozenset({"aten._scaled_dot_product_flash_attention_for_cpu"}), "sdpa")
    return F.scaled_dot_product_attention(q, k, v)


MM3 = Op(aten.bmm, (Op(aten.bmm, (X, Y)), C))


@pytest.mark.parametrize(("size", "kind"), [(8, None), (4, "kernel")])
def test_a_kernel_that_decomposes_is_refused(size: int, kind: str | None) -> None:
    """It does if keys and values are of different sizes."""
    x = torch.randn(1, 2, 4, 8)
    gm = make_fx(lambda x: x[..., :size].sin(), tracing_mode="fake")(x)

    def body(x):
        keys = x.repeat_interleave(8 // size, -1)
        return attend(keys, keys, x)

    rule = Rule("r", ("x",), (Op(aten.sin, (X,)),), body)
    report = rewrite(gm, rule, dialect=INDUCTOR)
    assert [r.kind for r in report.refusals] == ([kind] if kind else [])
    assert len(report) == (kind is None)
    if kind:
        assert report.refusals[0].reason == "`sdpa` decomposes for these inputs"


def test_export_graphs_keep_composite_operators() -> None:
    gm = make_fx(lambda a, w: torch.relu(a @ w.t()), tracing_mode="fake", pre_dispatch=True)(A, B)
    assert dialect_of(gm.graph) is EXPORT
    rule = Rule("r", ("x",), (RELU,), lambda x: F.gelu(F.linear(x, x)))
    assert len(rewrite(gm, rule)) == 1
    assert {"linear", "gelu"} <= set(targets(gm))


def test_torch_graphs_get_torch_functions_and_no_check() -> None:
    class Model(torch.nn.Module):
        def forward(self, a, b):
            return torch.relu(a.neg()) + b

    gm = fx.symbolic_trace(Model())
    assert dialect_of(gm.graph) is TORCH
    rule = Rule("r", ("x",), (RELU_NEG,), lambda x: F.threshold(x.neg(), 0.0, 0.0))
    report = rewrite(gm, rule)
    assert report.unchecked == len(report) == 1
    assert "neg" in targets(gm)
    assert "_threshold" in targets(gm) or "threshold" in targets(gm)
    torch.testing.assert_close(gm(A, B), torch.relu(-A) + B)


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (lambda x: x.clamp(min=0).reshape(x.shape), 1),
        (lambda x: x.clamp(min=0) * x.shape[0] / x.shape[0], 1),
        (lambda x: x if x.shape[0] > 7 else x.clamp(min=0), 0),
        (lambda x: x.clamp(min=0) * int(x.shape[1]), 0),
        (lambda x: x.clamp(min=0) + torch.ones(5, 7), 0),
    ],
)
def test_symbolic_sizes_are_never_guarded(body, count: int) -> None:
    gm, environment = symbolic(lambda x: x.relu().exp(), 5, 7)
    before = len(environment.guards), dict(environment.replacements)
    report = rewrite(gm, Rule("r", ("x",), (RELU,), body))
    gm.graph.lint()
    assert (len(environment.guards), dict(environment.replacements)) == before
    assert len(report) == count
    if count:
        x = torch.randn(3, 2)
        torch.testing.assert_close(gm(x), x.relu().exp())
    else:
        assert report.refusals[0].kind == "symbolic"
        assert "depends on a symbolic size: `" in report.refusals[0].reason


def test_a_size_that_the_body_does_not_get_is_a_refusal() -> None:
    def body(x, match):
        (after,) = match.root.users
        return x.clamp(min=0) * after.meta["val"].shape[0]

    gm, _ = symbolic(lambda x: x.view(x.shape[0] * x.shape[1]).relu().view(x.shape), 5, 7)
    report = rewrite(gm, Rule("r", ("x",), (RELU,), body))
    assert [refusal.kind for refusal in report.refusals] == ["symbolic"]
    assert "which is not computed from the region's inputs" in report.refusals[0].reason


def test_a_size_that_decides_what_a_rule_reads_is_a_refusal() -> None:
    def reads(match):
        rows, _ = describe(match.root.args[0]).attributes["size"]
        return Reading("many rows" if rows > 4 else "few rows")

    gm, _ = symbolic(lambda x: x.view(x.shape[1], x.shape[0]).relu(), 5, 7)
    rule = Rule("r", ("x",), (RELU,), lambda x: x.clamp(min=0), reads=reads)
    assert [refusal.kind for refusal in rewrite(gm, rule).refusals] == ["symbolic"]


def test_a_body_computes_with_sizes_that_the_pattern_saw() -> None:
    """Sizes by `let` are those of the operands, also where only an expression in them is known."""

    @pattern
    def Doubled(x, n, twice):
        let(n=x.shape[0], twice=x.shape[0] * 2 + x.shape[1])
        return aten.relu(x)

    @rule(Doubled)
    def doubled(x, n, twice):
        return x.clamp(min=0) * n + (twice - n - n)

    gm, _ = symbolic(lambda x: x.relu(), 5, 7)
    assert len(rewrite(gm, doubled)) == 1
    x = torch.randn(3, 2)
    torch.testing.assert_close(gm(x), x.relu() * 3 + 2)


# --- reports ------------------------------------------------------------------------------------


def test_reports() -> None:
    gm = traced(lambda a, b: a.neg().neg().neg().relu() + b.relu().relu())
    report = rewrite(gm, [DOUBLE, COLLAPSE])
    assert len(report) == 2
    assert [(r.rule, r.rewrites) for r in report.rules] == [("double", 1), ("collapse", 1)]
    assert json.loads(report.to_json())["rewrites"][0]["rule"] in ("double", "collapse")
    assert "2 rewrites in" in str(report)
    merged = Report.merge([report, report])
    assert (len(merged), merged.rules[0].rewrites) == (4, 2)
    assert "double" in _rendered(report)


def _rendered(report: Report) -> str:
    from rich.console import Console

    console = Console(width=120)
    with console.capture() as capture:
        console.print(report)
    return capture.get()


def test_what_is_no_pattern() -> None:
    with pytest.raises(TypeError, match="expected a pattern or a rule, not 3"):
        find(traced(lambda a, b: a + b), 3)  # type: ignore[arg-type]
