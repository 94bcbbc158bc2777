"""Random graphs of grids, and runs of their tables by workers in a random order."""

from __future__ import annotations

import random
from collections import Counter

from pypm.events.grids import Grid, TileGraph, TileMap, TilePart
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


def run_at_random(rng: random.Random, table: TaskTable, workers: int) -> list[int]:
    """The order in which tasks end, where workers take tickets and any of them goes on at any time.

    Events are counters, as in the kernel: a task runs when they have the counts that it waits for.
    """
    counters: Counter[int] = Counter()
    held: list[int | None] = [None] * workers
    ended: list[int] = []
    ticket = 0
    while len(ended) < len(table.tasks):
        able = [
            w
            for w, task in enumerate(held)
            if (task is None and ticket < len(table.tasks))
            or (task is not None and all(counters[e] >= n for e, n in table.waits[task]))
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
