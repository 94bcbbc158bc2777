"""Rules that replace attention of few queries over a cache by one operator.

Most of the cache may be empty: the keys that a mask hides are not read. Without a mask all of them
are, and how long that takes does not depend on what the mask holds.
"""

import torch

from pypm import decline, pattern, rule
from pypm.fx import trained
from pypm.kernels.attention import attention_over_cache, unsuited
from pypm.kernels.attention.decoding import FEW_QUERIES
from pypm.rules.attention.heads import Heads4D
from pypm.rules.attention.patterns import Attention
from pypm.rules.attention.rules import agree, replaced
from pypm.rules.vocabulary.fused_attention import Fused


def over_cache(q, k, v, mask, *, scale, causal, rounds=True):
    """Return attention over the visible keys alone, or why there is no operator for it.

    `rounds` is True if the scores may be rounded to the type of q, as those that are written out.
    """
    if mask is None:
        return "without a mask every key is visible"
    return attended(q, k, v, mask, scale=scale, causal=causal, rounds=rounds)


def over_all_keys(q, k, v, mask, *, scale, causal, rounds=True):
    """Return attention over all keys, or why there is no operator for it; see `over_cache`."""
    if mask is not None:
        return "a mask may hide keys"
    return attended(q, k, v, None, scale=scale, causal=causal, rounds=rounds)


def attended(q, k, v, mask, *, scale, causal, rounds):
    """Return attention by the operator, or why it does not take the operands."""
    if causal:
        return "every query sees the keys before it, counted from the first"
    reason = unsuited(q, k, v, mask)
    if reason is not None:
        return reason
    scale = q.shape[3] ** -0.5 if scale is None else scale
    return attention_over_cache(q, k, v, mask, scale, rounds)


def of_many_queries(root, dialect):
    """Return why a graph's value is no step of decoding, or None: by its rows, where the result is
    not permuted.
    """
    queries = root.shape[-2] if isinstance(root, torch.Tensor) and root.dim() > 1 else 1
    many = isinstance(queries, int) and queries > FEW_QUERIES
    return f"there are more than {FEW_QUERIES} queries" if many else None


@rule(Attention, pays="by data", unless=of_many_queries)
def decoding(scores, v, lv, match):
    assert agree(scores.layout, lv, scores.q.shape, scores.k.shape, v.shape)
    return written_out(match, scores, v, lv, over_cache)


@rule(Attention, pays="sometimes", unless=of_many_queries)
def decoding_without_mask(scores, v, lv, match):
    assert agree(scores.layout, lv, scores.q.shape, scores.k.shape, v.shape)
    return written_out(match, scores, v, lv, over_all_keys)


def written_out(match, scores, v, lv, kernel):
    """Return what attention that is written out computes, by a kernel, or decline."""
    if trained():
        return decline("the operator has no gradient")
    return replaced(match, scores, v, lv, kernel=kernel, two_widths=True)


@pattern
def CalledOverCache(q, k, v, lk, lv, mask, scale, grouped):
    keys, values = Heads4D(k, lk), Heads4D(v, lv)
    assert q.rank == k.rank == v.rank == keys.rank == values.rank == 4
    return Fused(q, keys, values, mask, False, scale, grouped)


@rule(CalledOverCache, pays="by data", unless=of_many_queries)
def called_decoding(q, k, v, lk, lv, mask, scale):
    assert mask is not None
    return called(q, turned(k, lk), turned(v, lv), mask, scale, over_cache)


@rule(CalledOverCache, pays="sometimes", unless=of_many_queries)
def called_decoding_without_mask(q, k, v, lk, lv, mask, scale):
    assert mask is None
    return called(q, turned(k, lk), turned(v, lv), mask, scale, over_all_keys)


def turned(x, layout):
    """Return keys or values, [B, G, T, D], of a layout of `Heads4D`."""
    return x.transpose(1, 2) if layout == "BTGD" else x


def called(q, k, v, mask, scale, kernel):
    """Return what a call of torch's fused attention computes, by a kernel, or decline."""
    if trained():
        return decline("the operator has no gradient")
    if mask is not None:
        mask = mask.reshape(*[1] * (4 - mask.dim()), *mask.shape)
        if mask.dtype == torch.bool:
            mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -torch.inf)
    result = kernel(q, k, v, mask, scale=scale, causal=False, rounds=False)
    return decline(result) if isinstance(result, str) else result
