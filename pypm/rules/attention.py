"""Attention in every spelling, to `scaled_dot_product_attention`.

softmax(q k^T scale + mask) v, with scales on q, k or the scores, masks added or filled in, any
number of either in any order, and key and value heads repeated for groups of query heads.
"""

import torch

from pypm import RuleSet, decline, let, pattern, predicate, rule, var
from pypm.fx.dialect import exact
from pypm.fx.operators import GETITEM, aten
from pypm.kernels.attention import attention, unsupported
from pypm.rules.layouts import arranged, heads_of, of_rank_four
from pypm.rules.spellings import (
    MM,
    Bare,
    Count,
    Later,
    Loose,
    Loosely,
    NoOp,
    NotLater,
    Reshape,
    Resized,
    Scaled,
    Softmax,
    Transposed,
    keeps_order,
)
from pypm.rules.steps import LOW, causally, fold, may_fill_rows, over, trained


@pattern(through=Loose)
def Affine(x, steps=()):  # (... + m) ...: what happened to x, innermost first, and in which shape
    r, m = var(), var()
    y = Affine(x, r)
    let(steps=(*r, ("add", y.shape, m)))
    return y + m


@pattern(through=Loose)
def Affine(x, steps=()):
    r, m = var(), var()
    y = Affine(x, r)
    let(steps=(*r, ("sub", y.shape, m)))
    return y - m


@pattern(through=Loose)
def Affine(x, steps=()):
    r, c = var(), var()
    y = Affine(x, r)
    let(steps=(*r, ("mul", y.shape, c)))
    assert c.numel == 1 or c.shape[-1] == 1
    return y * c


@pattern(through=Loose)
def Affine(x, steps=()):
    r, c = var(), var()
    y = Affine(x, r)
    let(steps=(*r, ("div", y.shape, c)))
    assert c.numel == 1 or c.shape[-1] == 1
    return y / c


@pattern(through=Loose)
def Affine(x, steps=()):  # every key after its query is filled: b holds nothing else
    r, b, c, i, j = var(), var(), var(), var(), var()
    y = Affine(x, r)
    let(steps=(*r, ("causal fill", y.shape, b, c.value)))
    b <= Later(i, j)
    i <= Count()
    j <= Count()
    assert c.value <= LOW and i.shape[-1] == 1 and i.numel == i.shape[-2] == y.shape[-2]
    assert j.numel == j.shape[-1] == y.shape[-1]
    return aten.where(b, c, y) | aten.masked_fill(y, b, c)


@pattern(through=Loose)
def Affine(x, steps=()):
    r, b, c, i, j = var(), var(), var(), var(), var()
    y = Affine(x, r)
    let(steps=(*r, ("causal keep", y.shape, b, c.value)))
    b <= NotLater(i, j)
    i <= Count()
    j <= Count()
    assert c.value <= LOW and i.shape[-1] == 1 and i.numel == i.shape[-2] == y.shape[-2]
    assert j.numel == j.shape[-1] == y.shape[-1]
    return aten.where(b, y, c)


@pattern(through=Loose)
def Affine(x, steps=()):  # so low that nothing of the score is left: nearly the same as adding it
    r, b, c = var(), var(), var()
    y = Affine(x, r)
    let(steps=(*r, ("fill", y.shape, b, c.value)))
    assert c.value <= LOW
    return aten.where(b, c, y) | aten.masked_fill(y, b, c)


@pattern(through=Loose)
def Affine(x, steps=()):
    r, b, c = var(), var(), var()
    y = Affine(x, r)
    let(steps=(*r, ("keep", y.shape, b, c.value)))
    assert c.value <= LOW
    return aten.where(b, y, c)


@pattern
def Affine(x, steps=()):
    return Loosely(x)


# --- keys and values: heads repeated, layouts ----------------------------------------------------


@pattern(through=NoOp)
def Repeated(k, dim):  # [B, G, T, D] with every head n times: [B, G * n, T, D]
    let(dim=1)
    e = aten.expand(aten.unsqueeze(k, 2), ...)
    y = Reshape(e)
    assert y.shape == (k.shape[0], k.shape[1] * e.shape[2], k.shape[2], k.shape[3])
    return y


@pattern(through=NoOp)
def Repeated(k, dim):  # the same of [B, T, G, D]
    let(dim=2)
    e = aten.expand(aten.unsqueeze(k, 3), ...)
    y = Reshape(e)
    assert y.shape == (k.shape[0], k.shape[1], k.shape[2] * e.shape[3], k.shape[3])
    return y


@pattern(through=NoOp)
def Repeated(k, dim):
    n = var()
    assert k.rank == 4 and 1 <= dim <= 2 and n.numel == 1
    return aten.repeat_interleave(k, n, dim, ...)


@pattern
def Swapped(x):
    return aten.transpose(x, 1, 2) | aten.transpose(x, 2, 1) | aten.permute(x, [0, 2, 1, 3])


@pattern
def Heads(k, layout):  # layout: how [B, G, T, D] is had from k
    return NoOp(Heads(k, layout))


@pattern(through=NoOp)
def Heads(k, layout):
    d = var()
    let(layout="")
    assert d == 1
    return Repeated(k, d)


@pattern(through=NoOp)
def Heads(k, layout):
    d = var()
    let(layout="BTGD")
    assert d == 2
    return Swapped(Repeated(k, d))


@pattern(through=NoOp)
def Heads(k, layout):  # [B, G, 1, T, D] as [B, G, n, T, D]
    let(layout="")
    y = aten.expand(k, ...)
    assert k.rank == 5 and k.shape[2] == 1
    assert y.shape[:2] == k.shape[:2] and y.shape[3:] == k.shape[3:]
    return y


@pattern
def Heads(k, layout):
    let(layout="")
    return k


@pattern(through=NoOp)
def Keys(k, layout, steps=()):  # (k s)^T = k^T s
    kt = Transposed(Scaled(Heads(k, layout), steps))
    return kt | Scaled(Transposed(Heads(k, layout)), steps)


@pattern(through=NoOp)
def Keys(k, layout, steps=()):
    d = var()
    let(layout="BTGD")
    assert d == 2
    return aten.permute(Scaled(Repeated(k, d), steps), [0, 2, 3, 1])


@pattern
def Keys(k, layout, steps=()):
    let(layout="BGDT")
    return Scaled(Rearranged(k), steps)


@pattern(through=NoOp)
def Rearranged(k):
    y = aten.expand(k, ...)
    k <= Reordered(_)
    assert k.rank == 5 and k.shape[2] == 1
    assert y.shape[:2] == k.shape[:2] and y.shape[3:] == k.shape[3:]
    return y


@pattern
def Rearranged(k):  # keys transposed in any other way
    k <= Reordered(_)
    return k


@pattern
def Reordered(x):
    d = var()
    assert not keeps_order(x.shape, d)
    return aten.permute(x, d)


@pattern
def Reordered(x):
    return aten.transpose(x, ...) | NoOp(Reordered(x)) | Resized(Reordered(x))


# --- scores --------------------------------------------------------------------------------------


@pattern(through=NoOp)
def Flat(x, steps=()):  # [B, H, S, D] as [B * H, S, D], scaled before or after
    y = Reshape(Flat(x, steps))
    assert y.shape[-2:] == x.shape[-2:]
    return y


@pattern(through=NoOp)
def Flat(x, steps=()):
    r, c = var(), var()
    let(steps=(*r, ("mul", (), c)))
    assert c.numel == 1
    return Flat(x, r) * c


@pattern(through=NoOp)
def Flat(x, steps=()):
    r, c = var(), var()
    let(steps=(*r, ("div", (), c)))
    assert c.numel == 1
    return Flat(x, r) / c


@pattern
def Flat(x, steps=()):
    return Bare(x)


@pattern
def Scores(q, k, sq, sk, layout, steps=()):
    return MM(Scaled(q, sq), Keys(k, layout, sk))


@pattern
def Scores(q, k, sq, sk, layout, steps=()):
    return aten.bmm(Flat(q, sq), Transposed(Flat(Heads(k, layout), sk)))


@pattern
def Scores(q, k, sq, sk, layout, steps=()):  # b m + a q k^T = ((a / b) q k^T + m) b
    m, alpha, beta = var(), var(), var()
    x, y = Flat(q, sq), Transposed(Flat(Heads(k, layout), sk))
    let(
        steps=(
            ("mul", (), alpha / beta),
            ("add", (*x.shape[:-1], y.shape[2]), m),
            ("mul", (), beta),
        )
    )
    return aten.baddbmm(m, x, y, alpha=alpha, beta=beta)


@pattern
def Scores(q, k, sq, sk, layout, steps=()):
    equation = var()
    let(layout=equation)
    return aten.einsum(equation, [Scaled(q, sq), Scaled(k, sk)], ...)


# --- the whole -----------------------------------------------------------------------------------


@pattern
def Weights(q, k, lk, sq, sk, first, steps):
    return Softmax(Affine(Scores(q, k, sq, sk, lk, first), steps))


@pattern
def Attention(q, k, v, lk, lv, sq, sk, first, steps):
    return MM(Weights(q, k, lk, sq, sk, first, steps), Heads(v, lv))


@pattern
def Attention(q, k, v, lk, lv, sq, sk, first, steps):
    equation = var()
    let(lv=equation)
    return aten.einsum(equation, [Weights(q, k, lk, sq, sk, first, steps), Bare(v)], ...)


# --- with dropout ---------------------------------------------------------------------------------


@pattern(through=Loose)
def Dropped(x, p):
    assert 0 < p < 1
    return aten.dropout(x, p, True) | GETITEM(aten.native_dropout(x, p, True), 0)


@pattern
def DroppedAttention(q, k, v, lk, lv, sq, sk, first, steps, p):
    return MM(Dropped(Weights(q, k, lk, sq, sk, first, steps), p), Heads(v, lv))


@pattern
def DroppedAttention(q, k, v, lk, lv, sq, sk, first, steps, p):
    equation, weights = var(), Weights(q, k, lk, sq, sk, first, steps)
    let(lv=equation)
    return aten.einsum(equation, [Dropped(weights, p), Bare(v)], ...)


# --- the rules -----------------------------------------------------------------------------------


@predicate
def agree(lk, lv, q, k, v):
    """Whether the ranks go together; those of an einsum may differ."""
    return "," in lk or (q == k and ("," in lv or q == v))


PRODUCTS = ("matmul", "bmm", "baddbmm", "mm", "einsum")


def reads_scores(region):
    """Whether a mask is computed from the scores that it is added to, so that these may cancel."""
    todo = list(region.inner)
    inside = set(region.nodes)
    while todo:
        node = todo.pop()
        if node in inside:
            inside.remove(node)
            todo += node.all_input_nodes
            name = getattr(node.target, "__name__", str(node.target))
            if name.partition(".")[0] in PRODUCTS:
                return True
    return False


@rule(Attention)
def sdpa(q, k, v, lk, lv, sq, sk, first, steps, match):
    assert agree(lk, lv, q.rank, k.rank, v.rank)
    result = fused(match.region, q, k, v, lk, lv, sq, sk, first, steps)
    return decline(result) if isinstance(result, str) else result


@rule(DroppedAttention, redraws=True)
def sdpa_with_dropout(q, k, v, lk, lv, sq, sk, first, steps, p, match):
    assert agree(lk, lv, q.rank, k.rank, v.rank)
    result = fused(match.region, q, k, v, lk, lv, sq, sk, first, steps, dropout=p)
    return decline(result) if isinstance(result, str) else result


def fused(region, q, k, v, lk, lv, sq, sk, first, steps, dropout=0.0):
    """The kernel on what the patterns bind, or why it does not compute the same."""
    if reads_scores(region):
        return "a mask is computed from the scores"
    q, k, v, out = arranged(q, k, v, lk, lv)
    if out is None or not q.dim() == k.dim() == v.dim() or q.dim() not in (3, 4, 5):
        return "the products are not those of attention in three to five dimensions"
    steps = (*sq, *sk, *first, *steps)
    if trained(region) and any(may_fill_rows(step) for step in steps):
        return "a row that is filled everywhere would send gradients back"
    causal, steps = causally(steps, q.shape[-2])
    batch, rows = heads_of(q, [shape for _, shape, *_ in steps]), q.shape[:-1]
    steps = [over(step, (*batch, rows[-1])) for step in steps]
    if None in steps:
        return "a mask has more dimensions than the scores"
    folded = fold(steps, torch.float64 if q.dtype == torch.float64 else torch.float32)
    if isinstance(folded, str):
        return folded
    scale, factors, mask = folded
    if exact() and mask is not None:
        return "a row masked everywhere is NaN in eager and 0 in the kernel"
    q, k, v = (of_rank_four(x, q, batch) for x in (q, k, v))
    for factor in factors:
        q = q * factor.to(q.dtype)
    reason = unsupported(q, k, v, mask)
    if reason is not None:
        return reason
    result = attention(q, k, v, mask, scale=scale, causal=causal, dropout=dropout)
    result = result if len(rows) == 3 else result.reshape(*rows, v.shape[-1])
    return result if out == tuple(sorted(out)) else result.permute(out)


RULES = RuleSet((sdpa,), "attention")
WITH_DROPOUT = RuleSet((sdpa, sdpa_with_dropout), "attention with dropout")
"""Also where a model in training drops weights: the kernel draws other ones than the model did.

By name only, since results are no longer those of the same seed. Of `torch.compile`'s stages it is
for `pre_grad`: later on, the backward pass uses the mask, so that it cannot go. There is no gain on
the CPU, where torch drops weights in plain products only.
"""
