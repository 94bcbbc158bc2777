"""Attention over pages by Triton: interpreted, built for Hopper, on a GPU; where it is refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from pypm.kernels.paged import (
    CacheError,
    PagedCache,
    PagedPlan,
    gpu,
    operator,
    paged_attention,
    plan,
    unsupported,
)
from pypm.kernels.paged import plans as made
from pypm.kernels.paged.schedule import PART, Tile, cost, parallel
from tests.axes import axes
from tests.kernels.triton_checks import agree, built, launches, needs_triton, spilled

torch.set_num_threads(1)

TOLERANCES = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
PAGES = 96


def cache_of(
    lengths: Sequence[int], page_size: int, groups: int, size: int, value_size: int,
    dtype: torch.dtype, device: str, prefix: int = 0,
) -> PagedCache:  # fmt: skip
    """Sequences of these lengths that begin with one prefix, and NaN in all other slots."""
    cache = PagedCache(
        1, PAGES, page_size, groups, size, value_size=value_size, dtype=dtype, device=device
    )
    made = torch.Generator().manual_seed(len(lengths))

    def write(sequence: int, count: int) -> None:
        k, v = (torch.randn(count, groups, n, generator=made) for n in (size, value_size))
        slots = cache.append(sequence, count)
        cache.write(0, slots, k.to(device, dtype), v.to(device, dtype))

    for x in (cache.keys[0], cache.values[0]):
        x.fill_(torch.nan)
    common = cache.allocate()
    write(common, prefix)
    for sequence, length in [(cache.fork(common), length) for length in lengths]:
        write(sequence, length - prefix)
    cache.free(common)
    return cache


def plans(
    cache: PagedCache, counts: Sequence[int] | None, dtype: torch.dtype, device: str
) -> Iterator[PagedPlan]:
    """A plan that cuts long rows by pages or not at all, and on a GPU that of the GPU."""
    sequences, cut = cache.sequences, dtype == torch.float32
    table = cache.table(sequences) - (0 if cut else PAGES)  # negative numbers count from the last
    given = table, cache.lengths(sequences), counts
    sizes = {"pages": PAGES, "page_size": cache.page_size}
    work = plan(*given, **sizes, workers=3 if cut else 1, device="cpu")
    yield elsewhere(work, [x.to(device) for x in work.tensors()])
    if device != "cpu":
        yield plan(*given, **sizes)


def elsewhere(work: PagedPlan, tensors: Sequence[Tensor]) -> PagedPlan:
    return PagedPlan(*tensors, work.page_count, work.page_size)


def queries(count: int, heads: int, size: int, dtype: torch.dtype, device: str) -> Tensor:
    made = torch.Generator().manual_seed(count)
    return torch.randn(count, heads, size, generator=made).to(device, dtype)


SHAPES: dict[str, tuple[Any, ...]] = {
    # lengths, queries, page size, (H, G, D, E), prefix
    "ragged": ([17, 1, 0, 3, 34], [1, 1, 1, 3, 5], 16, (6, 2, 8, 8), 0),
    "before the first key": ([5, 0, 1], [7, 2, 1], 4, (2, 2, 8, 8), 0),
    "40 of 64 elements, other values": ([17, 40], [2, 1], 3, (5, 1, 40, 24), 0),
    "128 elements": ([100, 70], None, 48, (4, 4, 128, 128), 0),
    "shared": ([50, 64, 41, 40, 47], [1, 2, 1, 3, 1], 8, (6, 2, 40, 16), 40),
    "pages of one": ([9, 20], [1, 4], 1, (3, 3, 8, 8), 6),
    "long": ([700, 3], None, 16, (4, 2, 16, 16), 0),
    "a prompt": ([70], [70], 16, (2, 1, 16, 16), 0),
    "nothing": ([], [], 16, (2, 2, 8, 8), 0),
    "without queries": ([5], [0], 16, (2, 2, 8, 8), 0),
    "without keys": ([0, 0], None, 16, (2, 2, 8, 8), 0),
}


def cases(device: str) -> Iterator[tuple[Any, ...]]:
    """Arguments of `launch`. The interpreter's products of bfloat16 are wrong."""
    for dtype in TOLERANCES if device != "cpu" else (torch.float32, torch.float16):
        for lengths, counts, page_size, (
            heads,
            groups,
            size,
            value_size,
        ), prefix in SHAPES.values():
            cache = cache_of(lengths, page_size, groups, size, value_size, dtype, device, prefix)
            total = len(lengths) if counts is None else sum(counts)
            q = queries(total, heads, size, dtype, device)
            for work in plans(cache, counts, dtype, device):
                yield q, cache.keys[0], cache.values[0], *work.tensors(), None
    yield from special(torch.float32, device)


def special(dtype: torch.dtype, device: str) -> Iterator[tuple[Any, ...]]:
    """Scales, other orders of dimensions, and special values in keys that are seen."""
    cache = cache_of([40, 9], 8, 2, 24, 16, dtype, device)
    q, k, v = queries(2, 4, 24, dtype, device), cache.keys[0], cache.values[0]
    *_, work = plans(cache, None, dtype, device)
    for scale in (-0.7, 0.0, 1.0):
        yield q, k, v, *work.tensors(), scale
    mixed = q.transpose(0, 1).contiguous().transpose(0, 1)
    yield (
        mixed,
        *(x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v)),
        *work.tensors(),
        1.0,
    )
    yield *(x.mT.contiguous().mT for x in (q, k, v)), *work.tensors(), 1.0
    page = cache.table(cache.sequences)[1, 1]
    for value in (torch.nan, torch.inf, -torch.inf):
        odd = k.clone()
        odd[page, 0] = value  # the last key of the second sequence
        yield q, odd, v, *work.tensors(), None
        odd = v.clone()
        odd[page, 0, 1, 3] = value
        yield q, k, odd, *work.tensors(), None
    lost = k.clone()
    lost[cache.table(cache.sequences)[1, :2]] = -torch.inf
    yield q.abs(), lost, v, *work.tensors(), None  # each weight of a query is 0
    yield from last_keys_first(dtype, device)


def last_keys_first(dtype: torch.dtype, device: str) -> Iterator[tuple[Any, ...]]:
    """More parts than are joined at a time, the first of which a query does not see."""
    cache = cache_of([20], 2, 1, 16, 300, dtype, device)
    pages = list(enumerate(cache.table(cache.sequences)[0].tolist()))
    tiles = [Tile((range(9),), (page,), 2 * i, 2) for i, page in reversed(pages)]
    work = made.packed([tiles], range(12, 21), torch.device(device), PAGES, 2)
    q = queries(9, 2, 16, dtype, device)
    yield q, cache.keys[0], cache.values[0], *work.tensors(), None


def check(device: str) -> None:
    for case in cases(device):
        ours = gpu.launch(*case)
        host = (x.cpu() if isinstance(x, Tensor) else x for x in case)
        wide = (x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in host)
        assert ours.is_contiguous()
        agree(ours.cpu(), operator.reference(*wide), ours.dtype, TOLERANCES[ours.dtype])


test_in_the_interpreter, test_on_a_gpu = launches(check, cases, operator.attend, gpu.launch)


# --- Hopper --------------------------------------------------------------------------------------


def arguments(dtype: str, held: gpu.PageBlock, size: int, value_size: int) -> dict[str, Any]:
    wide, wide_value = (1 << (n - 1).bit_length() for n in (size, value_size))
    names = gpu.kernel.arg_names
    return {
        **dict.fromkeys(names[names.index("q_query") : names.index("scale")], "i32"),
        **dict.fromkeys(("q", "keys", "values"), dtype),
        **dict.fromkeys(("tiles", "queries", "pages", "seen"), "*i64"),
        **dict.fromkeys(("part", "top", "total"), "*fp32"),
        "scale": "fp32", "n": 4, "size": size, "value_size": value_size, "page_size": 16,
        "block_rows": held.rows, "block_keys": held.keys,
        "block_size": wide, "block_value_size": wide_value,
    }  # fmt: skip


@needs_triton
@axes(dtype=["*fp32", "*fp16", "*bf16"], size=[gpu.LARGEST_HEAD, 256, 128, 64], rows=[100, 4])
def test_builds_for_hopper(dtype: str, size: int, rows: int) -> None:
    held = gpu.block(rows, size, 4 if dtype == "*fp32" else 2)
    given = arguments(dtype, held, size, size)
    ptx = built(gpu.kernel, given, held.warps, stages=held.stages, aligned=True, precision="ieee")
    in_three_eight = (dtype, size, rows, version("triton")) == ("*fp32", 64, 100, "3.8.0")
    assert spilled(ptx) == (4 if in_three_eight else 0)
    tensor_cores = "wgmma.mma_async" if held.rows >= 64 else "mma.sync"
    assert (tensor_cores in ptx) == (dtype != "*fp32")


@needs_triton
def test_odd_sizes_build_for_hopper() -> None:
    held = gpu.block(4, 64, 2)
    given = {**arguments("*bf16", held, 40, 24), "n": 3, "page_size": 7}
    built(gpu.kernel, given, held.warps, stages=held.stages, precision="ieee")


@needs_triton
@pytest.mark.parametrize("dtype", ["*fp16", "*bf16", "*fp32"])
def test_the_join_builds_for_hopper(dtype: str) -> None:
    types = {
        **dict.fromkeys(("part", "top", "total"), "*fp32"),
        **dict.fromkeys(("starts", "entries", "seen"), "*i64"), "out": dtype,
    }  # fmt: skip
    given = {**types, "value_size": 128, "block_parts": 16, "block_value_size": 128}
    assert spilled(built(gpu.join_kernel, given, 4, aligned=True)) == 0


# --- where it applies ----------------------------------------------------------------------------


def test_where_it_applies() -> None:
    with FakeTensorMode():
        q = torch.empty(3, 4, 8, device="cuda")
        pages = torch.empty(5, 16, 2, 8, device="cuda")
        assert unsupported(q, pages, pages) is None
        assert (
            unsupported(q, pages, pages.cpu()) == "the queries and the pages are on several devices"
        )
        wide = pages.double()
        assert "not in torch.float64" in str(unsupported(q.double(), wide, wide))
        large = torch.empty(5, 16, 2, gpu.LARGEST_HEAD + 1, device="cuda")
        assert "heads of up to 512" in str(unsupported(q, pages, large))


def test_a_plan_elsewhere_is_refused() -> None:
    work = plan(torch.tensor([[0]] * 3), torch.tensor([1, 2, 3]), pages=5, page_size=16)
    with FakeTensorMode() as mode:
        q = torch.empty(3, 4, 8, device="cuda")
        pages = torch.empty(5, 16, 2, 6, device="cuda")
        keys = torch.empty(5, 16, 2, 8, device="cuda")
        given = [mode.from_tensor(x) for x in work.tensors()]
        with pytest.raises(CacheError, match="the plan is on cpu, and the queries are on cuda:0"):
            paged_attention(q, keys, pages, elsewhere(work, given))
        there = elsewhere(work, [torch.empty_like(x, device="cuda") for x in given])
        found = paged_attention(q, keys, pages, there)
        assert (found.shape, found.device) == ((3, 4, 6), q.device)


def test_the_tiles_of_a_gpu() -> None:
    """Long rows are cut, into parts that are long enough; the dearest tile comes first."""
    long, short = (Tile((range(1),), tuple(range(n)), 0, 16 * n) for n in (1000, 3))
    tiles = parallel([short, long], 16, 20)
    assert len(tiles) <= 22 and tiles[-1] == short
    assert [cost(tile) for tile in tiles] == sorted(map(cost, tiles), reverse=True)
    assert min(tile.keys for tile in parallel([long], 16, 1000)) >= 16 * 1000 % PART
    assert parallel([long], 16, 1000)[0].keys == PART
    assert parallel([long], 48, 1000)[0].keys == 16 * 9
    assert parallel([], 16, 20) == []


def test_a_plan_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is for all processors unless told, without workers, and put on the device of the pages."""
    found: list[Any] = []
    monkeypatch.setattr(made, "packed", lambda work, seen, device, *_: found.append((work, device)))
    processors = SimpleNamespace(multi_processor_count=20)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: processors)
    table, lengths = torch.arange(1000)[None], torch.tensor([16 * 1000])
    for workers in (None, 5):
        plan(table, lengths, pages=1000, page_size=16, workers=workers, device="cuda")
        ((tiles,), device) = found.pop()
        assert device == torch.device("cuda")
        assert (workers or 20) - 2 < len(tiles) <= (workers or 20) + 1
    assert plan(table, lengths, pages=1000, page_size=16) is None and found[0][1] == table.device
