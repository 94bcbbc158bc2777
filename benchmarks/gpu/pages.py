"""Decoding over pages on a GPU: PyPM's kernels, and torch's attention over gathered keys.

Run as `python -m benchmarks.gpu.pages`; a line for each batch, in bfloat16: milliseconds of the
device for PyPM's kernels, and the bytes of the keys and values of all sequences in that time; for
gathering the pages and calling `scaled_dot_product_attention` with a mask; and for that function
alone, over keys that are contiguous already and as many for all. The plan is not in these times.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu.lines import OK, Lines, Row, run
from benchmarks.gpu.times import both, gpu
from pypm.kernels.paged import PagedCache, paged_attention, plan

PAGE: Final = 16
BATCHES: Final = {
    "16 x 8192 keys": ([8192] * 16, 32, 8, 128),
    "1 x 32768 keys": ([32768], 32, 8, 128),
    "64 x 1024 keys, heads of 64": ([1024] * 64, 32, 8, 64),
    "20 of 100 to 20000 keys": ([100, 5000, 300, 20000, 800] * 4, 32, 8, 128),
    "8 x 4096 keys, 16 groups": ([4096] * 8, 16, 16, 128),
}
"""Lengths, heads of queries, groups, and elements of a head."""


def cache_of(lengths: list[int], groups: int, size: int) -> PagedCache:
    pages = sum(-(-n // PAGE) for n in lengths)
    cache = PagedCache(1, pages, PAGE, groups, size, dtype=torch.bfloat16, device=gpu())
    for n in lengths:
        slots = cache.append(cache.allocate(), n)
        cache.write(0, slots, *torch.randn(2, n, groups, size, device=gpu()).to(torch.bfloat16))
    return cache


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None) -> Tensor:
    """Return attention of one query for each sequence, over keys [B, T, G, D]."""
    mask = None if seen is None else seen[:, None, None]
    q, k, v = q[:, :, None], k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)[:, :, 0]


def gathered(q: Tensor, k: Tensor, v: Tensor, pages: Tensor, seen: Tensor) -> Tensor:
    return attend(q, k[pages].flatten(1, 2), v[pages].flatten(1, 2), seen)


def batch(lengths: list[int], heads: int, groups: int, size: int) -> Row:
    cache = cache_of(lengths, groups, size)
    sequences, (k, v) = cache.sequences, (cache.keys[0], cache.values[0])
    q = torch.randn(len(lengths), heads, size, dtype=k.dtype, device=gpu())
    table, ends = cache.table(sequences), cache.lengths(sequences)
    work = plan(table, ends, pages=len(k), page_size=PAGE, device=gpu())
    pages, at = table.to(gpu()), torch.arange(table.shape[1] * PAGE, device=gpu())
    seen = at < ends.to(gpu())[:, None]
    expected = gathered(q, k, v, pages, seen)
    torch.testing.assert_close(paged_attention(q, k, v, work), expected, atol=2e-2, rtol=2e-2)
    keys, values = (x[pages].flatten(1, 2).contiguous() for x in (k, v))
    times = both({
        "ours": (paged_attention, [q, k, v, work]),
        "gathered": (gathered, [q, k, v, pages, seen]),
        "contiguous": (attend, [q, keys, values]),
    })  # fmt: skip
    ours, other, contiguous = (each.device for each in times.values())
    rate = 4e-9 * sum(lengths) * groups * size / ours
    gain = other / ours
    verdict = OK if gain >= 1 else "slower than gathering"
    return [ours, rate, other, contiguous, gain, 1e3 * times["ours"].host, verdict]


def planned() -> Row:
    """Make a plan where a wait for the device raises an error."""
    cache = cache_of([300, 20], 2, 64)
    table, ends = cache.table(cache.sequences), cache.lengths(cache.sequences)
    torch.cuda.set_sync_debug_mode("error")
    try:
        plan(table, ends, pages=64, page_size=PAGE, device=gpu())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return [OK]


def pages(lines: Lines) -> None:
    columns = ("PyPM, ms", "TB/s", "gathered, ms", "contiguous, ms", "gain", "PyPM, host, us")
    lines.begin("keys of each sequence", *columns)
    for name, case in BATCHES.items():
        lines.line(name, partial(batch, *case))
    lines.least_and_largest(5, "over gathering")
    lines.begin("call", name="waits")
    lines.line("plan of numbers on the CPU: no wait for the device", planned)
    lines.figure("waits", sum(row[-1] != OK for row in lines.rows()))


if __name__ == "__main__":
    run(pages, __doc__ or "")
