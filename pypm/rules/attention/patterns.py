"""Patterns of attention: scores, weights and products in every spelling."""

import math

from pypm import let, pattern, predicate, record, var
from pypm.fx import GETITEM, aten, hiding
from pypm.rules.attention.heads import Heads, Keys
from pypm.rules.attention.meanings import (
    flat,
    regrouped_weights,
    scored,
    scores_of,
    stepped,
    stepped_scores,
    summed,
    weights,
    weights_in_place,
)
from pypm.rules.attention.score_steps import held, hides, is_lowest
from pypm.rules.vocabulary.products import MM, Scaled
from pypm.rules.vocabulary.shapes import (
    LooseStep,
    NoOp,
    Reshape,
    Transposed,
    UnderLooseSteps,
    UnderNoOps,
    same,
)
from pypm.rules.vocabulary.softmax import Count, Later, NotLater, RowMax, Softmax, normalized


@pattern(means=same)
def After(b):  # true where a key is after the query, both counted from the first
    i, j = var(), var()
    b <= Later(i, j)
    i <= Count()
    j <= Count()
    assert i.numel == i.shape[-2] and j.numel == j.shape[-1]
    return b


@pattern(means=same)
def UpTo(b):  # true where a key is not after the query
    i, j = var(), var()
    b <= NotLater(i, j)
    i <= Count()
    j <= Count()
    assert i.numel == i.shape[-2] and j.numel == j.shape[-1]
    return b


@pattern(through=LooseStep, means=stepped)
def Affine(x, steps=()):  # (... + m) ...: what happened to x, innermost first, and in which shape
    r, m = var(), var()
    y = Affine(x, r)
    let(steps=(*r, ("add", y.shape, m)))
    return y + m


@pattern(through=LooseStep)
def Affine(x, steps=()):
    r, m = var(), var()
    y = Affine(x, r)
    let(steps=(*r, ("sub", y.shape, m)))
    assert m.numel == 1 or m.shape[-1] == y.shape[-1]  # no number for each row: it is a maximum
    return y - m


@pattern(through=LooseStep)
def Affine(x, steps=()):
    r, c = var(), var()
    y = Affine(x, r)
    let(steps=(*r, ("mul", y.shape, c)))
    assert c.numel == 1 or c.shape[-1] == 1
    return y * c


@pattern(through=LooseStep)
def Affine(x, steps=()):
    r, c = var(), var()
    y = Affine(x, r)
    let(steps=(*r, ("div", y.shape, c)))
    assert c.numel == 1 or c.shape[-1] == 1
    return y / c


@pattern(through=LooseStep)
def Affine(x, steps=()):  # a soft cap, between its two scales
    r = var()
    y = Affine(x, r)
    let(steps=(*r, ("tanh", y.shape)))
    return aten.tanh(y)


@pattern(through=LooseStep)
def Affine(x, steps=()):  # every key after its query is filled: b holds nothing else
    r, b, c = var(), var(), var()
    y = Affine(x, r)
    let(steps=(*r, ("causal fill", y.shape, b, held(c.value, y.dtype))))
    assert hides(c.value, y.dtype) and b.shape[-2:] == y.shape[-2:]
    return aten.where(After(b), c, y) | aten.masked_fill(y, After(b), c)


@pattern(through=LooseStep)
def Affine(x, steps=()):
    r, b, c = var(), var(), var()
    y = Affine(x, r)
    let(steps=(*r, ("causal keep", y.shape, b, held(c.value, y.dtype))))
    assert hides(c.value, y.dtype) and b.shape[-2:] == y.shape[-2:]
    return aten.where(UpTo(b), y, c)


@pattern(through=LooseStep)
def Affine(x, steps=()):  # so low that nothing of the score is left: nearly the same as adding it
    r, b, c = var(), var(), var()
    y = Affine(x, r)
    let(steps=(*r, ("fill", y.shape, b, held(c.value, y.dtype))))
    assert hides(c.value, y.dtype)
    return aten.where(b, c, y) | aten.masked_fill(y, b, c)


@pattern(through=LooseStep)
def Affine(x, steps=()):
    r, b, c = var(), var(), var()
    y = Affine(x, r)
    let(steps=(*r, ("keep", y.shape, b, held(c.value, y.dtype))))
    assert hides(c.value, y.dtype)
    return aten.where(b, y, c)


@pattern(through=LooseStep)
def Affine(x, steps=()):  # the largest of each row is subtracted, which changes no weight
    r = var()
    y = Affine(x, r)
    let(steps=(*r, ("lower", y.shape, 0.0)))
    return y - RowMax(y)


@pattern(through=LooseStep)
def Affine(x, steps=()):  # no score is below the lowest number: -inf becomes finite
    r, c = var(), var()
    y = Affine(x, r)
    let(steps=(*r, ("raise", y.shape, held(c.value, y.dtype))))
    assert is_lowest(c.value)
    return aten.maximum(y, c) | aten.max(y, c) | aten.clamp(y, c) | aten.clamp_min(y, c)


@pattern
def Affine(x, steps=()):
    return UnderLooseSteps(x)


# --- scores --------------------------------------------------------------------------------------


@pattern(through=NoOp, means=flat)
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
    return UnderNoOps(x)


@predicate
def ratio(alpha, beta):
    """Return alpha / beta, of numbers that are known.

    Raises ValueError, which means "no match", if one is not, or if beta has a form of its own.
    """
    if not all(isinstance(n, (int, float)) for n in (alpha, beta)) or beta in (0, 1):
        raise ValueError(f"alpha and beta are {alpha} and {beta}")
    return alpha / beta


@pattern(means=scores_of)
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
            ("mul", (), ratio(alpha, beta)),
            ("add", (*x.shape[:-1], y.shape[2]), m),
            ("mul", (), beta),
        )
    )
    return aten.baddbmm(m, x, y, alpha=alpha, beta=beta)


@pattern
def Scores(q, k, sq, sk, layout, steps=()):  # alpha may be symbolic
    m, alpha = var(), var()
    x, y = Flat(q, sq), Transposed(Flat(Heads(k, layout), sk))
    let(steps=(("mul", (), alpha), ("add", (*x.shape[:-1], y.shape[2]), m)))
    return aten.baddbmm(m, x, y, alpha=alpha, beta=1)


@pattern
def Scores(q, k, sq, sk, layout, steps=()):  # m is not read: it may be uninitialized memory
    alpha = var()
    x, y = Flat(q, sq), Transposed(Flat(Heads(k, layout), sk))
    let(steps=(("mul", (), alpha),))
    return aten.baddbmm(_, x, y, alpha=alpha, beta=0)


@pattern
def Scores(q, k, sq, sk, layout, steps=()):
    equation = var()
    let(layout=equation)
    return aten.einsum(equation, [Scaled(q, sq), Scaled(k, sk)], ...)


# --- the whole -----------------------------------------------------------------------------------


@pattern(means=stepped_scores)
def Stepped(q, k, layout, steps):  # the scores after all steps: on q, on k, and on the product
    of_q, of_k, first, then = var(), var(), var(), var()
    let(steps=(*of_q, *of_k, *first, *then))
    return Affine(Scores(q, k, of_q, of_k, layout, first), then)


@pattern(means=scored)
def Scored(scores):
    q, k, layout, steps = var(), var(), var(), var()
    let(scores=record(q=q, k=k, layout=layout, steps=steps))
    return Stepped(q, k, layout, steps)


@pattern(through=LooseStep, means=normalized)
def SoftmaxOrZero(x):  # 0 in rows that are -inf everywhere, as in a kernel
    is_seen = aten.any(aten.logical_not(aten.eq(x, -math.inf)), -1, True)
    return aten.where(aten.logical_not(is_seen), aten.full(_, 0, ...), Softmax(x))


@pattern
def SoftmaxOrZero(x):
    return Softmax(x)


@pattern(means=weights)
def Weights(scores):
    return SoftmaxOrZero(Scored(scores))


@pattern(through=LooseStep)
def Weights(scores):  # no softmax: declined, with the reason
    s = var()
    x = Scored(s)
    let(scores=record(q=s.q, k=s.k, layout=s.layout, steps=(*s.steps, ("sigmoid", x.shape))))
    return aten.sigmoid(x)


@pattern(means=hiding(weights_in_place, regrouped_weights))
def AnyWeights(scores):  # of scores of which replacements read nothing else
    return Weights(scores)


@pattern(means=summed)
def Summed(w, v, lv):  # a product of weights with the values
    return MM(w, Heads(v, lv))


@pattern
def Summed(w, v, lv):
    equation = var()
    let(lv=equation)
    return aten.einsum(equation, [w, UnderNoOps(v)], ...)


@pattern
def Attention(scores, v, lv):
    return Summed(Weights(scores), v, lv)


# --- with dropout ---------------------------------------------------------------------------------


@pattern(through=LooseStep)
def Dropped(x, p):
    assert 0 < p < 1
    return aten.dropout(x, p, True) | GETITEM(aten.native_dropout(x, p, True), 0)


@pattern
def DroppedAttention(scores, v, lv, p):
    return Summed(Dropped(Weights(scores), p), v, lv)
