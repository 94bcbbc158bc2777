"""The command, with its judge in a process and a program that improves; and what it refuses."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
from typer.testing import CliRunner, Result

from pypm.evolve import Jail, SearchTask, judge_process
from pypm.evolve.judge_process import JudgeProcess, judge_of
from pypm.evolve.operators.marks import parameters, regions
from pypm.evolve.task import HOPPER
from pypm.problems import harness
from pypm.problems.jail import is_possible
from pypm.roofline import hardware
from pypm.tools.cli import app
from tests.evolve.small import FAST, candidate, small_task

ROOT = Path(__file__).resolve().parents[2]


ASKING = """\
"$PYPM_EVALUATE" > /tmp/answer.json || git checkout -q .
test -f "$PYPM_KNOWLEDGE/definition.json" && test -f "$PYPM_LINEAGE" || rm kernel.py
"""


def command(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["evolve", *map(str, arguments)])


@pytest.mark.skipif(not is_possible(), reason="no jail is possible here")
def test_a_program_that_improves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks for a verdict as the page about searches has it, and all paths are relative."""
    task = small_task(tmp_path / "task")
    agent = tmp_path / "agent.sh"
    agent.write_text(f"#!/bin/sh\ncat > kernel.py <<'END'\n{FAST}\nEND\n{ASKING}")
    agent.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    given = ("task", "--operator", "./agent.sh", "--attempts", 1)
    found = command(*given, "--json")
    assert found.exit_code == 0, found.output
    best = json.loads(found.stdout)["best"]
    assert (best["number"], best["operator"], best["is_accepted"]) == (1, "agent.sh", True)
    assert (tmp_path / "evolve-scaled" / "trajectory.jsonl").exists()
    assert "1 agent.sh: accepted" in found.stderr
    for each in best["verdict"]["configurations"]:
        assert each["status"] == "right"
        assert each["score"] > 0
        assert each["eager"] > 0
        assert len(each["gains"]) == task.rounds
    monkeypatch.setattr(JudgeProcess, "_start", lambda _: None)  # nothing is left to judge
    again = command(*given)
    assert again.exit_code == 0
    assert "2 attempts, 2 accepted" in again.stdout
    assert "large" in again.stdout
    page = tmp_path / "page.html"
    assert command(*given, "--report", page).exit_code == 0
    assert "2 accepted" in page.read_text()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "the search has no budget"),
        (["--attempts", 1, "--operator", "./none.sh"], "`./none.sh` is not a program"),
        (["--attempts", 1, "--operator", "'"], "the command `'` cannot be read"),
        (["--report", "page.html", "--run", "none"], "there is no search in `none`"),
    ],
)
def test_mistakes(tmp_path: Path, more: list[object], message: str) -> None:
    found = command(small_task(tmp_path / "task").folder, *more)
    assert found.exit_code == 2
    assert message in found.stderr


class Fork:
    """A judge, in place of `Popen`: it need not import torch again."""

    def __init__(self, command: list[str], **_: object) -> None:
        requests, asked = os.pipe()
        answered, answers = os.pipe()

        def main() -> None:
            os.close(asked)
            os.dup2(answers, 1)
            sys.stdin, sys.argv = os.fdopen(requests), command[-2:]
            judge_process.main()

        process = multiprocessing.get_context("fork").Process(target=main)
        process.start()
        os.close(requests)
        os.close(answers)
        self.stdin, self.stdout = os.fdopen(asked, "wb", 0), os.fdopen(answered, "rb", 0)
        self.terminate, self.wait = process.terminate, process.join


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_process.subprocess, "Popen", Fork)


@pytest.mark.usefixtures("forks")
def test_a_task_that_the_judge_refuses(tmp_path: Path) -> None:
    task = small_task(tmp_path / "task")
    (task.folder / "definition.json").write_text("{}")
    found = command(task.folder, "--attempts", 1, "--run", tmp_path / "run", "--no-jail")
    assert found.exit_code == 2
    assert "the field `axes` is missing" in found.stderr


def ended(judge: JudgeProcess) -> None:
    judge._process = Popen(["true"], stdin=PIPE, stdout=PIPE, bufsize=0)


@pytest.mark.usefixtures("forks")
def test_a_judge_that_ends_is_begun_anew(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JudgeProcess, "_start", ended)
        judge = JudgeProcess(small_task(tmp_path / "task"), (), is_open=True)
    verdict = judge.judge(candidate(FAST), None, None, True)
    assert verdict.summary == "the judge ended before it had a verdict"
    verdict = judge.judge({"kernel.py": b""}, None, None, True)
    judge.close()
    assert "the candidate has no `candidate.toml`" in verdict.summary


@pytest.mark.parametrize("path", sorted((ROOT / "benchmarks" / "evolve").glob("*/task.toml")))
def test_the_tasks_that_are_shipped(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "this_machine", lambda threads: hardware("H100"))
    task = SearchTask.from_folder(path.parent)
    if task.hardware == HOPPER:
        pytest.importorskip("triton")
    judge_of(task, Jail()).close()
    assert len(parameters(task.first())) >= 4
    assert regions(task.first()) or task.hardware == HOPPER
