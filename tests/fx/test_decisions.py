"""What a report says of the places at which a choice compared rewrites."""

from __future__ import annotations

import json
from math import inf

import pytest
import torch
from rich.console import Console
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.fx import Appraisal, Candidate, Report, every, first, rewrite
from pypm.fx.reporting.decisions import CandidateRecord, Decision
from tests.fx.test_choice import RULES, a, b, by_name, c, d, graph

HERE = "measured on a test"


def known(before: float, after: float, bound: float | None = None) -> Appraisal:
    return Appraisal(before - after, HERE, before, after, bound)


def fates(report: Report) -> list[dict[str, str]]:
    return [{one.rule: one.fate for one in place.candidates} for place in report.decisions]


def lines(report: Report) -> list[str]:
    return str(report).splitlines()[1:]


def layers(count: int) -> fx.GraphModule:
    def model(x: Tensor) -> Tensor:
        for _ in range(count):
            x = x.relu().neg().exp() + 1
        return x

    return make_fx(model, tracing_mode="fake")(torch.ones(2))


def test_all_that_overlap_are_one_place() -> None:
    report = rewrite(graph(), RULES, choose=by_name(a=2, b=3, c=2, d=1))
    assert fates(report) == [{"a": "made", "c": "made", "b": "overlaps", "d": "overlaps"}]
    assert [one.region for one in report.decisions[0].candidates] == [
        ("relu",), ("neg", "exp"), ("relu", "neg"), ("relu", "neg", "exp"),
    ]  # fmt: skip
    assert lines(report) == [
        "  c (reassociated) at exp(x=relu) -> tan",
        "  a (reassociated) at relu(x=x_1) -> sin",
        "  chose a, c at relu",
        "    a, chosen: 2 s faster",
        "    c, chosen: 2 s faster",
        "    b: 3 s faster, overlaps",
        "    d: 1 s faster, overlaps",
    ]


@pytest.mark.parametrize(("whole", "expected"), [(2.0, []), (2.2, ["a"]), (None, ["a"])])
def test_a_part_of_a_quicker_whole_is_left(whole: float | None, expected: list[str]) -> None:
    """The compiler has one kernel for relu, neg and exp, which a rewrite of relu would undo."""
    others = Appraisal(-1.0, HERE)
    times = {"a": known(3, 1), "d": Appraisal(-1.0, HERE, whole), "b": others, "c": others}
    report = rewrite(graph(), RULES, choose=lambda candidate: times[candidate.rule.name])
    assert [record.rule for record in report.rewrites] == expected
    if not expected:
        said = "a region around it takes less, as it is, than this part of it alone"
        assert said in "\n".join(lines(report))
    place, *_ = report.decisions
    worth = next(one.worth for one in place.candidates if one.rule == "a")
    assert (worth.before, worth.after) == (3, 1)


def test_what_is_left_has_its_times() -> None:
    report = rewrite(graph(), d, choose=lambda candidate: known(2e-6, 11.2e-6, 1e-6))
    assert lines(report) == [
        f"  left exp as it is; {HERE}",
        "    d: 11.2 us instead of 2 us, 0.18 times as fast, at best 1 us",
    ]
    (place,) = json.loads(report.to_json())["decisions"]
    assert place["made"] == []
    (found,) = place["candidates"]
    assert (found["rule"], found["root"], found["fate"]) == ("d", "exp", "saves nothing")
    assert found["region"] == ["relu", "neg", "exp"]
    assert (found["worth"]["before"], found["worth"]["bound"]) == (2e-6, 1e-6)


def test_a_single_rewrite_has_its_times_in_its_line() -> None:
    report = rewrite(graph(), d, choose=lambda candidate: known(2e-6, 1e-6))
    assert lines(report) == [
        f"  d (reassociated) at exp(x=x_1) -> tanh  (as it is 2 us, replaced 1 us, {HERE})"
    ]
    assert fates(report) == [{"d": "made"}]


def test_equal_decisions_are_said_once_and_in_graph_order() -> None:
    report = rewrite(layers(5), [b, d], choose=lambda candidate: known(2e-6, 3e-6))
    assert [place.root for place in report.decisions] == ["neg", "neg_1", "neg_2", "neg_3", "neg_4"]
    assert lines(report)[0] == f"  left neg, neg_1, neg_2 and 2 more as it is; {HERE}"
    assert len(lines(report)) == 3


def test_reasons_that_differ_are_beside_the_candidates() -> None:
    def choose(candidate: Candidate) -> Appraisal:
        return Appraisal(-inf, f"it is {candidate.rule}")

    assert lines(rewrite(graph(), [a, d], choose=choose)) == [
        "  left relu as it is",
        "    a: it is a",
        "    d: it is d",
    ]


@pytest.mark.parametrize("choose", [first, every, lambda candidate: inf])
def test_nothing_is_said_where_nothing_was_compared(choose) -> None:  # type: ignore[no-untyped-def]
    report = rewrite(graph(), a, choose=choose)
    assert len(report) == 1
    assert report.decisions == ()
    assert "decisions" in json.loads(report.to_json())


def test_a_place_that_is_visited_again_is_one() -> None:
    """The rewrite of `relu` changes what `neg` reads, so `c` is appraised anew."""
    asked: list[str] = []

    def choose(candidate: Candidate) -> float:
        asked.append(candidate.rule.name)
        return 1.0 if candidate.rule is a else -1.0

    report = rewrite(graph(), [a, c], choose=choose)
    assert sorted(asked) == ["a", "c", "c"]
    assert fates(report) == [{"a": "made"}, {"c": "saves nothing"}]


def test_decisions_are_merged_and_moved_like_all_else() -> None:
    def branches(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.relu() + 1, lambda x: x.neg() + 1, (x,))

    gm = torch.export.export(Wrapped(branches), (torch.ones(3),)).graph_module
    report = rewrite(gm, a, choose=lambda candidate: -1.0)
    (place,) = report.decisions
    assert place.root == "true_graph_0.relu"
    assert place.candidates[0].region == ("true_graph_0.relu",)
    assert Report.merge([report, report]).decisions == (place, place)


class Wrapped(nn.Module):
    def __init__(self, function) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def test_tables() -> None:
    report = rewrite(graph(), [a, d], choose=lambda candidate: known(2e-6, 4e-6, 1e-6))
    console = Console(width=200)
    with console.capture() as captured:
        console.print(report)
    for cell in ("chosen by cost", "0.50 times as fast", f"saves nothing, {HERE}"):
        assert cell in captured.get()
    html = report._repr_html_()
    assert "<td>4 us</td><td>0.50 times as fast</td><td>1 us</td>" in html
    assert "chosen" not in rewrite(graph(), a)._repr_html_()


def test_no_text_of_a_decision_is_markup_or_control() -> None:
    name = "<img>\x1b\n"
    worth = Appraisal(-1.0, name)
    report = Report(
        decisions=(Decision((CandidateRecord(name, name, (name,), worth, "overlaps"),)),)
    )
    assert "\x1b" not in str(report)
    assert len(str(report).splitlines()) == 3
    assert "<img>" not in report._repr_html_()


@pytest.mark.parametrize(
    ("worth", "verdict"),
    [
        (known(2e-6, 11.2e-6), f"0.18 times as fast as leaving it, {HERE}"),
        (Appraisal(1e-6), "1 us faster than leaving it"),
        (Appraisal(-1e-6, "so"), "1 us slower than leaving it, so"),
        (Appraisal(0.0), "as fast as leaving it"),
        (Appraisal(-inf, "it cannot be timed"), "it cannot be timed"),
    ],
)
def test_verdicts(worth: Appraisal, verdict: str) -> None:
    assert worth.verdict == verdict
