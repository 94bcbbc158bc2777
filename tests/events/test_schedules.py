"""Simulated schedules: what they may not beat, and what they equal."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from pypm.events import schedules
from pypm.events.checks import check_queues, checked
from pypm.events.decoder import cost_of, decoder_graph
from pypm.events.grids import Grid, TileGraph
from pypm.events.tasks import GridTask, TaskTable
from tests.events import picture
from tests.events.graphs import random_graph
from tests.events.steps import made


def cost(task: GridTask) -> float:
    return 1 + (sum(task.at) * 7 + len(task.grid.name + str(task.grid.sizes))) % 5


def runs(table: TaskTable, workers: int) -> dict[str, schedules.Simulated]:
    given = schedules.queues(table, workers, cost)
    check_queues(table, given)
    return {
        "queues": schedules.by_queues(table, given, cost),
        "tickets": schedules.by_tickets(table, workers, cost),
        "barriers": schedules.by_barriers(table, workers, cost),
    }


def test_no_schedule_is_too_good_to_be_true() -> None:
    """Tasks come after those before them, workers do one at a time, and time is not made up."""
    for seed in range(200):
        rng = random.Random(seed)
        table = checked(random_graph(rng), {"B": rng.randint(1, 3)})
        workers = rng.randint(1, 4)
        work = sum(map(cost, table.tasks))
        length, path = schedules.critical(table, cost)
        assert sum(map(cost, path)) == length
        for name, run in runs(table, workers).items():
            assert run.makespan >= max(length, work / workers)
            assert run.makespan <= work, name
            assert run.idle == pytest.approx(1 - work / (workers * run.makespan))
            for n, before in enumerate(table.before):
                assert all(run.ends[other] <= run.starts[n] for other in before)
            for at in run.starts:
                pairs = zip(run.starts, run.ends, strict=True)
                assert sum(start <= at < end for start, end in pairs) <= workers
            for worker in range(workers):
                times = zip(run.starts, run.ends, run.places, strict=True)
                own = sorted((start, end) for start, end, place in times if place == worker)
                assert all(end <= start for (_, end), (start, _) in pairwise(own)), name
            assert {*run.places} <= {*range(workers)}
        if workers == 1:
            assert {run.makespan for run in runs(table, 1).values()} == {work}


def test_queues_take_the_longest_chain_first() -> None:
    """Two workers: the long chain begins at once, and short tasks fill the other worker."""
    sizes = {"short": 4, "long": 1, "longer": 1}
    grids = tuple(
        Grid(name, {"i": size}, ("i -> long[:]",) if name == "longer" else (), (f"i -> {name}[i]",))
        for name, size in sizes.items()
    )
    table = checked(TileGraph({name: (size,) for name, size in sizes.items()}, (), grids), {})

    def times(task: GridTask) -> float:
        return 1.0 if task.grid.name == "short" else 2.0

    given = schedules.queues(table, 2, times)
    assert [[str(table.tasks[n]) for n in queue] for queue in given] == [
        ["long[0]", "longer[0]"],
        ["short[0]", "short[1]", "short[2]", "short[3]"],
    ]
    assert schedules.by_queues(table, given, times).makespan == 4
    assert schedules.by_tickets(table, 2, times).makespan == 6
    assert str(schedules.critical(table, times)[1][-1]) == "longer[0]"


def test_events_of_a_decoder_are_nearly_barriers() -> None:
    """As the page about events says: all products need whole vectors."""
    table = checked(decoder_graph(made(True).step), {"B": 2})
    for workers in (1, 2, 4):
        fine = schedules.by_tickets(table, workers, cost_of(50)).makespan
        coarse = schedules.by_barriers(table, workers, cost_of(50)).makespan
        assert 0.9 * coarse <= fine <= coarse


def test_the_picture_of_the_page_is_current() -> None:
    """`python -m tests.events.picture` draws it anew."""
    assert picture.FILE.read_text(encoding="utf-8") == picture.svg()
