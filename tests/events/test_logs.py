"""Logs of runs with several threads, and of emulated launches, before the judge from Coq.

The judge (`coq/theories/Events.v`) knows what tasks wait for from tables that Python makes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from pypm.events.grids import EventError
from pypm.events.program import SCHEDULES
from tests.events.logs import Plan, emulated_logs, judged, kernel_logs, plan_of, staged
from tests.events.test_workers import built, ran, random_tables
from tests.events.triton_steps import decoder
from tests.properties.oracle import ask, require_oracle

ROWS, COLUMNS, LAYERS = 2, 4, 6


@pytest.fixture(scope="module", autouse=True)
def oracle() -> None:
    require_oracle()


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("logs"), "-O1", logged=True)


def layers() -> tuple[Plan, list[int]]:
    """The table of `driver.cpp`, without what numbers choose, and the grid of each task."""
    waits, notes, grids = list[list[int]](), list[list[int]](), list[int]()
    for layer in range(LAYERS):
        rows = 3 * ROWS * layer
        for i in range(ROWS):
            for j in range(COLUMNS):
                waits.append([rows - 3 * ROWS + i] if layer else [])
                notes.append([rows + ROWS + 2 * i + j // 2])
                grids.append(2 * layer)
        for i in range(ROWS):
            for j in range(2):
                waits.append([rows + ROWS + 2 * i + j])
                notes.append([rows + i])
                grids.append(2 * layer + 1)
    everything = range(len(waits))
    return Plan(waits, notes, [everything], everything), grids


def of_layers(
    driver: Path, schedule: str, mutant: int = 0
) -> Iterator[tuple[Plan, int, list[str]]]:
    """Plans, workers and words of runs of layers, in which numbers choose what some tasks read."""
    given, grids = layers()
    plan = staged(given, grids) if schedule == "barriers" else given
    for entered, queues, order, words in kernel_logs(ran(driver, 4, schedule, mutant, runs=5)[1]):
        own = Plan(plan.waits, plan.notes, queues or plan.queues, order or plan.order)
        yield own, entered, words


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_runs_of_threads_are_accepted(driver: Path, schedule: str) -> None:
    asked = [judged(*log) for _ in range(3) for log in of_layers(driver, schedule)]
    assert len(asked) == 15
    assert ask(asked) == ["accepted"] * 15


def check_random_tables(driver: Path, seeds: range) -> int:
    """Return how many logs were judged, of four runs of each table by each schedule."""
    tables = random_tables(seeds)
    text = "\n".join([str(len(tables)), *(text for text, *_ in tables)])
    asked = []
    for schedule in SCHEDULES:
        status, output = ran(driver, 4, schedule, runs=0, text=text)
        assert status == 0, output
        logs = kernel_logs(output)
        for _, table, _ in tables:
            for _ in range(4):
                entered, queues, order, words = next(logs)
                plan = plan_of(table, queues, order)
                if schedule == "barriers":
                    plan = staged(plan, [task.grid.name for task in table.tasks])
                asked.append(judged(plan, entered, words))
        assert not [*logs]
    assert ask(asked) == ["accepted"] * len(asked)
    return len(asked)


def test_random_tables_are_accepted(driver: Path) -> None:
    assert check_random_tables(driver, range(30)) > 100


@pytest.mark.soak
def test_many_random_tables_are_accepted(driver: Path) -> None:
    assert check_random_tables(driver, range(100, 1000)) > 3000


@pytest.mark.parametrize("mutant", [5, 6, 7, 8])
def test_logs_of_mutants_are_refused(driver: Path, mutant: int) -> None:
    """Of a kernel that does not wait, waits for the run before, for one arrival less, or not for
    what numbers choose: a task begins too early in one of some runs.
    """
    logs = (of_layers(driver, "tickets", mutant) for _ in range(20))
    answers = (ask([judged(*log) for log in some]) for some in logs)
    assert any(a.startswith("refused after") for found in answers for a in found)


def test_emulated_launches_are_accepted() -> None:
    for seed in range(4):
        step = decoder(1 + seed, torch.float32, programs=1 + seed)
        plan = plan_of(step.table, [], [])
        plan.check()
        logs = emulated_logs(step, 2, seed)
        assert ask([plan.query(1 + seed, words) for words in logs]) == ["accepted"] * 2


def test_events_that_another_launch_has_left_are_refused() -> None:
    step = decoder(2, torch.float32)
    emulated_logs(step, 1, 0)
    counters = step.arguments["counters"]
    assert isinstance(counters, torch.Tensor)
    left = int(counters[3])
    for stale in (0, left - 1, 2 * left):
        counters[3] = stale
        with pytest.raises(EventError, match=f"has counted {stale} arrivals, and not {left} in"):
            emulated_logs(step, 1, 0)


# --- damaged logs ---------------------------------------------------------------------------------


def task_of(word: str) -> int:
    return int(word.split(":")[2 if word[0] == "T" else 1])


def too_early(rng: random.Random, plan: Plan, words: list[str]) -> list[str] | None:
    """A task begins before something that it waits for is notified."""
    places = {(word[0], task_of(word)): n for n, word in enumerate(words) if word[0] in "TB"}
    found = [
        (n, places["B", task])
        for n, word in enumerate(words)
        for task, events in enumerate(plan.waits)
        if word[0] == "N" and int(word.split(":")[2]) in events and places["T", task] < n
    ]
    if not found:
        return None
    n, m = rng.choice(found)
    return [*words[:n], words[m], *words[n:m], *words[m + 1 :]]


def twice(rng: random.Random, plan: Plan, words: list[str]) -> list[str]:
    """A task is taken again, or begins again, while a worker has it."""
    n = rng.choice([n for n, word in enumerate(words) if word[0] in "TB"])
    return [*words[: n + 1], *words[n:]]


def again(rng: random.Random, plan: Plan, words: list[str]) -> list[str]:
    """All that a worker did with a task is done again in the end."""
    task = rng.randrange(len(plan.waits))
    return [*words, *(word for word in words if word[0] != "E" and task_of(word) == task)]


def missing(rng: random.Random, plan: Plan, words: list[str]) -> list[str]:
    task = rng.randrange(len(plan.waits))
    return [word for word in words if word[0] == "E" or task_of(word) != task]


def unsaid(rng: random.Random, plan: Plan, words: list[str]) -> list[str]:
    n = rng.choice([n for n, word in enumerate(words) if word[0] in "TBFNL"])
    return [*words[:n], *words[n + 1 :]]


Damage = Callable[[random.Random, Plan, list[str]], "list[str] | None"]


@pytest.mark.parametrize("schedule", ["tickets", "queues"])
@pytest.mark.parametrize("damage", [too_early, twice, again, missing, unsaid])
def test_damaged_logs_are_refused(driver: Path, schedule: str, damage: Damage) -> None:
    rng, asked = random.Random(0), []
    for _ in range(50):
        for plan, entered, words in of_layers(driver, schedule):
            if (damaged := damage(rng, plan, words)) is not None:
                asked.append(judged(plan, entered, damaged))
        if len(asked) >= 10:
            break
    answers = ask(asked)
    assert len(answers) >= 10 and all(a.startswith("refused after") for a in answers)
