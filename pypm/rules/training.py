"""Attention in training: forward and backward become torch's flash kernel and its gradient.

For joint graphs on CPUs, at the stage `joint` or by hand, as `rewrite(gm, RULES, dialect=JOINT)`.
The rewrite removes the weights from the graph, so only the products of both passes may use them.
The rules leave attention alone if weights are dropped or are an output, or if a mask is trained.
`docs/packs.md` lists the other packs that are right in a joint graph.
"""

import itertools
import math
from dataclasses import replace

import torch

from pypm import RuleSet, decline, let, pattern, rule, var
from pypm.fx import aten, is_scalar, prims, same_size
from pypm.kernels.attention_gradients import attention_and_gradients, unsupported
from pypm.rules.attention.layouts import heads_of
from pypm.rules.attention.meanings import regrouped, stepped
from pypm.rules.attention.patterns import Affine
from pypm.rules.attention.rules import unclear_sum
from pypm.rules.attention.score_steps import LOWEST, causally, fold, over
from pypm.rules.vocabulary.shapes import LooseStep, Transposed, UnderLooseSteps, rows, rows_if_said
from pypm.rules.vocabulary.softmax import Softmax

# --- weights: p = softmax(x) with x = q t scale + mask, and t = k^T -------------------------------
#
# Autograd has every matrix product as `bmm`, whose operands are what is bound: [B * H, S, D].


def weights(p, is_apart):
    """Return the weights of exponentials, or those that are weights already."""
    return p / p.sum(-1, True) if is_apart else p


def exponentials(x, is_apart, is_lowered, shape):
    """Return the exponentials of scores, less the largest of each row if `is_lowered`; the weights
    themselves unless these are a quotient, which `is_apart`.
    """
    y = x - x.amax(-1, True) if is_lowered else x
    return rows(torch.exp(y) if is_apart else torch.softmax(x, -1), shape)


@pattern(means=lambda q, t, steps, shape=None: stepped(q @ t, steps, shape))
def BatchedScores(q, t, steps):
    return Affine(aten.bmm(q, t), steps)


@pattern(means=exponentials)
def Exponentials(x, is_apart, is_lowered):
    let(is_apart=False, is_lowered=False)
    return Softmax(x)


@pattern(through=LooseStep)
def Exponentials(x, is_apart, is_lowered):
    let(is_apart=True, is_lowered=True)
    return aten.exp(x - Largest(x))


@pattern(through=LooseStep)
def Exponentials(x, is_apart, is_lowered):
    let(is_apart=True, is_lowered=False)
    return aten.exp(x)


def attended(q, t, steps, shape=None):
    """Return the weights of queries and keys, transposed, with rows in a shape if one is given."""
    return rows_if_said(torch.softmax(stepped(q @ t, steps), -1), shape)


@pattern(means=attended)
def WeightsOf(q, t, steps, p, is_apart):
    let(is_apart=False)
    p <= Softmax(BatchedScores(q, t, steps))
    return UnderLooseSteps(p)


@pattern
def WeightsOf(q, t, steps, p, is_apart):  # of a softmax written out: e / z, with e for p
    let(is_apart=True)
    p <= Exponentials(BatchedScores(q, t, steps), is_apart, _)
    return UnderLooseSteps(p / Sums(p))


@pattern(through=LooseStep, means=lambda x, shape=None: rows_if_said(x.amax(-1, True), shape))
def Largest(x):
    return aten.amax(x, [-1], True)


@pattern(through=LooseStep, means=lambda p, shape=None: rows_if_said(p.sum(-1, True), shape))
def Sums(p):
    return aten.sum(p, [-1], True)


# --- the gradient of the softmax ------------------------------------------------------------------


def of_softmax(p, d, shape):
    """Return the gradient of scores by their softmax p and what arrives at it."""
    p = rows(p, d.shape)
    return rows(p * (d - (d * p).sum(-1, True)), shape)


def of_quotient(e, d, shape):
    """Return the gradient of that of which e is the exponential, where d arrives at e / z, and e at
    z as the sum of each row.
    """
    return of_softmax(weights(e, True), d, shape)


def of_maximum(d, x, shape):
    """Return the gradient of x where d arrives at x - m, and m is the largest of each row."""
    x = rows(x, d.shape)
    b = x == x.amax(-1, True)
    return rows(d - d.sum(-1, True) / b.sum(-1, True) * b, shape)


@pattern(means=lambda p, x, is_apart, d, shape: of_softmax(weights(p, is_apart), d, shape))
def OfScores(p, x, is_apart, is_lowered, d):  # d arrives at the weights
    let(is_apart=False)
    return OfSoftmax(p, d)


@pattern
def OfScores(p, x, is_apart, is_lowered, d):  # the maximum may be detached
    let(is_apart=True)
    return OfQuotient(p, d)


@pattern
def OfScores(p, x, is_apart, is_lowered, d):
    let(is_apart=True, is_lowered=True)
    return OfMaximum(OfQuotient(p, d), x)


@pattern(through=LooseStep, means=of_softmax)
def OfSoftmax(p, d):  # p (d - sum p d)
    y = d * UnderLooseSteps(p)
    s = aten.sum(y, [-1], True)
    return prims.fma(-UnderLooseSteps(p), s, y) | y - UnderLooseSteps(p) * s


@pattern(through=LooseStep)
def OfSoftmax(p, d):
    return aten._softmax_backward_data(d, UnderLooseSteps(p), -1, _)


@pattern(through=LooseStep)
def OfSoftmax(p, d):
    y = UnderLooseSteps(p)
    return y * (d - aten.sum(d * y, [-1], True))


@pattern(through=LooseStep, means=of_quotient)
def OfQuotient(e, d):  # e (d / z - sum d e / z^2)
    z = Sums(e)
    of_sum = aten.sum(-d * (UnderLooseSteps(e) / z / z), [-1], True)
    return (d / z + aten.expand(of_sum, ...)) * UnderLooseSteps(e)


@pattern(through=LooseStep, means=of_maximum)
def OfMaximum(d, x):  # what arrives at the maximum is zero: the softmax is the same without it
    b = aten.eq(Largest(x), x)
    return d + aten.sum(-d, [-1], True) / aten.sum(b, [-1], True) * b


# --- the gradient of scales and masks -------------------------------------------------------------


UNDONE = {
    "mul": torch.mul,
    "div": torch.div,
    "fill": lambda d, b: d.masked_fill(b, 0),
    "keep": lambda d, b: torch.where(b, d, 0),
}
"""By the kind of a step on the gradient, what it computes of it."""


def undone(d, steps, shape=None):
    """Return a gradient [..., T] after steps, its rows in the shape of the result."""
    for kind, own, operand in steps:
        d = UNDONE[kind](regrouped(d, own), operand)
    return d if shape is None else regrouped(d, shape)


@pattern(through=LooseStep, means=undone)
def Undone(d, steps=()):
    r, c = var(), var()
    y = Undone(d, r)
    let(steps=(*r, ("mul", y.shape, c)))
    return y * c


@pattern(through=LooseStep)
def Undone(d, steps=()):
    r, c = var(), var()
    y = Undone(d, r)
    let(steps=(*r, ("div", y.shape, c)))
    return y / c


@pattern(through=LooseStep)
def Undone(d, steps=()):
    r, b = var(), var()
    y = Undone(d, r)
    let(steps=(*r, ("fill", y.shape, b)))
    return aten.where(b, 0, y) | aten.masked_fill(y, b, 0)


@pattern(through=LooseStep)
def Undone(d, steps=()):
    r, b = var(), var()
    y = Undone(d, r)
    let(steps=(*r, ("keep", y.shape, b)))
    return aten.where(b, y, 0)


@pattern
def Undone(d, steps=()):
    return UnderLooseSteps(d)


# --- the products that leave ----------------------------------------------------------------------


def gradient(q, t, v, g, steps, back):
    """Return the gradient of scores before their steps, where g arrives at the result."""
    d = g @ v.mT
    return undone(of_softmax(attended(q, t, steps), d, d.shape), back, d.shape)


@pattern(means=gradient)
def Gradient(q, t, v, g, p, is_apart, steps, back):
    x, is_lowered = var(), var()
    p <= Exponentials(x, is_apart, is_lowered)
    x <= BatchedScores(q, t, steps)
    d = UnderLooseSteps(aten.bmm(g, Transposed(v)))
    y = Undone(OfScores(p, x, is_apart, is_lowered, d), back)
    assert y.shape == (g.shape[0], g.shape[1], v.shape[1])
    return y


@pattern(means=lambda q, t, g, steps: attended(q, t, steps, g.shape).mT @ g)
def ToValues(q, t, g, p, is_apart, steps):
    w = WeightsOf(q, t, steps, p, is_apart)
    assert w.rank == 3
    return aten.bmm(Transposed(w), g)


@pattern(means=lambda q, t, v, steps: attended(q, t, steps, q.shape) @ v)
def Out(q, t, v, p, is_apart, steps):
    w = WeightsOf(q, t, steps, p, is_apart)
    assert w.rank == 3 and w.shape[1] == q.shape[1]
    return aten.bmm(w, v)


@pattern
def Whole(q, t, v, g, p, is_apart, steps, back):
    assert q.rank == 3 and t.rank == 3 and v.rank == 3 and g.rank == 3
    assert g.shape[1] == q.shape[1]
    d = Gradient(q, t, v, g, p, is_apart, steps, back)
    to_q = aten.bmm(d, Transposed(t))
    to_v, out = ToValues(q, t, g, p, is_apart, steps), Out(q, t, v, p, is_apart, steps)
    return to_q, aten.bmm(Transposed(q), d), to_v, out


@pattern
def WithoutQueries(q, t, v, g, p, is_apart, steps, back):
    assert q.rank == 3 and t.rank == 3 and v.rank == 3 and g.rank == 3
    assert g.shape[1] == q.shape[1]
    to_t = aten.bmm(Transposed(q), Gradient(q, t, v, g, p, is_apart, steps, back))
    to_v, out = ToValues(q, t, g, p, is_apart, steps), Out(q, t, v, p, is_apart, steps)
    return to_t, to_v, out


@pattern
def ValuesAlone(q, t, v, g, p, steps):
    p <= Softmax(BatchedScores(q, t, steps))
    return aten.bmm(Transposed(UnderLooseSteps(p)), g), aten.bmm(UnderLooseSteps(p), v)


# --- the rules ------------------------------------------------------------------------------------


@rule(Whole)
def attention(q, t, v, g, steps, back, match):
    return fused(match, q, t, v, g, steps, back)


@rule(WithoutQueries)
def attention_of_fixed_queries(q, t, v, g, steps, back, match):
    found = fused(match, q, t, v, g, steps, back)
    return found[1:] if isinstance(found, tuple) else found


@rule(ValuesAlone)
def attention_by_fixed_weights(q, t, v, g, steps, match):
    found = fused(match, q, t, v, g, steps, None)
    return found[2:] if isinstance(found, tuple) else found


def fused(match, q, t, v, g, steps, back):
    """Return the gradients of q, t and v, and the result, by the kernel; or decline.

    Arguments:
        match: the match of a rule.
        q: the queries [B * H, S, D].
        t: the keys, transposed: [B * H, D, T].
        v: the values [B * H, T, D].
        g: the gradient of the result, [B * H, S, D].
        steps: the steps on the scores, as in `pypm.rules.attention.score_steps`.
        back: the steps on the gradient of the scores; None if neither q nor t has a gradient.
    """
    if back is not None and not undoes(back, steps):
        return decline("the gradient does not go back through the same scales and masks")
    reason = unclear_sum(match)
    if reason is not None:
        return decline(reason)
    if any(kind in ("tanh", "lower", "raise") for kind, *_ in steps):
        return decline("the kernel neither caps scores nor subtracts their maximum")
    kinds = {kind for kind, _, c, *_ in steps if kind in FILLS or not is_scalar(c)}
    filled = bool(kinds & FILLS)
    if filled and kinds - FILLS:
        return decline("some masks are filled in and others added")
    if not same_size(g.shape[1], q.shape[1]):
        return decline("what arrives is broadcast")
    if not same_size(g.shape[2], v.shape[2]):
        return decline("what arrives is not of the width of the values")
    batch = heads_of(q, [shape for _, shape, *_ in steps])
    causal, steps = causally(steps, q.shape[1], q.dtype)
    steps = [over(step, (*batch, q.shape[1])) for step in steps]
    if None in steps:
        return decline("a mask is larger than the scores")
    folded = fold(steps, q.dtype)
    if isinstance(folded, str):
        return decline(folded)
    scale, factors, mask = folded
    if not all(factor.dtype == torch.bool for factor in factors):  # booleans are covered rows
        return decline("the scores are scaled by a tensor")
    numbers = {c for kind, *_, c in steps if kind in FILLS and math.isfinite(c)}
    for covered in factors if len(numbers) == 1 else ():  # so low that no score is seen beside it
        mask = mask.masked_fill(covered & mask.isfinite(), LOWEST)
    heads = [x.reshape(*batch, *x.shape[1:]) for x in (q, t.transpose(1, 2), v, g)]
    reason = unsupported(*heads[:3], mask)
    if reason is not None or g.dtype != q.dtype:
        return decline(reason or "what arrives is of another type")
    *heads, g = heads
    found = attention_and_gradients(*heads, mask, g, scale=scale, causal=causal, filled=filled)
    out, to_q, to_k, to_v = (x.flatten(0, 1) for x in found)
    return to_q, to_k.transpose(1, 2), to_v, out


FILLS = {"fill", "keep", "causal fill", "causal keep"}


def undoes(back, steps):
    """Return whether the steps on the gradient, `back`, are the derivative of those on the scores.

    They are if both have the same scale, and the gradient is 0 where scores are replaced.
    """
    scales = [c for kind, *_, c in (*back, *steps) if kind in ("mul", "div")]
    ours, theirs = (
        {(kind.removeprefix("causal "), id(b[0])) for kind, _, *b in some if kind in FILLS}
        for some in (back, steps)
    )
    if ours != theirs or not all(map(is_scalar, scales)):
        return False
    return math.isclose(factor(back), factor(steps), rel_tol=1e-6) and 0 not in scales


def factor(steps):
    """Return the product of the numbers by which steps scale."""
    numbers = ((kind, c) for kind, *_, c in steps if kind in ("mul", "div"))
    return math.prod(c if kind == "mul" else 1 / c for kind, c in numbers)


def subsets(rule):
    """Return the rule, which then also matches if the graph lacks some of the gradients.

    The first root and the last one must be in the graph: the first binds the names.
    """
    first, *between, out = rule.roots
    absent = [(root, None) for root in between]
    partial = tuple((first, *some, out) for some in itertools.product(*absent))
    return replace(rule, partial=partial[1:])


RULES = RuleSet(
    (
        subsets(attention),
        subsets(attention_of_fixed_queries),
        attention_by_fixed_weights,
    ),
    "training",
)
