"""Choices by times of whole graphs: the search, what is kept of it, and files of answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import kept_figures, pattern, rule
from pypm.choice import Candidate, first, tuned, tuning
from pypm.diagnostics import PyPMError
from pypm.fx import aten, metadata, rewrite
from pypm.integrations import inductor
from pypm.timing import Times
from tests.choice.exponentials import as_power


@pattern
def Power(x):
    return aten.exp2(x)


@rule(Power, pays="mostly")
def back(x):
    return torch.exp(x * 0.6931471805599453)


def seconds_of(gm: fx.GraphModule) -> float:
    """Powers are faster than exponentials for small tensors, and slower for large ones."""
    seconds = 10.0
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.exp2.default):
        value = metadata(node)
        assert isinstance(value, Tensor)
        seconds += -2 if value.numel() < 10 else 3
    return seconds


class Never:
    """A default choice that makes no rewrite."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds = seconds

    def __call__(self, candidate: Candidate) -> float:
        return -inf

    def identity(self) -> str:
        return f"{self.seconds}"


@pytest.fixture(autouse=True)
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times of the graphs that are compiled."""
    found: list[float] = []

    def compiled(gm: fx.GraphModule, inputs: Sequence[object]) -> Any:
        found.append(seconds_of(gm))
        return partial(len, [*range(int(found[-1]))])

    def interleave(calls: Mapping[str, Any], **options: object) -> Times:
        return Times({name: [float(len(call.args[0]))] * 3 for name, call in calls.items()})

    monkeypatch.setattr(kept_figures, "cache_dir", lambda: str(tmp_path))
    monkeypatch.setattr(tuning, "compiled", compiled)
    monkeypatch.setattr(tuning, "interleave", interleave)
    monkeypatch.setattr(tuning, "worthwhile", Never)
    return found


def graph() -> fx.GraphModule:
    def model(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x.exp(), (x + 1).exp(), y.exp()

    return make_fx(model, tracing_mode="fake")(torch.ones(8), torch.ones(16))


def test_single_rewrites_are_turned() -> None:
    """Both small ones are equal regions: they are made together."""
    choose, gm = tuned(), graph()
    report = rewrite(gm, as_power, choose=choose)
    assert len(report) == 2 and seconds_of(gm) == 6
    alone, everything, *turned = choose.tried
    assert str(alone) == "torch.compile alone       1.00x  0 rewrites"
    assert str(everything) == "all legal rewrites        1.11x  3 rewrites"
    assert [str(each)[24:] for each in turned if each.is_best] == [
        "  1.67x  2 rewrites; the fastest"
    ]
    assert {each.worth.why for each in report.rewrites if each.worth} == {"by whole graphs"}


def test_what_was_found_is_kept(made: list[float]) -> None:
    rewrite(graph(), as_power, choose=tuned())
    count = len(made)
    again = tuned()
    assert len(rewrite(graph(), as_power, choose=again)) == 2
    assert (len(made), again.tried) == (count, [])


def test_answers_in_a_file(made: list[float], tmp_path: Path) -> None:
    """A machine that must not time makes the same rewrites, in other graphs, too."""
    choose = tuned()
    rewrite(graph(), as_power, choose=choose)
    choose.save(tmp_path / "answers.json")
    count, known = len(made), tuned(answers=tmp_path / "answers.json")
    gm = make_fx(lambda x: x.exp().exp(), tracing_mode="fake")(torch.ones(8))
    assert len(rewrite(gm, as_power, choose=known)) == 2
    large = make_fx(lambda x: x.exp(), tracing_mode="fake")(torch.ones(16))
    assert not len(rewrite(large, as_power, choose=known))
    assert len(made) == count
    assert known.identity() != tuned().identity()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"answers": [1]}', '{"answers": {"a": "b"}}'])
def test_files_without_answers(text: str, tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    path.write_text(text)
    with pytest.raises(PyPMError, match="is no file of answers"):
        tuned(answers=path)


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(PyPMError, match="pypm tune MODEL"):
        tuned(answers=tmp_path / "none.json")


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_times_that_are_none(seconds: float) -> None:
    with pytest.raises(PyPMError, match="a time above 0"):
        tuned(seconds=seconds)


def test_rewrites_that_undo_each_other_are_no_way() -> None:
    choose, gm = tuned(), graph()
    rewrite(gm, [as_power, back], choose=choose)
    assert seconds_of(gm) == 6
    assert "all legal rewrites" not in [each.name for each in choose.tried]


def test_a_graph_that_cannot_run_is_left_to_the_default_choice(made: list[float]) -> None:
    gm = graph()
    for node in gm.graph.nodes:
        node.meta.clear()
    choose = tuned()
    assert not len(rewrite(gm, as_power, choose=choose))
    assert not made and not choose.tried


@pytest.mark.parametrize(
    ("mode", "is_tuned"), [(None, False), ("max-autotune-no-cudagraphs", True), ("default", False)]
)
def test_a_mode_means_it(mode: str | None, is_tuned: bool) -> None:
    (hook,) = (
        value for value in inductor.options(as_power, mode=mode).values() if hasattr(value, "rules")
    )
    assert isinstance(hook.choose, tuning.Tuned) is is_tuned


def test_a_pass_that_is_made_first_follows_the_mode_unless_a_choice_was_given() -> None:
    for choose, is_tuned in ((None, True), (first, False)):
        hook = inductor.Pass(as_power, choose=choose)
        hook.options("max-autotune-no-cudagraphs")
        assert isinstance(hook.choose, tuning.Tuned) is is_tuned
