"""Attention of ragged queries over pages: planned once a step, run once a layer."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from pypm.kernels.paged import gpu
from pypm.kernels.paged.cache import refused
from pypm.kernels.paged.plans import PagedPlan, objection, plan, raise_unless_planned
from pypm.kernels.support import native
from pypm.kernels.support.registration import custom_operator

__all__ = [
    "attend",
    "attention_by_table",
    "paged_attention",
    "reference",
    "unsupported",
]

SOURCE: Final = Path(__file__).with_name("kernel.cpp")
NATIVE: Final = (torch.float32, torch.float64, torch.bfloat16)
"""Types of the kernel in C++."""


def unsupported(q: Tensor, k_pages: Tensor, v_pages: Tensor) -> str | None:
    """Return why `paged_attention` does not take these inputs, or None."""
    if q.device.type not in ("cpu", "cuda"):
        return f"there is no kernel for pages on {q.device.type}"
    if not q.device == k_pages.device == v_pages.device:
        return "the queries and the pages are on several devices"
    if q.dim() != 3 or not k_pages.dim() == v_pages.dim() == 4:
        return "queries have three dimensions, pages four"
    if k_pages.shape[:3] != v_pages.shape[:3] or q.shape[2] != k_pages.shape[3]:
        return "the pages of keys and values, or the head sizes, do not agree"
    if not q.dtype == k_pages.dtype == v_pages.dtype or not q.dtype.is_floating_point:
        return "query, keys and values do not have one floating-point type"
    heads, groups = q.shape[1], k_pages.shape[2]
    if groups == 0 or heads % groups:
        return f"{heads} heads of queries do not divide into {groups} groups"
    return gpu.unsupported(q, v_pages) if q.device.type == "cuda" else None


def paged_attention(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, work: PagedPlan, scale: float | None = None
) -> Tensor:
    """Return the attention of each query over the keys of its sequence that it sees, [N, H, E].

    Arguments:
        q: [N, H, D], the queries of all sequences, one behind the other.
        k_pages: [pages, page size, G, D] in the type of q, with G dividing H.
        v_pages: [pages, page size, G, E], likewise.
        work: of `plan`, for these pages and N queries, on their device.
        scale: factor of the scores; 1/sqrt(D) if None.

    A query that sees no key gives 0. Slots of pages behind a sequence's last key are not read. The
    scores are rounded to the type of q, and summed up in float32 or wider. Raises `CacheError` with
    the reason where `unsupported` returns one, or the plan is for another number of queries, for
    other pages, or on another device.
    """
    reason = unsupported(q, k_pages, v_pages)
    if reason is not None:
        raise refused(reason)
    planned_for = (len(work.seen), work.page_count, work.page_size)
    if planned_for != (len(q), *k_pages.shape[:2]):
        raise refused(
            "the plan is for {} queries and {} pages of {} keys, and there are {} queries and {} "
            "pages of {} keys".format(*planned_for, len(q), *k_pages.shape[:2]),
            "`plan` makes one for this step, from `queries=`, `pages=` and `page_size=`",
        )
    if work.seen.device != q.device:
        found = f"the plan is on {work.seen.device}, and the queries are on {q.device}"
        raise refused(found, "`plan(..., device=...)` takes the device of the pages")
    return attend(q, k_pages, v_pages, *work.tensors(), scale)


def compute(
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
    """Return what `reference` returns, in C++ where there is a compiler and the type is known.

    Raises `CacheError` where the tensors are no plan for these queries and pages.
    """
    tensors = (tiles, rows, pages, seen, starts, entries)
    if not_native(q) is not None:
        raise_unless_planned(objection(k_pages, *tensors))
        return reference(q, k_pages, v_pages, *tensors, scale)
    kernel = native.operator(SOURCE, "paged_attention_native")
    try:
        found: Tensor = kernel(q, k_pages, v_pages, *tensors, scale)
    except RuntimeError:
        raise_unless_planned(objection(k_pages, *tensors))
        raise
    return found


def not_native(q: Tensor) -> str | None:
    """Return why the kernel in C++ does not take the operands, or None."""
    return native.unsupported(SOURCE, NATIVE, q)


def reference(
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
    """Return what `paged_attention` returns, from the tensors of a plan, tile by tile.

    Sums of a query over several tiles are joined as in FlashAttention: by their largest scores.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    out = q.new_zeros(*q.shape[:2], v_pages.shape[3], dtype=wide)
    largest = q.new_full(q.shape[:2], -inf, dtype=wide)
    total = q.new_zeros(q.shape[:2], dtype=wide)
    factor = q.shape[2] ** -0.5 if scale is None else scale
    for begin, end, page, last, first, keys, _ in tiles.tolist():
        mine = rows[begin:end]
        k, v = (x[pages[page:last]].flatten(0, 1)[:keys] for x in (k_pages, v_pages))
        limits = (seen[mine] - first).clamp(max=keys)
        part, top, sums = _tile(q[mine], k, v, limits, factor, wide)
        old = largest[mine]
        new = torch.maximum(old, top)
        finite = new.masked_fill(new == -inf, 0)
        before, now = (old - finite).exp(), (top - finite).exp()
        part = out[mine] * before[..., None] + part * now[..., None]
        sums = total[mine] * before + sums * now
        largest, total, out = (  # without writes, which `vmap` refuses
            x.index_put((mine,), y) for x, y in ((largest, new), (total, sums), (out, part))
        )
    return (out / total.masked_fill(seen[:, None] == 0, 1)[..., None]).to(q.dtype)


def _tile(
    q: Tensor, k: Tensor, v: Tensor, limits: Tensor, scale: float, wide: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Return unnormalized results [R, H, E], largest scores and sums of weights, both [R, H].

    q [R, H, D], k [T, G, D], v [T, G, E], limits [R]; the heads of a group are rows of one product.
    """
    count, heads, size = q.shape
    keys, groups = k.shape[:2]
    split_heads = (groups, count, heads // groups)
    x = q.view(count, groups, heads // groups, size).transpose(0, 1)
    scores = x.reshape(groups, -1, size) @ k.permute(1, 2, 0)
    scores = scores.view(*split_heads, keys).to(wide) * scale
    if int(limits.min()) < keys:
        hidden = torch.arange(keys, device=q.device) >= limits[:, None]
        scores = scores.masked_fill(hidden[:, None], -inf)
    top = scores.amax(-1)
    weights = (scores - top.masked_fill(top == -inf, 0)[..., None]).exp_()
    sums = weights.sum(-1)
    part = weights.to(v.dtype).view(groups, -1, keys) @ v.transpose(0, 1)
    part = part.view(*split_heads, v.shape[2]).to(wide)
    top, sums = (x.transpose(0, 1).flatten(1) for x in (top, sums))
    return part.transpose(0, 1).flatten(1, 2), top, sums


def empty(q: Tensor, v_pages: Tensor) -> Tensor:
    return torch.empty(*q.shape[:2], v_pages.shape[3], dtype=q.dtype, device=q.device)


def _unfit(q: Tensor, k_pages: Tensor, v_pages: Tensor, starts: Tensor) -> str | None:
    if len(starts) != len(q) + 1:
        return f"`starts` has {len(starts)} numbers; it must have one more than {len(q)} queries"
    return unsupported(q, k_pages, v_pages)


attend = custom_operator(
    "pypm::paged_attention",
    compute,
    outputs=empty,
    unsupported=not_native,
    operands={
        "q": "[queries, heads, size] T",
        "k_pages": "[count, page_size, groups, size] T",
        "v_pages": "[count, page_size, groups, value_size] T",
        "tiles": "[tiles, 7] int64",
        "rows": "[rows] int64",
        "pages": "[numbers] int64",
        "seen": "[queries] int64",
        "starts": "[begins] int64",
        "entries": "[rows] int64",
    },
    requires=_unfit,
    launch=gpu.launch,
    inlines=lambda q: q.numel() > 0,
    reference=reference,
    device="cpu",
)


# --- planned in the graph ------------------------------------------------------------------------


def plan_of_table(
    table: Tensor, lengths: Tensor, pages: int, page_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the tensors of a plan for one query a sequence, filled up with 0 to known shapes.

    A tile has at least one page, so neither tiles nor their rows and pages are more than the
    entries of the table. An empty tile has neither rows nor keys.
    """
    work = plan(table, lengths, pages=pages, page_size=page_size)
    sizes = empty_plan(table, lengths)
    for whole, part in zip(sizes, work.tensors(), strict=True):
        whole.zero_()[: len(part)] = part
    return sizes


def empty_plan(
    table: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    sequences, entries = table.shape[0], table.shape[0] * table.shape[1]

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int64, device=table.device)

    return (
        empty(entries, 7),
        empty(entries),
        empty(entries),
        empty(sequences),
        empty(sequences + 1),
        empty(entries),
    )


planned = custom_operator(
    "pypm::paged_plan",
    plan_of_table,
    outputs=empty_plan,
    operands={"table": "[sequences, most] index", "lengths": "[sequences] index"},
    device="cpu",
)


def attention_by_table(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    table: Tensor,
    lengths: Tensor,
    scale: float | None = None,
) -> Tensor:
    """Return the attention of one query a sequence, q [B, H, D], planned in the graph: [B, H, E].

    It runs on CPUs alone, as a plan in the graph would wait for a GPU. The other arguments are
    those of `plan` and of `paged_attention`.
    """
    tiles, rows, pages, seen, starts, entries = planned(
        table, lengths, k_pages.shape[0], k_pages.shape[1]
    )
    return attend(q, k_pages, v_pages, tiles, rows, pages, seen, starts, entries, scale)
