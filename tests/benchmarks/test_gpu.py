"""`make gpu` by stand-ins: its parts, and runs that go on with earlier ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks.gpu import __main__ as runs
from benchmarks.gpu import (
    ablation,
    calls,
    checks,
    choice,
    device,
    events,
    experts,
    loops,
    pages,
    tiles,
    times,
)
from benchmarks.gpu.claims import CLAIMS, Claim
from benchmarks.gpu.lines import FAILED, OK, Lines
from benchmarks.gpu.parts import PARTS, Part
from benchmarks.results import setting
from pypm.choice import gpu_times
from pypm.choice.measuring import Measured
from pypm.events.triton.emulator import emulate as emulate_step
from pypm.events.triton.tables import BoundStep
from pypm.tiles.emulator import emulate
from pypm.tiles.operator import emulated, kernel_for
from pypm.tiles.plain.kernel import PlainKernel
from pypm.tiles.reading import parsed
from pypm.tiles.reference import execute
from pypm.timing import Times
from tests.floors import ROOT
from tests.kernels.triton_checks import needs_triton

# --- lines ---------------------------------------------------------------------------------------


def test_a_line_that_fails_is_measured_again_and_others_are_not(tmp_path: Path) -> None:
    path = tmp_path / "part_gpu.json"
    asked: list[str] = []

    def ask(name: str) -> list[Any]:
        asked.append(name)
        if len(asked) == 2:
            raise ValueError("no\nkernel")
        return [1.5, OK]

    for _ in range(2):
        lines = Lines(path, has_gpu=False)
        lines.begin("name", "ms")
        for name in ("one", "two", "three"):
            lines.line(name, lambda name=name: ask(name))
        if len(asked) == 3:
            assert [row[-1] for row in lines.rows()] == [OK, f"{FAILED}: ValueError: no", OK]
            assert lines.column(1) == [1.5, 1.5]
    assert asked == ["one", "two", "three", "two"]
    assert [row[-1] for row in json.loads(path.read_text())["tables"]["table"]["rows"]] == [OK] * 3


def test_results_on_a_machine_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*given: Any, **named: Any) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", missing)
    assert setting()["commit"] is None


# --- parts ---------------------------------------------------------------------------------------


def timed(versions: Mapping[str, Any], device: Any, seconds: float) -> tuple[Times, Times]:
    """Call each version twice; each takes ten microseconds more than the one before."""
    for run, inputs in versions.values():
        run(inputs)
        run(inputs)
    found = {name: [1e-5 * (i + 1)] for i, name in enumerate(versions)}
    return Times(found), Times(found)


def compiled(function: Callable[..., Any], options: Any = None, **_: Any) -> Callable[..., Any]:
    """Trace at the first call, and let passes rewrite the graph; no code is generated."""
    passes = [each for each in (options or {}).values() if callable(each)]
    known: list[fx.GraphModule] = []

    def run(*args: Any, **kwargs: Any) -> Any:
        if not known:

            def flat(*given: Any) -> Any:
                return function(*given, **kwargs)

            traced = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)(*args)
            known.append(traced)
            for each in passes:
                each(known[0].graph)
            known[0].recompile()
        return known[0](*args)

    return run


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "DEVICE", "cpu")
    monkeypatch.setattr(times, "LARGEST", 8)
    monkeypatch.setattr(times, "timed", timed)
    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(gpu_times, "entry", lambda device: 1e-6)
    answer = {"before": 3e-6, "ratio": 0.5, "upper": 0.6, "rounds": 9.0}
    monkeypatch.setattr(Measured, "_times", lambda self, candidate: answer)
    for name in ("synchronize", "set_sync_debug_mode"):
        monkeypatch.setattr(torch.cuda, name, lambda *given: None)


def verdicts(lines: Lines) -> dict[str, Any]:
    tables = lines.document["tables"].values()
    return {row[0]: row[-1] for table in tables for row in table["rows"]}


@torch.no_grad()
def measured(part: Callable[[Lines], None]) -> Lines:
    lines = Lines(None, has_gpu=False)
    part(lines)
    for table in lines.document["tables"].values():
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}
    claimed = {claim.figure for claim in CLAIMS if claim.part == part.__name__}
    assert claimed <= lines.document["figures"].keys()
    return lines


@pytest.mark.usefixtures("stand_ins")
def test_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    small = dict.fromkeys(experts.LAYERS, (4, 2, 8, 16))
    monkeypatch.setattr(experts, "LAYERS", small)
    monkeypatch.setattr(experts, "TOKENS", (1, 16))
    lines = measured(experts.experts)
    assert {*verdicts(lines).values()} == {OK}
    assert lines.document["figures"]["waits"] == 0
    assert lines.document["figures"]["torch over PyPM, OLMoE, up, 1"] == pytest.approx(2)


@pytest.mark.usefixtures("stand_ins")
def test_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = {"two": ([40, 3], 4, 2, 8)}
    monkeypatch.setattr(pages, "BATCHES", batches)
    lines = measured(pages.pages)
    assert {*verdicts(lines).values()} == {OK}
    assert lines.document["figures"]["over gathering, least"] == pytest.approx(2)


@pytest.mark.usefixtures("stand_ins")
def test_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in is the CPU, where the rules take LSTMs: that is a failure."""
    monkeypatch.setattr(loops, "STEPS", 13)
    monkeypatch.setattr(loops, "ORDER", ("recurrence",))
    monkeypatch.setattr(loops, "LEFT", ("LSTM",))
    found = verdicts(measured(loops.loops))
    assert found["recurrence"] == "slower"
    assert found["LSTM"] == f"{FAILED}: AssertionError: a rule was applied"


@pytest.mark.usefixtures("stand_ins")
def test_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are emulated; each version is slower than the one before."""
    cases = {name: case for name, case in tiles.CASES.items() if case[1] == tiles.USUAL}
    monkeypatch.setattr(tiles, "CASES", cases)
    monkeypatch.setattr(tiles, "SIZES", ((1, 8, 8), (130, 40, 70)))
    monkeypatch.setattr(tiles, "LAUNCHES", 2)
    monkeypatch.setattr(tiles, "REPEATED", (65, 72, 150))
    monkeypatch.setattr(tiles, "LAYERS", ((16, 16, 32),))
    monkeypatch.setattr(tiles, "RINGS", tiles.RINGS[:1])
    with emulated() as launches:
        lines = measured(tiles.tiles)
    figures = lines.document["figures"]
    assert figures["kernels that disagree"] == figures["rings that repeat wrongly"] == 0
    assert figures["gain over compiled, bias and GELU, least"] == pytest.approx(2 / 3)
    found = lines.document["tables"]
    assert [row[-1] for row in found["layers"]["rows"]] == ["slower than torch.compile"] * 2
    rings = {kernel.source.rings for kernel, _ in launches}
    assert {(each.depth, each.in_flight) for each in rings} >= {*tiles.DEPTHS}


@needs_triton
@pytest.mark.usefixtures("stand_ins")
def test_ablation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Specialized kernels are emulated, plain ones computed by torch; one does not fit."""
    from triton.runtime.errors import OutOfResources

    settings: list[tuple[int, int | None, bool]] = []

    def stand_in(kernel: PlainKernel, operands: Any, *, stages: int = 3, programs: Any) -> None:
        settings.append((stages, programs, kernel.by_triton))
        if stages == 4:
            raise OutOfResources(1, 0, "shared memory")
        execute(kernel.source.program, operands, torch.float32)

    monkeypatch.setattr(ablation, "LAYER", (70, 24, 72))
    monkeypatch.setattr(ablation, "HEADS", (1, 1, 70, 16))
    monkeypatch.setattr(ablation, "launched", partial(emulate, programs=2))
    monkeypatch.setattr(ablation, "plain_launched", stand_in)
    lines = measured(ablation.ablation)
    for row in lines.rows():
        assert row[1:4] == [pytest.approx(10), pytest.approx(20), "plain, 2 stages, all programs"]
        assert row[4] == (None if "attention" in row[0] else pytest.approx(60))
        assert row[6:] == [pytest.approx(2), OK]
    assert settings.count((4, None, False)) == 4
    monkeypatch.setattr(ablation, "LEAST", {"product": 3.0})
    assert ablation.compared("product")[-1] == "less than 3.0 of plain Triton"
    monkeypatch.setattr(ablation, "plain_launched", lambda _, given, **__: given["out"].zero_())
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        ablation.compared("product")


def test_all_kernels_of_the_part_can_be_placed() -> None:
    kernels = [*tiles.CASES.values(), *((tiles.PRODUCT, rings) for rings in tiles.RINGS)]
    for text, rings in kernels:
        assert kernel_for(text, rings).source.rings.depth == rings[0]
    assert len(tiles.CASES) * len(tiles.SIZES) == 60
    for text, _ in tiles.CASES.values():
        program = parsed(text)
        for m, n, k in tiles.SIZES:
            sizes = {"1": 8, "M": m, "N": n, "K": k}
            assert all(sizes[operand.sizes[1]] % 8 == 0 for operand in program.operands)


@pytest.mark.usefixtures("stand_ins")
def test_wrong_kernels_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[torch.Tensor] = []

    def wrong(operands: Sequence[torch.Tensor], *_: Any) -> list[torch.Tensor]:
        calls.append(operands[0].new_full((1024, 1024), float(len(calls) > 1)))
        return calls[-1:]

    monkeypatch.setattr(tiles, "tile_kernel", wrong)
    monkeypatch.setattr(tiles, "LAUNCHES", 4)
    monkeypatch.setattr(tiles, "SIZES", ((1024, 1024, 8),))
    assert tiles.repeated(2, 1) == [4, 2, "other bits"]
    assert tiles.agreement(tiles.PRODUCT, tiles.USUAL)[1:] == [1, "another result"]


@pytest.mark.usefixtures("stand_ins")
def test_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is emulated, on a machine that holds four programs."""

    def launched(step: BoundStep) -> None:
        if step.programs > 4:
            raise RuntimeError("Triton Error [CUDA]: too many blocks in cooperative launch")
        emulate_step(step, seed=len(step.table.tasks))

    monkeypatch.setattr(events, "launched", launched)
    monkeypatch.setattr(events, "resident", lambda device: 2)
    small = {"CAPACITY": 40, "FILLED": 30, "HEAD": 16, "SMALL": (64, 1), "LAUNCHES": 3}
    for name, value in (small | {"SIZES": ((64, 1),), "BATCHES": (2,)}).items():
        monkeypatch.setattr(events, name, value)
    lines = measured(events.events)
    assert {*verdicts(lines).values()} == {OK}
    assert lines.document["figures"]["grids that are refused"] == 1
    assert lines.rows()[0][1:-1] == pytest.approx([10, 20, 10, 20, 30, 40, 1 / 4, 3 / 4])
    monkeypatch.setattr(events, "launched", lambda step: step.out.fill_(len(step.arguments)))
    assert events.refused()[-1] == "it was launched"
    assert events.agreement(3)[-1] == "another result"


def test_a_kernel_that_hangs_is_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    monkeypatch.setattr(tiles, "PATIENCE", 0.01)
    monkeypatch.setattr(os, "_exit", lambda code: ended.set())
    lines = Lines(tmp_path / "tiles_gpu.json", has_gpu=False)
    lines.begin("kernel", "launches")
    with tiles.watched(lines, "hangs"):
        assert ended.wait(60)
    assert lines.rows() == [["hangs", None, "hung: no end after 0 s"]]
    monkeypatch.setattr(tiles, "PATIENCE", 1e6)
    later = Lines(tmp_path / "tiles_gpu.json", has_gpu=False)
    later.begin("kernel", "launches")
    tiles.line(later, "hangs", lambda: pytest.fail("it is not called again"))
    assert later.rows() == lines.rows()


@pytest.mark.usefixtures("stand_ins")
def test_calls() -> None:
    lines = measured(calls.calls)
    assert {*verdicts(lines).values()} == {OK}
    assert lines.document["figures"]["an operator over a kernel of Inductor's"] > 0
    assert lines.rows()[0][1:] == [pytest.approx(9), pytest.approx(10), OK]


@pytest.mark.usefixtures("stand_ins")
def test_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each version is slower than the one before, and the rewrite is made."""

    def model(*given: Any) -> tuple[Any, dict[str, torch.Tensor]]:
        return choice.written_out, dict(zip("qkv", torch.randn(3, 1, 2, 8, 4), strict=True))

    monkeypatch.setattr(choice, "model", model)
    monkeypatch.setattr(choice, "MODELS", (("bert", 8, True),))
    monkeypatch.setattr(choice, "CAPTURED", (("gpt2", 8, False),))
    monkeypatch.setattr("benchmarks.experts.block", lambda *given: torch.nn.Linear(16, 8))
    small = {name: (tokens, 16, 4, 2) for name, (tokens, *_) in choice.BLOCKS.items()}
    monkeypatch.setattr(choice, "BLOCKS", small)
    shape = 1, 2, 1, 4, 4
    monkeypatch.setattr(choice, "ATTENTION", ((shape, False), (shape, True)))
    lines = measured(choice.choice)
    found = verdicts(lines)
    assert found.pop("gpt2 1x8") in (OK, "slower")  # by the clock of the wall
    assert found == dict.fromkeys(
        ("bert 1x8, mask", "mixtral, 64", "deepseek_v3, 512", "1x2/1x4x4x64", "1x2/1x4x4x64, mask"),
        "slower",
    )
    figures = lines.document["figures"]
    assert figures["models, least"] == figures["gain of mixtral, 64"] == pytest.approx(0.5)
    tables = lines.document["tables"]
    chosen = {tables[name]["rows"][0][-2] for name in ("models", "attention")}
    assert chosen == {"attention_by_products"}  # the first by name, as all take as long
    assert len(tables["captured"]["rows"]) == 1


@pytest.mark.usefixtures("stand_ins")
def test_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "COPIES", ((0, 1), (134, 8)))
    monkeypatch.setattr(device, "PRODUCT", 8)
    known = tuple((name, lambda: 1.0, least, most) for name, _, least, most in device.CHECKS)
    monkeypatch.setattr(device, "CHECKS", (*known, ("wrong", lambda: 2.0, 0.9, 1.1)))
    lines = measured(device.device)
    found = verdicts(lines)
    assert found["device's time over Triton's clock"] == OK
    assert found["wrong"] == found["graphs of calls that wait"] == "wrong"
    assert lines.document["figures"]["copy of 134 MB, us"] == pytest.approx(10)
    assert lines.document["figures"]["wrong"] == 2


def test_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that passed is deselected in the next run."""
    asked: list[list[str]] = []
    crash = SimpleNamespace(reprcrash=SimpleNamespace(message="assert 1 == 2\nwhere"))

    def main(options: list[str], plugins: Sequence[checks.Verdicts]) -> None:
        asked.append([each for each in options if each.startswith("--deselect")])
        (plugin,) = plugins
        for name, outcome in (("good", "passed"), ("bad", "failed"), ("none", "skipped")):
            known: dict[str, Any] = {"nodeid": name, "location": ("", 0, ""), "keywords": {}}
            known |= {"when": "call", "outcome": outcome, "duration": 0.25}
            longrepr: Any = crash if outcome == "failed" else None
            if f"--deselect={name}" not in options:
                plugin.pytest_runtest_logreport(pytest.TestReport(longrepr=longrepr, **known))

    monkeypatch.setattr(pytest, "main", main)
    for _ in range(2):
        lines = Lines(tmp_path / "checks_gpu.json", has_gpu=False)
        checks.checks(lines)
        assert verdicts(lines) == {
            "good": OK, "bad": f"{FAILED}: assert 1 == 2", "none": f"{FAILED}: skipped",
        }  # fmt: skip
        assert lines.document["figures"] == {"passed": 1, "failed": 2}
    assert asked == [[], ["--deselect=good"]]


def test_the_tests_of_gpus_are_among_the_checks() -> None:
    files = [path for name in checks.TESTS for path in ROOT.glob(f"{name}/**/*.py")]
    files += [ROOT / name for name in checks.TESTS if name.endswith(".py")]
    chosen = {path for path in files if "on_a_gpu" in path.read_text(encoding="utf-8")}
    skipping = {
        path
        for path in (ROOT / "tests").rglob("test_*.py")
        if "needs_gpu" in (text := path.read_text(encoding="utf-8"))
        or "not torch.cuda.is_available()" in text
    }
    assert skipping - {Path(__file__)} <= chosen | {ROOT / "tests/test_torch_internals.py"}


# --- a run ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StandIn(Part):
    """A part that is a line of Python, which has the path of its result file in `out`."""

    code: str = ""

    def command(self, python: str, folder: Path) -> list[str]:
        head = f"import json, pathlib, sys, time; out = pathlib.Path({str(self.file(folder))!r})\n"
        return [sys.executable, "-c", head + self.code]


FINE = """
out.write_text(json.dumps({"figures": {"gain": 2.0}, "tables": {"t": {"rows": [["one", "ok"]]}}}))
log = out.with_name("log.txt")
log.write_text((log.read_text() if log.exists() else "") + "fine ")
"""
CLAIM = Claim("faster", "README.md", "a sentence", "fine", "gain", 1)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    made = (
        StandIn("fine", 20, "", FINE),
        StandIn("hangs", 1, "", FINE.replace('"ok"', '"slower"') + "time.sleep(60)"),
        StandIn("fails", 20, "", "sys.exit('no kernel')"),
        StandIn("last", 20, "", FINE),
    )
    found = runs.Machine(sys.executable, "GPU of a test", "2.11", [])
    monkeypatch.setattr(runs, "PARTS", made)
    monkeypatch.setattr(runs, "CLAIMS", (CLAIM,))
    monkeypatch.setattr(runs, "machine", lambda: found)
    monkeypatch.setattr(runs, "clocks", lambda: "1980 MHz")
    monkeypatch.setattr(signal, "signal", lambda *given: None)


@pytest.mark.usefixtures("parts")
def test_a_run_and_the_next_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    began = time.monotonic()
    assert runs.main(["--results", str(tmp_path)]) == 1
    assert time.monotonic() - began < 30
    state = json.loads((tmp_path / "state.json").read_text())
    assert {name: part["state"] for name, part in state["parts"].items()} == {
        "fine": "complete", "hangs": "stopped at its limit of 1 s",
        "fails": "failed: no kernel", "last": "complete",
    }  # fmt: skip
    assert state["parts"]["fine"]["clocks"] == {"before": "1980 MHz", "after": "1980 MHz"}
    assert state["claims"] == {"faster": "confirmed: 2, least 1"}
    document = json.loads((tmp_path / "fine_gpu.json").read_text())
    assert document["records"] == [{"clocks": state["parts"]["fine"]["clocks"]}]
    said = capsys.readouterr().out
    for line in (
        "fails: failed: no kernel",
        "hangs: one: slower",
        "1 confirmed, 0 refuted, 0 open",
    ):
        assert line in said
    runs.main(["--results", str(tmp_path)])
    assert (tmp_path / "log.txt").read_text() == "fine fine fine fine "  # `hangs` once more
    monkeypatch.setattr(runs, "key", lambda found: "other sources")
    runs.main(["--results", str(tmp_path), "fine"])
    assert not (tmp_path / "last_gpu.json").exists()


@pytest.mark.usefixtures("parts")
def test_no_time_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert runs.main(["--results", str(tmp_path), "--seconds", "1", "last"]) == 0
    said = capsys.readouterr().out
    assert "last: no time is left" in said
    assert "0 confirmed, 0 refuted, 1 open" in said


def test_without_a_gpu_one_line_says_what_it_would_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "machine", lambda: None)
    assert runs.main([]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("make gpu: no torch here finds a GPU")
    assert all(part.name in line for part in PARTS)


def test_packages_that_are_missing_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = runs.Machine("python3", "GPU", "2.11", ["lark"])
    monkeypatch.setattr(runs, "machine", lambda: found)
    assert runs.main([]) == 2
    assert "pip download --no-deps -d build/wheels lark" in capsys.readouterr().err


def test_pythons_that_find_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs.machine(["/no/such/python", sys.executable]) is None or torch.cuda.is_available()
    answers = {"one": "no torch", "two": '{"gpu": null}', "three": "late\n" + json.dumps(
        {"gpu": "H200", "torch": "2.11", "missing": []}
    )}  # fmt: skip

    def run(command: Sequence[str], **_: Any) -> SimpleNamespace:
        return SimpleNamespace(stdout=answers[command[0]])

    monkeypatch.setattr(subprocess, "run", run)
    assert runs.machine([*answers]) == runs.Machine("three", "H200", "2.11", [])


def test_wheels_are_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "WHEELS", tmp_path)
    (tmp_path / "lark.whl").touch()
    assert str(tmp_path / "lark.whl") in runs.environment()["PYTHONPATH"]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_parts_are_programs(part: Part, tmp_path: Path) -> None:
    assert callable(getattr(import_module(part.module), part.name))
    command = part.command("python3", tmp_path)
    assert command == ["python3", "-m", part.module, "--output", str(part.file(tmp_path))]
