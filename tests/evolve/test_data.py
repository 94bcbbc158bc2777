"""Tasks, candidates, marks, verdicts and pages, without processes."""

from __future__ import annotations

import math
import random
from itertools import product
from pathlib import Path

import pytest

from pypm import PyPMError
from pypm.evolve import Attempt, Candidate, ConfigurationVerdict, SearchTask, Verdict
from pypm.evolve.candidate import Snapshots, digest_of, read_files, write_files
from pypm.evolve.operators.marks import parameters, regions, with_regions, with_values
from pypm.evolve.operators.parameters import TreeSampler
from pypm.evolve.operators.regions import mutated
from pypm.evolve.page import outcomes, page
from pypm.evolve.supervisor import RECENT, STALLED, advice
from pypm.evolve.verdicts import ALPHA, RIGHT, is_faster, may_be_faster, sign_test
from tests.evolve.fakes import FIRST, FakeJudge, searched, write_task

# --- tasks and candidates -------------------------------------------------------------------------


def test_a_task(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task", more="rounds = 30\nmargin = 0\ngradients = true\n")
    assert (task.name, task.rounds, task.margin, task.gradients) == ("fake", 30, 0.0, True)
    assert task.first() == dict(sorted(FIRST.items()))
    (task.folder / "knowledge").mkdir()
    (task.folder / "knowledge" / "manual.md").write_text("AVX")
    assert [*task.shown()] == ["definition.json", "workload.jsonl", "knowledge/manual.md"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("round = 3", "3 | round = 3\n  | ^^^^^^^^^ not a field\n  = help: did you mean `rounds`?"),
        ("rounds = 3", "^^^^^^^^^^ at least 8 is needed"),
        ("rounds = true", "the field `rounds` is not a whole number"),
        ("margin = -1.0", "at least 0 is needed"),
        ('hardware = "H100"', "candidates are timed here, on the CPU"),
        ("rounds = ", "cannot be read: Invalid value"),
    ],
)
def test_tasks_that_are_wrong(tmp_path: Path, more: str, message: str) -> None:
    write_task(tmp_path / "task")
    (tmp_path / "task" / "task.toml").write_text(f'\nname = "fake"\n{more}')
    with pytest.raises(PyPMError) as error:
        SearchTask.from_folder(tmp_path / "task")
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["task.toml", "held_out.jsonl", "first/candidate.toml"])
def test_tasks_without_a_file(tmp_path: Path, name: str) -> None:
    (write_task(tmp_path / "task").folder / name).unlink()
    with pytest.raises(PyPMError, match=Path(name).name):
        SearchTask.from_folder(tmp_path / "task")


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        ('entry = "kernel.py::run"\nrules = "a.pypm"', "this one `entry` and `rules`"),
        ("destinations = true", "this one none"),
        ('entry = "kernel.py"', "FILE.py::FUNCTION is needed"),
        ('entry = "other.py::run"', "there is no file `other.py`"),
        ('rules = "kernel.py"', "rules in the text syntax run no code"),
        ('tiles = "a.tiles"', "there is no file `a.tiles`"),
        ('tiles = "kernel.py"\n[rings]\nwidth = 3', "the field `rings.width` is not known"),
        ('tiles = "kernel.py"\n[blocks]\ni = 0', "the field `blocks.i` is 0"),
        ('entry = "kernel.py::run"\ntime = 0', "the field `time` is not known"),
    ],
)
def test_candidates_that_are_wrong(manifest: str, message: str) -> None:
    with pytest.raises(PyPMError) as error:
        Candidate.of({**FIRST, "candidate.toml": manifest.encode()})
    assert message in str(error.value)


def test_candidates() -> None:
    assert Candidate.of(FIRST).entry == ("kernel.py", "run")
    rules = {"candidate.toml": b'rules = "a.pypm"', "a.pypm": b""}
    assert Candidate.of(rules).rules == "a.pypm"


def test_snapshots_are_taken_once(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path / "all")
    files = {"a/b.txt": b"1", "c": b"2"}
    write_files(files, tmp_path / "made")
    (tmp_path / "made" / ".git").mkdir()
    (tmp_path / "made" / ".git" / "HEAD").write_text("ref")
    assert read_files(tmp_path / "made") == files
    digest = snapshots.take(files)
    assert snapshots.take(dict(reversed(files.items()))) == digest == digest_of(files)
    assert snapshots.files(digest) == files
    assert digest_of({"a": b"", "b": b"1"}) != digest_of({"a": b"1", "b": b""})
    assert [path.name for path in (tmp_path / "all").iterdir()] == [digest]


# --- marks ----------------------------------------------------------------------------------------

MARKED = {
    "a.cpp": b"#define UNROLL 4 // evolve: 1 4\nconstexpr int ROWS = 2; // evolve: 2 3\n",
    "b.py": b'KIND = "x"  # evolve: "x" "y"\n# evolve: begin sum\na = 1\nb = a\n# evolve: end\n',
    "c.txt": b"ROWS = 1 // evolve: 5\n",
}


def test_marks_are_read_and_replaced() -> None:
    found = parameters(MARKED)
    values = {name: each.value for name, each in found.items()}
    assert values == {"a.cpp:UNROLL": "4", "a.cpp:ROWS": "2", "b.py:KIND": '"x"'}
    assert with_values(MARKED, values) == MARKED
    other = with_values(MARKED, {"a.cpp:ROWS": "3", "b.py:KIND": '"y"'})
    assert other["a.cpp"] == MARKED["a.cpp"].replace(b"ROWS = 2", b"ROWS = 3")
    assert other["b.py"] == MARKED["b.py"].replace(b'KIND = "x"', b'KIND = "y"')
    assert [each.lines for each in regions(MARKED).values()] == [("a = 1", "b = a")]
    assert with_regions(MARKED, {"b.py:sum": ("a = 1", "b = a")}) == MARKED
    assert with_regions(MARKED, {"b.py:sum": ()})["b.py"].count(b"\n") == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A = 1  # evolve: 2 3", "`1` is not among the choices: 2 3"),
        ("A = 1  # evolve: 1\nA = 1  # evolve: 1", "`A` is marked twice"),
        ("# evolve: 3", "the mark is not understood"),
        ("# evolve: begin a", "the region does not end"),
        ("# evolve: end", "no region begins before"),
        ("# evolve: begin a\n# evolve: begin b\n# evolve: end", "begins inside of another"),
        ("# evolve: begin a\n# evolve: end\n" * 2, "the name occurs twice"),
    ],
)
def test_marks_that_are_wrong(text: str, message: str) -> None:
    with pytest.raises(PyPMError) as error:
        parameters({"a.py": text.encode()}) or regions({"a.py": text.encode()})
    assert message in str(error.value)
    assert "--> a.py:" in str(error.value)


def test_mutations_change_one_line() -> None:
    lines = ("for i in range(16):", "    a += 3", "    b -= 1")
    seen = {mutated(lines, random.Random(seed)) for seed in range(200)}
    assert len(seen) > 12
    assert ("    a += 3", "for i in range(16):", "    b -= 1") in seen
    assert ("for i in range(32):", *lines[1:]) in seen
    assert {len(each) for each in seen} == {2, 3, 4}


def test_optuna_is_optional() -> None:
    try:
        import optuna  # noqa: F401
    except ImportError:
        with pytest.raises(PyPMError, match="needs the package `optuna`"):
            TreeSampler()


def test_optuna_searches(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    task = write_task(tmp_path / "task")
    runs = [
        searched(task, tmp_path / str(i), FakeJudge(), 8, operators=[TreeSampler()]) for i in (0, 1)
    ]
    one, other = (run.run() for run in runs)
    assert one.digest == other.digest
    assert one.verdict.score > 0.05


# --- verdicts -------------------------------------------------------------------------------------


def configurations(gains: list[list[float]], status: str = RIGHT) -> list[ConfigurationVerdict]:
    pairs = zip(("shown", "held out"), gains, strict=True)
    return [
        ConfigurationVerdict(name, name == "held out", status, score=0.5, gains=tuple(each))
        for name, each in pairs
    ]


def test_better_means_better_by_more_than_noise() -> None:
    def better(shown: float, held_out: float, margin: float = 0.01) -> bool:
        found = configurations([[shown] * 12, [held_out] * 12])
        return Verdict(found, margin=margin).is_better

    assert better(1.02, 1.02)
    assert not better(1.0, 1.0)
    assert not better(1.005, 1.005)
    assert better(1.005, 1.005, margin=0.001)
    assert not better(2.0, 1.0)
    assert not better(0.9, 2.0)


def test_one_that_is_wrong_scores_nothing() -> None:
    right, wrong = configurations([[2.0] * 12] * 2), configurations([[2.0] * 12] * 2, "TIMEOUT")
    assert Verdict(right).score == pytest.approx(0.5)
    assert Verdict(right).gain == pytest.approx(2.0)
    for verdict in (Verdict([right[0], wrong[1]]), Verdict(right, "why"), Verdict()):
        assert (verdict.score, verdict.gain, verdict.is_better) == (0.0, 0.0, False)
    assert Verdict([right[0], wrong[1]]).summary == "TIMEOUT on a configuration that is held out"


def test_the_sign_test() -> None:
    assert sign_test(0, 5) == 1.0
    assert sign_test(5, 5) == 1 / 32
    assert sign_test(4, 5) == 6 / 32


def test_equal_candidates_are_rarely_better() -> None:
    """Noise with spikes: far fewer than the stated share of measurements find a gain."""
    draws = random.Random(1)

    def noise() -> float:
        return draws.gauss(0, 0.1) + (draws.random() < 0.1) * draws.expovariate(1)

    def measured(gain: float) -> bool:
        rounds = [noise() - noise() + math.log(gain) for _ in range(20)]
        return is_faster(rounds, 0.01)

    assert sum(measured(1.0) for _ in range(4000)) < 1.5 * ALPHA * 4000
    assert sum(measured(1.5) for _ in range(200)) > 190


@pytest.mark.parametrize("count", [8, 12])
def test_timing_ends_early_only_where_the_test_fails(count: int) -> None:
    """For all sequences of wins: the verdict is that of all rounds, and of those made."""
    lengths = set()
    for wins in product((-1.0, 1.0), repeat=count):
        left = (n for n in range(1, count + 1) if not may_be_faster(wins[:n], 0.01, count - n))
        made = next(left, count)
        assert is_faster(wins[:made], 0.01) == is_faster(wins, 0.01)
        assert made == count or not is_faster(wins, 0.01)
        lengths.add(made)
    assert min(lengths) == {8: 1, 12: 2}[count]


# --- the supervisor and the page ------------------------------------------------------------------


def attempt(number: int, *, accepted: bool = False, gain: float = 0.9, reason: str = "",
            digest: str | None = "x", repeats: int | None = None) -> Attempt:  # fmt: skip
    verdict = Verdict(configurations([[gain] * 12] * 2), reason)
    return Attempt(number, "", "o", digest, None, verdict, accepted, 1.0, "", repeats)


def test_hints() -> None:
    first = attempt(0, accepted=True)

    def after(*more: Attempt) -> str:
        return advice([first, *more])

    numbers = range(1, RECENT + 1)
    assert after(*(attempt(n) for n in numbers)) == ""
    assert "most of the last" in after(*(attempt(n, digest=None) for n in numbers))
    assert "judged before" in after(*(attempt(n, repeats=0) for n in numbers))
    assert "were wrong" in after(*(attempt(n, reason="no") for n in numbers))
    stalled = [attempt(n, gain=0.99 if n == 4 else 0.5) for n in range(1, STALLED + 1)]
    assert "attempt 4 came nearest, with a gain of 0.990" in after(*stalled)
    again = attempt(STALLED + 1, accepted=True)
    assert after(*stalled, again) == ""


def test_the_page(tmp_path: Path) -> None:
    search = searched(write_task(tmp_path / "task"), tmp_path / "<run>", FakeJudge(), 12)
    search.run()
    text = page(search.folder)
    assert "<h1>&lt;run&gt;</h1>" in text
    assert text.count("<circle") == 13
    assert text.count("<details>") == len(search.trajectory.accepted()) > 1
    assert "+ROWS = " in text or "+COLUMNS = " in text
    assert sum(outcomes(search.trajectory.attempts).values()) == 13
    with pytest.raises(PyPMError, match="there is no search in"):
        page(tmp_path)
