"""Graphs of grids: maps, derived events, right graphs that pass and wrong ones that are refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from pypm.events.checks import check_events, check_order, check_queues, check_tiles, checked
from pypm.events.grids import EventError, Grid, TileGraph, parsed
from pypm.events.schedules import queues
from pypm.events.tasks import TaskTable, lowered
from tests.events.graphs import random_graph, run_at_random

SEEDS = range(1000)
MORE = pytest.param(range(1000, 6000), marks=pytest.mark.soak)
random_seeds = pytest.mark.parametrize("seeds", [SEEDS, MORE], ids=["some", "more"])


@pytest.mark.parametrize("text", ["b,j -> x[b, :]", "i -> y[4*i:4*i+4, i]", " -> z[:]"])
def test_maps_are_their_texts(text: str) -> None:
    assert str(parsed(text)) == text


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("b -> x", "is no map"),
        ("b -> x[c]", "uses `c`, which is no index"),
        ("b,b -> x[b]", "repeats an index"),
        ("b -> x[2*b:2*b+3]", "names no tiles"),
        ("b -> x[b+1]", "names no tiles"),
    ],
)
def test_texts_that_are_no_maps(text: str, what: str) -> None:
    with pytest.raises(EventError, match=what):
        parsed(text)


def chain() -> TileGraph:
    return TileGraph(
        {"x": (4,), "y": ("B", 4), "z": ("B", 2)},
        ("x",),
        (
            Grid("up", {"b": "B", "j": 4}, ("b,j -> x[:]",), ("b,j -> y[b, j]",)),
            Grid("down", {"b": "B", "k": 2}, ("b,k -> y[b, 2*k:2*k+2]",), ("b,k -> z[b, k]",)),
        ),
    )


def test_events_and_counts_come_from_maps() -> None:
    table = checked(chain(), {"B": 3})
    assert table.events[:3] == ("y/1,2[0, 0]", "y/1,2[0, 1]", "y/1,2[1, 0]")
    assert [str(task) for task in table.tasks[:2]] == ["up[0, 0]", "up[0, 1]"]
    assert all(count == 2 for waits in table.waits for _, count in waits)
    assert table.notes[:5] == ((0,), (0,), (1,), (1,), (2,))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"tensors": {"x": (4,), "y": ("B", 4), "z": ("B", 3)}}, "no task writes tile z.0, 2"),
        ({"tensors": {"x": (4,), "y": ("B", 4), "z": ("B", 1)}}, "down.0, 1. is out of range"),
        ({"inputs": ("x", "z")}, "writes `z`, which is an input"),
        ({"tensors": {"x": (4,), "y": (4,), "z": ("B", 2)}}, "has not 1 axes"),
        ({"tensors": {"x": (4,), "y": ("B", 4)}}, "is of no known tensor"),
        ({"tensors": {"x": (4,), "y": ("B", 4), "z": ("C", 2)}}, "the size `C` has no number"),
    ],
)
def test_diagnostics_name_grid_tile_and_event(change: dict[str, object], what: str) -> None:
    with pytest.raises(EventError, match=what):
        checked(replace(chain(), **change), {"B": 2})  # type: ignore[arg-type]


@random_seeds
def test_random_graphs_run_to_their_end_in_any_order(seeds: range) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        graph = random_graph(rng)
        table = checked(graph, {"B": rng.randint(1, 4)})
        ended = run_at_random(rng, table, rng.randint(1, 4))
        places = {task: n for n, task in enumerate(ended)}
        written = check_tiles(graph, table.sizes)
        numbers = {(task.grid.name, task.at): n for n, task in enumerate(table.tasks)}
        for n, task in enumerate(table.tasks):
            for reads in task.grid.inputs:
                for tile in reads.tiles(task.at, graph.shape(reads.tensor, table.sizes)):
                    if (writer := written.get((reads.tensor, tile))) is not None:
                        assert places[numbers[writer.grid.name, writer.at]] < places[n]
        check_queues(table, queues(table, rng.randint(1, 4), lambda task: 1 + hash(task.at) % 5))


# --- tiles that data choose -----------------------------------------------------------------------


def test_texts_of_chosen_tiles() -> None:
    for text in ("b,j -> h[topk[b, :], j]", "e -> x[range(ptr[e], ptr[e+1]), :]"):
        assert str(parsed(text)) == text
    for text in ("b -> h[topk[c, :]]", "e -> x[range(ptr[e], end[e+1])]", "b -> h[t[u[b]]]"):
        with pytest.raises(EventError):
            parsed(text)
    with pytest.raises(EventError, match="writes depends on data"):
        Grid("g", {"b": 2}, (), ("b -> h[topk[b, :]]",))


def test_rows_wait_for_the_experts_that_they_chose() -> None:
    """Random choices, among them experts without rows, and all rows to one."""
    for seed in range(200):
        rng = random.Random(seed)
        batch, count, top = rng.randint(1, 4), rng.randint(2, 5), rng.randint(1, 2)
        graph = mixture(count, top)
        some = rng.sample(range(count), rng.randint(top, count))
        ids = [rng.sample(some, top) for _ in range(batch)]
        ends = [sum(e < n for row in ids for e in row) for n in range(count + 1)]
        data = {
            "topk": {(b, k): e for b, row in enumerate(ids) for k, e in enumerate(row)},
            "ptr": {(n,): end for n, end in enumerate(ends)},
        }
        sizes = {"B": batch, "N": batch * top}
        worst, table = checked(graph, sizes), checked(graph, sizes, data)
        assert worst.tasks == table.tasks and worst.notes == table.notes
        numbers = {(task.grid.name, task.at): n for n, task in enumerate(table.tasks)}
        ended = run_at_random(rng, table, rng.randint(1, 4))
        places = {task: n for n, task in enumerate(ended)}
        for n, task in enumerate(table.tasks):
            assert table.before[n] <= worst.before[n]
            if task.grid.name == "sum":
                needed = {numbers["experts", (e, j)] for e in ids[task.at[0]] for j in range(2)}
                others = {m for (name, _), m in numbers.items() if name == "experts"} - needed
                assert needed <= table.before[n] and not others & table.before[n]
                assert all(places[m] < places[n] for m in needed)
            if task.grid.name == "experts":
                slots = range(ends[task.at[0]], ends[task.at[0] + 1])
                given = {numbers["gather", (s,)] for s in slots}
                assert given == {m for m in table.before[n] if table.tasks[m].grid.name == "gather"}


def mixture(count: int, top: int) -> TileGraph:
    """Rows choose experts, are gathered by expert, multiplied, and summed."""
    grids = (
        Grid("route", {"b": "B"}, ("b -> x[b]",), ("b -> topk[b, :]",)),
        Grid("sort", {}, (" -> topk[:, :]",), (" -> ptr[:]",)),
        Grid("gather", {"s": "N"}, ("s -> topk[:, :]",), ("s -> rows[s]",)),
        Grid("experts", {"e": count, "j": 2}, ("e,j -> rows[range(ptr[e], ptr[e+1])]",),
             ("e,j -> h[e, j]",)),
        Grid("sum", {"b": "B"}, ("b -> h[topk[b, :], :]",), ("b -> y[b]",)),
    )  # fmt: skip
    tensors = {"x": ("B",), "topk": ("B", top), "ptr": (count + 1,), "rows": ("N",)}
    return TileGraph({**tensors, "h": (count, 2), "y": ("B",)}, ("x",), grids)


def test_numbers_of_tiles_that_do_not_exist_are_refused() -> None:
    graph, sizes = mixture(3, 1), {"B": 2, "N": 2}
    ptr = {(n,): at for n, at in enumerate((0, 1, 2, 2))}
    for topk, ends, what in (
        ({(0, 0): 0, (1, 0): 3}, ptr, "out of range: tile h.3, 0"),
        ({(0, 0): -1, (1, 0): 1}, ptr, "out of range: tile h.-1, 0"),
        ({(0, 0): 0, (1, 0): 1}, {**ptr, (3,): 5}, "out of range: tile rows.2"),
    ):
        with pytest.raises(EventError, match=what):
            checked(graph, sizes, {"topk": topk, "ptr": ends})
    with pytest.raises(EventError, match="has no data"):
        checked(graph, sizes, {"topk": {(0, 0): 0, (1, 0): 1}})


# --- wrong ones -----------------------------------------------------------------------------------


def other_grid(graph: TileGraph, name: str, **change: object) -> TileGraph:
    grids = tuple(replace(g, **change) if g.name == name else g for g in graph.grids)
    return replace(graph, grids=grids)


def last_of(graph: TileGraph) -> Grid:
    return max(graph.grids, key=lambda grid: int(grid.name[1:]))


def with_a_cycle(rng: random.Random, graph: TileGraph) -> tuple[TileGraph, str]:
    """The first grid reads what is computed from it."""
    last = last_of(graph)
    reads = {"g1": whole(graph, "g1", last.name), last.name: whole(graph, last.name, "g1")}
    for name, text in reads.items():
        grid = next(grid for grid in graph.grids if grid.name == name)
        graph = other_grid(graph, name, reads=(*grid.reads, text))
    return graph, "wait for each other"


def whole(graph: TileGraph, grid: str, of: str) -> str:
    """The map by which a grid reads all that another one writes."""
    indices = next(each.sizes for each in graph.grids if each.name == grid)
    tensor = of.replace("g", "x")
    return f"{','.join(indices)} -> {tensor}[{', '.join(':' * len(graph.tensors[tensor]))}]"


def written_twice(rng: random.Random, graph: TileGraph) -> tuple[TileGraph, str]:
    again = replace(rng.choice(graph.grids), name="again")
    return replace(graph, grids=(*graph.grids, again)), "again by"


def a_tile_missing(rng: random.Random, graph: TileGraph) -> tuple[TileGraph, str]:
    tensor = f"x{rng.randint(1, len(graph.grids))}"
    *axes, last = graph.tensors[tensor]
    longer = (*axes, 1 + (2 if last == "B" else int(last)))
    grown = replace(graph, tensors={**graph.tensors, tensor: longer})
    return grown, "no task writes|out of range"


def out_of_range(rng: random.Random, graph: TileGraph) -> tuple[TileGraph, str]:
    grid = rng.choice(graph.grids)
    index = rng.choice([*grid.sizes])
    size = grid.sizes[index]
    sizes = {**grid.sizes, index: 1 + (2 if size == "B" else int(size))}
    return other_grid(graph, grid.name, sizes=sizes), "out of range"


@random_seeds
@pytest.mark.parametrize("wrong", [with_a_cycle, written_twice, a_tile_missing, out_of_range])
def test_random_wrong_graphs_are_refused(
    wrong: Callable[[random.Random, TileGraph], tuple[TileGraph, str]],
    seeds: range,
) -> None:
    for seed in seeds:
        rng = random.Random(seed)
        graph, what = wrong(rng, random_graph(rng))
        with pytest.raises(EventError, match=what):
            checked(graph, {"B": 2})


def miscounted(rng: random.Random, table: TaskTable) -> TaskTable:
    """A count is one too low, or too high."""
    n = rng.choice([n for n, waits in enumerate(table.waits) if waits])
    at = rng.randrange(len(table.waits[n]))
    event, count = table.waits[n][at]
    changed = (
        *table.waits[n][:at],
        (event, count + rng.choice((-1, 1))),
        *table.waits[n][at + 1 :],
    )
    return replace(table, waits=(*table.waits[:n], changed, *table.waits[n + 1 :]))


def unnotified(rng: random.Random, table: TaskTable) -> TaskTable:
    """A task does not notify an event for which others wait."""
    awaited = {event for waits in table.waits for event, _ in waits}
    n = rng.choice([n for n, notes in enumerate(table.notes) if awaited.intersection(notes)])
    lost = rng.choice([event for event in table.notes[n] if event in awaited])
    left = tuple(event for event in table.notes[n] if event != lost)
    return replace(table, notes=(*table.notes[:n], left, *table.notes[n + 1 :]))


def unawaited(rng: random.Random, table: TaskTable) -> TaskTable:
    n = rng.choice([n for n, waits in enumerate(table.waits) if waits])
    left = table.waits[n][1:]
    return replace(table, waits=(*table.waits[:n], left, *table.waits[n + 1 :]))


@random_seeds
@pytest.mark.parametrize("wrong", [miscounted, unnotified, unawaited])
def test_random_wrong_tables_are_refused(
    wrong: Callable[[random.Random, TaskTable], TaskTable],
    seeds: range,
) -> None:
    seen = 0
    for seed in seeds:
        rng = random.Random(seed)
        table = lowered(random_graph(rng), {"B": 2})
        if any(table.waits):
            seen += 1
            with pytest.raises(EventError):
                check_events(wrong(rng, table))
    assert seen > len(seeds) / 2


@random_seeds
def test_orders_that_contradict_events_are_refused(seeds: range) -> None:
    seen = 0
    for seed in seeds:
        rng = random.Random(seed)
        graph = random_graph(rng)
        table = lowered(graph, {"B": 2}, grids=rng.sample(graph.grids, len(graph.grids)))
        late = any(other >= n for n, before in enumerate(table.before) for other in before)
        if late:
            seen += 1
            with pytest.raises(EventError, match="comes later"):
                check_order(table)
            with pytest.raises(EventError, match="wait for each other"):
                check_queues(table, [range(len(table.tasks))])
        else:
            check_order(table)
    assert seen > len(seeds) / 2
    with pytest.raises(EventError, match="is in 2 queues"):
        check_queues(table, [range(len(table.tasks)), [0]])
