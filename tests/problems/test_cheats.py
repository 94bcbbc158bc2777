"""Solutions that try to compute outside of the time that counts, or not at all.

Some fail. The others compute within that time, whatever they do, and the time is counted: each of
them sleeps where it computes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

import pytest

from pypm.evolve import Jail
from pypm.problems import process
from pypm.problems.contender import Contender
from pypm.problems.harness import REFERENCE, Settings, SolProblem, _WorkloadTrial
from pypm.problems.process import ContenderFailed, Process
from pypm.problems.traces import Status, Trace
from pypm.roofline import Hardware
from tests.problems.forked import Forked, run_forked
from tests.problems.small import DEFINITION, WORKLOAD, solution, write

HARDWARE = Hardware("test", "test", {"float32": 1e18}, 1e18, 1e18, 1e9, 1e4)
QUICK = Settings(
    warm_ups=3, runs=6, versions=(), hardware=HARDWARE, timeout=60.0, jail=Jail(processes=4096)
)
"""The jail's two processes are forks: see `Forked`."""
SLEEP = 0.2
COMMON = f"""
import ctypes, gc, os, socket, sys, threading, time, weakref
import torch
def answer(x, factor):
    return (x.relu() * factor).flatten()
def slow_answer(x, factor):
    time.sleep({SLEEP})
    return answer(x, factor)
"""

COUNTED: Mapping[str, str] = {
    "moves the clock of every caller": """
        def run(x, factor):
            found = slow_answer(x, factor)
            frame = sys._getframe(1)
            while frame:
                for name in ("start", "stop", "before", "now"):
                    if isinstance(frame.f_locals.get(name), float):
                        frame.f_locals[name] += 1.0
                        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), 0)
                frame = frame.f_back
            return found
        """,
    "computes while arguments are prepared": """
        ready = []
        def look(frame, event, value):
            if event == "return" and frame.f_code.co_name == "arguments":
                sys.setprofile(None)
                ready.append(slow_answer(*value))
                sys.setprofile(look)
        sys.setprofile(look)
        def run(x, factor):
            return ready.pop()
        """,
    "computes in a dispatch mode while results are copied": """
        from torch.utils._python_dispatch import TorchDispatchMode
        last = []
        class Late(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                if function is torch.ops.aten.copy_.default and last:
                    return function(args[0], slow_answer(*last.pop()))
                return function(*args, **(kwargs or {}))
        Late().__enter__()
        def run(x, factor):
            last[:] = [(x, factor)]
            return torch.empty(x.numel())
        """,
    "computes when the answer is sent": """
        last = []
        def hook(event, arguments):
            if event == "socket.sendmsg" and last:
                x, factor, y = last.pop()
                y.copy_(slow_answer(x, factor))
        sys.addaudithook(hook)
        def run(x, factor, y):
            last[:] = [(x, factor, y)]
        """,
    "exchanges the clock's function": """
        def method(function):
            definition = ctypes.c_void_p.from_address(id(function) + 16).value
            return ctypes.c_void_p.from_address(definition + 8)
        for name in ("perf_counter", "monotonic", "time"):
            method(getattr(time, name)).value = method(time.thread_time).value
        run = slow_answer
        """,
    "replaces the clock": """
        time.perf_counter = lambda: 0.0
        run = slow_answer
        """,
    "claims to have copied for an hour": """
        from pypm.problems.worker import calls
        ticks = iter(range(0, 10**9, 3600))
        calls.perf_counter = lambda: float(next(ticks))
        run = slow_answer
        """,
    "computes when a tuple is unpacked": """
        class Late(tuple):
            def __iter__(self):
                return iter([slow_answer(*last[0])])
        last = []
        def run(x, factor):
            last[:] = [(x, factor)]
            return Late()
        """,
    "a tensor that computes when it is copied": """
        class Lazy(torch.Tensor):
            @classmethod
            def __torch_function__(cls, function, types, args=(), kwargs=None):
                args = [each.late() if type(each) is Lazy else each for each in args]
                with torch._C.DisableTorchFunctionSubclass():
                    return function(*args, **(kwargs or {}))
            def late(self):
                with torch._C.DisableTorchFunctionSubclass():
                    return slow_answer(*last[0])
        last = []
        shape = torch.empty(16 * 64)
        def run(x, factor):
            last[:] = [(x, factor)]
            return shape.as_subclass(Lazy)
        """,
    "computes when a result is dropped": """
        last = []
        def late(_):
            last[0][2].copy_(slow_answer(*last[0][:2]))
        class Empty(dict):
            def __missing__(self, name):
                return last[0][2]
            def __contains__(self, name):
                return True
        def run(x, factor):
            owner = next(each for each in gc.get_objects() if type(each).__name__ == "Prepared")
            last[:] = [(x, factor, owner.made[0])]
            found = Empty()
            kept.append(weakref.ref(found, late))
            return found
        kept = []
        """,
}
"""Right outputs, for which all of the time is counted."""

FAILING: Mapping[str, tuple[str, str]] = {
    "knows the inputs": (
        "INCORRECT_NUMERICAL|those of an earlier call",
        """
        torch.randn = lambda *sizes, **_: torch.ones(*sizes)
        torch.manual_seed = lambda seed: None
        def run(x, factor):
            return torch.full((x.numel(),), float(factor))
        """,
    ),
    "computes where inputs were copied": (
        "no answer",
        """
        ready = []
        kept = torch.library.Library("aten", "IMPL")
        def clone(x, *, memory_format=None):
            found = torch.empty_like(x)
            found.copy_(x)
            ready.append(answer(found, 3.0))
            return found
        kept.impl("clone", clone, "CPU")
        def run(x, factor):
            if not ready:
                raise RuntimeError("no answer")
            return ready.pop()
        """,
    ),
    "computes when the last result is dropped": (
        "those of an earlier call",
        """
        kept, last = [], []
        def late(_):
            kept[:] = [answer(*last[0])]
        class Result(list):
            pass
        def run(x, factor):
            last[:] = [(x, factor)]
            found = Result(kept or [answer(x, factor)])
            last.append(weakref.ref(found, late))
            return found
        """,
    ),
    "a thread that computes for the next call": (
        "those of an earlier call",
        """
        kept, last, go = [], [], threading.Event()
        def work():
            while go.wait():
                go.clear()
                kept[:] = [answer(*last[0])]
        threading.Thread(target=work, daemon=True).start()
        def run(x, factor):
            found = kept[0] if kept else answer(x, factor)
            last[:] = [(x, factor)]
            go.set()
            return found
        """,
    ),
    "a thread that fills the output later": (
        "outputs differ|changed after the call|between two requests",
        """
        def work(x, factor, y):
            time.sleep(0.02)
            y.copy_(answer(x, factor))
        def run(x, factor, y):
            threading.Thread(target=work, args=(x, factor, y), daemon=True).start()
        """,
    ),
    "a daemon that fills the output later": (
        "outputs differ|changed after the call|between two requests",
        """
        ours, theirs = socket.socketpair()
        def run(x, factor, y):
            if not kept:
                kept.append(1)
                child = os.fork()
                if child == 0:
                    os.setsid()
                    if os.fork() == 0:
                        while theirs.recv(1):
                            time.sleep(0.02)
                            y.copy_(answer(x, factor))
                    os._exit(0)
                os.waitpid(child, 0)
            ours.send(b".")
        kept = []
        """,
    ),
    "an answer for each address": (
        "those of an earlier call",
        """
        known = {}
        def run(x, factor):
            key = x.data_ptr()
            if key not in known:
                known[key] = answer(x, factor)
            return known[key]
        """,
    ),
    "an answer before the outputs": (
        "outputs differ|changed after the call|before it was asked",
        """
        def run(x, factor, y):
            for number in map(int, os.listdir("/proc/self/fd")):
                try:
                    socket.socket(fileno=os.dup(number)).send(b'{"copied": 0.0}')
                except OSError:
                    pass
            time.sleep(0.05)
            y.copy_(answer(x, factor))
        """,
    ),
    "answers that nobody asked for": (
        "before it was asked|outputs differ",
        """
        def run(x, factor):
            for number in map(int, os.listdir("/proc/self/fd")):
                try:
                    end = socket.socket(fileno=os.dup(number))
                    for _ in range(3):
                        end.send(b'{"copied": 0.0}')
                except OSError:
                    pass
            return answer(x, factor)
        """,
    ),
    "computes the first calls alone": (
        "outputs differ",
        """
        calls = []
        def run(x, factor):
            calls.append(1)
            return answer(x, factor) if len(calls) < 6 else x.flatten()
        """,
    ),
    "memory that is cut": (
        "Operation not permitted",
        """
        def run(x, factor):
            for number in os.listdir("/proc/self/fd"):
                if "memfd:pypm" in os.readlink(f"/proc/self/fd/{number}"):
                    os.ftruncate(int(number), 0)
            return answer(x, factor)
        """,
    ),
    "an output that is no memory": (
        "RuntimeError|NotImplementedError",
        """
        def run(x, factor):
            return torch.empty(x.numel(), device="meta")
        """,
    ),
}
"""Solutions that fail, with one of some words in the log or the name of the status."""


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trace]:
    """The traces of all cheats, which ran beside each other in forks of this process."""
    folder = tmp_path_factory.mktemp("cheats")
    sources = COUNTED | {name: source for name, (_, source) in FAILING.items()}
    paths = write(
        folder,
        *(
            solution(name, COMMON + dedent(text), "def run(x, factor, y)" in text)
            for name, text in sources.items()
        ),
    )
    return {t.solution: t for t in run_forked(SolProblem.from_files(folder, paths), QUICK)}


def test_the_reference_passes_beside_them(traces: dict[str, Trace]) -> None:
    assert traces.keys() == {REFERENCE, *COUNTED, *FAILING}
    assert traces[REFERENCE].status is Status.PASSED, traces[REFERENCE].log


@pytest.mark.parametrize("name", COUNTED)
def test_cheats_whose_time_is_counted(traces: dict[str, Trace], name: str) -> None:
    trace = traces[name]
    assert trace.status is Status.PASSED, trace.log
    assert min(trace.seconds) > SLEEP / 2
    assert len(trace.seconds) == QUICK.runs


@pytest.mark.parametrize("name", FAILING)
def test_cheats_that_fail(traces: dict[str, Trace], name: str) -> None:
    trace = traces[name]
    assert trace.status is not Status.PASSED
    told = f"{trace.status}: {trace.log}"
    assert any(words in told for words in FAILING[name][0].split("|")), told


# --- processes that do not stay stopped, and files ------------------------------------------------


def test_a_process_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wakes it: it is seen that it was on a core."""
    monkeypatch.setattr(process.subprocess, "Popen", Forked)
    worker = Process(tmp_path, 1, is_inside=True, jail=Jail(is_open=True))
    [pid] = worker._held
    assert worker.ask("wake", {}, 60.0)[0] == {}
    worker.hold()
    os.kill(pid, signal.SIGCONT)
    while worker._states() == worker._held:
        time.sleep(0.01)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ContenderFailed, match="went on between two requests") as caught:
        worker.ask("wake", {}, 60.0)
    assert caught.value.status is Status.REWARD_HACK
    worker.end()


TIDY = """
import os, shutil
from pathlib import Path
place = Path(__file__).parent
shutil.rmtree(place)
os.symlink({victim!r}, place.parent / "log")
place.mkdir()
os.symlink({victim!r}, place / "main.py")
def run(x, factor):
    os._exit(0)
"""


def test_links_in_place_of_sources(tmp_path: Path) -> None:
    """They are not followed when the process is started again."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    workloads = WORKLOAD, {**WORKLOAD, "uuid": "again"}
    source = TIDY.format(victim=str(victim))
    paths = write(tmp_path / "problem", solution("links", source), workloads=workloads)
    found = run_forked(SolProblem.from_files(tmp_path / "problem", paths), QUICK)
    assert [str(t.status) for t in found if t.solution == "links"] == ["RUNTIME_ERROR"] * 2
    assert victim.read_text() == "mine"


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("main.py", "# \ud800", "surrogates not allowed"),
        ("a\0b.py", "#", "embedded null"),
        ("\ud800.py", "#", "surrogates not allowed"),
        ("long" * 100, "#", "File name too long"),
        ("main.py/more.py", "#", "File exists"),
    ],
    ids=["surrogate", "null", "name", "long", "folder"],
)
def test_sources_that_no_file_can_hold(
    tmp_path: Path, path: str, content: str, message: str
) -> None:
    """They are a verdict about one solution, and the others go on."""
    right = "def run(x, factor):\n    return (x.relu() * factor).flatten()\n"
    other = solution("other", right)
    sources = {source["path"]: source["content"] for source in other["sources"]}  # type: ignore[attr-defined]
    sources[path] = content
    each = [{"path": name, "content": text} for name, text in sources.items()]
    wrong = {**solution("wrong", right), "sources": each}
    paths = write(tmp_path, wrong, other)
    found = {t.solution: t for t in run_forked(SolProblem.from_files(tmp_path, paths), QUICK)}
    assert found["other"].status is Status.PASSED
    assert found["wrong"].status is Status.COMPILE_ERROR
    assert "cannot be written: " in found["wrong"].log
    assert message in found["wrong"].log


# --- inputs that do not differ, and times below the bound ----------------------------------------

FIXED = """
import torch
def run(x, ids):
    return x[ids].flatten()
def inputs(axes, device):
    return {"x": torch.arange(16.0 * 64).view(16, 64) + 1, "ids": torch.arange(16)}
"""
KEPT = """
kept = []
def run(x, ids):
    if not kept:
        kept.append(x[ids].flatten())
    return kept[0].clone()
"""


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_inputs_that_do_not_draw(tmp_path: Path, dtype: str) -> None:
    """Numbers are changed, so that a kept answer is seen; of integers, the traces say it."""
    definition = {
        **DEFINITION,
        "inputs": {
            "x": {"shape": ["rows", "columns"], "dtype": dtype},
            "ids": {"shape": ["rows"], "dtype": "int64"},
        },
        "outputs": {"y": {"shape": ["all"], "dtype": dtype}},
        "reference": FIXED.replace(") + 1", f").to(torch.{dtype})"),
        "custom_inputs_entrypoint": "inputs",
    }
    made = {"x": {"type": "custom"}, "ids": {"type": "custom"}}
    paths = write(
        tmp_path,
        solution("kept", KEPT),
        solution("honest", "def run(x, ids):\n    return x[ids].flatten()\n"),
        definition=definition,
        workloads=({**WORKLOAD, "inputs": made},),
    )
    found = {t.solution: t for t in run_forked(SolProblem.from_files(tmp_path, paths), QUICK)}
    assert found["honest"].status is Status.PASSED, found["honest"].log
    if dtype == "float32":
        assert found["kept"].status is Status.REWARD_HACK
        assert "those of an earlier call" in found["kept"].log
        assert "so `x` got other elements in all calls but the first" in found["honest"].log
    else:
        assert found["kept"].status is Status.PASSED
        assert "it would not be noticed if an answer was kept" in found["kept"].log


@pytest.mark.parametrize("reference", [2.0, 0.5])
def test_a_time_below_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: float
) -> None:
    """It is no pass; and a bound that the reference is below is none."""
    monkeypatch.setattr(Contender, "bound", lambda *_: 1.0)
    latency = {REFERENCE: reference}
    monkeypatch.setattr(_WorkloadTrial, "_latency", lambda _, v: latency.get(v.kind.name, 0.5))
    source = "def run(x, factor):\n    return (x.relu() * factor).flatten()\n"
    paths = write(tmp_path, solution("fast", source))
    found = {t.solution: t for t in run_forked(SolProblem.from_files(tmp_path, paths), QUICK)}
    if reference > 1:
        assert found["fast"].status is Status.REWARD_HACK
        assert "the time 0.5 s is below the bound 1 s" in found["fast"].log
    else:
        assert found["fast"].status is Status.PASSED
        assert found["fast"].bound_ms is None
        assert "no bound is known: reference is below" in found[REFERENCE].log
