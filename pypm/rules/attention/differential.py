"""Differential attention: the weights of one softmax less a share of those of another."""

import math

import torch

from pypm import decline, let, pattern, record, rule, var
from pypm.fx import GETITEM, aten, same_shape
from pypm.kernels.attention import attention
from pypm.rules.attention.patterns import Summed, Weights
from pypm.rules.attention.rules import agree, fused
from pypm.rules.attention.score_steps import over
from pypm.rules.vocabulary.shapes import UnderLooseSteps

# --- patterns ------------------------------------------------------------------------------------


@pattern
def Difference(a, b, share, shape):  # the share is the same for all keys
    y = a - b * share
    let(shape=y.shape)
    assert share.numel == 1 or share.shape[-1] == 1
    return y


@pattern
def Differential(v, lv, first, other, share, shape):
    w = UnderLooseSteps(Difference(Weights(first), Weights(other), share, shape))
    assert agree(first.layout, lv, first.q.shape, first.k.shape, v.shape)
    assert agree(other.layout, lv, other.q.shape, other.k.shape, v.shape)
    return Summed(w, v, lv)


@pattern
def Part(x, dim, place):  # one of two halves, which are heads in pairs, or all heads of one kind
    assert x.rank == 5 and 1 <= dim <= 2 and x.shape[dim] == 2
    return aten.select(x, dim, place) | GETITEM(aten.unbind(x, dim), place)


@pattern
def Part(x, dim, place):
    y = GETITEM(aten.chunk(x, 2, 1) | aten.split(x, _, 1), place)
    let(dim=1)
    assert x.rank == 4 and y.shape[1] * 2 == x.shape[1]
    return y


@pattern
def Stacked(scores, v, lv, dim, share, shape):
    w, i, j = UnderLooseSteps(Weights(scores)), var(), var()
    assert i == 0 and j == 1 and w.rank >= 4
    difference = Difference(Part(w, dim, i), Part(w, dim, j), share, shape)
    return Summed(UnderLooseSteps(difference), v, lv)


# --- rules ---------------------------------------------------------------------------------------


def less(result, share, shape, rows):
    """Return a result [B, H, S, E] times the share, or the reason for which there is none.

    Arguments:
        result: that of the second softmax.
        share, shape: the share, and the shape of the weights with which it is broadcast.
        rows: B, H and S.
    """
    step = over(("mul", shape, share), rows)
    return "the share is larger than the weights" if step is None else result * step[1]


@rule(Differential, pays="sometimes")
def differential_attention(v, lv, first, other, share, shape, match):
    results = []
    for scores, is_first in ((first, True), (other, False)):

        def kernel(q, k, v, mask, *, is_first=is_first, **options):
            result = attention(q, k, v, mask, **options)
            return result if is_first else less(result, share, shape, q.shape[:3])

        result = fused(match, scores, v, lv, kernel=kernel, two_widths=True)
        if isinstance(result, str):
            return decline(result)
        results.append(result)
    one, weighed = results
    if not same_shape(one.shape, weighed.shape):
        return decline("the operands of both softmaxes have other dimensions")
    return (one - weighed).to(v.dtype)


@rule(Stacked, pays="sometimes")
def stacked_differential_attention(scores, v, lv, dim, share, shape, match):
    q, k, lk = scores.q, scores.k, scores.layout
    if "," in lk or "," in lv or v.dim() != 4:
        return decline("the products are not those of heads in a dimension of their own")
    batch, heads, queries, _ = shape
    if not same_shape(q.shape[:-1], (batch, 2 * heads, queries)):
        is_split = same_shape(q.shape[:-2], k.shape[:-2]) and lk != "BTGD"
        leading = math.prod(q.shape[:-2])
        if not (is_split and same_shape((leading, q.shape[-2]), (2 * batch * heads, queries))):
            return decline("the halves are not those of the heads")
        q, k = (x.reshape(batch, 2 * heads, *x.shape[-2:]) for x in (q, k))
    v = v.transpose(1, 2) if lv else v
    doubled = torch.stack([v, v], dim).flatten(1, 2)

    def kernel(q, k, v, mask, **options):
        result = attention(q, k, v, mask, **options)
        one, other = result.unflatten(1, (heads, 2) if dim == 2 else (2, heads)).unbind(dim)
        weighed = less(other, share, shape, (batch, heads, queries))
        return weighed if isinstance(weighed, str) else one - weighed

    scores = record(q=q, k=k, layout=lk, steps=scores.steps)
    result = fused(match, scores, doubled, "", kernel=kernel, two_widths=True)
    return decline(result) if isinstance(result, str) else result.to(v.dtype)
