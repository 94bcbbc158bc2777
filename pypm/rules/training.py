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
from pypm.rules.attention.meanings import regrouped
from pypm.rules.attention.patterns import Affine
from pypm.rules.attention.rules import unclear_sum
from pypm.rules.attention.score_steps import LOWEST, causally, fold, over
from pypm.rules.vocabulary.shapes import LooseStep, Transposed, UnderLooseSteps, rows
from pypm.rules.vocabulary.softmax import Softmax

# --- weights: p = softmax(x) with x = q t scale + mask, and t = k^T -------------------------------
#
# Autograd has every matrix product as `bmm`, whose operands are what is bound: [B * H, S, D].


def quotient(p, z):
    """Return the weights of exponentials and their sums, or those that are weights already."""
    return p if z is None else p / rows(z, p.shape)


@pattern
def BatchedScores(q, t, steps):
    return Affine(aten.bmm(q, t), steps)


@pattern(means=lambda p, z, shape: rows(quotient(p, z), shape))
def WeightsOf(p, z):
    let(z=None)
    return UnderLooseSteps(p)


@pattern
def WeightsOf(p, z):  # of a softmax written out: e / z, with e for p
    return UnderLooseSteps(p / z)


# --- the gradient of the softmax ------------------------------------------------------------------


def regrouped_rows(x, shape):
    """Return the same rows, in a shape if one is given."""
    return x if shape is None else rows(x, shape)


def largest(x, shape=None):
    """Return the largest of each row."""
    return regrouped_rows(x.amax(-1, True), shape)


def exponentials(x, m, shape=None):
    """Return the exponentials of scores, less the largest of each row if that is given."""
    y = x if m is None else x - rows(m, x.shape)
    return regrouped_rows(torch.exp(y), shape)


def sums(p, shape=None):
    """Return the sum of each row."""
    return regrouped_rows(p.sum(-1, True), shape)


def of_softmax(p, d, shape):
    """Return the gradient of scores by their softmax p and what arrives at it."""
    p = rows(p, d.shape)
    return rows(p * (d - (d * p).sum(-1, True)), shape)


def of_quotient(e, z, d, shape):
    """Return the gradient of that of which e is the exponential, where d arrives at e / z, and e at
    z as the sum of each row.
    """
    e, z = rows(e, d.shape), rows(z, d.shape)
    return rows((d / z - (d * e / z / z).sum(-1, True)) * e, shape)


def of_maximum(d, x, m, shape):
    """Return the gradient of x where d arrives at x - m, and m is the largest of each row."""
    x, m = rows(x, d.shape), rows(m, d.shape)
    return rows(d - d.sum(-1, True) / (m == x).sum(-1, True) * (m == x), shape)


@pattern
def OfScores(p, z, x, d):  # d arrives at the weights
    let(z=None)
    p <= Softmax(x)
    return OfSoftmax(p, d)


@pattern
def OfScores(p, z, x, d):  # p = exp(x - m) with m = max x, which may be detached, and z = sum p
    m = var()
    p <= Exponentials(x, m)
    z <= Sums(p)
    m <= Largest(x)
    return OfMaximum(OfQuotient(p, z, d), x, m) | OfQuotient(p, z, d)


@pattern
def OfScores(p, z, x, d):
    p <= Exponentials(x, None)
    z <= Sums(p)
    return OfQuotient(p, z, d)


@pattern(through=LooseStep, means=largest)
def Largest(x):
    return aten.amax(x, [-1], True)


@pattern(through=LooseStep, means=exponentials)
def Exponentials(x, m):
    return aten.exp(x - m)


@pattern(through=LooseStep)
def Exponentials(x, m):
    let(m=None)
    return aten.exp(x)


@pattern(through=LooseStep, means=sums)
def Sums(p):
    return aten.sum(p, [-1], True)


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
def OfQuotient(e, z, d):  # e (d / z - sum d e / z^2)
    of_sum = aten.sum(-d * (UnderLooseSteps(e) / z / z), [-1], True)
    return (d / z + aten.expand(of_sum, ...)) * UnderLooseSteps(e)


@pattern(through=LooseStep, means=of_maximum)
def OfMaximum(d, x, m):  # what arrives at the maximum is zero: the softmax is the same without it
    b = aten.eq(UnderLooseSteps(m), x)
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


@pattern
def Gradient(q, t, v, g, p, z, steps, back):  # of q t
    assert q.rank == 3 and t.rank == 3 and v.rank == 3
    d = UnderLooseSteps(aten.bmm(g, Transposed(v)))
    return Undone(OfScores(p, z, BatchedScores(q, t, steps), d), back)


@pattern(means=lambda g, p, z: quotient(p, z).reshape(*g.shape[:2], p.shape[-1]).mT @ g)
def ToValues(g, p, z):
    return aten.bmm(Transposed(WeightsOf(p, z)), g)


@pattern(means=lambda v, p, z, shape: quotient(p, z).reshape(*shape[:2], v.shape[1]) @ v)
def Out(v, p, z):
    return aten.bmm(WeightsOf(p, z), v)


@pattern
def Whole(q, t, v, g, p, z, steps, back):
    d = Gradient(q, t, v, g, p, z, steps, back)
    to_q = aten.bmm(d, Transposed(t))
    return to_q, aten.bmm(Transposed(q), d), ToValues(g, p, z), Out(v, p, z)


@pattern
def WithoutQueries(q, t, v, g, p, z, steps, back):
    to_t = aten.bmm(Transposed(q), Gradient(q, t, v, g, p, z, steps, back))
    return to_t, ToValues(g, p, z), Out(v, p, z)


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
    reason = unclear_sum(match)
    if reason is not None:
        return decline(reason)
    if back is not None and not undoes(back, steps):
        return decline("the gradient does not go back through the same scales and masks")
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
    if not all(map(is_scalar, scales)) or 0 in scales:
        return False
    forward = {(kind.removeprefix("causal "), id(b)) for kind, _, b, *_ in steps if kind in FILLS}
    backward = {(kind, id(b)) for kind, _, b in back if kind in FILLS}
    return forward == backward and math.isclose(factor(back), factor(steps), rel_tol=1e-6)


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
