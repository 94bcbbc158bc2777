"""What all tests share."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from pypm.kernels.support.triton import as_on_a_gpu


@pytest.fixture(autouse=True, scope="session")
def _few_collections() -> None:
    """Of the default, much of the time goes to objects that live as long as the session."""
    gc.set_threshold(200_000, 20, 100)


@pytest.fixture(autouse=True, scope="session")
def _no_earlier_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled graphs of an earlier run are not found: a pass that they skip has no report.

    Inductor believes what the CPU says of its vectors: with a new cache, it compiles programs to
    find out, in each process.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
        yield


class Seconds:
    """How long each test file takes, kept for `make check`."""

    def __init__(self, cache: pytest.Cache) -> None:
        self.cache = cache
        self.spent = Counter[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.spent[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        before = self.cache.get("pypm/seconds", {})
        some = {file: max(before.get(file, 0) * 0.9, spent) for file, spent in self.spent.items()}
        self.cache.set("pypm/seconds", {**before, **some})


def pytest_configure(config: pytest.Config) -> None:
    if getattr(config, "cache", None) is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Seconds(config.cache))


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Random tensors do not depend on which tests ran before."""
    torch.manual_seed(0)


@pytest.fixture
def gpu() -> Iterator[None]:
    """Rules act as on a GPU."""
    with as_on_a_gpu():
        yield
