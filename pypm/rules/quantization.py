"""RMSNorm of a sum, quantized to int8 with a scale for each row, which is computed.

On CPUs, at Inductor's hooks and in exported programs: there the kernel is a candidate, which a
choice measures. It computes in another order, so a value half way between two quantized ones may
become the other one.
"""

import math
import operator

import torch

from pypm import RuleSet, decline, let, pattern, predicate, record, rule, var
from pypm.fx import GETITEM, aten, known_to_hold, metadata, prims
from pypm.kernels.quantized_norm import quantized_norm, unsupported
from pypm.kernels.support.devices import off_cpu
from pypm.rules.norm import AnyRMS, Total
from pypm.rules.replacement.types import IN_FLOAT64, in_float64
from pypm.rules.vocabulary.shapes import NoOp, NoOpOrRounding, Rows, Wide

FEW = 2**18
"""Elements below which a call takes longer than what Inductor makes."""

# --- numbers -------------------------------------------------------------------------------------


@predicate(nearest=torch.abs)
def is_positive(number):
    """Return whether a number is above zero, and finite."""
    return 0 < number < math.inf


@predicate(nearest=lambda least, most: (least, torch.maximum(least, most)))
def are_in_order(least, most):
    """Return whether limits have a number between them."""
    return least <= most


def nearest_levels(least, most):
    """Return the limits of levels that are nearest to others."""
    least, most = (n.round().clamp(-128, 127) for n in (least, most))
    return least, torch.maximum(least, most)


@predicate(nearest=nearest_levels)
def are_levels(least, most):
    """Return whether two numbers are limits of int8: whole, so that it matters not whether they
    clamp before or after values are rounded.
    """
    return all(int(n) == n for n in (least, most)) and -128 <= least <= most <= 127


# --- the scale -----------------------------------------------------------------------------------


@pattern(through=NoOpOrRounding)
def Largest(x):  # max |x| of each row, whose dimension may be kept
    y = var()
    y <= aten.abs(x)
    return aten.amax(y, [-1], _) | GETITEM(aten.max(y, -1, _), 0)


@pattern(through=NoOpOrRounding)
def Largest(x):
    y = var()
    y <= aten.abs(x)
    return aten.unsqueeze(aten.amax(y, [-1], False) | GETITEM(aten.max(y, -1, False), 0), -1)


@pattern(through=NoOp)
def Column(s, x):  # that dimension is there
    c = aten.unsqueeze(s, -1)
    assert c.rank == x.rank
    return c


@pattern
def Column(s, x):
    assert s.rank == x.rank
    return s


@pattern(through=NoOpOrRounding, means=lambda x, low: x.clamp(min=low))
def AtLeast(x, low):
    c = var()
    let(low=c.value)
    return aten.clamp(x, c) | aten.maximum(x, c)


@pattern(through=NoOpOrRounding, means=lambda x, high: x.clamp(max=high))
def AtMost(x, high):
    c = var()
    let(high=c.value)
    return aten.clamp(x, None, c) | aten.minimum(x, c)


@pattern(through=NoOpOrRounding, means=lambda x, top: x / top)
def Over(x, top):  # x / top
    c = var()
    let(top=c.value)
    return x / c


@pattern(through=NoOpOrRounding)
def Over(x, top):
    c = var()
    let(top=1 / c.value)
    return x * c


@pattern
def Step(m, top, low):  # max(m, low) / top
    assert is_positive(top)
    return Over(AtLeast(m, low), top)


@pattern
def Step(m, top, low):
    least = var()
    y = AtLeast(Over(m, top), least)
    let(low=least * top)
    assert is_positive(top)
    return y


@pattern
def Step(m, top, low):
    let(low=0 * top)  # not a constant, for which proofs would have ways of its own
    assert is_positive(top)
    return Over(m, top)


def step_of_rows(x, top, low, is_kept):
    """Return the step of each row, whose dimension may be kept."""
    return x.abs().amax(-1, is_kept).clamp(min=low) / top


@pattern(means=step_of_rows)
def StepOfRows(x, top, low, is_kept):
    let(is_kept=True)
    s = Step(Largest(Wide(x)), top, low)
    assert s.rank == x.rank
    return s


@pattern
def StepOfRows(x, top, low, is_kept):
    let(is_kept=False)
    s = Step(Largest(Wide(x)), top, low)
    assert s.rank != x.rank
    return s


# --- steps of that size --------------------------------------------------------------------------


@pattern(through=NoOpOrRounding, means=torch.div)
def InSteps(x, c):
    return Wide(x) / c | Wide(x) * (aten.reciprocal(c) | aten.reciprocal(c) * 1 | 1 / c)


@pattern(through=NoOpOrRounding, means=torch.clamp)
def Clamped(x, least, most):
    low, high = var(), var()
    let(least=low.value)
    let(most=high.value)
    return aten.clamp(x, low, high)


@pattern
def Clamped(x, least, most):
    return AtMost(AtLeast(x, least), most)


@pattern
def Clamped(x, least, most):
    y = AtLeast(AtMost(x, most), least)
    assert are_in_order(least, most)
    return y


@pattern(through=NoOpOrRounding)
def Levels(x, least, most):  # to the nearest, before or after
    return aten.round(Clamped(x, least, most)) | Clamped(aten.round(x), least, most)


@pattern(means=lambda x: x.to(torch.int8))
def Int8(x):
    q = prims.convert_element_type(x, ...) | aten._to_copy(x, ...) | aten.to(x, ...)
    assert q.dtype == torch.int8
    return q


@pattern(means=lambda x: x.to(torch.float8_e4m3fn))
def Float8(x):
    q = prims.convert_element_type(x, ...) | aten._to_copy(x, ...) | aten.to(x, ...)
    assert q.dtype == torch.float8_e4m3fn
    return q


@pattern(means=lambda x, c, least, most: (x / c).clamp(least, most).round().to(torch.int8))
def Quantized(x, c, least, most):
    assert least is not None and most is not None and are_levels(least, most)
    return Int8(Levels(InSteps(x, c), least, most))


@pattern(means=lambda x, c, least, most: (x / c).clamp(least, most).to(torch.float8_e4m3fn))
def Saturated(x, c, least, most):  # the type itself rounds
    assert least is not None and most is not None
    return Float8(Clamped(InSteps(x, c), least, most))


@pattern
def SumInItsSteps(x, y, w, offset, eps, scheme):
    total = Total(x, y)
    n = AnyRMS(total, w, offset, eps)
    z, c, s = Rows(n), var(), var()
    top, low, least, most, is_kept = var(), var(), var(), var(), var()
    let(scheme=record(top=top, low=low, least=least, most=most))
    q = Quantized(z, c, least, most)
    c <= Column(s, z)
    s <= StepOfRows(z, top, low, _)
    assert n.dtype == x.dtype
    return q, s, total


# --- the rule ------------------------------------------------------------------------------------


@rule(SumInItsSteps, unless=off_cpu, pays="sometimes")
def add_rms_norm_quantized(x, y, w, offset, eps, scheme, match):
    assert x.rank > 0 and (w is None or w.shape == x.shape[-1:])
    assert x.shape == y.shape
    if known_to_hold(operator.lt, x.numel(), FEW):
        return decline(f"fewer than {FEW:,} elements")
    top, low, least, most = scheme.top, scheme.low, scheme.least, scheme.most
    if in_float64(match, x):
        return decline(IN_FLOAT64)
    reason = unsupported(x, y, w)
    if reason is not None:
        return decline(reason)
    w = w + offset if offset else w
    q, scales, total = quantized_norm(x, y, w, eps, top, low, least, most)
    return [  # in the shapes of the match's roots, of which the graph may lack some
        result if root is None else result.reshape(metadata(root).shape)
        for result, root in zip((q, scales, total), match.roots, strict=True)
    ]


RULES = RuleSet((add_rms_norm_quantized,), "quantization")
