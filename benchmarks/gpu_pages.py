"""Decoding over pages on a GPU: PyPM's kernels, and torch's attention over gathered keys.

Run as `python -m benchmarks.gpu_pages`; prints a row for each batch, in bfloat16: milliseconds of
PyPM's kernels, and the bytes of the keys and values of all sequences in that time; of gathering the
pages and calling `scaled_dot_product_attention` with a mask; and of that function alone, over keys
that are contiguous already and as many for all. Launched from a CUDA graph; the plan is not in it.
"""

from __future__ import annotations

import argparse
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu_times import graphed
from benchmarks.results import Results, option
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
    cache = PagedCache(1, pages, PAGE, groups, size, dtype=torch.bfloat16, device="cuda")
    for n in lengths:
        slots = cache.append(cache.allocate(), n)
        cache.write(0, slots, *torch.randn(2, n, groups, size, device="cuda").to(torch.bfloat16))
    return cache


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None) -> Tensor:
    """Return attention of one query for each sequence, over keys [B, T, G, D]."""
    mask = None if seen is None else seen[:, None, None]
    q, k, v = q[:, :, None], k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)[:, :, 0]


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("there is no GPU")
    parser = argparse.ArgumentParser(description=__doc__)
    option(parser)
    results = Results(parser.parse_args().output, has_gpu=True)
    results.table("keys of each sequence", "PyPM, ms", "TB/s", "gathered, ms", "contiguous, ms")
    for name, (lengths, heads, groups, size) in BATCHES.items():
        cache = cache_of(lengths, groups, size)
        sequences, (k, v) = cache.sequences, (cache.keys[0], cache.values[0])
        q = torch.randn(len(lengths), heads, size, dtype=k.dtype, device="cuda")
        table, ends = cache.table(sequences), cache.lengths(sequences)
        work = plan(table, ends, pages=len(k), page_size=PAGE, device="cuda")
        pages, at = table.cuda(), torch.arange(table.shape[1] * PAGE, device="cuda")
        seen = at < ends.cuda()[:, None]

        def gathered(q: Tensor, k: Tensor, v: Tensor, pages=pages, seen=seen) -> Tensor:
            return attend(q, k[pages].flatten(1, 2), v[pages].flatten(1, 2), seen)

        expected = gathered(q, k, v)
        torch.testing.assert_close(paged_attention(q, k, v, work), expected, atol=2e-2, rtol=2e-2)
        keys, values = (x[pages].flatten(1, 2).contiguous() for x in (k, v))
        ours = graphed(paged_attention, q, k, v, work)
        others = graphed(gathered, q, k, v), graphed(attend, q, keys, values)
        rate = 4e-9 * sum(lengths) * groups * size / ours
        results.row(name, ours, rate, *others)


if __name__ == "__main__":
    with torch.no_grad():
        main()
