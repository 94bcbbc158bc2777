"""`pypm sol PROBLEM_DIR`: its table, trace lines, exit codes, and mistakes in what is given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pypm.problems import harness
from pypm.problems.harness import Settings, SolProblem
from pypm.problems.jail import is_possible
from pypm.problems.traces import Correctness, Performance, Status, Trace
from pypm.tools.cli import app
from tests.problems.small import WORKLOAD, solution, write

PASSED = Trace(
    *("scaled", WORKLOAD, "reference", Status.PASSED),
    correctness=Correctness(),
    performance=Performance(1.0, 1.0, 1.0),
)
FAILED = Trace("scaled", WORKLOAD, "pypm", Status.TIMEOUT, "`call` took longer than 7 s")


def sol(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["sol", *map(str, arguments)])


def given(monkeypatch: pytest.MonkeyPatch, *traces: Trace) -> list[tuple[SolProblem, Settings]]:
    """Let problems have some traces, and return what they are run with."""
    calls = []

    def run(problem: SolProblem, settings: Settings) -> Iterator[Trace]:
        calls.append((problem, settings))
        yield from traces

    monkeypatch.setattr(harness, "run", run)
    return calls


def test_a_table_and_trace_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = given(monkeypatch, PASSED)
    [path] = write(tmp_path, solution("some", "def run(x, factor): pass"))
    done = sol(tmp_path, "--solution", path, "--threads", 2, "--timeout", 7)
    assert done.exit_code == 0, done.output
    assert "rows=16   reference  1.000 ms" in done.output
    [(problem, settings)] = calls
    assert [each.name for each in problem.solutions] == ["some"]
    jail = replace(settings.jail, is_open=not is_possible())
    assert settings == Settings(threads=2, timeout=7.0, jail=jail)
    [line] = (tmp_path / "traces.jsonl").read_text().splitlines()
    assert json.loads(line) == PASSED.as_dict()
    assert sol(tmp_path).exit_code == 0
    assert len((tmp_path / "traces.jsonl").read_text().splitlines()) == 2


def test_json_elsewhere_and_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = given(monkeypatch, PASSED, FAILED)
    write(tmp_path)
    done = sol(tmp_path, "-r", "pypm.rules.norm", "-o", tmp_path / "here", "--json")
    assert done.exit_code == 1
    assert json.loads(done.output) == [PASSED.as_dict(), FAILED.as_dict()]
    assert [settings.rules for _, settings in calls] == [["pypm.rules.norm"]]
    assert len((tmp_path / "here").read_text().splitlines()) == 2
    assert not (tmp_path / "traces.jsonl").exists()
    assert sol(tmp_path).output.endswith("pypm: TIMEOUT\n  `call` took longer than 7 s\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--hardware", "H100"], "`--hardware` is an option of a program, not of a problem"),
        (["--import", "some"], "`--import` is an option of a program, not of a problem"),
        (["--solution", "none.json"], "there is no file `none.json`"),
        (["--rules", "pypm.rules.none"], "there is no module `pypm.rules.none`"),
    ],
)
def test_mistakes_in_options(tmp_path: Path, options: list[str], message: str) -> None:
    write(tmp_path)
    done = sol(tmp_path, *options)
    assert done.exit_code == 2
    assert message in done.output


def test_options_of_problems_are_not_for_programs(tmp_path: Path) -> None:
    done = sol(tmp_path / "model.pt2", "--solution", "some.json")
    assert done.exit_code == 2
    assert "`--solution` is an option of a problem, not of a program" in done.output


def test_mistakes_in_files_are_found_before_anything_runs(tmp_path: Path) -> None:
    write(tmp_path, workloads=({**WORKLOAD, "axes": {"row": 16}},))
    done = sol(tmp_path)
    assert done.exit_code == 2
    assert "the axis `row` is not in the definition" in done.output
    assert "did you mean `rows`?" in done.output
    assert not (tmp_path / "traces.jsonl").exists()
    write(tmp_path)
    done = sol(tmp_path, "-o", tmp_path)
    assert done.exit_code == 2
    assert "cannot be written" in done.output
