"""Choosing among planned rewrites by what they are worth, and what a choice is offered."""

from __future__ import annotations

import json
import math

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import keep, pattern, rule
from pypm.choice import bounds
from pypm.core.rules import Rule, print_rule
from pypm.core.text import parse_rules
from pypm.diagnostics import PyPMError, RewriteError
from pypm.fx import Appraisal, Candidate, aten, first, rewrite
from pypm.fx.rewriting.choosing import EXACT
from pypm.integrations import inductor

A = torch.ops.aten


@pattern
def Relu(x):
    return aten.relu(x)


@pattern
def ReluNeg(x):
    return aten.neg(aten.relu(x))


@pattern
def NegExp(x):
    return aten.exp(aten.neg(x))


@pattern
def All(x):
    return aten.exp(aten.neg(aten.relu(x)))


@rule(Relu, pays="mostly")
def a(x):
    return torch.sin(x)


@rule(ReluNeg, pays="mostly")
def b(x):
    return torch.cos(x)


@rule(NegExp, pays="mostly")
def c(x):
    return torch.tan(x)


@rule(All, pays="mostly")
def d(x):
    return torch.tanh(x)


@rule(Relu, pays="sometimes")
def seldom(x):
    return torch.sigmoid(x)


@pattern
def Exp(x):
    return aten.exp(x)


@rule(Exp)
def e(x):
    return torch.sin(x)


RULES = (a, b, c, d)


def graph() -> fx.GraphModule:
    return make_fx(lambda x: x.relu().neg().exp(), tracing_mode="fake")(torch.ones(2))


def operators(gm: fx.GraphModule) -> list[str]:
    calls = (node for node in gm.graph.nodes if node.op == "call_function")
    return [node.target._schema.name.removeprefix("aten::") for node in calls]


def by_name(**saved: float):  # type: ignore[no-untyped-def]
    return lambda candidate: saved.get(candidate.rule.name, -1.0)


@pytest.mark.parametrize(
    ("saved", "expected"),
    [
        ({}, ["relu", "neg", "exp"]),
        ({"a": 1}, ["sin", "neg", "exp"]),
        ({"a": 1, "b": 3, "c": 1}, ["cos", "exp"]),
        ({"a": 2, "b": 3, "c": 2}, ["sin", "tan"]),
        ({"a": 2, "b": 3, "c": 2, "d": 5}, ["tanh"]),
        ({"a": 0, "b": 0}, ["relu", "neg", "exp"]),
        ({"a": float("inf"), "d": 5}, ["sin", "neg", "exp"]),
        ({"seldom": 4, "a": 3}, ["sigmoid", "neg", "exp"]),
    ],
)
def test_the_set_that_saves_most_is_applied(saved: dict[str, float], expected: list[str]) -> None:
    gm = graph()
    report = rewrite(gm, [*RULES, seldom], choose=by_name(**saved))
    assert operators(gm) == expected
    assert all(record.worth is not None and record.worth.saved > 0 for record in report.rewrites)
    assert json.loads(report.to_json())


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(-1, 4), min_size=4, max_size=4), st.permutations(RULES))
def test_the_order_of_rules_makes_no_difference(saved: list[int], order: list[Rule]) -> None:
    worth = dict(zip("abcd", map(float, saved), strict=True))
    found = []
    for rules in (RULES, order):
        gm = graph()
        rewrite(gm, rules, choose=by_name(**worth))
        found.append(operators(gm))
    assert found[0] == found[1]


@pattern
def MaybeNegExp(x):
    return aten.exp(aten.neg(x))


@pattern
def MaybeNegExp(x):
    return aten.exp(x)


@rule(MaybeNegExp, pays="mostly")
def two_ways(x):
    return torch.sin(x)


def test_of_the_matches_of_a_rule_at_a_node_the_largest_are_appraised() -> None:
    found: list[tuple[str, int]] = []
    rewrite(
        graph(),
        [two_ways, c, e],
        choose=lambda each: found.append((each.rule.name, len(each.nodes))) or 0.0,
    )
    assert found == [("two_ways", 2), ("c", 2), ("e", 1)]


def test_a_long_chain_of_overlaps() -> None:
    """With more of them than are searched exactly, the greedy choice still leaves none over."""
    length = 2 * EXACT

    def chain(x: Tensor) -> Tensor:
        for _ in range(length):
            x = x.relu().neg()
        return x

    gm = make_fx(chain, tracing_mode="fake")(torch.ones(2))
    before = gm(torch.ones(2))
    rewrite(gm, [b, ReluOfNeg_to_abs], choose=by_name(b=2.0, ReluOfNeg_to_abs=1.0), budget=200)
    assert "relu" not in operators(gm)
    assert operators(gm).count("cos") == length
    assert before.shape == gm(torch.ones(2)).shape


@pattern
def Exps(x):
    return aten.exp(Exps(x)) | aten.exp(x)


@rule(Exps, pays="mostly")
def whole(x):
    return torch.tanh(x)


@rule(Exps, pays="mostly")
def whole_otherwise(x):
    return torch.tan(x)


@pytest.mark.parametrize(("saved", "made"), [(70.0, "tan"), (50.0, "sin")])
def test_many_parts_or_the_whole(saved: float, made: str) -> None:
    """Thirty parts save sixty together, one by one less than either way to replace them all."""

    def chain(x: Tensor) -> Tensor:
        for _ in range(30):
            x = x.exp()
        return x

    def worth(candidate: Candidate) -> float:
        if candidate.rule.name == "e":
            return 2.0
        is_whole = len(candidate.nodes) == 30
        return saved - (candidate.rule.name == "whole") if is_whole else -1.0

    gm = make_fx(chain, tracing_mode="fake")(torch.ones(2))
    rewrite(gm, [whole, whole_otherwise, e], choose=worth, budget=200)
    assert {*operators(gm)} == {made}


@pattern
def ReluOfNeg(x):
    return aten.relu(aten.neg(x))


@rule(ReluOfNeg, pays="mostly")
def ReluOfNeg_to_abs(x):
    return torch.abs(x)


def test_first_applies_rules_in_their_order_whatever_they_cost() -> None:
    for order, expected in (((a, d), "tanh"), ((seldom, a), "sin")):
        gm = graph()
        report = rewrite(gm, order, choose=first)
        assert expected in operators(gm)
        assert all(record.worth is None for record in report.rewrites)


def test_a_rule_that_pays_sometimes_is_for_choices_alone() -> None:
    gm = graph()
    assert not len(rewrite(gm, seldom))
    assert len(rewrite(gm, seldom, choose=by_name(seldom=1.0))) == 1


def test_pays_is_part_of_a_rule_s_text() -> None:
    text = "rule r(x) pays 'sometimes': aten.relu(x) => aten.sin(x)"
    (found,) = parse_rules(f"rules s {{ {text} }}")
    assert found.pays == "sometimes"
    assert "pays 'sometimes'" in print_rule(found)
    with pytest.raises(PyPMError, match="has no pays 'never'"):
        parse_rules("rules s { rule r(x) pays 'never': aten.relu(x) => aten.sin(x) }")
    with pytest.raises(ValueError, match="'always', 'mostly', 'sometimes'"):
        rule(Relu, pays="never")  # type: ignore[arg-type]


def test_what_a_choice_is_given() -> None:
    seen: list[Candidate] = []

    def choose(candidate: Candidate) -> Appraisal:
        seen.append(candidate)
        return Appraisal(0.0, "no reason", before=2e-6, after=3e-6, bound=1e-6)

    gm = graph()
    report = rewrite(gm, d, choose=choose)
    (candidate,) = seen
    x = torch.tensor([0.5, 2.0])
    assert torch.equal(candidate.before(x)[0], gm(x))
    assert torch.equal(candidate.after(x)[0], x.tanh())
    assert (candidate.rule, candidate.root) == (d, "exp")
    assert [tuple(value.shape) for value in candidate.values] == [(2,)]
    (refusal,) = report.refusals
    assert refusal.kind == "cost"
    assert refusal.reason == (
        "leaving it is no slower: as it is 2 us, replaced 3 us, at best 1 us, no reason"
    )


def test_what_is_used_outside_is_in_both_graphs() -> None:
    @pattern
    def Shared(x):
        return aten.neg(keep(aten.relu(x)))

    @rule(Shared)
    def shared(x):
        return torch.cos(x)

    def model(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.relu()
        return y.neg(), y.exp()

    seen: list[Candidate] = []
    gm = make_fx(model, tracing_mode="fake")(torch.ones(2))
    rewrite(gm, shared, choose=lambda candidate: seen.append(candidate) or 0.0)
    x = torch.tensor([-1.0, 2.0])
    assert [*map(torch.Tensor.tolist, seen[0].before(x))] == [(-x.relu()).tolist(), [0.0, 2.0]]
    assert [*map(torch.Tensor.tolist, seen[0].after(x))] == [x.cos().tolist(), [0.0, 2.0]]


@pytest.mark.parametrize("is_read", [False, True], ids=["alone", "read elsewhere"])
def test_copies_that_only_the_region_reads_are_timed_with_it(is_read: bool) -> None:
    def model(x: Tensor) -> tuple[Tensor, ...]:
        copied = x[None].expand(2, 3).clone()
        return (torch.relu(copied), *([copied] if is_read else []))

    graph = make_fx(model, tracing_mode="fake")(torch.randn(3))
    asked: list[Candidate] = []
    rewrite(graph, a, choose=lambda found: asked.append(found) or 0.0)
    (candidate,) = asked
    assert [node.op for node in candidate.inputs] == ["call_function" if is_read else "placeholder"]
    for module in (candidate.before, candidate.after):
        expands = module.graph.find_nodes(op="call_function", target=A.expand.default)
        assert bool(expands) is not is_read


def test_of_several_values_of_one_call_only_those_that_are_read_are_inputs() -> None:
    def model(x: Tensor) -> tuple[Tensor, Tensor]:
        one, two = x.split(2)
        return torch.relu(one), two

    graph = make_fx(model, tracing_mode="fake")(torch.randn(4))
    asked: list[Candidate] = []
    rewrite(graph, a, choose=lambda found: asked.append(found) or 0.0)
    (candidate,) = asked
    assert [value.shape for value in candidate.values] == [(2,)]


def test_signatures_tell_graphs_apart() -> None:
    def signature(model, *inputs: Tensor) -> str:  # type: ignore[no-untyped-def]
        found: list[str] = []
        gm = make_fx(model, tracing_mode="fake")(*inputs)
        rewrite(gm, d, choose=lambda candidate: found.append(candidate.signature) or 0.0)
        return found[0]

    def model(x: Tensor) -> Tensor:
        return x.relu().neg().exp()

    x = torch.ones(4, 2)
    assert signature(model, x) == signature(lambda y: model(y.sin()), x)
    others = [x.double(), torch.ones(4, 3), torch.ones(2, 4).t()]
    assert len({signature(model, value) for value in (x, *others)}) == 4


NAN = float("nan")


@pytest.mark.parametrize(
    "answer",
    [
        *(None, "much", [1.0], NAN, Appraisal(NAN), Appraisal(1.0, before=NAN), bounds),
        *(10**400, -(10**400), 10**5000, Appraisal(10**5000), Appraisal(1.0, after=10**400)),
    ],
    ids=[*"abcdefghijkl"],
)
def test_an_answer_that_is_no_worth(answer: object) -> None:
    gm = graph()
    before = str(gm.graph)
    with pytest.raises(RewriteError, match=r"the choice `.*<lambda>` returned .* no number of sec"):
        rewrite(gm, d, choose=lambda candidate: answer)  # type: ignore[arg-type,return-value]
    assert str(gm.graph) == before


@pytest.mark.parametrize("answer", [1e300, 10**300, math.inf])
def test_a_rewrite_that_saves_a_lot(answer: float) -> None:
    gm = graph()
    assert len(rewrite(gm, d, choose=lambda candidate: answer))


def test_a_choice_that_was_not_called() -> None:
    with pytest.raises(RewriteError, match="pass what it returns: `choose="):
        rewrite(graph(), d, choose=bounds)  # type: ignore[arg-type]


@pytest.mark.parametrize("answer", [numpy.float32(1), True, 1, float("inf")])
def test_numbers_of_other_types(answer: float) -> None:
    assert len(rewrite(graph(), d, choose=lambda candidate: answer)) == 1


def test_an_error_in_a_choice_leaves_the_graph() -> None:
    """Also where another rewrite was made before."""

    def choose(candidate: Candidate) -> float:
        return 1.0 if candidate.root == "exp" else 1 / 0

    gm = graph()
    before = str(gm.graph)
    with pytest.raises(RewriteError, match="raised ZeroDivisionError") as raised:
        rewrite(gm, RULES, choose=choose)
    assert str(gm.graph) == before
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_a_choice_of_a_pass() -> None:
    with pytest.raises(PyPMError, match="`choose` takes a function of a candidate"):
        inductor.Pass(d, choose="measured")  # type: ignore[arg-type]
