"""The workers of the kernel under the sanitizer of threads, and mutants that it must report."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from pypm.diagnostics import PyPMError
from pypm.events import operator, schedules
from pypm.events.grids import number
from pypm.events.program import SCHEDULES, Numbering
from pypm.events.tasks import GridTask, TaskTable, in_order, lowered
from tests.events.graphs import random_graph
from tests.events.logs import HEADER, LOGGED, with_texts

HERE: Final = Path(__file__).parent
FOLDER: Final = operator.SOURCE.parent

ACQUIRE, RELEASE = "std::memory_order_acquire", "std::memory_order_release"
ORDERS: Final[dict[int, tuple[str, str]]] = {
    1: ("return counter.load(std::memory_order_acquire)", ACQUIRE),
    2: ("counter.fetch_add(1, std::memory_order_release)", RELEASE),
    3: ("door.fetch_sub(1, std::memory_order_release)", RELEASE),
    4: ("door.load(std::memory_order_acquire) == 0", ACQUIRE),
}
"""Places where a mutant has no order at all."""
TAKEN: Final = "head.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)"
TEXTS: Final[dict[str, str]] = {
    "await(counters[grid.waits[n]": "if (mutant != 5) await(counters[grid.waits[n]",
    "epoch * grid.waits[n]": "(epoch - (mutant == 6)) * (-(mutant == 7) + grid.waits[n]",
    ".count, idle);\n    if": ".count), idle);\n    if",
    "await(counters[each.event": "if (mutant != 8) await(counters[each.event",
    TAKEN: f"mutant == 9 ? (std::this_thread::yield(), head.store(at + 1), true) : {TAKEN}",
    "await(ended, starts[task.grid]": "await(ended, starts[task.grid] - (mutant == 10)",
    "if (waits)\n": "if (waits && mutant != 11)\n",
    "if (number < most)": "if (number < most || mutant == 12)",
    "if (!enter())": "if (mutant == 12) std::this_thread::sleep_for(LATE);\nif (!enter())",
}
"""Mutants: 5 does not wait, 6 waits for the run before, 7 for one arrival less, and 8 not for what
numbers choose; 9 takes a task that another may take; with barriers, 10 waits for one task less, and
11 does not wait; 12 lets a thread work that was woken for the run before, and makes threads late.
"""
MUTANTS: Final = {
    "tickets": (1, 2, 3, 4, 5, 6, 7, 8, 12),
    "queues": (5, 8, 9),
    "barriers": (1, 2, 10, 11),
}
MUTABLE: Final = """
#include <atomic>
#include <chrono>
static int mutant = 0;
constexpr std::chrono::microseconds LATE{100};
inline std::memory_order order(int n, std::memory_order given) {
  return n == mutant ? std::memory_order_relaxed : given;
}
"""


def built(folder: Path, *flags: str, logged: bool = False) -> Path:
    """The driver, with all mutants in it; `logged` if it is to print logs."""
    texts = {name: (FOLDER / name).read_text() for name in ("tables.h", "workers.h")}
    changes = {**TEXTS}
    for n, (place, order) in ORDERS.items():
        changes[place] = place.replace(order, f"order({n}, {order})")
    texts = with_texts(texts, changes)
    if logged:
        texts = with_texts(texts, LOGGED)
    for name, text in {**texts, "mutable.h": MUTABLE + HEADER * logged}.items():
        (folder / name).write_text(text)
    made = folder / "driver"
    command = ["c++", "-std=c++17", *flags, f"-I{folder}", "-pthread", str(HERE / "driver.cpp")]
    done = subprocess.run([*command, "-o", str(made)], check=False, capture_output=True)
    if done.returncode and b"tsan" in done.stderr:
        pytest.skip("the compiler has no sanitizer of threads")
    assert not done.returncode, done.stderr.decode()
    return made


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("workers"), "-O1", "-g", "-fsanitize=thread")


def ran(
    driver: Path, threads: int, schedule: str, mutant: int = 0, *, runs: int = 60, text: str = ""
) -> tuple[int, str]:
    """The exit status and what was printed; status 66 if the sanitizer reports a race."""
    numbers = (threads, SCHEDULES.index(schedule), mutant, runs)
    command = ["setarch", "-R", str(driver), *map(str, numbers)]
    env = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1:atexit_sleep_ms=0"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env, input=text)
    return done.returncode, done.stdout + done.stderr


def test_no_races(driver: Path) -> None:
    outputs = {
        ran(driver, threads, schedule)
        for threads in (1, 2, 4)
        for schedule in SCHEDULES
        for _ in range(3)
    }
    assert len(outputs) == 1, outputs
    ((status, text),) = outputs
    assert status == 0 and text.startswith("4 failures"), text


@pytest.mark.parametrize(
    ("schedule", "mutant"), [(name, n) for name, some in MUTANTS.items() for n in some]
)
def test_mutants_are_reported(driver: Path, schedule: str, mutant: int) -> None:
    """Each in one of some runs: which threads take part is for the system to say."""
    assert any(ran(driver, 4, schedule, mutant)[0] in (3, 4, 66) for _ in range(20))


@pytest.mark.soak
def test_a_million_steps(tmp_path: Path) -> None:
    """With twice as many threads as processors, of which some are late, and tasks that fail."""
    made, runs = built(tmp_path, "-O2"), 333_334
    for schedule in SCHEDULES:
        status, text = ran(made, 2 * (os.cpu_count() or 1), schedule, runs=runs)
        assert status == 0 and text.startswith(f"{(runs + 10) // 16} failures"), text


# --- random tables --------------------------------------------------------------------------------


def random_tables(seeds: Sequence[int]) -> list[tuple[str, TaskTable, dict[str, int]]]:
    """Texts for the driver, with tables and the costs of grids; of graphs that have programs."""
    found = []
    for seed in seeds:
        rng = random.Random(seed)
        graph, batch = random_graph(rng), rng.randint(1, 3)
        costs = {grid.name: rng.randint(1, 9) for grid in graph.grids}
        try:
            numbering = Numbering(graph)
            lines = [numbering.total, str(len(graph.grids))]
            for grid in in_order(graph):
                sizes = [number(size, {"B": batch}) for size in grid.sizes.values()]
                rows, columns = [1, *sizes][-2:]
                waits, notes = [*numbering.waits(grid)], [*numbering.notes(grid)]
                lines += [f"{rows} {columns} {costs[grid.name]}"]
                lines += [str(len(waits)), *waits, str(len(notes)), *notes]
        except PyPMError:
            continue
        table = lowered(graph, {"B": batch})
        words = [str(evaluated(word, batch)) for word in " ".join(lines).split()]
        words += [f"{len(some)} {' '.join(map(str, sorted(some)))}" for some in table.before]
        found.append((" ".join(words), table, costs))
    return found


def evaluated(number: str, batch: int) -> int:
    parts = number.split("+")
    return sum(int(p[:-1]) * batch if p.endswith("b") else int(p) for p in parts)


def check_random_tables(driver: Path, seeds: Sequence[int]) -> None:
    """Any schedule by four threads runs each task once, after those before it; queues are those of
    the simulation.
    """
    tables = random_tables(seeds)
    assert 4 * len(tables) > len(seeds)
    text = "\n".join([str(len(tables)), *(text for text, *_ in tables)])
    for schedule in SCHEDULES:
        status, found = ran(driver, 4, schedule, runs=0, text=text)
        assert status == 0, (schedule, found)
        lines = iter(found.splitlines())
        for _, table, costs in tables:

            def cost(task: GridTask, costs: dict[str, int] = costs) -> float:
                return costs[task.grid.name]

            queues = [[int(word) for word in next(lines).split()] for _ in range(4)]
            assert queues == schedules.queues(table, 4, cost)


def test_random_tables(driver: Path) -> None:
    check_random_tables(driver, range(40))


@pytest.mark.soak
def test_many_random_tables(driver: Path) -> None:
    check_random_tables(driver, range(100, 900))
