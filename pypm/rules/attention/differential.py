"""Differential attention: the weights of one softmax less a share of those of another."""

import math

import torch

from pypm import decline, let, pattern, predicate, rule, var
from pypm.fx import GETITEM, aten, is_scalar, known_to_hold, refines, same_shape, same_size
from pypm.rules.attention.layouts import letters, values_by
from pypm.rules.attention.meanings import repeated, summed, weights_in_place
from pypm.rules.attention.patterns import AnyWeights, Summed
from pypm.rules.attention.rules import agree, fused
from pypm.rules.attention.score_steps import over
from pypm.rules.vocabulary.shapes import UnderLooseSteps

# --- patterns ------------------------------------------------------------------------------------


@pattern
def Difference(a, b, share, shape):
    y = a - b * share
    let(shape=y.shape)
    assert share.numel == 1
    return y


@pattern
def Difference(a, b, share, shape):  # the share is the same for all keys
    y = a - b * share
    let(shape=y.shape)
    assert share.shape[-1] == 1
    return y


@predicate
def meet(w, lv, v):
    """Return whether weights and values of these shapes are the operands of a product."""
    if "," not in lv:
        return len(w) == len(v)
    *sides, _ = letters(lv, len(w), len(v))
    return [*map(len, sides)] == [len(w), len(v)]


@pattern
def Differential(v, lv, first, other, share, shape):
    w = UnderLooseSteps(Difference(AnyWeights(first), AnyWeights(other), share, shape))
    assert meet(w.shape, lv, v.shape)
    assert agree(first.layout, lv, first.q.shape, first.k.shape, v.shape)
    assert agree(other.layout, lv, other.q.shape, other.k.shape, v.shape)
    return Summed(w, v, lv)


@pattern
def Part(x, dim, place):  # one of two halves, which are heads in pairs, or all heads of one kind
    assert x.rank == 5 and 1 <= dim <= 2 and x.shape[dim] == 2
    return aten.select(x, dim, place) | GETITEM(aten.unbind(x, dim), place)


@pattern
def Part(x, dim, place):
    y = GETITEM(aten.chunk(x, 2, 1), place)
    let(dim=1)
    assert x.rank == 4 and y.shape[1] * 2 == x.shape[1]
    return y


@pattern
def Part(x, dim, place):
    half = var()
    let(dim=1)
    assert x.rank == 4 and half * 2 == x.shape[1]
    return GETITEM(aten.split(x, half, 1), place)


@pattern
def InHeads(x):  # [B, H, S, T], or with pairs of heads in a dimension of their own
    y = UnderLooseSteps(x)
    assert y.rank == 4 and y.shape[-2:] == x.shape[-2:]
    return y


@pattern
def InHeads(x):
    y = UnderLooseSteps(x)
    assert y.rank == 5 and y.shape[-2:] == x.shape[-2:] and y.shape[1] == 2
    return y


@pattern
def InHeads(x):
    y = UnderLooseSteps(x)
    assert y.rank == 5 and y.shape[-2:] == x.shape[-2:] and y.shape[2] == 2
    return y


@pattern
def Stacked(scores, v, lv, dim, share, shape):
    w, i, j = InHeads(AnyWeights(scores)), var(), var()
    assert i == 0 and j == 1 and v.rank == 4
    y = UnderLooseSteps(Difference(Part(w, dim, i), Part(w, dim, j), share, shape))
    assert meet(y.shape, lv, v.shape)
    return Summed(y, v, lv)


# --- rules ---------------------------------------------------------------------------------------


def less(result, share, shape, out):
    """Return a result times the share, or the reason for which there is none.

    Arguments:
        result: that of the second softmax.
        share, shape: the share, and the shape of the weights with which it is broadcast.
        out: the permutation by which the result has its dimensions.
    """
    rows = [result.shape[out.index(dim)] for dim in range(len(out) - 1)]
    step = over(("mul", shape, share), rows)
    if step is None:
        return "the share is larger than the weights"
    of_rows = step[1]
    if out != tuple(sorted(out)) and not is_scalar(of_rows) and of_rows.dim():
        of_rows = of_rows.permute(out)
    return result * of_rows


def summed_up(match, scores, v, lv):
    """Return the product of the weights and the values."""
    return summed(weights_in_place(scores), v, lv)


@refines(summed_up)
def attended(match, scores, v, lv):
    """Return the same by a kernel, or the reason for which there is none: see `sdpa`."""
    return fused(match, scores, v, lv, two_widths=True)


@rule(Differential, pays="sometimes")
def differential_attention(v, lv, first, other, share, shape, match):
    one, second = (attended(match, scores, v, lv) for scores in (first, other))
    if isinstance(one, str) or isinstance(second, str):
        return decline(one if isinstance(one, str) else second)
    if not same_shape(one.shape, second.shape):
        return decline("the operands of both softmaxes have other dimensions")
    rank = one.dim()
    out = values_by(lv, v, rank)[1] if "," in lv else tuple(range(rank))
    if out is None:
        return decline("the product is not that of weights and values")
    weighed = less(second, share, shape, out)
    return decline(weighed) if isinstance(weighed, str) else (one - weighed).to(v.dtype)


def rows_in_place(scores, rows):
    """Return the dimensions of the rows of scores, as the product of queries and keys has them."""
    return weights_in_place(scores).shape[:-1]


@refines(rows_in_place)
def split_rows(scores, rows):
    """Return the same, if they may be grouped as `rows`; or why not."""
    q, k, layout = scores.q, scores.k, scores.layout
    if "," in layout:
        return OF_OTHER_HEADS
    is_split = same_shape(q.shape[:-2], k.shape[:-2]) and layout != "BTGD"
    return q.shape[:-1] if is_split or same_shape(q.shape[:-1], rows) else OF_OTHER_HALVES


def fits(one, all_heads):
    """Return whether each head of values is one for as many of all heads."""
    return all_heads % one == 0


OF_OTHER_HEADS = "the products are not those of heads in a dimension of their own"
OF_OTHER_HALVES = "the halves are not those of the heads"


@rule(Stacked, pays="sometimes")
def stacked_differential_attention(scores, v, lv, dim, share, shape, match):
    if "," in lv or v.dim() != 4 or len(shape) != 4:
        return decline(OF_OTHER_HEADS)
    batch, heads, queries, _ = shape
    rows = split_rows(scores, (batch, 2 * heads, queries))
    if isinstance(rows, str):
        return decline(rows)
    *leading, length = rows
    if not same_shape((math.prod(leading), length), (2 * batch * heads, queries)):
        return decline(OF_OTHER_HALVES)
    v = v.transpose(1, 2) if lv else v
    is_split = not same_shape(leading, (batch, 2 * heads))
    if is_split and not (same_size(v.shape[0], batch) and known_to_hold(fits, v.shape[1], heads)):
        return decline(OF_OTHER_HALVES)
    v = repeated(v, 1, (batch, heads)) if is_split else v
    doubled = torch.stack([v, v], dim).flatten(1, 2)
    if is_split:
        doubled = doubled.reshape(*leading, *v.shape[2:])
    result = attended(match, scores, doubled, "")
    if isinstance(result, str):
        return decline(result)
    sizes = (batch, heads, 2) if dim == 2 else (batch, 2, heads)
    one, other = result.reshape(*sizes, queries, v.shape[-1]).unbind(dim)
    weighed = less(other, share, shape, (0, 1, 2, 3))
    return decline(weighed) if isinstance(weighed, str) else (one - weighed).to(v.dtype)
