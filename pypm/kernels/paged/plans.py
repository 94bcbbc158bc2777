"""Plans of attention over pages: the work of a step as tensors, made and checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import index
from typing import Final

import torch
from torch import Tensor

from pypm.kernels.paged.cache import refused
from pypm.kernels.paged.schedule import Tile, assigned, parallel, shared, split

__all__ = ["PagedPlan", "objection", "packed", "plan", "raise_unless_planned"]


SLOTS_OF_A_WORKER: Final = 4
"""Tiles for each worker beyond those that there are, if long ones are cut."""


@dataclass(frozen=True, slots=True)
class PagedPlan:
    """The work of one step, for all layers: arguments of `attend`, on the device of the pages."""

    tiles: Tensor
    """int64 [tiles, 7]: for each tile the begin and end in `rows`, those in `pages`, the position
    of its first key, the number of its keys, and the worker that computes it, 0 on a GPU."""
    rows: Tensor
    """int64: numbers of queries, tile by tile."""
    pages: Tensor
    """int64: numbers of pages, tile by tile."""
    seen: Tensor
    """int64 [queries]: the number of keys that a query sees, from the first on."""

    starts: Tensor
    """int64 [queries + 1]: for each query, the begin of its places in `entries`."""
    entries: Tensor
    """int64: the places in `rows` where each query stands, query by query."""

    page_count: int
    page_size: int
    """Number of the pages that it is for, and of the keys in one."""

    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.tiles, self.rows, self.pages, self.seen, self.starts, self.entries


def plan(
    table: Tensor,
    lengths: Tensor,
    queries: Sequence[int] | None = None,
    *,
    pages: int,
    page_size: int,
    workers: int | None = None,
    device: torch.device | str | None = None,
) -> PagedPlan:
    """Return the work of attention over pages. It is found on the CPU, so a GPU is waited for if
    `table` or `lengths` is there.

    Arguments:
        table: [sequences, pages of a sequence], integers; entries behind the last key are not read.
            Negative numbers count from the last page.
        lengths: [sequences], the number of keys of each sequence.
        queries: for each sequence its number of queries, the last tokens of it; 1 each if None.
            They lie one behind the other.
        pages: number of pages that there are.
        page_size: keys in a page.
        workers: threads that share the work, or processors of the GPU; torch's number of threads,
            or all of the GPU's, if None.
        device: of the pages; that of `table` if None.

    Raises `CacheError` where the sizes do not agree, a sequence is longer than its pages, a page
    does not exist, or a number is not whole.
    """
    if page_size < 1 or (workers is not None and workers < 1):
        raise refused(f"{workers} workers cannot read pages of {page_size} keys")
    tables, ends, counts = _numbers(table, lengths, queries, pages, page_size)
    starts = [sum(counts[:i]) for i in range(len(counts) + 1)]
    rows = [range(a, b) for a, b in pairwise(starts)]
    seen = [
        max(0, end - (row.stop - 1 - i)) for row, end in zip(rows, ends, strict=True) for i in row
    ]
    tiles = list(shared(tables, ends, rows, page_size))
    device = table.device if device is None else torch.device(device)
    if device.type == "cuda":
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        tiles = parallel(tiles, page_size, processors if workers is None else workers)
        return packed([tiles], seen, device, pages, page_size)
    workers = torch.get_num_threads() if workers is None else workers
    if workers > 1:
        tiles = split(tiles, page_size, len(tiles) + SLOTS_OF_A_WORKER * workers)
    return packed(assigned(tiles, workers), seen, device, pages, page_size)


def _numbers(
    table: Tensor, lengths: Tensor, queries: Sequence[int] | None, pages: int, page_size: int
) -> tuple[list[list[int]], list[int], list[int]]:
    """Return for each sequence its pages, its number of keys, and its number of queries.

    Raises `CacheError` as `plan` does.
    """
    if lengths.dim() != 1:
        raise refused(f"lengths of shape {list(lengths.shape)} are not one for each sequence")
    ends = _whole(lengths.tolist(), "the length of a sequence")
    counts = [1] * len(ends) if queries is None else _whole(queries, "the number of queries")
    if table.dim() != 2 or not table.shape[0] == len(ends) == len(counts):
        raise refused(
            f"a table of shape {list(table.shape)}, {len(ends)} lengths and {len(counts)} numbers "
            "of queries do not agree"
        )
    if any(not 0 <= n <= table.shape[1] * page_size for n in ends) or min(counts, default=0) < 0:
        raise refused(
            f"sequences of {ends} keys do not lie on {table.shape[1]} pages of {page_size}"
        )
    tables = [
        [_page(n, pages) for n in _whole(row[: -(-end // page_size)], "a page of the table")]
        for row, end in zip(table.tolist(), ends, strict=True)
    ]
    return tables, ends, counts


def _whole(numbers: Iterable[object], what: str) -> list[int]:
    try:
        return [index(number) for number in numbers]  # type: ignore[arg-type]
    except TypeError:
        raise refused(f"{what} is a whole number, and one is not", "use integers") from None


def _page(number: int, pages: int) -> int:
    if not -pages <= number < pages:
        raise refused(f"the table has page {number}, and there are {pages} pages")
    return number % pages


def packed(
    work: Sequence[Sequence[Tile]],
    seen: Sequence[int],
    device: torch.device,
    page_count: int,
    page_size: int,
) -> PagedPlan:
    """Return the tiles of each worker as tensors on a device, for pages of this number and size."""
    described: list[tuple[int, ...]] = []
    rows: list[int] = []
    pages: list[int] = []
    for worker, tiles in enumerate(work):
        for tile in tiles:
            begin, page = len(rows), len(pages)
            rows += [i for block in tile.rows for i in block]
            pages += tile.pages
            described.append((begin, len(rows), page, len(pages), tile.first, tile.keys, worker))
    whole = torch.int64
    places = torch.tensor(rows, dtype=whole)
    counts = torch.bincount(places, minlength=len(seen))
    return PagedPlan(
        torch.tensor(described, dtype=whole).reshape(-1, 7).to(device),
        places.to(device),
        torch.tensor(pages, dtype=whole).to(device),
        torch.tensor(seen, dtype=whole).to(device),
        torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(device),
        places.argsort(stable=True).to(device),
        page_count,
        page_size,
    )


OBJECTIONS: Final = (
    "a tile has rows that do not follow those of the tile before, or that do not exist",
    "a tile has pages that are not listed, or not as many as its keys need",
    "a row is of a query that does not exist",
    "a page does not exist",
    "the entries of a query are not its rows",
    "a query meets not as many keys as it sees",
)
"""Mistakes in the tensors of a plan."""


def raise_unless_planned(reason: str | None) -> None:
    """Raise `CacheError` with one of `OBJECTIONS`, unless it is None."""
    if reason is not None:
        help = "take the tensors of `plan`, made for these queries and pages"
        raise refused(f"the tensors are no plan for these queries and pages: {reason}", help)


def objection(
    k_pages: Tensor,
    tiles: Tensor,
    rows: Tensor,
    pages: Tensor,
    seen: Tensor,
    starts: Tensor,
    entries: Tensor,
) -> str | None:
    """Return why tensors are no plan for these pages and as many queries as `seen` has, or None.

    A plan's tiles have all rows one behind the other, and a query meets each key that it sees in
    one of its rows. Empty tiles may be anywhere.
    """
    (count, page_size), queries = k_pages.shape[:2], len(seen)
    row, number, sees = rows.tolist(), pages.tolist(), seen.tolist()
    met, done = [0] * queries, 0
    for begin, end, page, last, first, keys, worker in tiles.tolist():
        if begin == end:
            continue
        if begin != done or not begin < end <= len(row) or not 0 <= worker < len(tiles):
            return OBJECTIONS[0]
        is_listed = 0 <= page <= last <= len(number) and first >= 0 and keys > 0
        if not is_listed or last - page != -(-keys // page_size):
            return OBJECTIONS[1]
        if not all(0 <= n < count for n in number[page:last]):
            return OBJECTIONS[3]
        for query in row[begin:end]:
            if not 0 <= query < queries:
                return OBJECTIONS[2]
            met[query] += max(0, min(keys, sees[query] - first))
        done = end
    begins, places = starts.tolist(), entries.tolist()
    if begins[0] != 0 or begins[-1] != done or done > len(places):
        return OBJECTIONS[4]
    for query, (begin, end) in enumerate(pairwise(begins)):
        mine = places[begin:end] if 0 <= begin <= end <= done else [-1]
        if not all(0 <= at < done and row[at] == query for at in mine):
            return OBJECTIONS[4]
    return OBJECTIONS[5] if met != sees else None
