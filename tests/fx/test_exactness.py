"""The exactness that rules say, and the least that users accept."""

from __future__ import annotations

import json
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
from torch import fx

from pypm import pattern, rule
from pypm.core.rules import EXACTNESS, Exactness, Rule, print_rules
from pypm.core.text import parse_rules
from pypm.diagnostics import PyPMError
from pypm.fx import aten, explain, rewrite
from pypm.integrations import export, inductor
from pypm.integrations.rule_files import shipped_packs
from pypm.rules import attention
from pypm.tools import show
from tests.floors import ROOT


@pattern
def TwiceNegated(x):
    return aten.neg(aten.neg(x))


@rule(TwiceNegated, exactness="bitwise")
def not_negated(x):
    return aten.relu(x)


def negated_twice(x: torch.Tensor) -> torch.Tensor:
    return x.neg().neg()


def saying(word: Exactness) -> Rule:
    return replace(not_negated, exactness=word)


def graph() -> fx.GraphModule:
    return fx.symbolic_trace(lambda x: torch.ops.aten.neg(torch.ops.aten.neg(x)))


@pytest.mark.parametrize("least", EXACTNESS)
@pytest.mark.parametrize("word", EXACTNESS)
def test_rules_that_say_less_are_refused(word: Exactness, least: Exactness) -> None:
    report = rewrite(graph(), saying(word), exactness=least)
    is_enough = EXACTNESS.index(word) >= EXACTNESS.index(least)
    assert len(report) == is_enough
    reasons = [(r.kind, r.node, r.reason) for r in report.refusals]
    expected = ("exactness", "neg_default_1", f"the rule is {word}, not {least}")
    assert [(kind, reason) for kind, _, reason in reasons] == (
        [] if is_enough else [(expected[0], expected[2])]
    )


def test_the_next_rule_is_tried() -> None:
    report = rewrite(graph(), [saying("rounding"), not_negated], exactness="bitwise")
    assert len(report) == len(report.refusals) == 1


def test_a_rule_says_reassociated_unless_it_says_more() -> None:
    @rule(TwiceNegated)
    def silent(x):
        return x

    assert silent.exactness == "reassociated"


def test_reports_show_the_word() -> None:
    report = rewrite(graph(), not_negated)
    assert "not_negated (bitwise) at " in str(report)
    assert "<td>bitwise</td>" in report._repr_html_()
    data = json.loads(report.to_json())
    assert data["rules"][0]["exactness"] == data["rewrites"][0]["exactness"] == "bitwise"
    assert '"exactness":"bitwise"' in show(graph(), not_negated).html


def test_merged_reports_show_the_lesser_word() -> None:
    both = [rewrite(graph(), saying(word)) for word in ("bitwise", "rounding")]
    assert both[0].merge(both).rules[0].exactness == "rounding"
    together = rewrite(graph(), [saying("rounding"), saying("bitwise")])
    assert [each.exactness for each in together.rules] == ["rounding"]


def test_explanations_hold_rules_to_it() -> None:
    assert explain(graph(), saying("rounding"), exactness="rounding").matches
    found = explain(graph(), saying("rounding"), exactness="bitwise")
    assert not found.matches and "the rule is rounding, not bitwise" in str(found)


def test_exported_programs() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return negated_twice(x)

    program = torch.export.export(Model(), (torch.randn(3),))
    assert not len(export.rewrite(program, saying("rounding"), exactness="bitwise"))
    assert len(export.rewrite(program, not_negated, exactness="bitwise"))


def test_a_pass_has_it_and_its_key_depends_on_it() -> None:
    made: dict[str, inductor.Pass] = {
        word: inductor.Pass(saying("rounding"), exactness=word) for word in EXACTNESS
    }
    assert len({each.uuid() for each in made.values()}) == len(EXACTNESS)
    words = [inductor.Pass(saying(word)).uuid() for word in EXACTNESS]
    assert len({*words}) == len(EXACTNESS)
    traced = graph().graph
    made["bitwise"](traced)
    made["rounding"](traced)
    assert [len(made[word].report()) for word in ("bitwise", "rounding")] == [0, 1]
    option = inductor.options(not_negated, exactness="rounding")["joint_custom_pre_pass"]
    assert option.exactness == "rounding"


@pytest.mark.parametrize(
    "asked",
    [
        lambda word: rewrite(graph(), not_negated, exactness=word),
        lambda word: explain(graph(), not_negated, exactness=word),
        lambda word: inductor.options(not_negated, exactness=word),
        lambda word: rule(TwiceNegated, exactness=word),
    ],
)
def test_other_words_are_refused(asked: Any) -> None:
    with pytest.raises(PyPMError) as raised:
        asked("bitwize")
    assert str(raised.value) == (
        "error: there is no exactness 'bitwize'\n"
        "  = help: did you mean `bitwise`? the words are reassociated, rounding, bitwise"
    )


def test_the_word_in_text() -> None:
    text = "rules s { rule r(x) exactness 'rounding': aten.relu(x) => aten.sin(x) }"
    (found,) = parse_rules(text)
    assert found.exactness == "rounding"
    assert "exactness 'rounding'" in print_rules(parse_rules(text))
    assert "exactness" not in print_rules(parse_rules(text.replace("exactness 'rounding'", "")))
    with pytest.raises(PyPMError, match="a rule has no exactness 'exact'"):
        parse_rules(text.replace("rounding", "exact"))


def test_a_rule_that_says_more_is_not_shadowed() -> None:
    rewrite(graph(), [saying("rounding"), saying("bitwise")])
    for first in ("bitwise", "rounding"):
        with pytest.warns(RuntimeWarning, match="never fires"):
            rewrite(graph(), [saying(first), saying("rounding")])


def test_attention_is_refused_unless_sums_may_be_in_another_order() -> None:
    """A row that is masked everywhere is NaN in the graph, and 0 in the kernel."""

    def attend(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ x.transpose(-2, -1) - torch.inf, -1) @ x

    x = torch.randn(1, 2, 4, 8)
    program = torch.export.export(_Module(attend), (x,))
    report = export.rewrite(program, attention.RULES, exactness="rounding")
    assert not len(report) and {r.kind for r in report.refusals} == {"exactness"}
    assert program.module()(x).isnan().all()


def test_the_documentation_shows_the_words_of_the_packs() -> None:
    packs = {name.rpartition(".")[2]: resolve_name(name).RULES for name in shipped_packs()}
    del packs["inference"]
    words = {pack: {each.exactness for each in rules} for pack, rules in packs.items()}
    rows = (ROOT / "docs" / "packs.md").read_text(encoding="utf-8").split("\n")
    cells = [row.strip("| ").split(" | ") for row in rows if row.startswith("| `")]
    shown = {name.strip("`"): word for name, *_, word, _ in (c for c in cells if len(c) == 5)}
    assert shown == {pack: ", ".join(sorted(said)) for pack, said in words.items()}


class _Module(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)  # type: ignore[no-any-return]
