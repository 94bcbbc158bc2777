"""What all tests share."""

from __future__ import annotations

import gc
import logging
import os
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import pytest
from _pytest.doctest import DoctestModule

from tests.caches import CACHE, fresh_cache_in


@pytest.fixture(autouse=True, scope="session")
def _no_earlier_run(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Compiled graphs of an earlier run are not found: a pass that they skip has no report.

    Workers share the kernels in C++.
    """
    run = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        run = run.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE, fresh_cache_in(tmp_path_factory.mktemp("inductor"), run / "kernels"))
        yield


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Executor]:
    """A process whose Triton kernels are interpreted on the CPU: Triton decides when imported.

    What bfloat16 the interpreter makes is cut off, not rounded, its `tl.dot` of bfloat16 is wrong,
    and so is its float8.
    """
    from tests.kernels.triton_checks import take_numbers_as_masks

    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "1")
            process.submit(take_numbers_as_masks).result()
        yield process


LONG: Final = 30.0
"""CPU time of a test file, on a machine that is not loaded; longer ones are named after a run.

It is no limit: the same file took five times as much on a machine with six processes for each core.
"""
UNKNOWN: Final = 8.0
"""The CPU seconds of a file that was not run here yet."""
CPU_SECONDS: Final = "CPU seconds"

# Inductor's C++ has no vectors in quick runs, which compiles in half of the time, and needs no
# programs to find out which vectors there are. Inductor reads the variable when it is imported,
# which the `conftest.py` of a folder may do.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")


def _cpu() -> float:
    """CPU seconds of this process and of those that it waited for."""
    return sum(os.times()[:4])


class Clock:
    """Adds to the report of each phase of a test what CPU time passed since the one before."""

    def __init__(self) -> None:
        self.last = _cpu()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = _cpu()
        report.user_properties.append((CPU_SECONDS, now - self.last))
        self.last = now
        return report


class Seconds:
    """The CPU time of each test file, kept for `make check`."""

    def __init__(self, cache: pytest.Cache) -> None:
        self.cache = cache
        self.spent = Counter[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        spent = dict(report.user_properties).get(CPU_SECONDS, 0.0)  # none if a worker crashed
        self.spent[report.nodeid.partition("::")[0]] += spent

    def pytest_sessionfinish(self) -> None:
        before = self.cache.get("pypm/seconds", {})
        some = {file: max(before.get(file, 0) * 0.9, spent) for file, spent in self.spent.items()}
        self.cache.set("pypm/seconds", {**before, **some})

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(f"{self.spent.total() / 60:.1f} CPU minutes in tests")
        for file, spent in self.spent.most_common():
            if spent > LONG:
                terminalreporter.write_line(f"{spent:.0f} CPU seconds in {file}")


class Doctests:
    """Modules without doctests are not searched for them, which takes a third of a collection."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(
        self, file_path: Path
    ) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
        found = yield
        if b">>>" in file_path.read_bytes():
            return found
        return [each for each in found if not isinstance(each, DoctestModule)]


def pytest_configure(config: pytest.Config) -> None:
    """The garbage collector would look at all that test modules import, over and over."""
    gc.set_threshold(200_000, 20, 100)
    # pytest gives its handler to loggers that do not propagate; torch would print what it traces
    logging.getLogger("torch.__trace").propagate = True
    config.pluginmanager.register(Clock())
    config.pluginmanager.register(Doctests())
    if getattr(config, "cache", None) is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Seconds(config.cache))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported stays, so nobody looks for garbage in it, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Workers begin with the longest files: none is left alone with one at the end."""
    if hasattr(config, "workerinput") and getattr(config, "cache", None) is not None:
        seconds = config.cache.get("pypm/seconds", {})
        items.sort(key=lambda item: -seconds.get(item.nodeid.partition("::")[0], UNKNOWN))


@pytest.fixture(autouse=True, scope="module")
def _left_behind() -> Iterator[None]:
    """Later collections do not look at what a file leaves, such as compiled graphs: millions of
    objects, for seconds, in the middle of a test.
    """
    yield
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """What is imported for the summary may ask who refers to an object."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    """Nobody looks at all that is left, twice, for garbage."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Random tensors do not depend on which tests ran before.

    `torch.manual_seed` formats the stack for each kind of device that is not there.
    """
    import torch  # late: the process that waits for the workers needs none

    torch.default_generator.manual_seed(0)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(0)


@pytest.fixture
def gpu() -> Iterator[None]:
    """Rules act as on a GPU."""
    from pypm.kernels.support.devices import as_on_a_gpu

    with as_on_a_gpu():
        yield


@pytest.fixture
def hopper() -> Iterator[None]:
    """Rules act as on a Hopper GPU which any size fills."""
    from tests.small_gpu import as_on_a_small_gpu  # late: most tests need no tile programs

    with as_on_a_small_gpu():
        yield
