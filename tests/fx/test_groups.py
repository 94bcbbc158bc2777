"""Groups of rules: each lands whole, in a graph or in each layer, or leaves no trace."""

from __future__ import annotations

import io
import json
import random

import pytest
import torch
from rich.console import Console
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import Group, RuleSet, decline, keep, pattern, rule
from pypm.core.patterns import Op, Var
from pypm.core.rules import Rule, as_rule_set, print_rules
from pypm.core.text import parse_rules
from pypm.diagnostics import RewriteError
from pypm.fx import Report, aten, program_of, rewrite
from pypm.fx.rewriting.layers import layer_of
from pypm.integrations import export, inductor
from tests.compiled import fresh_graphs

A = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pattern
def Relu(x):
    return aten.relu(x)


@pattern
def Exp(x):
    return aten.exp(x)


@pattern
def Neg(x):
    return aten.neg(x)


@pattern
def NegNeg(x):
    return aten.neg(aten.neg(x))


@pattern
def NegKept(x):
    return aten.neg(keep(aten.neg(x)))


@pattern
def SinNeg(x):
    return aten.sin(aten.neg(x))


@pattern
def Cos(x):
    return aten.cos(x)


@rule(Relu)
def relu(x):
    if x.shape[0] == 1:
        return decline("one row")
    return torch.clamp(x, min=0)


@rule(Exp)
def exp(x):
    return torch.pow(torch.e, x)


@rule(Relu)
def any_relu(x):
    return (x + x.abs()) / 2


@rule(NegNeg)
def twice(x):
    return x


@rule(NegKept)
def again(x):
    return x


@rule(SinNeg)
def odd(x):
    return -torch.sin(x)


@rule(Neg)
def minus(x):
    return torch.mul(x, -1)


@rule(SinNeg)
def odd_of_rows(x):
    if x.shape[0] == 1:
        return decline("one row")
    return -torch.sin(x)


@rule(Cos)
def lowered(x):  # what it makes, both `relu` and `odd_of_rows` decline
    row = x.sum(0, keepdim=True)
    return torch.sin((row.relu() + row.neg().sin()) * 0 + x + torch.pi / 2)


PAIR = Group((relu, exp), "pair")
LAYERS = Group((relu, exp), "pair", per="layer")


def traced(function) -> fx.GraphModule:
    return make_fx(function, tracing_mode="fake")(A)


def state(gm: fx.GraphModule) -> object:
    nodes = [
        (n, n.name, n.op, n.target, n.args, n.kwargs, list(n.users), list(n.meta.items()))
        for n in gm.graph.nodes
    ]
    return nodes, str(gm.graph), gm.code


def fired(report: Report) -> list[str]:
    return [record.rule for record in report.rewrites]


def refused(report: Report) -> list[tuple[str, str, str]]:
    return [(r.rule, r.kind, r.reason) for r in report.refusals]


def good(x):
    return x.relu().exp() + x.exp().relu()


def one_row(x):
    return x.relu().exp() + x.sum(0, keepdim=True).relu()


ONE_ROW = ("pair", "group", "rule `relu` is refused at `relu_1`: one row")


# --- in a graph ---------------------------------------------------------------------------------


def test_a_group_lands_whole() -> None:
    gm = traced(good)
    report = rewrite(gm, PAIR)
    assert sorted(fired(report)) == ["exp", "exp", "relu", "relu"]
    assert refused(report) == []
    torch.testing.assert_close(gm(A), good(A))


def test_one_refused_match_undoes_all() -> None:
    gm = traced(one_row)
    before = state(gm)
    report = rewrite(gm, PAIR)
    assert (fired(report), refused(report)) == ([], [ONE_ROW])
    assert [(r.rule, r.rewrites) for r in report.rules] == [("relu", 0), ("exp", 0)]
    assert state(gm) == before


def test_a_rule_that_never_matches_undoes_the_others() -> None:
    gm = traced(lambda x: x.relu() + 1)
    before = state(gm)
    report = rewrite(gm, PAIR)
    assert refused(report) == [("pair", "group", "rule `exp` never matches")]
    assert (report.refusals[0].node, report.refusals[0].span) == ("relu", exp.span)
    assert state(gm) == before


def test_where_nothing_matches_nothing_is_said() -> None:
    assert refused(rewrite(traced(lambda x: x + 1), PAIR)) == []


def test_an_escape_is_a_refusal() -> None:
    group = Group((odd, exp), "odd")

    def function(x):
        n = x.neg()
        return n.sin().exp(), n

    gm = traced(function)
    before = state(gm)
    (refusal,) = rewrite(gm, group).refusals
    assert "rule `odd` is refused at `sin`: `neg` is also used by `output`" in refusal.reason
    assert state(gm) == before


def test_what_the_search_leaves_out_need_not_be_a_match() -> None:
    """`mul(x, sigmoid(y))`: the search gives up at the shared sigmoid, before it compares."""

    @pattern
    def Silu(x):
        return x * aten.sigmoid(x)

    @rule(Silu)
    def silu(x):
        return torch.nn.functional.silu(x)

    def function(x):
        gate = (x + 1).sigmoid()
        return x * gate, gate, x * x.sigmoid()

    gm = traced(function)
    report = rewrite(gm, Group((silu,), "silu"))
    assert (fired(report), [r for r in report.refusals if r.kind == "group"]) == (["silu"], [])


def test_a_later_rule_of_the_group_may_take_what_an_earlier_one_refuses() -> None:
    gm = traced(one_row)
    report = rewrite(gm, Group((relu, any_relu, exp), "three"))
    assert sorted(fired(report)) == ["any_relu", "exp", "relu"]
    torch.testing.assert_close(gm(A), one_row(A))


@rule(Relu, unless=lambda value, dialect: "not on this machine")
def withheld(x):
    return torch.clamp(x, min=0)


def test_a_group_with_a_rule_that_is_withheld_does_not_land() -> None:
    gm = traced(good)
    before = state(gm)
    (refusal,) = rewrite(gm, Group((withheld, exp))).refusals
    assert "rule `withheld` is refused" in refusal.reason
    assert "not on this machine" in refusal.reason
    assert state(gm) == before


def test_an_error_undoes_everything() -> None:
    @rule(Exp)
    def broken(x):
        return x.no_such_attribute

    gm = traced(good)
    before = state(gm)
    with pytest.raises(RewriteError, match="the body of rule `broken` raised"):
        rewrite(gm, [twice, Group((relu, broken))])
    assert state(gm) == before


# --- among other rules --------------------------------------------------------------------------


def test_other_rules_stand_in_where_a_group_does_not_land() -> None:
    gm = traced(one_row)
    report = rewrite(gm, [PAIR, any_relu])  # and no warning: the group does not shadow the rule
    assert (fired(report), refused(report)) == (["any_relu", "any_relu"], [ONE_ROW])
    torch.testing.assert_close(gm(A), one_row(A))
    assert fired(rewrite(traced(good), [PAIR, any_relu])).count("any_relu") == 0


def test_a_group_casts_no_shadow() -> None:
    """A rule after an equal one never fires; after an equal group it may."""
    first = Rule("first", ("x",), (Op(aten.relu, (Var("x"),)),), lambda x: x.clamp(min=0))
    second = Rule("second", ("x",), (Op(aten.relu, (Var("x"),)),), lambda x: x.clamp(min=0))
    with pytest.warns(RuntimeWarning, match="never fires"):
        program_of(as_rule_set([first, second]))
    program_of(as_rule_set([Group((first,)), second]))


def test_rules_before_a_group_have_settled() -> None:
    gm = traced(lambda x: x.sum(0, keepdim=True).relu() + x.exp())
    report = rewrite(gm, [any_relu, PAIR])
    assert (fired(report), refused(report)) == (
        ["any_relu"],
        [("pair", "group", "rule `relu` never matches")],
    )


def test_a_group_is_tried_again_where_something_changed() -> None:
    def function(x):
        n = x.neg()
        return n.sin().exp(), n.neg()

    gm = traced(function)
    report = rewrite(gm, [Group((odd, exp), "odd"), again])
    assert (sorted(fired(report)), refused(report)) == (["again", "exp", "odd"], [])
    for one, other in zip(gm(A), function(A), strict=True):
        torch.testing.assert_close(one, other)


def test_a_group_that_landed_is_taken_back() -> None:
    """The second rule makes a match that the group refuses: the rule stays, and the group goes."""

    def function(x):
        return x.relu().exp() + x.cos()

    gm = traced(function)
    report = rewrite(gm, [PAIR, lowered, twice])
    assert fired(report) == ["lowered"]
    ((name, kind, reason),) = refused(report)
    assert (name, kind) == ("pair", "group")
    assert "one row" in reason
    assert [n.target for n in gm.graph.nodes].count(torch.ops.aten.relu.default) == 2
    gm.graph.lint()
    torch.testing.assert_close(gm(A), function(A))


def test_what_a_group_undid_is_as_it_was_to_other_rules() -> None:
    def function(x):
        return x.relu().neg().sin()

    gm = traced(function)
    report = rewrite(gm, [Group((minus, exp), "minus"), odd])
    assert fired(report) == ["odd"]
    assert refused(report) == [("minus", "group", "rule `exp` never matches")]
    torch.testing.assert_close(gm(A), function(A))


def test_two_groups_that_landed_are_taken_back() -> None:
    """When the first goes, so does what was done since; the second lands anew, and goes as well."""

    def function(x):
        return x.relu().exp() + x.neg().sin() + x.cos()

    gm = traced(function)
    report = rewrite(gm, [PAIR, Group((odd_of_rows,), "odd"), lowered])
    assert fired(report) == ["lowered"]
    assert sorted(r.rule for r in report.refusals if r.kind == "group") == ["odd", "pair"]
    torch.testing.assert_close(gm(A), function(A))


def test_two_groups() -> None:
    other = Group((odd, twice), "other")

    def function(x):
        return one_row(x) + x.neg().sin() + x.cos().neg().neg()

    gm = traced(function)
    report = rewrite(gm, [PAIR, other])
    assert (sorted(fired(report)), refused(report)) == (["odd", "twice"], [ONE_ROW])
    torch.testing.assert_close(gm(A), function(A))


@pytest.mark.parametrize("rules", [[PAIR], [PAIR, any_relu], [twice, PAIR], [LAYERS, twice]])
@pytest.mark.parametrize("function", [good, one_row], ids=lambda f: f.__name__)
def test_what_is_left_is_a_fixpoint(rules: list[Group | Rule], function) -> None:
    gm = traced(function)
    first = rewrite(gm, rules)
    text = str(gm.graph)
    again = rewrite(gm, rules)
    assert fired(again) == []
    assert str(gm.graph) == text
    if not fired(first):
        assert refused(again) == refused(first)


# --- in layers ----------------------------------------------------------------------------------


class Layer(torch.nn.Module):
    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, x: Tensor) -> Tensor:
        return x.exp() + x[: self.rows].relu()


class Model(torch.nn.Module):
    def __init__(self, *rows: int, head: bool = False) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer(n) for n in rows)
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.relu() if self.head else x


def exported(*rows: int, head: bool = False) -> fx.GraphModule:
    module = torch.export.export(Model(*rows, head=head), (A,)).module()
    assert isinstance(module, fx.GraphModule)
    return module


def layers_of(report: Report, gm: fx.GraphModule) -> list[str | None]:
    nodes = {node.name: node for node in gm.graph.nodes}
    new = [record.new[-1] for record in report.rewrites]
    return sorted({layer_of(nodes[name]) for name in new})


def test_layers_land_one_by_one() -> None:
    gm = exported(4, 1, 4)
    report = rewrite(gm, LAYERS)
    assert layers_of(report, gm) == ["layers.0", "layers.2"]
    assert sorted(fired(report)) == ["exp", "exp", "relu", "relu"]
    assert refused(report) == [
        ("pair in layers.1", "group", "rule `relu` is refused at `relu_1`: one row")
    ]
    torch.testing.assert_close(gm(A), Model(4, 1, 4)(A))


def test_each_layer_that_fails_is_reported() -> None:
    gm = exported(1, 4, 1)
    report = rewrite(gm, LAYERS)
    assert sorted(r.rule for r in report.refusals) == ["pair in layers.0", "pair in layers.2"]
    assert layers_of(report, gm) == ["layers.1"]


def test_in_a_graph_one_layer_undoes_all() -> None:
    gm = exported(4, 1, 4)
    before = state(gm)
    assert fired(rewrite(gm, PAIR)) == []
    assert state(gm) == before


def test_what_is_in_no_layer_is_left_alone() -> None:
    gm = exported(4, 4, head=True)
    report = rewrite(gm, LAYERS)
    assert layers_of(report, gm) == ["layers.0", "layers.1"]
    assert refused(report) == [
        ("pair", "group", "rule `relu` matches at `relu_2`, which is in no layer")
    ]
    bare = traced(good)
    before = state(bare)
    assert [r.kind for r in rewrite(bare, LAYERS).refusals] == ["group"]
    assert state(bare) == before


@pytest.mark.parametrize(
    ("path", "layer"),
    [
        ("L['self'].model.layers.3.attention", "model.layers.3"),
        ("L['self'].model.layers[3].attention[0]", "model.layers.3"),
        ("L['self']._modules['h'][11]", "h.11"),
        ("layers.0@1", "layers.0"),
        ("encoder.fc1", None),
        ("", None),
    ],
)
def test_layers(path: str, layer: str | None) -> None:
    node = fx.Graph().placeholder("x")
    assert layer_of(node) is None
    for key in ("fwd_nn_module_stack", "nn_module_stack"):
        node.meta = {key: {"0": ("", Model), "1": (path, Layer)}}
        assert layer_of(node) == layer


# --- where rules are run ------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("stage", ["pre_grad", "joint", "post_grad"])
def test_inside_torch_compile(stage: str) -> None:
    torch._dynamo.reset()
    rules = inductor.Pass([LAYERS], stage)
    model = Model(4, 1, 4)
    with fresh_graphs(), torch.no_grad():
        compiled = torch.compile(model, options=rules.options())
        torch.testing.assert_close(compiled(A), model(A))
    report = rules.report()
    assert sorted(fired(report)) == ["exp", "exp", "relu", "relu"]
    assert [r.rule for r in report.refusals] == ["pair in layers.1"]


def test_on_an_exported_program() -> None:
    program = torch.export.export(Model(4, 1), (A,))
    assert sorted(fired(export.rewrite(program, LAYERS))) == ["exp", "relu"]
    torch.testing.assert_close(program.module()(A), Model(4, 1)(A))


def test_the_key_of_the_compile_cache() -> None:
    sets = [[relu, exp], PAIR, LAYERS, Group((relu, exp), "other"), [Group((relu,)), exp]]
    assert len({as_rule_set(rules).content_hash() for rules in sets}) == len(sets)
    assert len({inductor.Pass(rules).uuid() for rules in sets}) == len(sets)
    assert as_rule_set(PAIR).content_hash() == as_rule_set([PAIR]).content_hash()


# --- the report, and the group itself -----------------------------------------------------------


def test_the_report_says_why() -> None:
    report = rewrite(traced(one_row), [PAIR, twice])
    line = "  pair did not land: rule `relu` is refused at `relu_1`: one row"
    assert line in str(report).splitlines()
    assert json.loads(report.to_json())["refusals"][0]["kind"] == "group"
    said = str(report.refusals[0].diagnostic)
    assert said.startswith("error: group `pair` did not land\n")
    assert "def relu(x):" in said
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(report)
    assert "rule `relu` is refused at" in console.export_text()


def test_sets_of_groups() -> None:
    both = as_rule_set([twice, PAIR, [odd]])
    assert [stage.name for stage in both.stages()] == ["rules", "pair", "rules"]
    assert [r.name for r in both] == ["twice", "relu", "exp", "odd"]
    assert (both + LAYERS_OF_ONE).groups == (PAIR, LAYERS_OF_ONE)
    assert both != as_rule_set([twice, relu, exp, odd])


LAYERS_OF_ONE = Group((any_relu,), "one", per="layer")


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="the group `none` has no rules"):
        Group((), "none")
    with pytest.raises(ValueError, match="per 'graph' or 'layer', not 'module'"):
        Group((relu,), per="module")  # type: ignore[arg-type]
    for rules in ((relu, twice, exp), (exp, relu), (relu, exp, relu), (relu,), (twice,)):
        with pytest.raises(ValueError, match="once and side by side"):
            RuleSet(rules, groups=(PAIR,))


TEXT = """\
rules r {
  rule a(x): f(x) => x
  group `group` per layer {
    rule b(x): g(x) => x
    rule c(x): h(x) => x
  }
  group k per graph {
    rule graph(x): k(x) => x
  }
}
"""


def test_as_text() -> None:
    parsed = parse_rules(TEXT)
    assert [(g.name, g.per, len(g.rules)) for g in parsed.groups] == [
        ("group", "layer", 2),
        ("k", "graph", 1),
    ]
    assert print_rules(parsed) == TEXT
    assert parse_rules(print_rules(parsed)) == parsed


# --- random programs ----------------------------------------------------------------------------


def random_program(seed: int):
    def program(x):
        draw = random.Random(seed)
        values = [x]
        steps = (torch.relu, torch.exp, torch.neg, torch.sin, torch.cos, torch.sigmoid)
        for _ in range(10):
            value = draw.choice(steps)(draw.choice(values[-3:]))
            if draw.random() < 0.1:
                value = value.sum(0, keepdim=True).relu() + value
            values.append(value / 2 if draw.random() < 0.5 else value)
        return values[-1], values[-3]

    return program


@pytest.mark.parametrize("seed", range(60))
def test_random_programs(seed: int) -> None:
    program = random_program(seed)
    gm = traced(program)
    odds, signs = Group((odd_of_rows,), "odds"), Group((minus, exp), "signs")
    order = random.Random(seed).sample([odds, PAIR, signs, lowered, again, any_relu], 5)
    order = [part for part in order if signs not in order or part is not PAIR]
    report = rewrite(gm, order)
    gm.graph.lint()
    done, failed = set(fired(report)), {r.rule for r in report.refusals if r.kind == "group"}
    for group in (part for part in order if isinstance(part, Group)):
        own = {r.name for r in group.rules}
        assert own <= done if not own.isdisjoint(done) else True
        assert not (group.name in failed and own & done)
    for one, other in zip(gm(A), program(A), strict=True):
        torch.testing.assert_close(one, other)
    text = str(gm.graph)
    assert len(rewrite(gm, order)) == 0
    assert str(gm.graph) == text
