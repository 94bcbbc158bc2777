"""The work of attention over pages, as tiles: shared prefixes once, long rows split evenly."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["QUERIES", "Tile", "assigned", "cost", "imbalance", "parallel", "shared", "split"]

QUERIES = 128
"""Most queries of one sequence in a tile: a causal tile then computes few scores in vain."""
PART = 128
"""Fewest keys for which a long row is cut on a GPU: each part writes a result, which is read again.
"""


@dataclass(frozen=True, slots=True)
class Tile:
    """Queries that all read the same keys."""

    rows: tuple[range, ...]
    """Numbers of the queries, by sequence."""
    pages: tuple[int, ...]
    first: int
    """Position of the first key in its sequences, a multiple of the page size."""
    keys: int
    """Number of keys; the last page may have more."""

    @property
    def queries(self) -> int:
        return sum(map(len, self.rows))


def cost(tile: Tile) -> int:
    """Return the cost of a tile: 2 x queries + keys.

    A tile reads its keys and values once; it reads and writes each query and its result.
    """
    return 2 * tile.queries + tile.keys


def shared(
    tables: Sequence[Sequence[int]],
    lengths: Sequence[int],
    rows: Sequence[range],
    page_size: int,
) -> Iterator[Tile]:
    """Yield tiles, such that pages shared by several sequences are read once where this pays.

    Arguments:
        tables: for each sequence, its pages.
        lengths: for each sequence, its number of keys.
        rows: for each sequence, the numbers of its queries. They are its last tokens: the last
            query sees all keys, the one before all but the last, and so on.
        page_size: keys in a page.

    Pages are shared at the beginning of sequences only, where each query sees all keys of a page.
    Sorting brings sequences with equal beginnings together.
    """
    common = [
        tuple(tables[i][: max(0, length - len(rows[i]) + 1) // page_size]) if len(rows[i]) else ()
        for i, length in enumerate(lengths)
    ]
    order = sorted((i for i in range(len(rows)) if len(rows[i])), key=common.__getitem__)
    todo = [(order, 0, 0)]  # sequences whose pages agree up to the third, computed up to the second
    while todo:
        members, start, known = todo.pop()
        for run in _runs(members, common, known):
            if len(run) == 1:
                yield from _own(run[0], tables, lengths, rows, start, page_size)
                continue
            agree = _agreeing(common[run[0]], common[run[-1]])
            queries = tuple(rows[i] for i in run)
            pages = tuple(common[run[0]][start:agree])
            tile = Tile(queries, pages, start * page_size, len(pages) * page_size)
            if (len(run) - 1) * tile.keys > 2 * tile.queries:
                yield tile
                start_of_rest = agree
            else:
                start_of_rest = start
            todo.append((run, start_of_rest, agree))


def _runs(members: list[int], common: Sequence[tuple[int, ...]], known: int) -> Iterator[list[int]]:
    """Yield the members that share the page after `known`, together; the others one by one."""
    run: list[int] = []
    for i in members:
        mine = common[i][known : known + 1]
        if run and mine and common[run[0]][known : known + 1] == mine:
            run.append(i)
            continue
        if run:
            yield run
        run = [i]
    if run:
        yield run


def _agreeing(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the longest common beginning."""
    shorter = min(len(a), len(b))
    return next((i for i in range(shorter) if a[i] != b[i]), shorter)


def _own(
    i: int,
    tables: Sequence[Sequence[int]],
    lengths: Sequence[int],
    rows: Sequence[range],
    start: int,
    page_size: int,
) -> Iterator[Tile]:
    """Yield the tiles of a sequence from a page on, with at most `QUERIES` queries each."""
    for at in range(0, len(rows[i]), QUERIES):
        block = rows[i][at : at + QUERIES]
        seen = lengths[i] - (rows[i].stop - block.stop)  # by the last query of the block
        if seen > start * page_size:
            pages = tuple(tables[i][start : -(-seen // page_size)])
            yield Tile((block,), pages, start * page_size, seen - start * page_size)


def split(tiles: Sequence[Tile], page_size: int, slots: int, least: int = 1) -> list[Tile]:
    """Return the tiles with long ones cut: by the smallest chunk so that at most `slots` remain.

    The chunk is a whole number of pages, `least` or more. Where there are more tiles than slots,
    none is cut.
    """
    longest = max((len(tile.pages) for tile in tiles), default=least)
    low, high = least, max(longest, least)
    while low < high:
        chunk = (low + high) // 2
        if sum(-(-len(tile.pages) // chunk) for tile in tiles) <= slots:
            high = chunk
        else:
            low = chunk + 1
    return [part for tile in tiles for part in _cut(tile, low, page_size)]


def _cut(tile: Tile, chunk: int, page_size: int) -> Iterator[Tile]:
    for at in range(0, len(tile.pages), chunk):
        pages = tile.pages[at : at + chunk]
        keys = min(tile.keys - at * page_size, len(pages) * page_size)
        yield Tile(tile.rows, pages, tile.first + at * page_size, keys)


def parallel(tiles: Sequence[Tile], page_size: int, processors: int) -> list[Tile]:
    """Return the tiles for a GPU with so many processors: long ones cut, the dearest one first.

    At most one tile more for each processor, as each is computed for several groups of heads, and a
    GPU starts the programs in this order.
    """
    parts = split(tiles, page_size, len(tiles) + processors, -(-PART // page_size))
    return sorted(parts, key=cost, reverse=True)


def assigned(tiles: Sequence[Tile], workers: int) -> list[list[Tile]]:
    """Return the tiles of each worker: the dearest tile first, to the worker with least to do."""
    queue = [(0, worker) for worker in range(workers)]
    work: list[list[Tile]] = [[] for _ in range(workers)]
    for tile in sorted(tiles, key=cost, reverse=True):
        load, worker = queue[0]
        work[worker].append(tile)
        heapq.heapreplace(queue, (load + cost(tile), worker))
    return work


def imbalance(tiles: Sequence[Tile], workers: int) -> float:
    """Return the simulated time of the busiest worker over the mean of all; 1 without work."""
    loads = [sum(map(cost, work)) for work in assigned(tiles, workers)]
    return max(loads) * workers / sum(loads) if any(loads) else 1.0
