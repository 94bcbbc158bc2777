"""Tasks for Hopper: tile programs are emulated and built; a search finds a better configuration."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from pypm.diagnostics import PyPMError
from pypm.evolve import CandidateSearch, Jail, Parameters, SearchLimits, SearchTask
from pypm.evolve import tile_judge as module
from pypm.evolve.judge import CandidateJudge
from pypm.evolve.judge_process import judge_of
from pypm.evolve.tile_judge import TileJudge
from pypm.tiles.build import Built
from pypm.tiles.emit import Emitted
from pypm.tiles.modelled import modelled_cycles
from pypm.tiles.partition import Rings
from pypm.tiles.program import TileError
from pypm.timing import Times
from pypm.tools.cli import evolving
from tests.evolve.small import small_task
from tests.kernels.triton_checks import needs_triton
from tests.tiles.cases import GEMM, kernel

SHIPPED = Path(__file__).resolve().parents[2] / "benchmarks" / "evolve" / "hopper_gelu"
Files = Mapping[str, bytes]

pytestmark = needs_triton


@pytest.fixture
def task() -> SearchTask:
    return SearchTask.from_folder(SHIPPED)


def with_values(files: Files, **values: int) -> dict[str, bytes]:
    """The candidate with other blocks and numbers of rings."""
    text = files["candidate.toml"].decode()
    for name, value in values.items():
        text = re.sub(rf"^{name} = \d+", f"{name} = {value}", text, flags=re.MULTILINE)
    return {**files, "candidate.toml": text.encode()}


def with_text(files: Files, old: str, new: str) -> dict[str, bytes]:
    text = files["product.tiles"].decode()
    assert old in text
    return {**files, "product.tiles": text.replace(old, new).encode()}


def no_spills(kernel: Emitted, spilled: int = 0) -> Built:
    return Built(kernel.digest, "", 168, spilled, kernel.source.shared, False)


def test_candidates_are_emulated_built_and_modelled(task: SearchTask) -> None:
    judge, first = TileJudge(task), task.first()
    assert isinstance(judge_of(task, Jail()), TileJudge)
    before = judge.judge(first, None, None, True)
    assert before.is_right
    assert "0 bytes spilled" in before.notes["build"]
    assert [each.is_held_out for each in before.configurations] == [False, False, True, True]
    deep = with_values(first, i=128, j=128, depth=4, in_flight=1, groups=2)
    better = judge.judge(deep, first, before, False)
    assert better.is_better
    assert better.gain > 2
    assert 0.1 < before.score < better.score < 1
    assert re.fullmatch(r"[\d,]+ cycles by the model", better.configurations[0].reason)
    assert not judge.judge(first, deep, better, False).is_better
    spilled = judge.judge(with_values(deep, groups=1), first, before, False)
    assert not spilled.is_right
    assert re.search(r"spills or is serialized: .* [1-9]\d* bytes spilled", spilled.summary)


WRONG = {
    "the bias is left out": ("add(acc,s0);gelu(v0)", "gelu(acc)", "INCORRECT_NUMERICAL"),
    "an operand has another name": ("bias", "side", "the program is of another computation"),
    "an operand has another type": ("bf16[1", "fp16[1", "the program is of another computation"),
    "it is no program": ("out[i, j] = y", "out = y", "statement"),
    "a dot too many": ("b.T, acc)", "b.T, acc)\n  acc = dot(a, b.T, acc)", "INCORRECT_NUMERICAL"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_candidates(task: SearchTask, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_built", no_spills)
    old, new, message = WRONG[name]
    found = TileJudge(task).judge(with_text(task.first(), old, new), None, None, True)
    assert not found.is_right
    assert message in found.summary


def test_candidates_that_have_no_place(task: SearchTask) -> None:
    judge, first = TileJudge(task), task.first()

    def said(files: Files) -> str:
        return judge.judge(files, None, None, True).summary

    assert "263,232 bytes of shared memory" in said(
        with_values(first, i=128, j=256, depth=4, groups=2)
    )
    assert "2 products cannot be in flight with 2 slots" in said(with_values(first, in_flight=2))
    manifest = first["candidate.toml"].replace(b"\nk = ", b"\nkk = ")
    assert "the program has no axis `kk`" in said({**first, "candidate.toml": manifest})
    entry = {"candidate.toml": b'entry = "kernel.py::run"', "kernel.py": b""}
    assert "the candidate is no tile program" in said(entry)


def test_tile_programs_are_for_hopper(tmp_path: Path, task: SearchTask) -> None:
    here = small_task(tmp_path)
    judge = judge_of(here, Jail(is_open=True))
    assert isinstance(judge, CandidateJudge)
    found = judge.judge(task.first(), None, None, True)
    judge.close()
    assert "the candidate is a tile program" in found.summary


def test_programs_without_a_model() -> None:
    text = GEMM.replace("of K\n", "of K to i + 128\n")
    with pytest.raises(TileError, match="the program has a range, of which no cycles are known"):
        modelled_cycles(
            kernel(text, Rings(2, 0, 2)).source and kernel(text, Rings(2, 0, 2)), {}, 132
        )


def test_a_search(
    task: SearchTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Builds are not asked here: of some, the partition says that they have no place."""
    monkeypatch.setattr(module, "_built", no_spills)
    judge, limits = TileJudge(task), SearchLimits(attempts=12)
    search = CandidateSearch(task, tmp_path / "run", [Parameters()], judge, limits, seed=5)
    best = search.run()
    attempts = search.trajectory.attempts
    assert best.number > 0
    assert best.verdict.score > 2 * attempts[0].verdict.score
    assert any("shared memory" in each.verdict.summary for each in attempts)
    evolving._say_result(attempts, best, tmp_path, False)
    assert re.search(r"4096 x 4096 x 4096 +shown +- +- +- +0\.\d{3}", capsys.readouterr().out)


def test_times_decide_on_a_gpu(task: SearchTask, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in takes ten microseconds for the candidate, and half as long for the incumbent."""
    called: list[tuple[str, tuple[int, ...]]] = []

    def launched(kernel: Emitted, operands: Mapping[str, torch.Tensor]) -> None:
        called.append((kernel.digest, tuple(operands["out"].shape)))

    def timed(versions: Mapping[str, Any], device: Any, seconds: float) -> tuple[Times, Times]:
        for run, inputs in versions.values():
            run(inputs)
        found = Times({name: [1e-5 / (n + 1)] * 8 for n, name in enumerate(versions)})
        return found, found

    def spilling(kernel: Emitted) -> Built:
        return no_spills(kernel, 40)

    small = [(each, is_held_out) for each, is_held_out in TileJudge(task)._workloads]
    monkeypatch.setattr(module, "_DEVICE", "cpu")
    monkeypatch.setattr(module, "_on_hopper", lambda: True)
    monkeypatch.setattr(module, "_built", spilling)
    monkeypatch.setattr(module, "launched", launched)
    monkeypatch.setattr(module, "timed", timed)
    judge = TileJudge(task)
    judge._workloads = small[2:3]
    first = task.first()
    found = judge.judge(with_values(first, depth=3), first, None, False)
    assert found.is_right
    assert not found.is_better
    assert (found.gain, found.configurations[0].milliseconds) == (0.5, 1e-2)
    operations = 2 * 4096 * 5120 * 1280
    assert found.score == pytest.approx(operations / 989.4e12 / 1e-5)
    assert [shape for _, shape in called] == [(4096, 5120)] * 2
    assert len({digest for digest, _ in called}) == 2


def test_tasks_need_triton(task: SearchTask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(PyPMError, match="tile programs are built by Triton"):
        TileJudge(task)


def test_a_configuration_that_is_shown_and_held_out(tmp_path: Path) -> None:
    shutil.copytree(SHIPPED, tmp_path / "task")
    shutil.copy(tmp_path / "task/workload.jsonl", tmp_path / "task/held_out.jsonl")
    with pytest.raises(PyPMError, match="is shown and held out"):
        TileJudge(SearchTask.from_folder(tmp_path / "task"))
