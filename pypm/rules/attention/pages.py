"""Attention over keys and values that a page table gathers, masked by the sequences' lengths.

The gather copies every page of the table, also those behind a sequence's last key. The operator of
`pypm.kernels.paged` reads the pages where they are, up to that key.
"""

import math

import torch

from pypm import decline, let, pattern, predicate, rule, var
from pypm.fx import GETITEM, aten, is_scalar, known_to_hold, same_size, trained
from pypm.kernels.paged import attention_by_table, unsupported
from pypm.kernels.support.devices import off_cpu
from pypm.rules.attention.heads import Heads
from pypm.rules.attention.patterns import Stepped
from pypm.rules.attention.score_steps import LOW, LOWEST, fold, held
from pypm.rules.vocabulary.products import MM
from pypm.rules.vocabulary.shapes import NoOp, Reshape, Resized, Transposed
from pypm.rules.vocabulary.softmax import Count, Softmax

INTEGERS = (torch.int32, torch.int64)

# --- pages gathered ------------------------------------------------------------------------------


@pattern(through=NoOp)
def Gathered(pages, table):  # [B, n, page size, G, D]
    assert table.rank == 2 and table.dtype in INTEGERS
    return aten.index(pages, [table])


@pattern(through=NoOp)
def Gathered(pages, table):
    assert table.rank == 2
    return aten.index_select(pages, 0, Reshape(table))


@pattern(through=NoOp)
def Joined(pages, table):  # [B, T, G, D]
    y = Reshape(Gathered(pages, table))
    assert y.shape[0] == table.shape[0] and y.shape[2:] == pages.shape[2:]
    return y


@pattern(through=NoOp)
def Ordered(pages, table, order):  # with the dimensions in this order
    let(order="BTGD")
    return Joined(pages, table)


@pattern(through=NoOp)
def Ordered(pages, table, order):
    let(order="BGTD")
    x = Joined(pages, table)
    return aten.transpose(x, 1, 2) | aten.transpose(x, 2, 1) | aten.permute(x, [0, 2, 1, 3])


@pattern(through=NoOp)
def Ordered(pages, table, order):
    let(order="BGDT")
    return aten.permute(Joined(pages, table), [0, 2, 3, 1])


@pattern(through=NoOp)
def Ordered(pages, table, order):  # [B, G, 1, T, D], to be broadcast
    let(order="BGTD")
    o = var()
    y = aten.unsqueeze(Ordered(pages, table, o), 2)
    assert o == "BGTD"
    return y


@pattern
def Pages(pages, table, order):
    return Ordered(pages, table, order)


@pattern
def Pages(pages, table, order):
    o = var()
    let(order="BGDT")
    assert o == "BGTD"
    return Transposed(Ordered(pages, table, o))


@predicate
def in_order(layout, order):
    """Return whether pages in this order have the layout that `Heads` or `Keys` found.

    The layouts are those of `arranged`.
    """
    return order == (layout or "BGTD")


# --- keys before the length ----------------------------------------------------------------------


@pattern(through=NoOp)
def Column(lengths):  # [B] as [B, 1], or with more dimensions of size 1
    return Resized(Column(lengths))


@pattern
def Column(lengths):
    assert lengths.rank == 1 and lengths.dtype in INTEGERS
    return lengths


@pattern(through=NoOp)
def Positions():  # 0, 1, 2, ... along the last dimension
    return Count()


@pattern(through=NoOp)
def Positions():
    y = aten.arange(None, _, ...)
    assert y.dtype in INTEGERS
    return y


@pattern(through=NoOp)
def Positions():
    y = aten.arange(0, _, ...)
    assert y.step == 1 and y.dtype in INTEGERS
    return y


@pattern(through=NoOp)
def Positions():
    return Resized(Positions())


@pattern(through=NoOp)
def Before(lengths):  # booleans [B, 1, ..., T], perhaps expanded between
    j, x = Positions(), Column(lengths)
    y = aten.lt(j, x) | aten.gt(x, j) | aten.le(j, x - 1)
    assert j.numel == j.shape[-1] and x.shape[-1] == 1 and y.shape[0] == lengths.numel
    return y


@pattern
def Before(lengths):
    x = Before(lengths)
    y = Resized(x) | aten.expand(x, ...)
    assert y.shape[0] == x.shape[0] and y.shape[-1] == x.shape[-1]
    return y


@pattern(through=NoOp)
def Behind(lengths):
    j, x = Positions(), Column(lengths)
    y = aten.ge(j, x) | aten.le(x, j) | aten.gt(j, x - 1)
    assert j.numel == j.shape[-1] and x.shape[-1] == 1 and y.shape[0] == lengths.numel
    return y


@pattern
def Behind(lengths):
    return aten.logical_not(Before(lengths)) | aten.bitwise_not(Before(lengths))


@pattern
def Behind(lengths):
    x = Behind(lengths)
    y = Resized(x) | aten.expand(x, ...)
    assert y.shape[0] == x.shape[0] and y.shape[-1] == x.shape[-1]
    return y


@pattern
def Bias(lengths, low):  # 0 before the length, `low` behind
    c = var()
    let(low=c.value)
    b = Behind(lengths)
    y = aten.masked_fill(aten.zeros(_, ...) | aten.zeros_like(_, ...), b, c)
    assert y.rank == b.rank and y.shape[0] == b.shape[0] and y.shape[-1] == b.shape[-1]
    return y


@pattern(through=NoOp)
def Bias(lengths, low):
    c, zero, b = var(), var(), Before(lengths)
    y = aten.where(b, zero, c)
    let(low=held(c.value, y.dtype))
    assert zero.value == 0
    assert y.rank == b.rank and y.shape[0] == b.shape[0] and y.shape[-1] == b.shape[-1]
    return y


@pattern(through=NoOp)
def Bias(lengths, low):
    c, zero, b = var(), var(), Behind(lengths)
    y = aten.where(b, c, zero) | aten.masked_fill(zero, b, c)
    let(low=held(c.value, y.dtype))
    assert zero.value == 0
    assert y.rank == b.rank and y.shape[0] == b.shape[0] and y.shape[-1] == b.shape[-1]
    return y


@pattern
def Bias(lengths, low):
    x = Bias(lengths, low)
    y = Resized(x) | aten.expand(x, ...)
    assert y.shape[0] == x.shape[0] and y.shape[-1] == x.shape[-1]
    return y


@pattern
def Masked(q, k, layout, steps, lengths, low):
    c, b = var(), Before(lengths)
    s = Stepped(q, k, layout, steps)
    let(low=held(c.value, s.dtype))
    assert b.rank == s.rank and s.shape[0] == b.shape[0] and s.shape[-1] == b.shape[-1]
    return aten.where(b, s, c)


@pattern
def Masked(q, k, layout, steps, lengths, low):
    c, b = var(), Behind(lengths)
    s = Stepped(q, k, layout, steps)
    let(low=held(c.value, s.dtype))
    assert b.rank == s.rank and s.shape[0] == b.shape[0] and s.shape[-1] == b.shape[-1]
    return aten.where(b, c, s) | aten.masked_fill(s, b, c)


@pattern
def Masked(q, k, layout, steps, lengths, low):
    c = var()
    b, s = Bias(lengths, c), Stepped(q, k, layout, steps)
    let(low=added(c))
    assert b.rank == s.rank and s.shape[0] == b.shape[0] and s.shape[-1] == b.shape[-1]
    return s + b


@predicate
def added(low):
    """Return a number that is added to scores, if nothing is left of these. Raises ValueError."""
    if low > LOWEST:
        raise ValueError("the scores may be seen behind what is added")
    return low


# --- the whole -----------------------------------------------------------------------------------


@pattern
def PagedAttention(q, k_pages, v_pages, table, lengths, low, steps):
    k, v, lk, lv, ok, ov = var(), var(), var(), var(), var(), var()
    k <= Pages(k_pages, table, ok)
    v <= Pages(v_pages, table, ov)
    assert in_order(lk, ok) and in_order(lv, ov)
    return MM(Softmax(Masked(q, k, lk, steps, lengths, low)), Heads(v, lv))


@pattern
def CalledOnPages(q, k_pages, v_pages, table, lengths, low, scale):
    k, v, lk, lv, ok, ov = var(), var(), var(), var(), var(), var()
    k <= Pages(k_pages, table, ok)
    v <= Pages(v_pages, table, ov)
    assert in_order(lk, ok) and in_order(lv, ov)
    keys, values, m = Heads(k, lk), Heads(v, lv), Mask(lengths, low)
    assert m.rank == 4 and m.shape[-1] == keys.shape[2]
    return aten.scaled_dot_product_attention(
        q, keys, values, m, 0.0, False, scale=scale, enable_gqa=_
    ) | GETITEM(
        aten._scaled_dot_product_flash_attention_for_cpu(
            q, keys, values, 0.0, False, attn_mask=m, scale=scale
        ),
        0,
    )


@pattern
def Mask(lengths, low):
    let(low=-math.inf)
    return Before(lengths)


@pattern
def Mask(lengths, low):
    return Bias(lengths, low)


@rule(PagedAttention, pays="sometimes")
def paged_attention(q, k_pages, v_pages, table, lengths, low, steps):
    numbers = [(kind, *operands) for kind, _, *operands in steps]
    if not all(kind in ("mul", "div") and is_scalar(c) for kind, c in numbers):
        return decline("the scores are not only multiplied by numbers")
    folded = fold(numbers, q.dtype)
    if isinstance(folded, str):
        return decline(folded)
    result = over_pages(q, k_pages, v_pages, table, lengths, low, folded[0])
    return decline(result) if isinstance(result, str) else result


@rule(CalledOnPages, pays="sometimes")
def called_paged_attention(q, k_pages, v_pages, table, lengths, low, scale):
    result = over_pages(q, k_pages, v_pages, table, lengths, low, scale)
    return decline(result) if isinstance(result, str) else result


def over_pages(q, k_pages, v_pages, table, lengths, low, scale):
    """Return attention over pages, in the shape of the queries, or the reason to decline.

    Arguments:
        q: [B, H, S, D] or [B, G, n, S, D]; as all queries of a sequence see the same keys, they are
            heads of one query.
        k_pages, v_pages, table, lengths: those of `attention_by_table`.
        low: the number that is filled in behind the length. If it is finite, a sequence without
            keys has the mean of all values of its pages, as every score is then the same.
        scale: factor of the scores; 1/sqrt(D) if None.
    """
    if trained():
        return "the operator has no gradient"
    if off_cpu(q) is not None:
        return "the graph would wait for the GPU to plan: `plan` outside, once a step, does not"
    if not low <= LOW:
        return f"what is filled in behind the length is not low enough: {low}"
    groups = k_pages.shape[2]
    if q.dim() not in (4, 5) or not same_size(q.shape[0], table.shape[0]):
        return "the queries are not those of the sequences, in four or five dimensions"
    if not known_to_hold(lambda heads, groups: heads % groups == 0, q.shape[1], groups):
        return "the heads do not divide into groups"
    rows = q.reshape(q.shape[0], math.prod(q.shape[1:-1]), q.shape[-1])
    reason = unsupported(rows, k_pages, v_pages)
    if reason is not None:
        return reason
    most = table.shape[1] * k_pages.shape[1]
    lengths = lengths.to(torch.int64).clamp(0, most)
    if math.isfinite(low):
        empty = lengths == 0
        rows = rows.masked_fill(empty[:, None, None], 0)
        lengths = lengths.masked_fill(empty, most)
    result = attention_by_table(rows, k_pages, v_pages, table, lengths, scale)
    return result.reshape(*q.shape[:-1], v_pages.shape[3])
