"""Attention over pages: the cache against a dense one, the operator against its reference."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from pypm.kernels import attention
from pypm.kernels.attention import reference as dense
from pypm.kernels.paged import CacheError, PagedCache, PagedPlan, paged_attention, plan, unsupported
from pypm.kernels.paged import operator as pages_operator
from pypm.kernels.paged.schedule import Tile, assigned, cost, imbalance, shared, split
from pypm.kernels.support import native
from pypm.timing import on_threads

torch.set_num_threads(1)

TOLERANCES = {torch.float64: 1e-12, torch.float32: 3e-6, torch.bfloat16: 2e-2}


def cache_of(
    lengths: Sequence[int], page_size: int = 16, dtype: torch.dtype = torch.float64, size: int = 8
) -> PagedCache:
    """Sequences 0, 1, ... of these lengths, in 2 heads, on pages in mixed order."""
    cache = PagedCache(1, 64, page_size, 2, size, dtype=dtype)
    left = {cache.allocate(): length for length in lengths}
    generator = torch.Generator().manual_seed(0)
    while any(left.values()):
        for sequence, length in left.items():
            count = min(length, page_size + 1)
            slots = cache.append(sequence, count)
            k, v = (torch.randn(count, 2, size, generator=generator) for _ in range(2))
            cache.write(0, slots, k.to(dtype), v.to(dtype))
            left[sequence] -= count
    return cache


def plan_of(cache: PagedCache, counts: Sequence[int] | None = None, workers: int = 1) -> PagedPlan:
    sequences = cache.sequences
    return plan(
        cache.table(sequences),
        cache.lengths(sequences),
        counts,
        pages=len(cache.keys[0]),
        page_size=cache.page_size,
        workers=workers,
    )


def by_dense(cache: PagedCache, q: Tensor, counts: Sequence[int]) -> Tensor:
    """Attention of each sequence by itself, in float64."""
    found = []
    for sequence, mine in zip(cache.sequences, q.split(list(counts)), strict=True):
        k, v = (x.double().transpose(0, 1)[None] for x in cache.dense(0, sequence))
        seen = torch.arange(cache.length(sequence) - len(mine), cache.length(sequence))
        mask = torch.zeros(len(mine), k.shape[2], dtype=torch.float64)
        mask[torch.arange(k.shape[2]) > seen[:, None]] = -torch.inf
        found.append(dense(mine.double().transpose(0, 1)[None], k, v, mask)[0].transpose(0, 1))
    return torch.cat(found)


ROWS = torch.arange(3), *torch.randn(2, 3, 2, 8, dtype=torch.float64)
"""Slots, keys and values."""


# --- the cache -----------------------------------------------------------------------------------


def test_it_is_a_name_of_attention() -> None:
    assert attention.PagedCache is PagedCache


def test_random_sequences_on_pages() -> None:
    """In a process of its own: a plan that is not checked ends it."""
    code = (
        "from tests.kernels import pages; taken = pages.run(60, seed=1); "
        "print(min(taken[name] for name in (*pages.WEIGHTS, 'refused', 'misuse')))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert int(ended.stdout) > 0


def test_a_plan_is_for_its_queries_and_pages() -> None:
    cache = cache_of([20, 3])
    q, k, v = torch.randn(2, 2, 8, dtype=torch.float64), cache.keys[0], cache.values[0]
    work = plan_of(cache)
    found = "the plan is for 2 queries and 64 pages of 16 keys, and there are"
    for given, what in (
        ((q.repeat(100, 1, 1), k, v), "200 queries and 64 pages of 16 keys"),
        ((q[:1], k, v), "1 queries and 64 pages of 16 keys"),
        ((q, k[:1], v[:1]), "2 queries and 1 pages of 16 keys"),
        ((q, k.view(128, 8, 2, 8), v.view(128, 8, 2, 8)), "2 queries and 128 pages of 8 keys"),
    ):
        with pytest.raises(CacheError, match=f"{found} {what}") as caught:
            paged_attention(*given, work)
        assert caught.value.diagnostic.help == (
            "`plan` makes one for this step, from `queries=`, `pages=` and `page_size=`"
        )


@pytest.mark.parametrize("native_code", [True, False])
@pytest.mark.parametrize(
    ("name", "at", "number", "reason"),
    [
        ("tiles", 0, 1, "a tile has rows that do not follow those of the tile before"),
        ("tiles", 1, 50, "a tile has rows that do not follow .*, or that do not exist"),
        ("tiles", 6, 99, "a tile has rows that do not follow"),
        ("tiles", 3, 99, "a tile has pages that are not listed, or not as many as its keys need"),
        ("tiles", 5, 99, "a tile has pages that are not listed"),
        ("tiles", 5, 1, "a tile has pages that are not listed"),
        ("tiles", 4, -16, "a tile has pages that are not listed"),
        ("rows", 0, 7, "a row is of a query that does not exist"),
        ("rows", 0, -1, "a row is of a query that does not exist"),
        ("pages", 0, 64, "a page does not exist"),
        ("pages", 0, -1, "a page does not exist"),
        ("starts", 1, 10**9, "the entries of a query are not its rows"),
        ("entries", 0, -5, "the entries of a query are not its rows"),
        ("entries", 0, 1, "the entries of a query are not its rows"),
        ("seen", 0, 10**6, "a query meets not as many keys as it sees"),
        ("tiles", 4, 16, "a query meets not as many keys as it sees"),
    ],
)
def test_tensors_that_are_no_plan(
    name: str, at: int, number: int, reason: str, native_code: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native_code:
        monkeypatch.setattr(native, "library", lambda source: None)
    cache = cache_of([20, 3])
    q, work = torch.randn(2, 2, 8, dtype=torch.float64), plan_of(cache)
    getattr(work, name).view(-1)[at] = number
    what = "the tensors are no plan for these queries and pages"
    with pytest.raises(CacheError, match=f"{what}: {reason}") as caught:
        paged_attention(q, cache.keys[0], cache.values[0], work)
    help = "take the tensors of `plan`, made for these queries and pages"
    assert caught.value.diagnostic.help == help


def test_a_fork_copies_the_last_page_at_its_first_write() -> None:
    cache = cache_of([20])
    forked = cache.fork(0)
    before = cache.table([0, forked])
    assert torch.equal(before[0], before[1]) and cache.free_pages == 62
    assert cache.needed(forked, 1) == cache.needed(0, 1) == 1
    cache.append(forked, 1)
    after = cache.table([0, forked])
    assert after[0, 0] == after[1, 0] and after[0, 1] != after[1, 1]
    assert cache.needed(0, 1) == 0  # the other one has the page alone now
    assert torch.equal(cache.dense(0, 0)[0], cache.dense(0, forked)[0][:20])


def test_full_pages_are_not_copied() -> None:
    cache = cache_of([32])
    forked = cache.fork(0)
    cache.append(forked, 1)
    assert cache.table([0]).tolist()[0] == cache.table([forked]).tolist()[0][:2]
    assert cache.free_pages == 61
    assert repr(cache) == "<PagedCache of 2 sequences on 3 of 64 pages>"


def test_an_empty_sequence_has_no_page() -> None:
    cache = PagedCache(1, 2, 16, 2, 8)
    sequence = cache.allocate()
    assert cache.append(sequence, 0).shape == (0,) and cache.free_pages == 2
    assert cache.dense(0, sequence)[0].shape == (0, 2, 8)
    assert cache.table([]).shape == (0, 0) and cache.lengths([]).shape == (0,)
    cache.free(cache.fork(sequence))
    assert cache.sequences == (sequence,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda cache: cache.append(0, 64 * 16), "need 64 pages, and 62 of 64 are free"),
        (lambda cache: cache.append(7, 1), "there is no sequence 7"),
        (lambda cache: cache.append(0, -1), "-1 tokens cannot be appended"),
        (lambda cache: cache.append(0, 1.5), "1.5 tokens cannot be appended"),
        (lambda cache: cache.append(0, "1"), "'1' tokens cannot be appended"),
        (lambda cache: cache.owners(-1), "there is no page -1: there are 64"),
        (lambda cache: cache.write(1, *ROWS), "there is no layer 1: there are 1"),
        (
            lambda cache: cache.write(0, ROWS[0].int(), *ROWS[1:]),
            "slots are int64 .count. on cpu, and",
        ),
        (
            lambda cache: cache.write(0, *ROWS[:2], ROWS[1][:2]),
            "values for 3 slots are torch.float64",
        ),
        (lambda cache: cache.write(0, *ROWS[:2], ROWS[2].float()), "these are torch.float32"),
        (
            lambda cache: cache.write(0, ROWS[0] + 900, *ROWS[1:]),
            "a slot is on page 5., which belongs",
        ),
        (
            lambda cache: cache.write(0, ROWS[0] - 1, *ROWS[1:]),
            "a slot is on page -1, which belongs",
        ),
        (lambda cache: cache.fork(7), "there is no sequence 7"),
        (lambda cache: cache.free(7), "there is no sequence 7"),
        (lambda cache: (cache.free(0), cache.free(0)), "sequence 0 was freed"),
        (lambda cache: (cache.free(0), cache.length(0)), "sequence 0 was freed"),
        (lambda cache: cache.table([0, 9]), "there is no sequence 9"),
        (lambda cache: cache.lengths([-1]), "there is no sequence -1"),
        (lambda cache: PagedCache(1, 4, 0, 2, 8), "no size below 1"),
    ],
)
def test_mistakes(call: Callable[[PagedCache], object], message: str) -> None:
    cache = cache_of([20])
    table, keys, values = cache.table([0]), cache.keys[0].clone(), cache.values[0].clone()
    with pytest.raises(CacheError, match=message):
        call(cache)
    if cache.sequences:
        assert torch.equal(cache.table([0]), table) and cache.length(0) == 20
    assert torch.equal(cache.keys[0], keys) and torch.equal(cache.values[0], values)


def test_too_few_pages_for_a_copy() -> None:
    cache = PagedCache(1, 1, 16, 2, 8)
    cache.append(cache.allocate(), 3)
    forked = cache.fork(0)
    with pytest.raises(CacheError, match="need 1 pages, and 0 of 1 are free") as caught:
        cache.append(forked, 1)
    assert caught.value.diagnostic.help == "free a sequence, or make the cache with more pages"
    cache.free(0)
    cache.append(forked, 1)
    assert cache.length(forked) == 4


# --- the operator --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("page_size", [1, 16, 48])
@pytest.mark.parametrize("native_code", [True, False])
def test_ragged_queries(
    page_size: int, dtype: torch.dtype, native_code: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native_code:
        monkeypatch.setattr(native, "library", lambda source: None)
    lengths, counts = [17, 1, 3, 34], [1, 1, 3, 5]
    cache = cache_of(lengths, page_size, dtype)
    q = torch.randn(sum(counts), 6, 8).to(dtype)
    for workers in (1, 3):
        work = plan_of(cache, counts, workers)
        with on_threads(workers):
            found = paged_attention(q, cache.keys[0], cache.values[0], work)
        assert found.dtype == dtype and found.shape == q.shape
        expected = by_dense(cache, q, counts)
        torch.testing.assert_close(
            found.double(), expected, atol=TOLERANCES[dtype], rtol=TOLERANCES[dtype]
        )


def test_the_kernel_is_compiled_here() -> None:
    assert native.library(pages_operator.SOURCE) is not None


@pytest.mark.parametrize("size", [64, 128, 72])
def test_sizes_of_whole_vectors_and_others(size: int) -> None:
    cache = cache_of([70, 33], dtype=torch.float32, size=size)
    q = torch.randn(2, 4, size)
    found = paged_attention(q, cache.keys[0], cache.values[0], plan_of(cache))
    torch.testing.assert_close(found.double(), by_dense(cache, q, [1, 1]), atol=3e-6, rtol=3e-6)


def test_a_long_prompt_in_blocks_of_queries() -> None:
    cache = cache_of([300, 280])
    q = torch.randn(580, 2, 8, dtype=torch.float64)
    work = plan_of(cache, [300, 280])
    assert sorted(work.tiles[:, 5].tolist()) == [128, 128, 256, 256, 280, 300]  # keys
    found = paged_attention(q, cache.keys[0], cache.values[0], work)
    torch.testing.assert_close(found, by_dense(cache, q, [300, 280]), atol=1e-12, rtol=1e-12)


def test_nothing_to_see_and_nothing_to_do() -> None:
    cache = cache_of([0, 5])
    q = torch.randn(2, 2, 8, dtype=torch.float64)
    found = paged_attention(q, cache.keys[0], cache.values[0], plan_of(cache))
    assert found[0].eq(0).all()
    v = cache.dense(0, 1)[1]
    assert not found[1].eq(0).any() and found[1].abs().max() <= v.abs().max()
    nothing = plan(torch.zeros(0, 3, dtype=torch.int64), torch.zeros(0), pages=64, page_size=16)
    assert paged_attention(q[:0], cache.keys[0], cache.values[0], nothing).shape == (0, 2, 8)
    more = plan_of(cache, [0, 7])  # the first two of seven queries are before the first key
    q = torch.randn(7, 2, 8, dtype=torch.float64)
    found = paged_attention(q, cache.keys[0], cache.values[0], more)
    assert found[:2].eq(0).all()
    torch.testing.assert_close(found[2], v[0])  # one key


def test_special_values() -> None:
    """A slot behind the last key is not read; what a query sees reaches it as in eager torch."""
    cache = cache_of([5, 5])
    q = torch.randn(2, 2, 8, dtype=torch.float64)
    expected = paged_attention(q, cache.keys[0], cache.values[0], plan_of(cache))
    seen = torch.zeros(64, 16, dtype=torch.bool)
    for page in cache.table([0, 1])[:, 0].tolist():
        seen[page, :5] = True
    for x in (cache.keys[0], cache.values[0]):
        x[~seen] = torch.nan
    found = paged_attention(q, cache.keys[0], cache.values[0], plan_of(cache))
    assert torch.equal(found, expected)
    page = cache.table([0])[0, 0]
    for value in (torch.nan, torch.inf, -torch.inf):
        cache.keys[0][page, 4] = value
        found = paged_attention(q, cache.keys[0], cache.values[0], plan_of(cache))
        assert torch.equal(found.isnan(), by_dense(cache, q, [1, 1]).isnan())
        assert not found[1].isnan().any()
    cache.keys[0][page, :5] = torch.tensor([1e300, -1e300] * 4, dtype=torch.float64)
    q[0] = -cache.keys[0][page, 0]  # every score overflows to -inf: NaN, as in eager
    for tried in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not tried:
                patch.setattr(native, "library", lambda source: None)
            found = paged_attention(q, cache.keys[0], cache.values[0], plan_of(cache))
            assert found[0].isnan().all() and not found[1].isnan().any()


@pytest.mark.parametrize("scale", [1.0, -0.7, 0.0])
def test_the_scale(scale: float) -> None:
    cache = cache_of([40])
    q = torch.randn(1, 4, 8, dtype=torch.float64)
    found = paged_attention(q, cache.keys[0], cache.values[0], plan_of(cache), scale)
    expected = by_dense(cache, q * scale * 8**0.5, [1])
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)


def test_negative_pages_count_from_the_last() -> None:
    cache = cache_of([20])
    q = torch.randn(1, 2, 8, dtype=torch.float64)
    table, lengths = cache.table([0]), cache.lengths([0])
    results = [
        paged_attention(
            q,
            cache.keys[0],
            cache.values[0],
            plan(numbers, lengths, pages=64, page_size=16),
        )
        for numbers in (table, table - 64)
    ]
    assert torch.equal(*results)


Q, P = (3, 4, 8), (5, 16, 2, 8)


@pytest.mark.parametrize(
    ("q", "k", "v", "types", "reason"),
    [
        (Q, P, P, "fff", None),
        (Q, P, (*P[:3], 4), "fff", None),
        ((3, 3, 8), P, P, "fff", "3 heads of queries do not divide into 2 groups"),
        (Q, (5, 16, 0, 8), (5, 16, 0, 8), "fff", "into 0 groups"),
        (Q[1:], P, P, "fff", "three dimensions"),
        (Q, P[1:], P[1:], "fff", "pages four"),
        ((3, 4, 9), P, P, "fff", "do not agree"),
        (Q, P, (4, *P[1:]), "fff", "do not agree"),
        (Q, P, P, "fdd", "one floating-point type"),
        (Q, P, P, "iii", "one floating-point type"),
    ],
)
def test_where_it_applies(q, k, v, types, reason) -> None:
    dtypes = {"f": torch.float32, "d": torch.float64, "i": torch.int64}
    tensors = [torch.zeros(s, dtype=dtypes[t]) for s, t in zip((q, k, v), types, strict=True)]
    work = plan(torch.tensor([[0]] * 3), torch.tensor([1, 2, 3]), pages=5, page_size=16)
    found = unsupported(*tensors)
    if reason is None:
        assert found is None
        assert paged_attention(*tensors, work).shape == (*q[:2], v[3])
        return
    assert found is not None and reason in found
    with pytest.raises(CacheError, match=reason):
        paged_attention(*tensors, work)


def test_other_devices_are_refused() -> None:
    q, k = torch.empty(Q, device="meta"), torch.empty(P, device="meta")
    assert unsupported(q, k, k) == "there is no kernel for pages on meta"


@pytest.mark.parametrize(
    ("table", "lengths", "counts", "message"),
    [
        ([[0, 9]], [17], None, "the table has page 9, and there are 5 pages"),
        ([[0, -6]], [17], None, "the table has page -6"),
        ([[0, 1]], [33], None, "do not lie on 2 pages of 16"),
        ([[0, 1]], [-1], None, "do not lie on 2 pages of 16"),
        ([[0, 1]], [3, 3], None, "do not agree"),
        ([[0, 1]], [3], [1, 1], "do not agree"),
        ([0, 1], [3], None, "do not agree"),
        ([[0, 1]], [3], [-1], "do not lie"),
        ([[0, 1]], [3.5], None, "the length of a sequence is a whole number, and one is not"),
        ([[0.5, 1]], [3], None, "a page of the table is a whole number"),
        ([[0, 1]], [3], [1.5], "the number of queries is a whole number"),
        ([[0, 1]], [[3]], None, "lengths of shape .1, 1. are not one for each sequence"),
    ],
)
def test_plans_that_cannot_be(table, lengths, counts, message) -> None:
    with pytest.raises(CacheError, match=message):
        plan(torch.tensor(table), torch.tensor(lengths), counts, pages=5, page_size=16)


def test_it_is_an_operator() -> None:
    cache = cache_of([20, 3])
    q = torch.randn(2, 2, 8, dtype=torch.float64)
    tensors = plan_of(cache).tensors()
    torch.library.opcheck(
        pages_operator.attend, (q, cache.keys[0], cache.values[0], *tensors, None)
    )


# --- the plan ------------------------------------------------------------------------------------


def test_a_shared_prefix_is_computed_once() -> None:
    """Two sequences share seven pages, and the third one the first four of these."""
    tables = [[*range(7), 10], [*range(7), 11], [0, 1, 2, 3, 12, 13]]
    rows = [range(i, i + 1) for i in range(3)]
    tiles = list(shared(tables, [120, 128, 90], rows, 16))
    found = {(tile.queries, tile.pages, tile.first, tile.keys) for tile in tiles}
    assert found == {
        (3, (0, 1, 2, 3), 0, 64),
        (2, (4, 5, 6), 64, 48),
        (1, (10,), 112, 8),
        (1, (11,), 112, 16),
        (1, (12, 13), 64, 26),
    }


def test_a_prefix_is_shared_where_it_pays() -> None:
    rows = [range(8), range(8, 16)]
    tables = [[0, 1, 2, 3], [0, 1, 4, 5]]
    assert [tile.queries for tile in shared(tables, [64, 64], rows, 16)] == [8, 8]
    rows = [range(4), range(4, 8)]
    assert sorted(tile.queries for tile in shared(tables, [64, 64], rows, 16)) == [4, 4, 8]


def test_a_longer_prefix_of_fewer_sequences() -> None:
    """The page that all share does not pay; those that two of them share do."""
    tables = [[0, *range(1, 9), 20], [0, *range(1, 9), 21], [0, 22], [0, 23]]
    rows = [range(4 * i, 4 * i + 4) for i in range(4)]
    tiles = list(shared(tables, [10, 10, 2, 2], rows, 1))
    assert {(tile.queries, tile.pages) for tile in tiles if tile.queries > 4} == set()
    tables = [[0, *range(1, 29), 40], [0, *range(1, 29), 41], [0, 42], [0, 43]]
    tiles = list(shared(tables, [33, 33, 5, 5], rows, 1))
    assert {(tile.queries, tile.pages) for tile in tiles if tile.queries > 4} == {
        (8, tuple(range(29)))
    }


@pytest.mark.parametrize("seed", range(20))
def test_every_query_meets_each_of_its_keys_once(seed: int) -> None:
    """Whatever is shared and split: tiles cover each pair of a query and a key that it sees."""
    draw = random.Random(seed)
    page_size = draw.choice([1, 4])
    prefixes = [[100 * i + j for j in range(draw.randint(0, 9))] for i in range(2)]
    tables, lengths, rows, start = [], [], [], 0
    for i in range(draw.randint(0, 7)):
        prefix = draw.choice(prefixes)
        table = prefix[: draw.randint(0, len(prefix))]
        table += [1000 * (i + 1) + j for j in range(draw.randint(0, 5))]
        lengths.append(max(0, len(table) * page_size - draw.randrange(page_size)))
        count = draw.randint(0, min(3, lengths[-1]))
        rows.append(range(start, start + count))
        tables.append(table)
        start += count
    tiles = list(shared(tables, lengths, rows, page_size))
    if tiles and draw.random() < 0.7:
        slots = draw.randint(1, 2 * len(tiles) + 5)
        tiles = split(tiles, page_size, slots)
    met = sorted(
        (row, tile.pages[t // page_size] * page_size + t % page_size, tile.first + t)
        for tile in tiles
        for block in tile.rows
        for row in block
        for t in range(tile.keys)
        if tile.first + t < seen(row, rows, lengths)
    )
    assert met == sorted(
        (row, tables[i][t // page_size] * page_size + t % page_size, t)
        for i, block in enumerate(rows)
        for row in block
        for t in range(seen(row, rows, lengths))
    )


def seen(row: int, rows: Sequence[range], lengths: Sequence[int]) -> int:
    (i,) = (i for i, block in enumerate(rows) if row in block)
    return lengths[i] - (rows[i].stop - 1 - row)


def tile(pages_of_it: int, queries: int = 1) -> Tile:
    return Tile((range(queries),), tuple(range(pages_of_it)), 0, 16 * pages_of_it)


def test_long_rows_are_cut_by_the_smallest_chunk_that_fits() -> None:
    tiles = [tile(100), tile(7), tile(3)]
    parts = split(tiles, 16, 12)
    assert len(parts) == 12 and max(len(part.pages) for part in parts) == 10
    assert len(split(tiles, 16, 11)) == 11  # chunks of 12: one of 11 makes 12 tiles
    assert split(tiles, 16, 2) == tiles  # more tiles than slots: none is cut
    assert sum(part.keys for part in parts) == sum(each.keys for each in tiles)
    assert split([], 16, 4) == []


def test_cost_and_imbalance() -> None:
    assert cost(tile(2, queries=5)) == 42
    tiles = [tile(n) for n in (100, 7, 3)]
    assert imbalance(tiles, 4) == pytest.approx(4 * 1602 / (1602 + 114 + 50))
    assert imbalance(split(tiles, 16, 20), 4) < 1.1
    assert imbalance([], 4) == imbalance(tiles, 1) == 1.0
    work = assigned(tiles, 2)
    assert [[len(each.pages) for each in mine] for mine in work] == [[100], [7, 3]]
