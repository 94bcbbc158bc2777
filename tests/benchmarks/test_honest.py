"""Honest versions pass the harness: solutions of the ten problems, and candidates of tasks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.sol.__main__ import problems, read
from pypm.evolve import Candidate, SearchTask
from pypm.problems.contender import Contender
from pypm.problems.formats.solution import ProblemSolution
from pypm.problems.harness import Settings, SolProblem
from pypm.problems.traces import Status
from pypm.roofline import Hardware
from tests.problems.forked import run_forked

HARDWARE = Hardware("test", "test", {"float32": 1e18}, 1e18, 1e18, 1e9, 1e4)
SETTINGS = Settings(warm_ups=1, runs=3, versions=(), hardware=HARDWARE)
TASKS = Path(__file__).resolve().parents[2] / "benchmarks" / "evolve"


def check(problem: SolProblem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the first workload of a problem, in forks, and without a bound."""
    monkeypatch.setattr(Contender, "bound", lambda *_: 0.0)
    small = replace(problem, workloads=problem.workloads[:1])
    found = run_forked(small, SETTINGS)
    assert len(found) == 1 + len(problem.solutions)
    for trace in found:
        assert trace.status is Status.PASSED, trace.log
        assert "the same in every call" not in trace.log
        assert "no input differs" not in trace.log


@pytest.mark.parametrize("folder", problems([]), ids=lambda path: path.name)
def test_problems(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(read(folder), monkeypatch)


@pytest.mark.parametrize("name", ["decoding", "rmsnorm", "rotary"])
def test_first_candidates(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    candidate = Candidate.of(SearchTask.from_folder(TASKS / name).first())
    assert candidate.entry is not None
    sources = {path: content.decode() for path, content in candidate.files.items()}
    first = ProblemSolution("first", sources, *candidate.entry, candidate.has_destinations)
    check(replace(SolProblem.from_files(TASKS / name), solutions=[first]), monkeypatch)
