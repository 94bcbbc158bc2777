"""What the default choice does not time, and the reasons that it gives."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import kept_figures, pattern, rule
from pypm.choice import Appraisal, Candidate, measured, measuring, sparing, worthwhile
from pypm.choice.measuring import Measured
from pypm.choice.operator_times import OperatorTimes
from pypm.choice.sparing import Spared, Sparing
from pypm.core.rules import Rule
from pypm.fx import aten, rewrite
from tests.choice.exponentials import Exp, as_power

FASTER = {"before": 4e-6, "ratio": 0.5, "upper": 0.5, "rounds": 9.0}


@pytest.fixture(autouse=True)
def timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The candidates that are timed: all are twice as fast, and nothing is compiled."""
    found: list[str] = []

    def times(self: Measured, candidate: object) -> dict[str, float]:
        found.append("timed")
        return FASTER

    monkeypatch.setattr(kept_figures, "cache_dir", lambda: str(tmp_path))
    monkeypatch.setattr(Measured, "_times", times)
    return found


@rule(Exp, pays="mostly")
def as_other_power(x):
    return torch.exp2(1.4426950408889634 * x + 0.0)


@rule(Exp, pays="mostly")
def as_third_power(x):
    return torch.exp2(1.4426950408889634 * x - 0.0)


@pattern
def Run(x):
    return aten.exp(Run(x)) | aten.exp(x)


@rule(Run, pays="mostly")
def run_as_power(x):
    return torch.exp2(1.4426950408889634 * x)


@pattern
def ExpAndOne(x):
    return aten.add(aten.exp(x), 1)


@rule(ExpAndOne, pays="mostly")
def exp_and_one(x):
    return torch.expm1(x) + 2


@rule(Exp, pays="by data")
def as_power_by_data(x):
    return torch.exp2(1.4426950408889634 * x + 0.0)


def appraisals(gm: fx.GraphModule, choose: Measured, *rules: object) -> list[Appraisal]:
    found: list[Appraisal] = []
    rewrite(gm, [*rules], choose=lambda c: found.append(choose(c)) or 0.0)  # type: ignore[arg-type,func-returns-value]
    return found


def beside_products(exponentials: int) -> fx.GraphModule:
    def model(x: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        y = x
        for _ in range(8):
            y = y @ x
        return y, *((rows + i).exp() for i in range(exponentials))

    x = torch.ones(512, 512)
    return make_fx(model, tracing_mode="fake")(x, torch.ones(8, 8))


def test_a_small_part_of_a_graph_is_left(timed: list[str]) -> None:
    (worth,) = appraisals(beside_products(1), worthwhile(), as_power)
    assert worth.saved < 0
    assert worth.why == "not timed: all like it take less than 1% of the graph's time"
    assert not timed


def test_many_small_parts_are_a_large_one(
    timed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sparing, "_seconds", lambda graph: 50.0 if len(graph.nodes) > 9 else 1.0)
    monkeypatch.setattr(sparing, "SHARE", 0.25)
    assert appraisals(beside_products(1), worthwhile(), as_power)[0].saved < 0
    assert appraisals(beside_products(40), worthwhile(), as_power)[0].saved > 0


def test_all_of_a_graph_matters(timed: list[str]) -> None:
    gm = make_fx(lambda x: x.exp(), tracing_mode="fake")(torch.ones(8))
    assert appraisals(gm, worthwhile(), as_power)[0].saved > 0


def test_nothing_is_spared_where_all_is_asked_for(timed: list[str]) -> None:
    assert appraisals(beside_products(1), measured(), as_power)[0].saved > 0


def candidate(gm: fx.GraphModule, by: Rule = as_power) -> Candidate:
    found: list[Candidate] = []
    rewrite(gm, by, choose=lambda c: found.append(c) or 0.0)  # type: ignore[func-returns-value]
    return found[0]


def exponentials(count: int) -> fx.GraphModule:
    def model(x: Tensor) -> Tensor:
        for _ in range(count):
            x = x.exp()
        return x

    return make_fx(model, tracing_mode="fake")(torch.ones(8))


def test_a_budget_for_each_graph() -> None:
    small, large = (candidate(exponentials(n)) for n in (1, 400))
    spares = Sparing()
    for each in (small, large):
        spares.check_compiling(each)
        spares.spent(each, sparing.LEAST)
    spares.check_compiling(large)
    with pytest.raises(Spared, match="what may be spent on this graph is spent"):
        spares.check_compiling(small)


def test_what_cannot_be_the_fastest() -> None:
    one, other = candidate(exponentials(1)), candidate(exponentials(1))
    spares = Sparing()
    spares.found(one, 1e-3)
    spares.check_compiling(one, at_best=9e-4)
    spares.check_compiling(other, at_best=2e-3)  # of another graph
    with pytest.raises(Spared, match="longer than another rewrite of these nodes"):
        spares.check_compiling(one, at_best=2e-3)


def test_by_data_half_is_left_out() -> None:
    one = candidate(exponentials(1), as_power_by_data)
    spares = Sparing()
    spares.found(one, 1e-3)
    spares.spent(one, 2 * sparing.LEAST)
    spares.check_compiling(one, at_best=1.3e-3)
    with pytest.raises(Spared, match="what may be spent"):
        spares.check_compiling(one, at_best=1.5e-3)
    with pytest.raises(Spared, match="longer than another rewrite"):
        spares.check_compiling(one, at_best=2.1e-3)


def test_what_saves_little_at_best(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three regions like it, in a graph of a second, save 0.3 s in all."""
    one = candidate(exponentials(3))
    spares = Sparing()
    monkeypatch.setattr(sparing, "_seconds", lambda graph: 1.0)
    spares.check_compiling(one, 0.3, 0.2)
    monkeypatch.setattr(sparing, "SAVING", 0.31)
    for check in (spares.check_compiling, spares.check_saving):
        with pytest.raises(Spared, match="save less than 2% of the graph's time"):
            check(one, 0.3, 0.2)
        check(one, inf, 0.2)  # nothing is known of the region
    spares.check_compiling(candidate(exponentials(3), as_power_by_data), 0.3, 0.2)


def test_a_rival_is_what_there_is_to_save(monkeypatch: pytest.MonkeyPatch) -> None:
    one = candidate(exponentials(1))
    spares = Sparing()
    monkeypatch.setattr(sparing, "_seconds", lambda graph: 1.0)
    spares.check_saving(one, 0.5, 0.2)
    spares.found(one, 0.21)
    with pytest.raises(Spared, match="save less than 2%"):
        spares.check_saving(one, 0.5, 0.2)


def test_regions_alike_have_all_operators_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The root alone, an addition, is there four times; its region, one of products, once."""

    def model(x: Tensor) -> tuple[Tensor, ...]:
        return x.exp() + 1, x + 1, x.sin() + 1, x.cos() + 1

    gm = make_fx(model, tracing_mode="fake")(torch.ones(8))
    monkeypatch.setattr(sparing, "_seconds", lambda graph: 1.0)
    monkeypatch.setattr(sparing, "SHARE", 1.5)
    with pytest.raises(Spared, match="less than 1%"):
        Sparing().check_share(candidate(gm, exp_and_one))


def test_what_may_be_much_faster_is_timed_beyond_the_budget() -> None:
    one = candidate(exponentials(1))
    spares = Sparing()
    spares.found(one, 1e-3)
    spares.spent(one, 2 * sparing.LEAST)
    spares.check_compiling(one, at_best=5e-4)
    with pytest.raises(Spared, match="what may be spent"):
        spares.check_compiling(one, at_best=9e-4)


def test_a_rewrite_that_is_not_timed_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    made: list[str] = []
    monkeypatch.setattr(OperatorTimes, "compared", lambda *given: None)
    answers = iter((FASTER, None, FASTER))
    monkeypatch.setattr(OperatorTimes, "beside", lambda *given: next(answers))
    monkeypatch.setattr(OperatorTimes, "at_best", lambda *given: 3e-6)
    monkeypatch.setattr(OperatorTimes, "at_most", lambda *given: inf)
    monkeypatch.setattr(measuring, "shortest", lambda *given: inf)
    monkeypatch.setattr(measuring, "compiled", lambda *given: made.append("made") or len)
    given = as_power, as_other_power, as_third_power
    one, other, third = appraisals(exponentials(1), worthwhile(), *given)
    assert (one.saved, other.saved, third.saved) == (2e-6, -inf, 2e-6)
    assert other.why == "not timed: at best it takes longer than another rewrite of these nodes"
    assert len(made) == 1


def test_a_part_of_what_is_faster_is_not_timed(timed: list[str]) -> None:
    """Of the same rule; a match at another node as one at the same."""
    whole, part = appraisals(exponentials(2), worthwhile(), run_as_power)
    assert (whole.saved, part.saved) == (2e-6, -inf)
    assert part.why == "not timed: a larger match of the rule is faster"
    assert len(timed) == 1


def test_what_is_not_timed_is_kept_for_the_graph(
    timed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process, with a budget left, decides alike; in another graph, nothing is known."""
    gm, other = exponentials(2), exponentials(3)

    def spent(*given: object) -> None:
        raise Spared(sparing.SPENT)

    with monkeypatch.context() as patch:
        patch.setattr(Sparing, "check_share", spent)
        assert {each.saved for each in appraisals(gm, worthwhile(), as_power)} == {-inf}
    found = appraisals(exponentials(2), worthwhile(), as_power)
    assert {each.why for each in found} == {f"not timed: {sparing.REASONS[sparing.SPENT]}"}
    assert not timed
    assert appraisals(other, worthwhile(), as_power)[0].saved > 0


def test_what_is_known_needs_no_estimates(
    timed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They measure rates, which takes time, and is wrong where a graph is being traced."""
    appraisals(exponentials(1), worthwhile(), as_power)

    def estimated(graph: fx.Graph) -> float:
        raise AssertionError("nothing is estimated")

    monkeypatch.setattr(sparing, "_seconds", estimated)
    assert appraisals(exponentials(1), worthwhile(), as_power)[0].saved > 0
    assert appraisals(exponentials(1), worthwhile(seconds=0), as_power)[0].saved > 0
    assert len(timed) == 1
