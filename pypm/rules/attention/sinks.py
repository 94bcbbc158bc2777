"""Attention with sinks: among the scores of each query is one that belongs to no key."""

import torch

from pypm import decline, let, pattern, rule, var
from pypm.fx import aten, is_scalar, same_size, trained
from pypm.kernels.attention import attention_with_sinks
from pypm.rules.attention.heads import Heads
from pypm.rules.attention.meanings import scored
from pypm.rules.attention.patterns import Scored
from pypm.rules.attention.rules import agree, replaced
from pypm.rules.vocabulary.products import MM
from pypm.rules.vocabulary.shapes import LooseStep, UnderLooseSteps, rows
from pypm.rules.vocabulary.softmax import RowMax, Softmax, normalized


def lowered(x, is_lowered, shape):
    """Return rows, less the largest of each where it `is_lowered`, which changes no weight."""
    return rows(x - x.amax(-1, True) if is_lowered else x, shape)


def beside_sinks(x, sinks, shape):
    """Return the weights of the keys, without that of the sink: their rows in a shape."""
    e = torch.exp(x)
    return rows(e / (e.sum(-1, True) + torch.exp(sinks)), shape)


def weights_beside(scores, sinks, shape=None):
    """Return the weights of scores, whose rows are grouped as those of sinks."""
    x = rows(scored(scores), sinks.shape)
    return beside_sinks(x, sinks, x.shape if shape is None else shape)


@pattern(through=LooseStep, means=lowered)
def Lowered(x, is_lowered):  # the largest score is subtracted beforehand
    let(is_lowered=True)
    return x - RowMax(x)


@pattern
def Lowered(x, is_lowered):
    let(is_lowered=False)
    return UnderLooseSteps(x)


@pattern(means=normalized)
def SoftmaxOfLowered(x):
    is_lowered = var()
    return Softmax(Lowered(x, is_lowered))


@pattern(through=LooseStep, means=beside_sinks)
def BesideSinks(x, sinks):
    w = SoftmaxOfLowered(aten.cat([x, sinks], -1))
    y = aten.slice(w, -1, 0, _, 1) | aten.slice(w, -1, None, _, 1)
    assert sinks.shape[-1] == 1 and y.shape[-1] == x.shape[-1]
    return y


@pattern(through=LooseStep)
def BesideSinks(x, sinks):
    y = aten.slice(SoftmaxOfLowered(aten.cat([sinks, x], -1)), -1, 1, _, 1)
    assert sinks.shape[-1] == 1 and y.shape[-1] == x.shape[-1]
    return y


@pattern(means=weights_beside)
def WeightsBesideSinks(scores, sinks):
    assert sinks.shape[-1] == 1
    return BesideSinks(Scored(scores), sinks)


@pattern
def AttentionWithSinks(scores, v, lv, sinks):
    return MM(WeightsBesideSinks(scores, sinks), Heads(v, lv))


@rule(AttentionWithSinks, pays="mostly")
def sdpa_with_sinks(scores, v, lv, sinks, match):
    assert agree(scores.layout, lv, scores.q.shape, scores.k.shape, v.shape)
    if trained():
        return decline("the kernel has no gradient for sinks")
    if scores.q.device.type != "cpu":
        return decline("the kernel that tells the sum of all weights is for CPUs")
    if any(kind in ("add", "sub", "lower") and is_scalar(m) for kind, *_, m in scores.steps):
        return decline("a number that is added to every score but the sink changes the weights")

    def kernel(q, k, v, mask, *, scale, causal):
        if any(same_size(n, 0) for n in (*q.shape, *k.shape)):
            return "the kernel is not for tensors without elements"
        of_rows = sinks.reshape(*q.shape[:3], 1)
        return attention_with_sinks(q, k, v, of_rows, mask, scale=scale, causal=causal)

    return replaced(match, scores, v, lv, kernel=kernel)
