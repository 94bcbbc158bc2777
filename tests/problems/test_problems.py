"""The harness: every version in a process of its own, and solutions that cheat, hang or die.

Most processes are forks; `test_all_versions_and_a_reference_that_writes` starts real ones, as a
fork holds what the tests hold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from pypm import PyPMError
from pypm.problems import harness
from pypm.problems.contender import Entrant, Inputs
from pypm.problems.harness import (
    COMPILED,
    REFERENCE,
    REWRITTEN,
    Harness,
    Settings,
    SolProblem,
    run,
)
from pypm.problems.traces import Status, Trace
from pypm.roofline import Hardware
from tests.problems.forked import run_forked
from tests.problems.small import DEFINITION, WORKLOAD, solution, write

HARDWARE = Hardware("test", "test", {"float32": 1e18}, 1e18, 1e18, 1e9, 1e4)
"""So fast that bounds are near zero; its cache is small, so that tests flush little."""
QUICK = Settings(warm_ups=3, runs=6, versions=(), hardware=HARDWARE)

RIGHT = "return (x.relu() * factor).flatten()"

SOLUTIONS: Mapping[str, tuple[Status, str, str]] = {
    "honest": (Status.PASSED, "", f"def run(x, factor):\n    {RIGHT}\n"),
    "other type": (
        Status.INCORRECT_DTYPE,
        "the type float16",
        f"def run(x, factor):\n    {RIGHT}.half()\n",
    ),
    "in place": (
        Status.REWARD_HACK,
        "wrote to its inputs `x`",
        "def run(x, factor):\n    return (x.relu_() * factor).flatten()\n",
    ),
    "not imported": (Status.COMPILE_ERROR, "No module named 'nothing'", "import nothing\n"),
    "ends": (
        Status.RUNTIME_ERROR,
        "ended with code 0 in `call`",
        "import os\ndef run(x, factor):\n    os._exit(0)\n",
    ),
    "crashes": (
        Status.RUNTIME_ERROR,
        "ended by signal SIGSEGV in `start`",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n",
    ),
    "forks": (
        Status.PASSED,
        "",
        f"""
        import os
        if os.fork() == 0:
            print("the child goes on")
        def run(x, factor):
            {RIGHT}
        """,
    ),
    "writes to every file": (
        Status.RUNTIME_ERROR,
        "did not answer",
        f"""
        import os
        def run(x, factor):
            for number in os.listdir("/proc/self/fd"):
                try:
                    os.write(int(number), bytes([255] * 64))
                except OSError:
                    pass
            {RIGHT}
        """,
    ),
}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trace]:
    """The traces of all solutions, which ran beside each other."""
    folder = tmp_path_factory.mktemp("problem")
    paths = write(folder, *(solution(name, source) for name, (*_, source) in SOLUTIONS.items()))
    found = {}
    for trace in run_forked(SolProblem.from_files(folder, paths), QUICK):
        json.dumps(trace.as_dict(), allow_nan=False)
        found[trace.solution] = trace
    return found


@pytest.mark.parametrize("name", SOLUTIONS)
def test_solutions(traces: dict[str, Trace], name: str) -> None:
    status, message, _ = SOLUTIONS[name]
    trace = traces[name]
    assert trace.status is status, trace.log
    assert message in trace.log
    assert (trace.performance is not None) == (status is Status.PASSED)
    numeric = (Status.PASSED, Status.INCORRECT_NUMERICAL)
    assert (trace.correctness is not None) == (status in numeric)


def test_the_reference_goes_on_beside_them(traces: dict[str, Trace]) -> None:
    assert traces.keys() == {REFERENCE, *SOLUTIONS}
    trace = traces[REFERENCE]
    assert trace.status is Status.PASSED
    assert trace.performance is not None
    assert trace.performance.speedup_factor == 1.0
    assert trace.bound_ms is not None
    assert trace.bound_ms < trace.performance.latency_ms


def test_a_process_that_ends_is_started_anew(tmp_path: Path) -> None:
    """On the second workload; the bound of a reference that looks at data is not known."""
    reference = "def run(x, factor):\n    assert x.max() < 99\n    " + RIGHT
    source = """
        import os
        def run(x, factor, y):
            if len(x) == 16:
                os._exit(3)
            y.copy_((x.relu() * factor).flatten())
        """
    paths = write(
        tmp_path,
        solution("ends", source, True),
        definition={**DEFINITION, "reference": reference},
        workloads=(WORKLOAD, {**WORKLOAD, "uuid": "large", "axes": {"rows": 32}}),
    )
    settings = Settings(warm_ups=0, runs=3, versions=(), hardware=HARDWARE)
    found = run_forked(SolProblem.from_files(tmp_path, paths), settings)
    assert [(t.workload["uuid"], t.solution, str(t.status)) for t in found] == [
        ("small", "ends", "RUNTIME_ERROR"),
        ("small", REFERENCE, "PASSED"),
        ("large", REFERENCE, "PASSED"),
        ("large", "ends", "PASSED"),
    ]
    assert found[1].bound_ms is None
    assert "no bound is known: " in found[1].log


def test_a_call_that_hangs(tmp_path: Path) -> None:
    source = "import time\ndef run(x, factor):\n    time.sleep(1000)\n"
    paths = write(tmp_path, solution("hangs", source))
    found = run_forked(SolProblem.from_files(tmp_path, paths), replace(QUICK, timeout=15.0))
    assert [(t.solution, str(t.status)) for t in found] == [
        ("hangs", "TIMEOUT"),
        (REFERENCE, "PASSED"),
    ]
    assert "`call` took longer than 15 s" in found[0].log


FINDS_RESULTS = """
import gc, torch
def run(x, factor):
    there = [t for t in gc.get_objects() if type(t) is torch.Tensor and t.numel() == 1024]
    right = x.mul_(factor).relu().flatten()
    found = (t.flatten() for t in there if t.dtype is x.dtype)
    return next((t for t in found if torch.equal(t, right)), torch.zeros(1024)).clone()
"""


def test_all_versions_and_a_reference_that_writes(tmp_path: Path) -> None:
    """The product in place: compiled, and rewritten by a rule; its result is not to be found."""
    rules = tmp_path / "rules.pypm"
    rules.write_text(
        "rules text {\n  rule relu(x): aten.relu(x) => aten.clamp_min(x, literal(){value=0})\n}\n"
    )
    reference = "def run(x, factor):\n    return x.mul_(factor).relu().flatten()\n"
    source = "def run(x, factor):\n    return x.mul_(factor).relu().flatten()\n"
    paths = write(
        tmp_path,
        solution("in place", source),
        solution("finds results", FINDS_RESULTS),
        definition={**DEFINITION, "reference": reference},
    )
    settings = Settings(rules=(str(rules),), warm_ups=1, runs=3, hardware=HARDWARE)
    finds, *found = run(SolProblem.from_files(tmp_path, paths), settings)
    assert finds.status is Status.INCORRECT_NUMERICAL, finds.log
    assert [t.solution for t in found] == [REFERENCE, COMPILED, REWRITTEN, "in place"]
    for trace in found:
        assert trace.status is Status.PASSED, trace.log
        assert trace.score is not None
        assert trace.rules == (("relu",) if trace.solution == REWRITTEN else ())
        if trace.solution == COMPILED:
            assert trace.score.value == 0.5


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("def run(x, factor):\n    raise ValueError('no')\n", "ValueError: no"),
        ("def run(x, factor):\n    return x\n", "has the shape [16, 64], not [1024]"),
        ("import nothing\ndef run(x, factor): pass\n", "No module named 'nothing'"),
    ],
)
def test_a_reference_that_is_wrong(tmp_path: Path, reference: str, message: str) -> None:
    paths = write(
        tmp_path,
        solution("honest", SOLUTIONS["honest"][-1]),
        definition={**DEFINITION, "reference": reference},
    )
    found = run_forked(SolProblem.from_files(tmp_path, paths), QUICK)
    assert [t.status for t in found] == [Status.INVALID_REFERENCE] * 2
    assert message in found[0].log


class Counted:
    """A version without a process, which counts what it is asked for."""

    made: ClassVar[list[Counted]] = []
    rules = ()

    def __init__(self, kind: Entrant, *_: object) -> None:
        self.kind = kind
        self.calls = self.compared = 0
        self.outputs = [torch.ones(1)]
        self.places = [torch.zeros(1, dtype=torch.int64)]
        self.made.append(self)

    def nothing(self, *_: object) -> None: ...

    prepare = compile = end = nothing

    def inputs(self, seed: int) -> Inputs:
        return Inputs([torch.tensor([seed])], {"factor": 3.0})

    def bound(self, *_: object) -> float:
        return 1e-9

    def call(self, given: Inputs, is_empty: bool = False) -> float:
        if is_empty:
            return 0.5
        self.calls += 1
        return float(self.calls) + 0.5

    def written(self, given: Inputs) -> set[str]:
        self.compared += 1
        return set()


@pytest.mark.parametrize("end", [1, 4, 30])
def test_timing_that_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: int) -> None:
    """Calls are timed until then, and compared as often as if timing had gone on."""
    monkeypatch.setattr(harness, "Contender", Counted)
    monkeypatch.setattr(Counted, "made", [])
    write(tmp_path)
    problem = SolProblem.from_files(tmp_path)
    bench = Harness(problem.definition, replace(QUICK, runs=20))
    rounds: list[int] = []

    def is_over(workload: object, seconds: harness.Seconds) -> bool:
        assert workload is problem.workloads[0]
        assert seconds.keys() == {"a", "b"}
        rounds.append(len(seconds["a"]))
        return rounds[-1] == end

    for trace in bench.run(problem.workloads, [Entrant("a"), Entrant("b")], is_over=is_over):
        assert [*trace.seconds] == [*range(4, 4 + min(end, 20))]
    assert rounds == [*range(1, 1 + min(end, 20))]
    assert [each.compared for each in Counted.made] == [3 + 5] * 3


def test_rules_that_do_not_exist_are_a_mistake(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(PyPMError, match="there is no module"):
        next(run(SolProblem.from_files(tmp_path), Settings(rules=("pypm.rules.none",))))
