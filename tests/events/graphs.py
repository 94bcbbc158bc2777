"""Random graphs of grids, and runs of their tables by workers in a random order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from pypm.events.grids import (
    ChosenTiles,
    Grid,
    Sizes,
    TileGraph,
    TileMap,
    TilePart,
    Tiles,
    number,
)
from pypm.events.tasks import TaskTable

NAMES = "ij"


def random_graph(rng: random.Random, grids: int = 5) -> TileGraph:
    """Each grid writes one tensor, and reads up to three: by tile, by runs, whole."""
    tensors: dict[str, tuple[int | str, ...]] = {"x0": (rng.choice((1, 2, 4)), "B")}
    made: list[Grid] = []
    for n in range(1, grids + 1):
        sizes: dict[str, int | str] = {
            name: rng.choice((1, 2, 3, "B")) for name in NAMES[: rng.randint(1, 2)]
        }
        reads = tuple(
            str(
                TileMap(
                    tuple(sizes), name, tuple(_part(rng, size, sizes) for size in tensors[name])
                )
            )
            for name in rng.sample([*tensors], min(len(tensors), rng.randint(1, 3)))
        )
        written = [*sizes]
        rng.shuffle(written)
        tensors[f"x{n}"] = tuple(sizes[index] for index in written)
        writes = f"{','.join(sizes)} -> x{n}[{', '.join(written)}]"
        made.append(Grid(f"g{n}", sizes, reads, (writes,)))
    shuffled = rng.sample(made, len(made))
    return TileGraph(tensors, ("x0",), tuple(shuffled))


def _part(rng: random.Random, size: int | str, sizes: dict[str, int | str]) -> TilePart:
    """The whole axis, or an index that has its size, or divides it."""
    ways = [TilePart(None)]
    for index, count in sizes.items():
        if count == size:
            ways.append(TilePart(index))
        elif isinstance(size, int) and isinstance(count, int) and size % count == 0:
            ways.append(TilePart(index, size // count))
    return rng.choice(ways)


def choosing(
    rng: random.Random, graph: TileGraph, sizes: Sizes
) -> tuple[TileGraph, dict[str, dict[Tiles, int]]]:
    """The graph, in which a grid now reads tiles that numbers choose, and these. A grid more writes
    them.
    """
    grid = rng.choice(graph.grids)
    reads, index = rng.choice(grid.inputs), rng.choice([*grid.sizes])
    axis = rng.randrange(len(reads.parts))
    size, rows = graph.shape(reads.tensor, sizes)[axis], number(grid.sizes[index], sizes)
    last = len(graph.grids) + 1
    name, is_range = f"x{last}", rng.random() < 0.5
    if is_range:
        ends = sorted(rng.randint(0, size) for _ in range(rows + 1))
        shape: Tiles = (rows + 1,)
        data = {(n,): end for n, end in enumerate(ends)}
    else:
        shape = (rows, rng.randint(1, 2))
        data = {at: rng.randrange(size) for at in product(*map(range, shape))}
    parts = (TilePart(index),) if is_range else (TilePart(index), TilePart(None))
    chosen = ChosenTiles(TileMap(reads.indices, name, parts), is_range)
    changed = replace(reads, parts=(*reads.parts[:axis], chosen, *reads.parts[axis + 1 :]))
    texts = tuple(str(changed) if each == reads else str(each) for each in grid.inputs)
    names = ", ".join(NAMES[: len(shape)])
    maps = f"{names} -> x0[:, :]", f"{names} -> {name}[{names}]"
    writer = Grid(f"g{last}", dict(zip(NAMES, shape, strict=False)), maps[:1], maps[1:])
    others = (replace(grid, reads=texts) if each is grid else each for each in graph.grids)
    grids = rng.sample([*others, writer], last)
    return TileGraph({**graph.tensors, name: shape}, graph.inputs, tuple(grids)), {name: data}


def run_at_random(
    rng: random.Random,
    table: TaskTable,
    workers: int,
    counters: Counter[int] | None = None,
    call: int = 1,
) -> list[int]:
    """The order in which tasks end, where workers take tickets and any of them goes on at any time.

    Events are counters, as in the kernel: a task runs when they have the counts that it waits for,
    once for each call.
    """
    counters = Counter() if counters is None else counters
    held: list[int | None] = [None] * workers
    ended: list[int] = []
    ticket = 0
    while len(ended) < len(table.tasks):
        able = [
            w
            for w, task in enumerate(held)
            if (task is None and ticket < len(table.tasks))
            or (task is not None and all(counters[e] >= call * n for e, n in table.waits[task]))
        ]
        assert able, "no worker can go on"
        worker = rng.choice(able)
        task = held[worker]
        if task is None:
            held[worker], ticket = ticket, ticket + 1
        else:
            counters.update(table.notes[task])
            ended.append(task)
            held[worker] = None
    return ended


def run_queues_at_random(
    rng: random.Random,
    table: TaskTable,
    queues: Sequence[Sequence[int]],
    entering: int,
    *,
    helps: bool = True,
    in_order: bool = True,
) -> list[int]:
    """The order in which tasks end, where workers take queues as they enter; while they wait, they
    run tasks of queues without a worker, if these come before the task that they wait for.

    So many workers enter, each at any time. `helps` and `in_order` are False for what the kernel
    does not do: to wait without running others, or to run any of them. Raises AssertionError if no
    worker can go on.
    """
    place = {task: n for n, task in enumerate(linear_order(table, queues))}
    counters: Counter[int] = Counter()
    rest = [[*queue] for queue in queues]
    held: list[list[int]] = []  # tasks of each worker that entered; it waits for the last
    ended: list[int] = []

    def source(worker: int) -> int | None:
        """The queue from which a worker may take a task now, if there is one."""
        if not held[worker] and rest[worker]:
            return worker
        for queue in range(len(held), len(rest) if helps or not held[worker] else 0):
            tasks = rest[queue]
            if tasks and (
                not held[worker] or not in_order or place[tasks[0]] < place[held[worker][-1]]
            ):
                return queue
        return None

    def is_ready(worker: int) -> bool:
        tasks = held[worker][-1:]
        return any(all(counters[e] >= n for e, n in table.waits[task]) for task in tasks)

    while len(ended) < len(table.tasks):
        able = [w for w in range(len(held)) if is_ready(w) or source(w) is not None]
        able += [-1] * (len(held) < entering)
        assert able, "no worker can go on"
        worker = rng.choice(able)
        if worker == -1:
            held.append([])
        elif is_ready(worker):
            ended.append(held[worker].pop())
            counters.update(table.notes[ended[-1]])
        elif (queue := source(worker)) is not None:
            held[worker].append(rest[queue].pop(0))
    return ended


def linear_order(table: TaskTable, queues: Sequence[Sequence[int]]) -> list[int]:
    """A topological order of which all queues are parts in order."""
    rest, order, done = [[*queue] for queue in queues], list[int](), set[int]()
    while any(rest):
        queue = next(q for q in rest if q and table.before[q[0]] <= done)
        order.append(queue.pop(0))
        done.add(order[-1])
    return order
