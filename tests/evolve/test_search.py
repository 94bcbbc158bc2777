"""The controller: it accepts what is better alone, and goes on as it would have after any end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from pypm import PyPMError, kept_files
from pypm.evolve import CandidateSearch, SearchLimits, SearchTask, Verdict
from pypm.evolve.candidate import Snapshots
from pypm.evolve.lineage import Lineage
from pypm.evolve.trajectory import Trajectory
from tests.evolve.fakes import FIRST, FakeJudge, outline, searched, write_task

ROOT = Path(__file__).resolve().parents[2]
ATTEMPTS = 20
ENDED = 6


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> SearchTask:
    return write_task(tmp_path_factory.mktemp("evolve") / "task")


@pytest.fixture(scope="module")
def undisturbed(task: SearchTask) -> CandidateSearch:
    search = searched(task, task.folder.parent / "undisturbed", FakeJudge(), ATTEMPTS)
    search.run()
    return search


def test_a_search_accepts_what_is_better_alone(undisturbed: CandidateSearch) -> None:
    attempts = undisturbed.trajectory.attempts
    accepted = undisturbed.trajectory.accepted()
    assert [each.number for each in attempts] == [*range(ATTEMPTS + 1)]
    assert len(accepted) > 3
    scores = [each.verdict.score for each in accepted]
    assert scores == sorted(scores)
    for each in attempts[1:]:
        assert each.is_accepted == (each.verdict.is_better and each.repeats is None)
    assert [v.attempt for v in undisturbed.lineage.versions()] == [a.number for a in accepted]
    assert {each.operator for each in attempts} == {"first", "parameters", "regions"}


def test_a_search_that_is_over_does_nothing_more(
    task: SearchTask, undisturbed: CandidateSearch
) -> None:
    judge = FakeJudge()
    again = searched(task, undisturbed.folder, judge, ATTEMPTS)
    again.run()
    assert judge.calls == 0
    assert outline(again) == outline(undisturbed)
    longer = searched(task, undisturbed.folder, judge, ATTEMPTS + 1)
    longer.run()
    assert len(longer.trajectory.attempts) == ATTEMPTS + 2
    path = undisturbed.folder / "trajectory.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


@pytest.fixture(scope="module")
def until_the_end(task: SearchTask) -> CandidateSearch:
    search = searched(task, task.folder.parent / "until", FakeJudge(), ENDED)
    search.run()
    return search


class Killed(BaseException):
    """Stands for the end of the process."""


STEPS = [
    (Snapshots, "take"),
    (Trajectory, "add"),
    (Lineage, "add"),
    (Lineage, "_git"),
    (kept_files, "replace"),
    (FakeJudge, "judge"),
]


@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step[0].__name__}.{step[1]}")
def test_an_end_at_each_step(
    task: SearchTask,
    until_the_end: CandidateSearch,
    tmp_path: Path,
    step: tuple[object, str],
    is_before: bool,
) -> None:
    """The process ends before or after some calls of a step; the search goes on each time."""
    place, name = step
    done = getattr(place, name)
    moments = random.Random(1)
    share = 0.05 if name == "_git" else 0.5
    ends = 0

    def ending(*arguments: object, **more: object) -> object:
        nonlocal ends
        is_end = moments.random() < share
        ends += is_end
        if is_end and is_before:
            raise Killed
        result = done(*arguments, **more)
        if is_end:
            raise Killed
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, name, ending)
        for _ in range(100):
            with suppress(Killed):
                search = searched(task, tmp_path / "run", FakeJudge(), ENDED)
                search.run()
                break
    assert ends > 0
    assert outline(search) == outline(until_the_end)


def killed_at_random(task: SearchTask, run: Path, kills: int, attempts: int, seed: int) -> None:
    """End a search in a process of its own at random moments, then let it come to its end."""
    command = [sys.executable, "-m", "tests.evolve.fakes", str(task.folder), str(run)]
    moments = random.Random(seed)
    for _ in range(kills):
        process = subprocess.Popen([*command, str(attempts)], cwd=ROOT, env={**os.environ})
        time.sleep(moments.uniform(0.15, 0.9))
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run([*command, str(attempts)], cwd=ROOT, check=True)


@pytest.mark.parametrize(
    ("kills", "attempts"), [(5, ATTEMPTS), pytest.param(50, 200, marks=pytest.mark.soak)]
)
def test_kills_at_random_moments(
    task: SearchTask, tmp_path: Path, kills: int, attempts: int
) -> None:
    plain = searched(task, tmp_path / "plain", FakeJudge(), attempts)
    plain.run()
    killed_at_random(task, tmp_path / "run", kills, attempts, seed=kills)
    judge = FakeJudge()
    resumed = searched(task, tmp_path / "run", judge, attempts)
    resumed.run()
    assert judge.calls == 0
    assert outline(resumed) == outline(plain)


def test_a_line_that_was_cut_off_is_dropped(task: SearchTask, tmp_path: Path) -> None:
    searched(task, tmp_path / "run", FakeJudge(), 3).run()
    path = tmp_path / "run" / "trajectory.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert len(Trajectory(path).attempts) == 3
    path.write_bytes(whole.replace(b'"number": 1', b'"number": 7'))
    with pytest.raises(PyPMError, match="is not attempt 1"):
        Trajectory(path)


def test_one_search_in_a_folder_at_a_time(task: SearchTask, tmp_path: Path) -> None:
    outer = searched(task, tmp_path / "run", FakeJudge(), 2)

    class Nested(FakeJudge):
        def judge(self, *arguments: object) -> Verdict:
            searched(task, tmp_path / "run", FakeJudge(), 2).run()
            raise AssertionError

    with pytest.raises(PyPMError, match="another process searches"):
        searched(task, tmp_path / "run", Nested(), 2).run()
    outer.run()


def test_the_folder_of_another_task(task: SearchTask, tmp_path: Path) -> None:
    searched(task, tmp_path / "run", FakeJudge(), 1).run()
    other = write_task(tmp_path / "other", more="rounds = 30\n")
    with pytest.raises(PyPMError, match="a search for another task, or the task was changed"):
        searched(other, tmp_path / "run", FakeJudge(), 1)
    with pytest.raises(PyPMError, match="is inside of the task"):
        searched(other, other.folder / "run", FakeJudge(), 1)


def test_a_first_candidate_that_is_wrong(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task", {**FIRST, "notes.txt": b"wrong"})
    for _ in range(2):
        with pytest.raises(PyPMError, match="the first candidate is wrong: INCORRECT_NUMERICAL"):
            searched(task, tmp_path / "run", FakeJudge(), 3).run()


def test_the_time_counts_over_all_runs(task: SearchTask, tmp_path: Path) -> None:
    def run(seconds: float) -> CandidateSearch:
        limits = SearchLimits(seconds=seconds)
        search = CandidateSearch(
            task, tmp_path / "run", [Changes()], FakeJudge(0.02), limits, seed=1
        )
        search.run()
        return search

    first = run(0.3)
    count = len(first.trajectory.attempts)
    spent = sum(each.seconds for each in first.trajectory.attempts)
    assert spent >= 0.3
    assert len(run(0.3).trajectory.attempts) == count
    assert len(run(spent + 0.1).trajectory.attempts) > count


def test_an_operator_named_first_is_judged_as_others_are(task: SearchTask, tmp_path: Path) -> None:
    class Named(Changes):
        name = "first"

    search = CandidateSearch(
        task, tmp_path / "run", [Named()], FakeJudge(), SearchLimits(attempts=1), seed=1
    )
    search.run()
    assert [each.is_accepted for each in search.trajectory.attempts] == [True, False]


class Changes:
    """Proposes something else each time."""

    name = "changes"

    def vary(self, workdir: Path, *rest: object) -> str:
        path = workdir / "notes.txt"
        path.write_text(f"{time.monotonic_ns()}")
        return ""


def test_what_an_operator_reads(task: SearchTask, tmp_path: Path) -> None:
    """Neither the names nor the outcomes of what is held out; all else."""
    seen: list[str] = []

    class Reads(Changes):
        def vary(
            self, workdir: Path, lineage: object, knowledge: Path, evaluate: Callable[[], object],
            *rest: object,
        ) -> str:  # fmt: skip
            (workdir / "notes.txt").write_text("special")
            answer = evaluate()
            lines = (knowledge / "trajectory.jsonl").read_text().splitlines()
            names = sorted(path.name for path in knowledge.iterdir())
            seen.append(json.dumps([answer, [json.loads(line) for line in lines], names]))
            return ""

    search = CandidateSearch(
        task, tmp_path / "run", [Reads()], FakeJudge(), SearchLimits(attempts=1), seed=1
    )
    search.run()
    [text] = seen
    answer, lines, names = json.loads(text)
    assert answer["summary"] == "INCORRECT_NUMERICAL on a configuration that is held out"
    assert [each["name"] for each in answer["configurations"]] == ["shown"]
    assert len(lines) == 1
    assert '"held' not in text
    assert names == ["definition.json", "trajectory.jsonl", "workload.jsonl"]
    assert not search.trajectory.attempts[1].is_accepted


@pytest.mark.parametrize("name", ["run.json", "pending.json"])
@pytest.mark.parametrize("text", ["", "[" * 100_000, "[]", '{"task": 1, "number": "x"}', "\udcff"])
def test_a_damaged_file_is_a_diagnostic(
    task: SearchTask, tmp_path: Path, name: str, text: str
) -> None:
    searched(task, tmp_path / "run", FakeJudge(), 1).run()
    (tmp_path / "run" / name).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(PyPMError, match=f"{name}` was damaged") as caught:
        searched(task, tmp_path / "run", FakeJudge(), 2).run()
    help = {"run.json": "begin a new one in another folder", "pending.json": "remove it"}[name]
    assert help in caught.value.diagnostic.help


def test_a_candidate_that_was_changed_is_not_judged(task: SearchTask, tmp_path: Path) -> None:
    copies = Snapshots(tmp_path)
    digest = copies.take({"kernel.py": b"1"})
    (copies.path(digest) / "kernel.py").write_bytes(b"2")
    with pytest.raises(PyPMError, match=f"the files in `{copies.path(digest)}` were changed"):
        copies.files(digest)
    assert copies.take({"kernel.py": b"1"}) == digest
    assert copies.files(digest) == {"kernel.py": b"1"}
