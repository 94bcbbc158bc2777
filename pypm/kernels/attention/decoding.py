"""Attention of few queries over a cache: only keys between the first and last visible are read.

Without a mask these are all keys.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from pypm.fx import same_size
from pypm.kernels.attention.dense import products, unsupported
from pypm.kernels.support import native
from pypm.kernels.support.registration import custom_operator

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FEW_QUERIES", "attention_over_cache", "unsuited", "visible"]

FEW_QUERIES: Final = 16
"""The most queries of one decoding step."""
HIDDEN: Final = -1e6
"""A key whose mask is lower than the largest of its row by this has a weight of zero, if no two
scores of the row differ by as much."""
STEP: Final = 64
"""Spans begin and end at multiples of this, so that kernels that are generated for a number of keys
serve many steps."""
TOGETHER: Final = 1.25
"""Rows of a batch are computed together if that reads at most this many times the keys."""
SOURCE: Final = Path(__file__).with_name("decoding.cpp")
NATIVE: Final = (torch.float32, torch.bfloat16)
"""Types of the kernel in C++, which has the same constants."""

Span = tuple[int, int]
"""First key, and the one after the last."""


def unsuited(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> str | None:
    """Return why `attention_over_cache` is not for these inputs, or None.

    The arguments are its own; a mask may be missing. Symbolic sizes must be known to fit.
    """
    if q.device.type != "cpu":
        return f"there is no kernel for {q.device.type}"
    if not all(isinstance(n, int) for x in (q, k) for n in x.shape):
        return "the sizes are not known"
    if not q.shape[3]:
        return "the heads are of size 0"
    if q.shape[2] > FEW_QUERIES:
        return f"there are more than {FEW_QUERIES} queries"
    if mask is not None and not same_size(mask.shape[3], k.shape[2]):
        return "the mask is the same for every key"
    return unsupported(q, k, v, mask, two_widths=True)


def visible(mask: Tensor, batch: int) -> list[Span]:
    """Return, for each row of the batch, the span of keys that any of its queries sees.

    Arguments:
        mask: added to the scores; [B or 1, H or 1, S or 1, T], with T at least 1.
        batch: B.

    A key is hidden from a query if its mask is lower than the largest of the row by 1e6, and so is
    -inf beside a finite number. From a query that sees nothing no key is hidden; nor is any if the
    row holds a NaN.
    """
    for at in range(3):
        if mask.stride(at) == 0:  # it was expanded
            mask = mask.narrow(at, 0, 1)
    wide = mask if mask.dtype.itemsize > 2 else mask.float()
    hidden = wide < wide.amax(-1, keepdim=True) + HIDDEN
    seen = hidden.all((1, 2)).logical_not().to(torch.uint8)
    first = seen.argmax(-1).tolist()
    last = seen.flip(-1).argmax(-1).tolist()
    spans = [(low, mask.shape[3] - after) for low, after in zip(first, last, strict=True)]
    return spans * (batch if len(spans) == 1 else 1)


def aligned(span: Span, keys: int) -> Span:
    """Return the span, widened to multiples of `STEP` among so many keys."""
    low, high = span
    return low // STEP * STEP, min(keys, -(-high // STEP) * STEP)


def compute(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, rounds: bool
) -> Tensor:
    """Return softmax(q k^T scale + mask) v, [B, H, S, E], from the keys that are visible.

    Arguments:
        q: [B, H, S, D].
        k: [B, G, T, D] in the type of q, with G dividing H; the cache.
        v: [B, G, T, E] in the type of q.
        mask: added to the scores; [B or 1, H or 1, S or 1, T], in the type of q or float32; None
            for zeros.
        scale: factor of the scores.
        rounds: True if the scores may be rounded to the type of q.

    The span of visible keys is found at each call, by `visible`, from the mask alone. A row whose
    mask is -inf everywhere gives 0. Keys and values outside of the spans are not read, so a NaN
    there does not show.
    """
    if not_native(q) is None:
        kernel = native.operator(SOURCE, "attention_over_cache_native")
        found: Tensor = kernel(q, k, v, mask, scale, rounds)
        return found
    batch, keys = q.shape[0], k.shape[2]
    if not q.numel() or not v.numel():
        return q.new_zeros(*q.shape[:3], v.shape[3])
    if mask is None:
        return _products(q, k, v, None, scale, rounds)
    spans = [aligned(span, keys) for span in visible(mask, batch)]
    low, high = min(low for low, _ in spans), max(high for _, high in spans)
    parts = [(0, batch, low, high)]
    if batch * (high - low) > TOGETHER * sum(high - low for low, high in spans):
        parts = _runs(spans)
    results = []
    for first, after, low, high in parts:
        rows, span = slice(first, after), slice(low, high)
        m = (mask if mask.shape[0] == 1 else mask[rows])[..., span]
        given = q[rows], k[rows, :, span], v[rows, :, span]
        results.append(_products(*given, m, scale, rounds))
    return results[0] if len(results) == 1 else torch.cat(results)


def not_native(q: Tensor) -> str | None:
    """Return why the kernel in C++ does not take the operands, or None."""
    return native.unsupported(SOURCE, NATIVE, q)


def _products(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, rounds: bool
) -> Tensor:
    """Return attention over all of these keys by two products; the arguments are `compute`'s."""
    if rounds or q.dtype.itemsize > 2:
        return products(q, k, v, mask, scale=scale)
    mask = None if mask is None else mask.float()
    return products(q.float(), k.float(), v.float(), mask, scale=scale).to(q.dtype)


def _runs(spans: Sequence[Span]) -> list[tuple[int, int, int, int]]:
    """Return (first row, the one after the last, span) of neighbouring rows of one span."""
    runs = []
    row = 0
    for (low, high), same in itertools.groupby(spans):
        after = row + sum(1 for _ in same)
        runs.append((row, after, low, high))
        row = after
    return runs


def empty(q: Tensor, v: Tensor) -> Tensor:
    return q.new_empty((*q.shape[:3], v.shape[3]))


def flops(q: Sequence[int], k: Sequence[int], v: Sequence[int], *rest: object, **_: object) -> int:
    """Return the FLOPs of both products over the whole cache, from the shapes of the operands."""
    return 2 * q[0] * q[1] * q[2] * k[2] * (q[3] + v[3])


def misfit(q: Tensor, k: Tensor) -> str | None:
    """Return why the heads of queries do not divide into groups, or None."""
    heads, groups = q.shape[1], k.shape[1]
    if heads % groups == 0 if groups else heads == 0:
        return None
    return f"`q` has {heads} heads and `k` has {groups}, which must divide them"


attention_over_cache = custom_operator(
    "pypm::attention_over_cache",
    compute,
    outputs=empty,
    unsupported=not_native,
    operands={
        "q": "[batch, heads, queries, size] T",
        "k": "[batch, groups, keys, size] T",
        "v": "[batch, groups, keys, width] T",
        "mask": "[batch|1, heads|1, queries|1, keys] T|float32?",
    },
    requires=misfit,
    reference=_products,
    device="cpu",
    flops=flops,
)
