"""Attention in every spelling, to `scaled_dot_product_attention`.

softmax(q k^T scale + mask) v, with scales on q, k or the scores, masks added or filled in, any
number of either in any order, and key and value heads repeated for groups of query heads.
"""

import math

import torch

from pypm import RuleSet, decline, let, pattern, rule, var
from pypm.fx.dialect import exact
from pypm.fx.operators import aten
from pypm.kernels.attention import attention, unsupported
from pypm.rules.spellings import (
    MM,
    Bare,
    Loose,
    Loosely,
    NoOp,
    Reshape,
    Scaled,
    Softmax,
    Transposed,
)

LOW = -1e6
"""Filled in for a score, it leaves a weight of zero unless the whole row is filled."""
LOW_BESIDE_OTHERS = -1e9
"""So low that adding a score up to 32 does not change it in float32."""
LOWEST = -1e30
"""So low that adding a score does not change it, in any type: a filled row stays uniform."""


@pattern(through=Loose)
def Affine(x, steps=()):  # (... + m) ...: what happened to x, innermost first
    r, m = var(), var()
    let(steps=(*r, ("add", m)))
    return Affine(x, r) + m


@pattern(through=Loose)
def Affine(x, steps=()):
    r, m = var(), var()
    let(steps=(*r, ("sub", m)))
    return Affine(x, r) - m


@pattern(through=Loose)
def Affine(x, steps=()):
    r, c = var(), var()
    let(steps=(*r, ("mul", c)))
    assert c.numel == 1
    return Affine(x, r) * c


@pattern(through=Loose)
def Affine(x, steps=()):
    r, c = var(), var()
    let(steps=(*r, ("div", c)))
    assert c.numel == 1
    return Affine(x, r) / c


@pattern(through=Loose)
def Affine(x, steps=()):  # so low that nothing of the score is left: nearly the same as adding it
    r, b, c = var(), var(), var()
    let(steps=(*r, ("fill", b, c.value)))
    assert c.value <= LOW
    return aten.where(b, c, Affine(x, r)) | aten.masked_fill(Affine(x, r), b, c)


@pattern(through=Loose)
def Affine(x, steps=()):
    r, b, c = var(), var(), var()
    let(steps=(*r, ("keep", b, c.value)))
    assert c.value <= LOW
    return aten.where(b, Affine(x, r), c)


@pattern
def Affine(x, steps=()):
    return Loosely(x)


@pattern(through=NoOp)
def Heads(k):  # [B, G, T, D] with every head repeated: [B, G * n, T, D]
    e = aten.expand(aten.unsqueeze(k, 2), ...)
    y = Reshape(e)
    assert y.shape == (k.shape[0], k.shape[1] * e.shape[2], k.shape[2], k.shape[3])
    return y


@pattern(through=NoOp)
def Heads(k):
    n = var()
    y = aten.repeat_interleave(k, n, 1, ...)
    assert y.shape == (k.shape[0], k.shape[1] * n.value, k.shape[2], k.shape[3])
    return y


@pattern
def Heads(k):
    return Bare(k)


@pattern(through=NoOp)
def Keys(k, steps=()):  # (k s)^T = k^T s
    return Transposed(Scaled(Heads(k), steps)) | Scaled(Transposed(Heads(k)), steps)


@pattern(through=NoOp)
def Flat(x, steps=()):  # [B, H, S, D] as [B * H, S, D], scaled before or after
    y = Reshape(Flat(x, steps))
    assert y.shape[-2:] == x.shape[-2:]
    return y


@pattern(through=NoOp)
def Flat(x, steps=()):
    r, c = var(), var()
    let(steps=(*r, ("mul", c)))
    assert c.numel == 1
    return Flat(x, r) * c


@pattern(through=NoOp)
def Flat(x, steps=()):
    r, c = var(), var()
    let(steps=(*r, ("div", c)))
    assert c.numel == 1
    return Flat(x, r) / c


@pattern
def Flat(x, steps=()):
    return Bare(x)


@pattern
def Scores(q, k, sq, sk, steps=()):
    return MM(Scaled(q, sq), Keys(k, sk))


@pattern
def Scores(q, k, sq, sk, steps=()):
    return aten.bmm(Flat(q, sq), Transposed(Flat(Heads(k), sk)))


@pattern
def Scores(q, k, sq, sk, steps=()):  # beta m + alpha q k^T = ((alpha / beta) q k^T + m) beta
    m, alpha, beta = var(), var(), var()
    let(steps=(("mul", alpha / beta), ("add", m), ("mul", beta)))
    kt = Transposed(Flat(Heads(k), sk))
    return aten.baddbmm(m, Flat(q, sq), kt, alpha=alpha, beta=beta)


@pattern
def Attention(q, k, v, sq, sk, first, steps):
    return MM(Softmax(Affine(Scores(q, k, sq, sk, first), steps)), Heads(v))


@rule(Attention)
def sdpa(q, k, v, sq, sk, first, steps):
    assert q.rank == k.rank == v.rank and q.rank in (3, 4)
    steps = [
        (kind, *(unmerged(value, q) for value in operands))
        for kind, *operands in (*sq, *sk, *first, *steps)
    ]
    folded = fold(steps, torch.float64 if q.dtype == torch.float64 else torch.float32)
    if isinstance(folded, str):
        return decline(folded)
    scale, factors, mask = folded
    if exact() and mask is not None:
        return decline("a row masked everywhere is NaN in eager and 0 in the kernel")
    for factor in factors:
        q = q * factor.to(q.dtype)
    flat = q.dim() == 3
    q, k, v = (x.unsqueeze(0) if flat else x for x in (q, k, v))
    if mask is not None:
        if mask.dim() > (3 if flat else 4):
            return decline("the mask has more dimensions than the scores")
        mask = mask[(None,) * (4 - mask.dim())]
    reason = unsupported(q, k, v, mask)
    if reason is not None:
        return decline(reason)
    result = attention(q, k, v, mask, scale=scale)
    return result.squeeze(0) if flat else result


def unmerged(m, q):
    """A mask over scores [B * H, S, T] as one over [B, H, S, T]; anything else as it is."""
    if is_number(m) or m.dim() != 3 or q.dim() != 4 or m.shape[0] == 1 or q.shape[0] == 1:
        return m
    if m.shape[0] != q.shape[0] * q.shape[1]:
        return m
    return m.reshape(q.shape[0], q.shape[1], m.shape[1], m.shape[2])


# --- what the steps come to ----------------------------------------------------------------------


def fold(steps, dtype):
    """What the steps make of x, as scale, factors and mask: x * scale * product(factors) + mask.

    Or why it cannot be had. Factors are tensors; the mask is a tensor or None; what is filled in
    becomes part of it, in `dtype`.
    """
    scale, factors, mask = 1.0, [], None
    fills = []  # over that: (kind, where, value), first to last
    for kind, *operands in steps:
        c = operands[-1]
        if is_number(c) and kind in ("mul", "div") and not (math.isfinite(c) and c):
            return f"the scores are multiplied or divided by {c}"
        if kind in ("fill", "keep"):
            fills.append((kind, *operands))
        elif kind in ("add", "sub") and is_number(c):
            if not abs(c) <= -LOW:
                return f"{c} is added to every score"
        elif kind in ("mul", "div") and is_number(c) and c > 0:
            c = c if kind == "mul" else 1 / c
            scale *= c
            mask = None if mask is None else mask * c
            fills = [(fill, b, low * c) for fill, b, low in fills]
        else:
            if any(low > 10 * LOWEST for *_, low in fills):
                return "what was filled in may be seen again after what follows"
            mask, fills = filled(mask, fills, dtype), []
            if kind in ("add", "sub"):
                mask = summed(mask, c if kind == "add" else -c)
            else:
                c = c if kind == "mul" else 1 / c
                scale, factors = (scale * c, factors) if is_number(c) else (scale, [*factors, c])
                mask = None if mask is None else mask * c
    fills = lowered(fills, alone=mask is None, exactly=dtype == torch.float64)
    return fills if isinstance(fills, str) else (scale, factors, filled(mask, fills, dtype))


def lowered(fills, alone, exactly):
    """The fills so low that adding the score changes nothing, also in rows filled everywhere.

    Where other masks may be as low as one of them, it must stay as it is: then a score is lost
    beside it by float32's rounding alone.
    """
    weak = {low for *_, low in fills if low > 10 * LOWEST}
    if any(low > LOW for low in weak):
        return f"what is filled in is not low enough: {max(weak)}"
    if alone and len(weak) <= 1:
        return [(kind, b, min(low, LOWEST)) for kind, b, low in fills]
    if weak and (exactly or max(weak) > LOW_BESIDE_OTHERS):
        return f"beside other masks, {max(weak)} is not low enough to be filled in"
    return fills


def filled(mask, fills, dtype):
    for kind, b, low in fills:
        other = torch.zeros_like(b, dtype=dtype) if mask is None else mask.to(dtype)
        mask = torch.where(b, low, other) if kind == "fill" else torch.where(b, other, low)
    return mask


def summed(mask, m):
    return m if mask is None else mask + m


def is_number(c):
    return isinstance(c, (int, float, torch.SymInt, torch.SymFloat))


RULES = RuleSet((sdpa,), "attention")
