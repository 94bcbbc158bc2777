"""Why a rule does not match: what is said, compared exactly, and that it agrees with the engine.

A file of tests/golden/explain is source that defines a `function` of two matrices, the `rules` or
else a pattern `P`, the node to explain `at` (none: the near misses), and maybe what is to `choose`;
a line of dashes; and what is said. `PYPM_UPDATE_GOLDEN=1` writes these anew.
"""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

import pypm
from pypm import pattern, rule
from pypm.diagnostics import PatternError
from pypm.fx import Appraisal, Candidate, Explanation, NearMisses, aten, explain, first, rewrite
from pypm.fx.explaining.explanation import Fails, Matches
from pypm.integrations import inductor
from pypm.match.compile.lower import Lowering
from pypm.match.explain.causes import OtherOperator
from pypm.match.explain.watch import Watch
from pypm.rules.attention import rules
from tests.fx import fuzz_explain
from tests.golden_files import GOLDEN, check, readable

EXPLAIN = sorted((GOLDEN / "explain").glob("*.txt"))
PAIRS = 300


def graph_of(function: Any, *, dynamic: bool = False) -> fx.GraphModule:
    mode = "symbolic" if dynamic else "fake"
    return make_fx(function, tracing_mode=mode)(torch.ones(4, 4), torch.ones(4, 4))


def said(source: str, file: str) -> str:
    scope: dict[str, Any] = {
        "__name__": "golden",
        "torch": torch,
        "aten": aten,
        "Appraisal": Appraisal,
        **{name: getattr(pypm, name) for name in pypm.__all__},
    }
    with readable(source, file) as code:
        exec(code, scope)
        gm = graph_of(scope["function"], dynamic=scope.get("dynamic", False))
        before = gm.print_readable(print_output=False)
        choose = scope.get("choose", first)
        found = explain(gm, scope.get("rules") or scope["P"], scope.get("at"), choose=choose)
        assert gm.print_readable(print_output=False) == before
        return f"{found}\n"


@pytest.mark.parametrize("path", EXPLAIN, ids=lambda path: path.stem)
def test_golden(path: Path) -> None:
    check(path, said)


def test_it_agrees_with_the_engine() -> None:
    torch.set_num_threads(1)
    kinds: set[str] = set()
    for gm, drawn in islice(fuzz_explain.pairs(seed=3), PAIRS):
        kinds |= fuzz_explain.check(gm, drawn).keys()
    assert kinds >= {
        "Matches",
        "Untried",
        "Refused",
        "OtherOperator",
        "OtherArity",
        "OtherClass",
        "OtherValue",
        "GuardFails",
        "GuardUnknown",
        "BoundOtherwise",
        "matches but for one guard",
    }


# --- values ---------------------------------------------------------------------------------------


@pattern
def Relu(x):
    return aten.relu(aten.sin(x))


@rule(Relu)
def relu(x):
    assert x.dtype == torch.float32
    return x.sin().clamp(min=0)


@pattern
def Tanh(x):
    return aten.tanh(x)


@rule(Tanh)
def tanh(x):
    return x.sinh() / x.cosh()


def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x.sin().relu() + y.cos().relu() + x.double().sin().relu() + y.tanh()


def test_a_node_is_given_by_itself_or_its_name() -> None:
    gm = graph_of(model)
    node = next(node for node in gm.graph.nodes if node.name == "relu_1")
    assert explain(gm, relu, node) == explain(gm, relu, "relu_1")
    with pytest.raises(PatternError, match="no node `relu_11`") as raised:
        explain(gm, relu, "relu_11")
    assert raised.value.diagnostic.help == "did you mean `relu_1`?"
    with pytest.raises(PatternError, match="of another graph"):
        explain(graph_of(model), relu, node)


def test_only_rules_and_patterns_are_explained() -> None:
    with pytest.raises(TypeError, match="expected a rule"):
        explain(graph_of(model), model)


def test_of_several_rules_one_that_matches_is_enough() -> None:
    gm = graph_of(model)
    assert explain(gm, [relu, tanh], "tanh")
    assert explain(gm, pypm.RuleSet((relu, tanh)), "relu")
    assert not explain(gm, relu, "tanh")


def test_what_matches_is_what_is_rewritten() -> None:
    gm = graph_of(model)
    found = explain(gm, [relu, tanh])
    assert [match.node.node for match in found.matches] == ["relu", "tanh"]
    assert {r.root for r in rewrite(gm, [relu, tanh]).rewrites} == {"relu", "tanh"}


def of_heads(function: Any, *more: torch.Tensor) -> fx.GraphModule:
    """Return the graph of a function of query, key, value and more."""
    heads = [torch.ones(2, 4, 6, 8) for _ in range(3)]
    return make_fx(function, tracing_mode="fake", pre_dispatch=True)(*heads, *more)


def capped_then_biased(q, k, v, table):
    s = torch.erf(q @ k.mT * 0.125 / 30) * 30 + table.permute(2, 0, 1)
    return torch.softmax(s, -1) @ v


def biased_then_capped(q, k, v, table):
    s = torch.erf((q @ k.mT * 0.125 + table.permute(2, 0, 1)) / 30) * 30
    return torch.softmax(s, -1) @ v


def capped_otherwise(q, k, v, table):
    s = torch.atan(q @ k.mT / 30) * 30 + table.permute(2, 0, 1).unsqueeze(0)
    return torch.softmax(s, -1) @ v


@pytest.mark.parametrize("function", [capped_then_biased, biased_then_capped, capped_otherwise])
def test_the_cause_is_on_the_way_that_computes(function: Any) -> None:
    gm = of_heads(function, torch.ones(6, 6, 4))
    outcome = explain(gm, rules.sdpa, "matmul_1").outcome
    assert isinstance(outcome, Fails)
    assert isinstance(outcome.obstacle.reason, OtherOperator)
    assert outcome.obstacle.met.node in ("erf", "atan")


def test_the_nearest_misses_are_explained_in_full() -> None:
    gm = of_heads(capped_then_biased, torch.ones(6, 6, 4))
    (nearest, *others) = explain(gm, rules.sdpa).groups
    assert others
    assert nearest.sites == (explain(gm, rules.sdpa, nearest.sites[0].node.node),)


def test_a_step_on_the_scores_that_a_kernel_does_not_take_is_named() -> None:
    def function(q, k, v):
        return torch.softmax(torch.tanh(q @ k.transpose(-2, -1) / 30) * 30, -1) @ v

    gm = of_heads(function)
    outcome = explain(gm, rules.sdpa, "matmul_1").outcome
    assert isinstance(outcome, Fails)
    assert "caps no scores" in str(outcome.obstacle.reason)


@pattern
def Chained(x):
    return aten.relu(Chained(x) + Chained(_)) | aten.sin(x)


def test_a_glance_at_every_node_takes_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = 0
    look_on = Watch.watched

    def counted(watch: Watch, step: Any, found: Any, scope: Any) -> Any:
        inner = look_on(watch, step, found, scope)

        def count(*args: Any) -> Any:
            nonlocal seen
            seen += 1
            return inner(*args)

        return count

    def deep(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for _ in range(12):
            x = (x + x).relu()
        return x

    monkeypatch.setattr(Watch, "watched", counted)
    gm = graph_of(deep)
    found = explain(gm, Chained)
    assert not found.matches
    assert found.groups
    assert 0 < seen < 24 * 1_000


@pattern
def Linear(x, w, b):
    return aten.gelu(aten.linear(x, w, b)) | aten.gelu(aten.conv2d(x, w, b, ...))


def test_operators_that_the_graph_lacks_are_named() -> None:
    found = explain(graph_of(model), Linear)
    assert found.lacking == ("aten.gelu", "aten.linear")
    assert "the graph has no aten.gelu or aten.linear" in str(found)
    assert json.loads(found.to_json())["lacking"] == ["aten.gelu", "aten.linear"]
    assert explain(graph_of(lambda x, y: torch.nn.functional.gelu(x)), Linear).lacking == (
        "aten.linear",
    )
    assert explain(graph_of(model), [relu, tanh]).lacking == ()
    assert explain(graph_of(lambda x, y: x.relu()), [relu, tanh]).lacking == (
        "aten.sin", "aten.tanh",
    )  # fmt: skip


def on_no_machine(value: object, dialect: object) -> str:
    return "not on this machine"


@rule(Relu, unless=on_no_machine)
def withheld(x):
    return x.no_such_method()


def test_a_rule_that_is_withheld_is_not_applied() -> None:
    gm = graph_of(model)
    outcome = explain(gm, withheld, "relu").outcome
    assert isinstance(outcome, Fails)
    assert outcome.obstacle.words == "it declines: not on this machine"
    assert not explain(gm, withheld).matches
    assert explain(gm, [withheld, relu], "relu")
    other = explain(gm, withheld, "relu_1").outcome
    assert isinstance(other, Fails)
    assert isinstance(other.obstacle.reason, OtherOperator)


@pattern
def ReluOfFour(x):
    assert x.rank == 4
    return aten.relu(x)


@rule(ReluOfFour, unless=on_no_machine)
def withheld_of_four(x):
    return x


def test_a_guard_is_not_all_that_keeps_a_rule_that_is_withheld() -> None:
    outcome = explain(graph_of(model), withheld_of_four, "relu").outcome
    assert isinstance(outcome, Fails)
    assert not outcome.is_all
    assert outcome.obstacles[-1].words == "it declines: not on this machine"


def test_the_outcome_is_a_value() -> None:
    gm = graph_of(model)
    matches = explain(gm, relu, "relu").outcome
    assert isinstance(matches, Matches)
    assert (matches.rule, matches.bindings, matches.region) == (
        "relu",
        {"x": "x_1"},
        ("sin", "relu"),
    )
    fails = explain(gm, relu, "relu_1").outcome
    assert isinstance(fails, Fails)
    assert fails.obstacle.reason == OtherOperator(("aten.sin",), "aten.cos")
    assert fails.obstacle.met.node == "cos"
    assert fails.obstacle.span is not None


def test_the_line_of_the_model() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.cos().relu()

    gm = torch.export.export(Model(), (torch.ones(2),)).graph_module
    assert "return x.cos().relu()" in str(explain(gm, relu, "relu"))


def test_sites_of_one_cause_are_one_near_miss() -> None:
    def several(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.cos().relu() + y.cos().relu() + (x + y).relu()

    found = explain(graph_of(several), relu)
    assert [[site.node.node for site in group.sites] for group in found.groups] == [
        ["relu", "relu_1"],
        ["relu_2"],
    ]


def test_the_nearest_come_first() -> None:
    found = explain(graph_of(model), relu)
    assert [group.fails.is_all for group in found.groups] == [True, False]
    assert "only because x.dtype is torch.float64" in str(found.groups[0])


@pytest.mark.parametrize("at", ["relu", "relu_1", None])
def test_json_and_rich(at: str | None) -> None:
    found: Explanation | NearMisses = explain(graph_of(model), relu, at)
    assert json.loads(found.to_json()) == json.loads(json.dumps(found.as_dict()))
    console = Console(width=200, record=True)
    with console.capture() as capture:
        console.print(found)
    assert "relu" in capture.get()


def test_nothing_is_watched_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps of an ordinary program are those that lowering made, not wrapped in others."""
    seen: list[object] = []
    plain = Lowering.watched

    def watched(self: Lowering, step: Any, *rest: Any) -> Any:
        seen.append(plain(self, step, *rest) is step)
        return step

    monkeypatch.setattr(Lowering, "watched", watched)
    gm = graph_of(model)

    @rule(Relu)
    def fresh(x):
        return x.sin().clamp(min=0)

    assert len(rewrite(gm, fresh)) == 2
    assert seen
    assert all(seen)


def test_inside_torch_compile_nothing_is_rewritten() -> None:
    torch._dynamo.reset()
    x = torch.randn(4, 4)
    for _ in range(2):  # and no cache comes in between
        (found,) = inductor.explain(model, (x, x), [relu, tanh], "post_grad")
        assert len(found.matches) == 2
        assert len(found.groups) == 2


@pattern
def GeluOfLinear(x, w):
    return aten.gelu(aten.linear(x, w, None))


def test_a_stage_that_has_the_operators_is_named() -> None:
    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(torch.nn.functional.linear(x, w))

    torch._dynamo.reset()
    (found,) = inductor.explain(layer, (torch.ones(2, 4), torch.ones(3, 4)), GeluOfLinear)
    said = "the graph has no aten.gelu or aten.linear at stage 'joint'; at 'pre_grad' it has"
    assert said in str(found)


# --- with a choice ------------------------------------------------------------------------------


@pattern
def Sum(x, y):
    return aten.add(x, y)


@rule(Sum, pays="mostly")
def negated(x, y):
    return torch.sub(y, -x)


@rule(Sum, pays="mostly")
def twice_negated(x, y):
    return -(-x - y)


BOTH = [negated, twice_negated]


def total() -> fx.GraphModule:
    return graph_of(lambda x, y: x + y)


@pytest.mark.parametrize("saved", [(1, 2), (2, 1), (2, 2), (-1, 1), (0, -1)])
def test_the_explained_rewrite_is_the_one_that_is_made(saved: tuple[float, float]) -> None:
    def choose(candidate: Candidate) -> float:
        return saved[BOTH.index(candidate.rule)]

    gm = total()
    found = explain(gm, BOTH, "add", choose=choose)
    report = rewrite(gm, BOTH, choose=choose)
    assert len(report) == (max(saved) > 0) == bool(found)
    assert [record.rule for record in report.rewrites] in ([], [found.outcome.rule])
    assert json.loads(found.to_json())["outcome"] == ("matches" if len(report) else "fails")


def test_without_a_choice_nothing_is_appraised() -> None:
    outcome = explain(total(), BOTH, "add").outcome
    assert isinstance(outcome, Matches)
    assert outcome.worth is None


def test_a_choice_that_fails_while_it_explains() -> None:
    with pytest.raises(pypm.PyPMError, match=r"the choice `.*` returned None"):
        explain(total(), negated, "add", choose=lambda candidate: None)  # type: ignore[arg-type,return-value]


def test_nodes_inside_of_what_is_left_are_no_near_misses() -> None:
    @pattern
    def Softplus(x):
        return aten.log(aten.exp(x) + 1)

    @rule(Softplus)
    def softplus(x):
        return torch.nn.functional.softplus(x)

    gm = graph_of(lambda x, y: (x.exp() + 1).log() * y)
    found = explain(gm, softplus, choose=lambda candidate: -1e-6)
    (group,) = found.groups
    assert [site.node.node for site in group.sites] == ["log"]
    assert {explanation.node.node for explanation in found.far} == {"mul"}
    assert json.loads(found.to_json())
