"""The task whose candidates are rules: a search finds limits that pay, and near misses refuse."""

from __future__ import annotations

import secrets
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pypm.evolve import (
    Attempt,
    CandidateSearch,
    Jail,
    Judge,
    Parameters,
    Regions,
    SearchLimits,
    SearchTask,
)
from pypm.evolve.judge import CandidateJudge
from pypm.evolve.judge_process import JudgeProcess
from pypm.problems.formats.definition import ProblemDefinition
from pypm.problems.jail import is_possible
from tests.evolve.harnesses import Counting
from tests.evolve.small import HARDWARE

SHIPPED = Path(__file__).resolve().parents[2] / "benchmarks" / "evolve" / "last_position"
SEED = 495
"""The first proposal raises two limits; the second one takes another position than it computes."""
TASK = """\
name = "last_position"
hardware = "hardware.toml"
rounds = 12
timeout = 300
"""


@pytest.fixture
def task(tmp_path: Path) -> SearchTask:
    """The shipped task with one configuration that is shown, and one held out."""
    folder = tmp_path / "task"
    shutil.copytree(SHIPPED, folder)
    for name in ("workload.jsonl", "held_out.jsonl"):
        *_, last = (folder / name).read_text().splitlines()
        (folder / name).write_text(last)
    (folder / "hardware.toml").write_text(HARDWARE)
    (folder / "task.toml").write_text(TASK)
    return SearchTask.from_folder(folder)


@pytest.fixture
def judge(task: SearchTask, monkeypatch: pytest.MonkeyPatch) -> CandidateJudge:
    """The judge, with operations for seconds, and ten samples on which each rule fires."""
    monkeypatch.setattr(secrets, "randbits", lambda bits: 7)
    found = CandidateJudge(replace(task, samples=10), Jail())
    found.close()
    definition = ProblemDefinition.from_file(task.folder / "definition.json")
    found._bench = Counting(definition, task.rounds)  # type: ignore[assignment]
    return found


def searched(task: SearchTask, judge: Judge) -> list[Attempt]:
    operators = [Regions(), Parameters()]
    run = task.folder.parent / "run"
    search = CandidateSearch(task, run, operators, judge, SearchLimits(attempts=2), seed=SEED)
    search.run()
    first, better, wrong = search.trajectory.attempts
    assert first.verdict.is_right
    assert (better.operator, better.is_accepted) == ("parameters", True)
    assert "POSITIONS = 512" in better.log
    assert (wrong.operator, wrong.is_accepted) == ("regions", False)
    reason = "the rule `product` matches near miss 1 of the task, in Inductor's operators"
    assert reason in wrong.verdict.reason
    assert search.best == better
    return [first, better, wrong]


def test_a_search_for_rules(task: SearchTask, judge: CandidateJudge) -> None:
    first, better, _ = searched(task, judge)
    assert [each.compiled for each in first.verdict.configurations] == [1.0, 1.0]
    assert better.verdict.gain > 30
    for each in better.verdict.configurations:
        assert each.compiled == pytest.approx(better.verdict.gain, rel=0.5)


@pytest.mark.soak
def test_a_search_for_rules_by_time(task: SearchTask) -> None:
    """The same, in processes and by the clock."""
    judge = JudgeProcess(task, (), is_open=not is_possible())
    try:
        first, better, _ = searched(task, judge)
    finally:
        judge.close()
    for each in first.verdict.configurations:
        assert each.compiled == pytest.approx(1.0, rel=0.5)
    assert better.verdict.gain > 3


@pytest.mark.parametrize(
    ("rule", "guard", "near_miss"),
    [
        ("product", "where last.index == -1", 0),
        ("product", "where last.dim == 1", 2),
        ("relu", "where last.index == -1", 4),
        ("relu", "where last.dim == 1", 5),
    ],
)
def test_each_guard_has_a_near_miss(
    task: SearchTask, judge: CandidateJudge, rule: str, guard: str, near_miss: int
) -> None:
    files = task.first()
    before, name, after = files["rules.pypm"].decode().partition(f"rule {rule}(")
    text = before + name + after.replace(guard, "", 1)
    assert guard in after
    files["rules.pypm"] = text.encode()
    verdict = judge.judge(files, None, None, True)
    assert f"the rule `{rule}` matches near miss {near_miss} of the task" in verdict.reason
