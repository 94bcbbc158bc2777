"""The workers of the kernel under the sanitizer of threads, and mutants that it must report."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

from pypm.events import operator

HERE: Final = Path(__file__).parent
WORKERS: Final = operator.SOURCE.with_name("workers.h")

ACQUIRE, RELEASE = "std::memory_order_acquire", "std::memory_order_release"
MUTANTS: Final[dict[int, tuple[str, str]]] = {
    1: ("return counter.load(std::memory_order_acquire)", ACQUIRE),
    2: ("counters[event].fetch_add(1, std::memory_order_release)", RELEASE),
    3: ("door.fetch_sub(1, std::memory_order_release)", RELEASE),
    4: ("door.load(std::memory_order_acquire) == 0", ACQUIRE),
}
"""Places where a mutant has no order at all. Of the others, 5 does not wait, 6 waits for the run
before, 7 for one arrival less, and 8 not for what numbers choose."""
MUTABLE: Final = """
#include <atomic>
static int mutant = 0;
inline std::memory_order order(int n, std::memory_order given) {
  return n == mutant ? std::memory_order_relaxed : given;
}
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The driver, with all mutants in it."""
    folder = tmp_path_factory.mktemp("workers")
    text = WORKERS.read_text()
    for number, (place, order) in MUTANTS.items():
        assert text.count(place) == 1
        text = text.replace(place, place.replace(order, f"order({number}, {order})"))
    place = "await(wait.first"
    assert text.count(place) == 1 and text.count("epoch * wait.count") == 1
    text = text.replace(place, f"if (mutant != 5) {place}")
    place = "await(each.first"
    assert text.count(place) == 1 and text.count("epoch * each.count") == 1
    text = text.replace(place, f"if (mutant != 8) {place}")
    text = text.replace(
        "epoch * wait.count", "(epoch - (mutant == 6)) * (wait.count - (mutant == 7))"
    )
    (folder / "workers.h").write_text(text)
    (folder / "mutable.h").write_text(MUTABLE)
    command = ["c++", "-std=c++17", "-O1", "-g", "-fsanitize=thread", f"-I{folder}", "-pthread"]
    made = folder / "driver"
    command += [str(HERE / "driver.cpp"), "-o", str(made)]
    done = subprocess.run(command, check=False, capture_output=True)
    if done.returncode and b"tsan" in done.stderr:
        pytest.skip("the compiler has no sanitizer of threads")
    assert not done.returncode, done.stderr.decode()
    return made


def ran(driver: Path, threads: int, mutant: int = 0) -> tuple[int, str]:
    """The exit status and what was printed; status 66 if the sanitizer reports a race."""
    command = ["setarch", "-R", str(driver), str(threads), str(mutant)]
    env = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    return done.returncode, done.stdout + done.stderr


def test_no_races(driver: Path) -> None:
    outputs = {ran(driver, threads) for threads in (1, 2, 4) for _ in range(3)}
    assert len(outputs) == 1, outputs
    ((status, text),) = outputs
    assert status == 0 and text.startswith("4 failures"), text


@pytest.mark.parametrize("mutant", range(1, 9))
def test_mutants_are_reported(driver: Path, mutant: int) -> None:
    """Each in one of some runs: which threads take part is for the system to say."""
    assert any(ran(driver, 4, mutant)[0] in (3, 66) for _ in range(20))
