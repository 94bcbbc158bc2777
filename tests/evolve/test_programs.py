"""Outside programs: one that improves, and those that crash, hang, do nothing, or do harm."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

from pypm import PyPMError
from pypm.evolve import Attempt, CandidateSearch, Jail, ProgramOperator, SearchLimits, SearchTask
from pypm.problems.jail import end, environment, is_possible, stopped
from tests.evolve.fakes import FakeJudge, write_task

isolated = pytest.mark.skipif(
    not is_possible(), reason="bubblewrap is not installed, or the system refuses namespaces"
)
OPEN = [pytest.param(False, marks=isolated, id="isolated"), pytest.param(True, id="open")]


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> SearchTask:
    return write_task(tmp_path_factory.mktemp("evolve") / "task")


def program(folder: Path, text: str) -> Path:
    path = folder / "agents" / "agent.sh"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n" + dedent(text))
    path.chmod(0o755)
    return path


def searched(task: SearchTask, folder: Path, text: str, attempts: int = 1, turn: float = 60.0,
             jail: Jail | None = None, evaluations: int = 20) -> CandidateSearch:  # fmt: skip
    run = folder / "run"
    given = jail or Jail(hidden=(task.folder, run), is_open=not is_possible())
    operator = ProgramOperator([str(program(folder, text))], given)
    limits = SearchLimits(attempts=attempts, turn=turn, evaluations=evaluations)
    search = CandidateSearch(task, run, [operator], FakeJudge(), limits, seed=1)
    search.run()
    return search


def only(search: CandidateSearch) -> Attempt:
    [_, attempt] = search.trajectory.attempts
    return attempt


@pytest.mark.parametrize("is_open", OPEN)
def test_a_program_that_improves(task: SearchTask, tmp_path: Path, is_open: bool) -> None:
    """It asks after each edit; once it is wrong, once better; what it leaves is better again."""
    text = """
        test "$(git rev-list --count HEAD)" = 1 || exit 9
        test -f "$PYPM_KNOWLEDGE/definition.json" || exit 9
        test "$(wc -l < "$PYPM_LINEAGE")" = 1 || exit 9
        echo "evaluations: $PYPM_EVALUATIONS"
        echo wrong > notes.txt
        "$PYPM_EVALUATE" > answer.json && exit 9
        grep summary answer.json
        rm notes.txt answer.json
        sed -i 's/ROWS = 1 /ROWS = 8 /' kernel.py
        "$PYPM_EVALUATE" > /dev/null || exit 9
        sed -i 's/DEPTH = 1 /DEPTH = 5 /' kernel.py
        """
    jail = Jail(hidden=(task.folder, tmp_path / "run"), is_open=is_open)
    search = searched(task, tmp_path, text, attempts=3, jail=jail)
    attempts = search.trajectory.attempts
    assert [each.is_accepted for each in attempts] == [True, False, True, True]
    assert "the program ended\n" in attempts[3].log
    assert "evaluations: 3" in attempts[3].log
    assert "INCORRECT_NUMERICAL on shown" in attempts[3].log
    assert len(search.lineage.versions()) == 3
    assert b"ROWS = 8 " in search.snapshots.files(search.best.digest or "")["kernel.py"]


def test_evaluations_are_limited_and_repeats_are_not_judged_again(
    task: SearchTask, tmp_path: Path
) -> None:
    text = """
        echo 1 > notes.txt
        for i in 1 2 3; do "$PYPM_EVALUATE"; echo "code $?"; done
        """
    search = searched(task, tmp_path, text, attempts=2, evaluations=2)
    attempts = search.trajectory.attempts
    assert [each.repeats for each in attempts] == [None, None, 1]
    judge = search._judge
    assert isinstance(judge, FakeJudge)
    assert judge.calls == 2


def test_a_program_that_asks_too_often_is_told(task: SearchTask, tmp_path: Path) -> None:
    text = """
        echo 1 > notes.txt
        "$PYPM_EVALUATE"; echo "code $?"
        "$PYPM_EVALUATE"; echo "code $?"
        echo 2 > notes.txt
        """
    search = searched(task, tmp_path, text, attempts=2, evaluations=1)
    log = search.trajectory.attempts[2].log
    assert "code 1" in log
    assert '"error": "all evaluations of this run are used"' in log
    assert "code 2" in log


@pytest.mark.parametrize(
    ("text", "reason", "log"),
    [
        ("exit 0", "nothing was changed", "the program ended"),
        ("echo hello; exit 3", "nothing was changed", "the program ended with code 3\nhello"),
        ("kill -SEGV $$", "nothing was changed", "ended by signal SIGSEGV"),
        ("ln -s /etc/passwd x", "`x` cannot be read", ""),
        ("mkfifo x", "`x` is not a plain file", ""),
        ("head -c 5000000 /dev/zero > x", "the candidate is too large at `x`", ""),
        ("echo '* text' > .gitattributes", "`.gitattributes` is not taken", ""),
        ("cd ..; rm -rf tree knowledge", "`tree` cannot be read", "the program ended"),
    ],
    ids=["nothing", "fails", "crashes", "link", "pipe", "large", "git", "removes"],
)
def test_a_program_that_proposes_nothing(
    task: SearchTask, tmp_path: Path, text: str, reason: str, log: str
) -> None:
    attempt = only(searched(task, tmp_path, text))
    assert attempt.digest is None
    assert reason in attempt.verdict.reason
    assert log in attempt.log


@pytest.mark.parametrize("is_open", OPEN)
def test_a_program_that_hangs(task: SearchTask, tmp_path: Path, is_open: bool) -> None:
    """With children that left its session, and one that ignores signals; what it wrote counts."""
    text = """
        sed -i 's/ROWS = 1 /ROWS = 8 /' kernel.py
        setsid sleep 4321.5 &
        (trap '' TERM INT HUP; sleep 4321.5; sleep 4321.5) &
        sleep 4321.5
        """
    jail = Jail(is_open=is_open)
    attempt = only(searched(task, tmp_path, text, turn=2.0, jail=jail))
    assert attempt.is_accepted
    assert "the program was ended after 2 s" in attempt.log
    assert attempt.seconds < 30
    assert running("sleep 4321.5") == 0


def running(command: str) -> int:
    """Count processes with a command line."""
    wanted = command.replace(" ", "\0").encode()
    found = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            found += wanted in Path("/proc", pid, "cmdline").read_bytes()
        except OSError:
            continue
    return found


@isolated
def test_a_program_that_writes_and_reads_outside(task: SearchTask, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    text = f"""
        for place in {tmp_path} {tmp_path}/run {tmp_path}/agents {task.folder} /usr /etc "$HOME"; do
            touch "$place/outside" 2> /dev/null && echo "wrote to $place"
        done
        cat {secret} {task.folder}/held_out.jsonl {tmp_path}/run/trajectory.jsonl
        ls {tmp_path}/run
        echo "home: $HOME"
        echo "processes: $(ls /proc | grep -c '^[0-9]')"
        grep -v -e lo: -e '|' /proc/net/dev && echo connected
        """
    attempt = only(searched(task, tmp_path, text))
    [home] = re.findall("^home: (.*)$", attempt.log, re.MULTILINE)
    places = [line for line in attempt.log.splitlines() if line.startswith("wrote to ")]
    # folders that are there in the jail alone, for the paths below them
    vanish = {str(tmp_path), f"{tmp_path}/run"}
    assert {each.removeprefix("wrote to ") for each in places} - vanish == {home}
    assert not [*tmp_path.rglob("outside")]
    assert not (task.folder / "outside").exists()
    assert secret.read_text() == "secret"
    assert attempt.log.count("No such file or directory") == 3
    assert "secret\n" not in attempt.log
    assert "candidates" not in attempt.log
    assert "connected" not in attempt.log
    assert [*map(int, re.findall(r"^processes: (\d+)$", attempt.log, re.MULTILINE))] < [8]


@isolated
def test_a_program_that_forks_without_end(task: SearchTask, tmp_path: Path) -> None:
    """It gets as many processes as it may, and all end with it."""
    jail = Jail(processes=40)
    began = time.monotonic()
    attempt = only(searched(task, tmp_path, "f() { f | f & }; f; sleep 1", turn=20.0, jail=jail))
    assert attempt.digest is None
    assert "Cannot fork" in attempt.log
    assert time.monotonic() - began < 60
    assert running("agent.sh") == 0


def test_a_program_ends_with_whoever_started_it(tmp_path: Path) -> None:
    """Also if that one is killed; with all that it started."""
    source = """
import subprocess, sys
from pypm.problems.jail import Jail, is_possible
jail = Jail(is_open=not is_possible())
subprocess.run(jail.command(["/bin/sh", "-c", "setsid sleep 5432.1 & sleep 5432.1"]))
"""
    root = Path(__file__).resolve().parents[2]
    starter = subprocess.Popen([sys.executable, "-c", source], cwd=root)
    wait_until(lambda: running("sleep 5432.1") >= 2)
    starter.kill()
    starter.wait()
    wait_until(lambda: running("sleep 5432.1") == 0)


@pytest.mark.parametrize("is_open", OPEN)
def test_a_program_that_is_stopped_ends_too(tmp_path: Path, is_open: bool) -> None:
    """Whoever stopped it for a measurement may be ended meanwhile."""
    command = Jail(is_open=is_open).command(["/bin/sh", "-c", "sleep 6543.2"])
    process = subprocess.Popen(command, start_new_session=True)
    wait_until(lambda: running("sleep 6543.2") >= 1)
    with stopped(process):
        end(process)
        assert running("sleep 6543.2") == 0


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.05)


@isolated
def test_memory_and_files_are_limited(tmp_path: Path) -> None:
    def ended(text: str, jail: Jail) -> subprocess.CompletedProcess[bytes]:
        command = jail.inside(tmp_path).command(["/bin/sh", "-c", text])
        home = environment(tmp_path, {})
        return subprocess.run(command, cwd=tmp_path, env=home, capture_output=True, check=False)

    hungry = 'python3 -c "x = bytearray(400_000_000)" || echo refused'
    assert b"MemoryError" in ended(hungry, Jail(memory=0.2)).stderr
    large = "head -c 3000000 /dev/zero > large; wc -c < large"
    assert ended(large, Jail(file=0.001)).stdout.strip() == b"1000000"
    assert ended("echo $SECRET; exit 7", Jail()).returncode == 7


@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
def test_a_program_that_others_may_not_read(tmp_path: Path) -> None:
    path = program(tmp_path, "")
    path.chmod(0o700)
    with pytest.raises(PyPMError, match="other users may not read"):
        ProgramOperator([str(path)], Jail())
    ProgramOperator([str(path)], Jail(is_open=True))


def test_what_is_no_program(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(PyPMError, match="is not a program"):
            ProgramOperator([str(path)], Jail())
