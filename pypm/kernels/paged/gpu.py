"""Attention over pages on GPUs: the tiles of a plan in parallel, and the join of their parts.

Both kernels are bound by memory where each sequence has one query: a page is read once for all
heads of its group, and for all queries of its tile that fit into one block of rows.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from pypm.kernels.support.triton import jit, launcher, missing, precision, tl, triton

__all__ = ["LARGEST_HEAD", "PageBlock", "block", "join_kernel", "kernel", "launch", "unsupported"]

LARGEST_HEAD: Final = 512
"""Most elements of a head: the keys of a block fit into shared memory, and its sums into registers.
"""


def unsupported(q: Tensor, v_pages: Tensor) -> str | None:
    """Return why the kernels do not take these tensors, which agree; or None."""
    if max(q.shape[2], v_pages.shape[3]) > LARGEST_HEAD:
        return f"the kernel takes heads of up to {LARGEST_HEAD} elements"
    return missing(q)


class PageBlock(NamedTuple):
    """Shape of what one program holds at a time, its warps and its pipelined loads."""

    rows: int
    keys: int
    warps: int
    stages: int


def block(rows: int, head: int, size: int) -> PageBlock:
    """Return the block for tiles of so many rows, heads of `head` elements of `size` bytes.

    It is the largest of those tried that is built for Hopper without spilled registers.
    """
    if size == 4:
        return PageBlock(16, 32 if head <= 256 else 16, 4 if head <= 128 else 8, 2)
    if head > 128:
        return PageBlock(32, 32, 8, 3 if head <= 256 else 2)
    return PageBlock(16, 128, 4, 2) if rows <= 16 else PageBlock(64, 64, 8, 3)


@jit
def kernel(
    q, keys, values, tiles, queries, pages, seen, part, top, total, q_query, q_head,
    k_page, k_place, k_group, v_page, v_place, v_group,
    scale, n: tl.constexpr, size: tl.constexpr, value_size: tl.constexpr, page_size: tl.constexpr,
    precision: tl.constexpr, block_rows: tl.constexpr, block_keys: tl.constexpr,
    block_size: tl.constexpr, block_value_size: tl.constexpr,
):  # fmt: skip
    """Compute a tile for the n heads of a group; a row is a query and a head."""
    tile = tiles + tl.program_id(0) * 7
    begin, page, first = tl.load(tile), tl.load(tile + 2), tl.load(tile + 4)
    count, most = (tl.load(tile + 1) - begin) * n, tl.load(tile + 5)
    group = tl.program_id(1).to(tl.int64)
    d, e = tl.arange(0, block_size), tl.arange(0, block_value_size)
    # programs of one tile and group, in the third direction, share its blocks of rows
    for block in range(tl.program_id(2), tl.cdiv(count, block_rows), tl.num_programs(2)):
        row = block * block_rows + tl.arange(0, block_rows)
        inside = row < count
        head = group * n + row % n
        query = tl.load(queries + begin + row // n, inside, 0)
        limit = tl.minimum(tl.load(seen + query, inside, 0) - first, most)
        limit = tl.where(inside, limit, 0).to(tl.int32)
        x = tl.load(
            q + (query * q_query + head * q_head)[:, None] + d[None, :],
            inside[:, None] & (d < size)[None, :], 0.0,
        )  # fmt: skip
        largest = tl.full((block_rows,), -float("inf"), tl.float32)
        sums = tl.zeros((block_rows,), tl.float32)
        acc = tl.zeros((block_rows, block_value_size), tl.float32)
        end = tl.max(limit, 0)
        for start in range(0, end, block_keys):
            t = start + tl.arange(0, block_keys)
            known = t < end  # no slot behind the last key is read
            number = tl.load(pages + page + t // page_size, known, 0)
            place = (t % page_size).to(tl.int64)
            k = tl.load(
                keys + (number * k_page + place * k_place + group * k_group)[None, :]
                + d[:, None],
                known[None, :] & (d < size)[:, None], 0.0,
            )  # fmt: skip
            scores = tl.dot(x, k, input_precision=precision) * scale
            scores = tl.where(t[None, :] < limit[:, None], scores, -float("inf"))
            new = tl.maximum(largest, tl.max(scores, 1))
            finite = tl.where(new == -float("inf"), 0.0, new)
            factor = tl.exp(largest - finite)
            weights = tl.exp(scores - finite[:, None])
            v = tl.load(
                values + (number * v_page + place * v_place + group * v_group)[:, None]
                + e[None, :],
                known[:, None] & (e < value_size)[None, :], 0.0,
            )  # fmt: skip
            sums = sums * factor + tl.sum(weights, 1)
            acc = tl.dot(weights.to(v.dtype), v, acc * factor[:, None], input_precision=precision)
            largest = new
        at = (begin + row // n) * (tl.num_programs(1) * n) + head
        tl.store(top + at, largest, inside)
        tl.store(total + at, sums, inside)
        tl.store(
            part + at[:, None] * value_size + e[None, :], acc,
            inside[:, None] & (e < value_size)[None, :],
        )  # fmt: skip


@jit
def join_kernel(
    part, top, total, starts, entries, seen, out, value_size: tl.constexpr,
    block_parts: tl.constexpr, block_value_size: tl.constexpr,
):  # fmt: skip
    """Join the parts of a query and a head by their largest scores; 0 where it sees no key."""
    query, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    heads = tl.num_programs(1)
    begin, end = tl.load(starts + query), tl.load(starts + query + 1)
    e = tl.arange(0, block_value_size)
    inside = e < value_size
    largest, sums = -float("inf"), 0.0
    result = tl.zeros((block_value_size,), tl.float32)
    for start in range(begin, end, block_parts):
        j = start + tl.arange(0, block_parts)
        known = j < end
        at = tl.load(entries + j, known, 0) * heads + head
        tops = tl.load(top + at, known, -float("inf"))
        new = tl.maximum(largest, tl.max(tops, 0))
        finite = tl.where(new == -float("inf"), 0.0, new)
        before, factors = tl.exp(largest - finite), tl.exp(tops - finite)
        sums = sums * before + tl.sum(tl.load(total + at, known, 0.0) * factors, 0)
        parts = tl.load(
            part + at[:, None] * value_size + e[None, :], known[:, None] & inside[None, :], 0.0
        )
        result = result * before + tl.sum(parts * factors[:, None], 0)
        largest = new
    # A query that sees keys, all of weight 0, is NaN as 0 / 0.
    result = tl.where(tl.load(seen + query) > 0, result / sums, 0.0)
    tl.store(out + (query * heads + head) * value_size + e, result, inside)


def launch(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    tiles: Tensor,
    rows: Tensor,
    pages: Tensor,
    seen: Tensor,
    starts: Tensor,
    entries: Tensor,
    scale: float | None,
) -> Tensor:
    """Return what `reference` returns, by the kernels. The worker of a tile is not read."""
    (count, heads, size), (_, page_size, groups, value_size) = q.shape, v_pages.shape
    out = q.new_empty(count, heads, value_size)
    if not out.numel():
        return out
    q, k_pages, v_pages = (
        x if x.stride(-1) == 1 else x.contiguous() for x in (q, k_pages, v_pages)
    )
    n = heads // groups
    part = torch.empty(len(rows), heads, value_size, dtype=torch.float32, device=q.device)
    top, total = (part.new_empty(part.shape[:-1]) for _ in range(2))
    wide, wide_value = (max(16, triton.next_power_of_2(x)) for x in (size, value_size))
    if len(tiles):
        mean = -(-len(rows) * n // len(tiles))
        held = block(mean, max(wide, wide_value), q.element_size())
        launcher(kernel)[len(tiles), groups, -(-mean // held.rows)](
            q, k_pages, v_pages, tiles, rows, pages, seen, part, top, total,
            *q.stride()[:-1], *k_pages.stride()[:-1], *v_pages.stride()[:-1],
            size**-0.5 if scale is None else scale, n, size, value_size, page_size,
            precision(),
            held.rows, held.keys, wide, wide_value, num_warps=held.warps, num_stages=held.stages,
        )  # fmt: skip
    launcher(join_kernel)[count, heads](
        part, top, total, starts, entries, seen, out, value_size,
        max(1, 2048 // wide_value), wide_value,
    )  # fmt: skip
    return out
