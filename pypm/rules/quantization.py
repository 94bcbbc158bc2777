"""Quantized RMSNorm, also of a sum, and quantized activations: to float8 (e4m3) or int8.

The scale is given, or computed for each row, for groups of a row, or for the whole tensor. For the
whole tensor, the kernel computes a norm twice, which moves less memory than storing it. An
activation with one scale for the whole tensor is left alone: `torch.compile` computes it twice
itself. The rules are for GPUs, at Inductor's hooks and in exported programs. On CPUs the norm of a
sum to int8, with a scale for each row, is a candidate, which a choice measures. The kernels compute
in float32 and in another order, so a value half way between two quantized ones may become the other
one.
"""

import operator

import torch

from pypm import RuleSet, decline, let, pattern, predicate, rule, var
from pypm.fx import GETITEM, aten, known_to_hold, metadata, prims
from pypm.kernels.quantized import quantized_norm, unsupported, unsupported_on_cpus
from pypm.kernels.quantized_activation import quantized_activation
from pypm.kernels.quantized_activation import unsupported as unsupported_activation
from pypm.kernels.support.triton import off_cpu, off_gpu, on_cpu
from pypm.rules.activation import Activated, Gated
from pypm.rules.dtypes import IN_FLOAT64, in_float64
from pypm.rules.norm import AnyRMS
from pypm.rules.spellings import Cast, MaybeRounded, NoOp, Reshape, Wide

FEW = 2**19
"""Elements below which, on a CPU, a call takes longer than what Inductor makes."""

# --- the scale -----------------------------------------------------------------------------------


@pattern(through=MaybeRounded)
def Largest(x):  # max |x| of each row, whose dimension may be kept
    y = var()
    y <= aten.abs(x)
    return aten.amax(y, [-1], _) | GETITEM(aten.max(y, -1, _), 0)


@pattern(through=MaybeRounded)
def Largest(x):
    y = var()
    y <= aten.abs(x)
    return aten.unsqueeze(aten.amax(y, [-1], False) | GETITEM(aten.max(y, -1, False), 0), -1)


@predicate
def are_all(dims, rank):
    return not dims or len({d % rank for d in dims}) == rank


@pattern(through=MaybeRounded)
def LargestOfAll(x):  # of the whole tensor
    d, y = var(), var()
    y <= aten.abs(x)
    m = aten.amax(y, d, _)
    assert are_all(d, y.rank)
    return m


@pattern(through=MaybeRounded)
def LargestOfAll(x):
    return aten.max(aten.abs(x))


@pattern(through=NoOp)
def Column(s, x):  # that dimension is there
    c = aten.unsqueeze(s, -1)
    assert c.rank == x.rank
    return c


@pattern
def Column(s, x):
    assert s.rank == x.rank
    return s


@pattern(through=MaybeRounded)
def AtLeast(x, low):
    c = var()
    let(low=c.value)
    return aten.clamp(x, c) | aten.maximum(x, c)


@pattern(through=MaybeRounded)
def AtMost(x, high):
    c = var()
    let(high=c.value)
    return aten.clamp(x, None, c) | aten.minimum(x, c)


@pattern(through=MaybeRounded)
def Over(x, top):  # x / top
    c = var()
    let(top=c.value)
    return x / c


@pattern(through=MaybeRounded)
def Over(x, top):
    c = var()
    let(top=1 / c.value)
    return x * c


@pattern
def Step(m, top, low):  # max(m, low) / top
    return Over(AtLeast(m, low), top)


@pattern
def Step(m, top, low):
    least = var()
    y = AtLeast(Over(m, top), least)
    let(low=least * top)
    return y


@pattern
def Step(m, top, low):
    let(low=0.0)
    return Over(m, top)


# --- steps of that size --------------------------------------------------------------------------


@pattern(through=MaybeRounded)
def InSteps(x, c):
    return Wide(x) / c | Wide(x) * (aten.reciprocal(c) | aten.reciprocal(c) * 1 | 1 / c)


@pattern(through=MaybeRounded)
def Clamped(x, least, most):
    return aten.clamp(x, least, most) | AtLeast(AtMost(x, most), least)


@pattern
def Clamped(x, least, most):
    return AtMost(AtLeast(x, least), most)


@pattern(through=MaybeRounded)
def Levels(x, least, most, rounds):  # to the nearest, before or after
    let(rounds=True)
    return aten.round(Clamped(x, least, most)) | Clamped(aten.round(x), least, most)


@pattern
def Levels(x, least, most, rounds):
    let(rounds=False)
    return Clamped(x, least, most)


@pattern
def Quantized(x, c, least, most):  # float8 rounds by itself
    y, r, z = var(), var(), var()
    z <= Levels(y, least, most, r)
    y <= InSteps(x, c)
    assert least is not None and most is not None
    q = prims.convert_element_type(z, ...) | aten._to_copy(z, ...) | aten.to(z, ...)
    assert (q.dtype == torch.int8 and r) or (q.dtype == torch.float8_e4m3fn and not r)
    return q


@pattern
def Groups(x):  # rows as they are, or cut into shorter ones
    return Reshape(x) | x


@pattern
def InItsSteps(x, s, group, top, low, least, most):  # the scale s is that of each row or group
    z, c = Groups(x), var()
    q = Quantized(z, c, least, most)
    c <= Column(s, z)
    s <= Step(Largest(Wide(z)), top, low)
    let(group=z.shape[-1])
    return q


@pattern
def InItsSteps(x, s, group, top, low, least, most):  # that of the whole tensor
    z = Groups(x)
    q = Quantized(z, s, least, most)
    s <= Step(LargestOfAll(Wide(z)), top, low)
    let(group=0)
    return q


@pattern
def InSomeSteps(x, s, least, most):  # there is one scale for all
    z = Groups(x)
    q = Quantized(z, s, least, most)
    assert s.numel == 1 and s.dtype == torch.float32
    return q


# --- of a norm -----------------------------------------------------------------------------------


@pattern
def NormInItsSteps(x, w, offset, eps, kind, s, group, top, low, least, most):
    n = AnyRMS(x, w, offset, eps)
    let(kind=n.dtype)
    return InItsSteps(n, s, group, top, low, least, most), s


@pattern
def SumInItsSteps(x, y, w, offset, eps, kind, s, group, top, low, least, most):
    total = x + y
    n = AnyRMS(total, w, offset, eps)
    let(kind=n.dtype)
    return InItsSteps(n, s, group, top, low, least, most), s, total


@pattern
def NormInSteps(x, w, offset, eps, kind, s, least, most):
    n = AnyRMS(x, w, offset, eps)
    let(kind=n.dtype)
    return InSomeSteps(n, s, least, most)


@pattern
def SumInSteps(x, y, w, offset, eps, kind, s, least, most):
    total = x + y
    n = AnyRMS(total, w, offset, eps)
    let(kind=n.dtype)
    return InSomeSteps(n, s, least, most), total


# --- of an activation ----------------------------------------------------------------------------


@pattern
def AnyActivation(gate, activation, up=None):
    return Gated(gate, up, activation)


@pattern
def AnyActivation(gate, activation, up=None):
    return Cast(Activated(gate, activation))


@pattern
def ActivationInItsSteps(gate, activation, up, kind, s, group, top, low, least, most):
    n = AnyActivation(gate, activation, up)
    let(kind=n.dtype)
    return InItsSteps(n, s, group, top, low, least, most), s


@pattern
def ActivationInSteps(gate, activation, up, kind, s, least, most):
    n = AnyActivation(gate, activation, up)
    let(kind=n.dtype)
    return InSomeSteps(n, s, least, most)


# --- the rules -----------------------------------------------------------------------------------


@rule(NormInItsSteps, unless=off_gpu, pays="mostly")
def rms_norm_quantized(x, w, offset, eps, kind, group, top, low, least, most, match):
    assert x.rank > 0 and (w is None or w.shape == x.shape[-1:])
    return fused(x, None, w, None, eps, offset, kind, group, top, low, least, most, match)


@rule(SumInItsSteps, unless=off_gpu, pays="mostly")
def add_rms_norm_quantized(x, y, w, offset, eps, kind, group, top, low, least, most, match):
    assert x.rank > 0 and (w is None or w.shape == x.shape[-1:])
    assert x.shape == y.shape
    return fused(x, y, w, None, eps, offset, kind, group, top, low, least, most, match)


@rule(SumInItsSteps, unless=off_cpu, pays="sometimes")
def add_rms_norm_quantized_on_a_cpu(
    x, y, w, offset, eps, kind, group, top, low, least, most, match
):
    assert x.rank > 0 and (w is None or w.shape == x.shape[-1:])
    assert x.shape == y.shape
    if known_to_hold(operator.lt, x.numel(), FEW):
        return decline(f"fewer than {FEW:,} elements")
    return fused(x, y, w, None, eps, offset, kind, group, top, low, least, most, match)


@rule(NormInSteps, unless=off_gpu, pays="mostly")
def rms_norm_scaled(x, w, offset, eps, kind, s, least, most, match):
    assert x.rank > 0 and (w is None or w.shape == x.shape[-1:])
    n = x.shape[-1]
    return fused(x, None, w, s, eps, offset, kind, n, 1.0, 0.0, least, most, match)


@rule(SumInSteps, unless=off_gpu, pays="mostly")
def add_rms_norm_scaled(x, y, w, offset, eps, kind, s, least, most, match):
    assert x.rank > 0 and (w is None or w.shape == x.shape[-1:])
    assert x.shape == y.shape
    n = x.shape[-1]
    return fused(x, y, w, s, eps, offset, kind, n, 1.0, 0.0, least, most, match)


def fused(x, y, w, scale, eps, offset, kind, group, top, low, least, most, match):
    """Return a quantized norm by the kernel, or decline.

    Arguments:
        x, y: [..., columns]; the norm is of x + y, or of x if y is None.
        w: the weight [columns], or None; `offset` is added to it.
        scale: the given scale, or None: then it is computed.
        eps: a number that is added to the mean square.
        kind: the dtype in which the norm is quantized.
        group: the number of columns that share a scale; 0 for the whole tensor.
        top, low: a computed scale is max(largest magnitude, low) / top.
        least, most: the limits to which quantized values are clamped.
        match: the match, which gives the dtypes and shapes of the results.

    The results are those of the rule's roots: the quantized norm, the scales unless they are given,
    and x + y unless y is None.
    """
    dtype = metadata(match.root).dtype
    if on_cpu(x):
        reason = unsupported_on_cpus(x, y, w, scale, kind, group, dtype)
    else:
        reason = unsupported(group, dtype, x, y, w, scale)
    reason = reason or misfit(match, x, group, top, (least, most))
    if reason is not None:
        return decline(reason)
    q, scales, total = quantized_norm(
        x, y, w, scale, eps, offset, kind, group, top, low, least, most, dtype
    )
    results = (q, *([] if scale is not None else [scales]), *([] if y is None else [total]))
    return shaped(results, match)


@rule(ActivationInItsSteps, unless=off_gpu, pays="mostly")
def activation_quantized(gate, activation, up, kind, group, top, low, least, most, match):
    assert gate.rank > 0
    if group == 0:
        return decline("of a whole tensor, torch.compile computes the activation twice by itself")
    return activated(gate, up, None, activation, kind, group, top, low, least, most, match)


@rule(ActivationInSteps, unless=off_gpu, pays="mostly")
def activation_scaled(gate, activation, up, kind, s, least, most, match):
    assert gate.rank > 0
    n = gate.shape[-1]
    return activated(gate, up, s, activation, kind, n, 1.0, 0.0, least, most, match)


def activated(gate, up, scale, activation, kind, group, top, low, least, most, match):
    """Return a quantized activation(gate) * up by the kernel, or decline.

    Arguments:
        gate, up: [..., columns]; up may be None.
        activation: the name of the activation.

    The other arguments are those of `fused`. The results are the quantized values, and the scales
    unless they are given.
    """
    dtype = metadata(match.root).dtype
    reason = unsupported_activation(group, dtype, gate, up, scale) or misfit(
        match, gate, group, top, (least, most)
    )
    if reason is not None:
        return decline(reason)
    q, scales = quantized_activation(
        gate, up, scale, activation, kind, group, top, low, least, most, dtype
    )
    return shaped([q] if scale is not None else [q, scales], match)


def misfit(match, x, group, top, limits):
    """Return the reason for which no kernel quantizes x like this, or None.

    The arguments are those of `fused`; `limits` are `least` and `most`.
    """
    are_whole = all(-128 <= n <= 127 and n == int(n) for n in limits)
    if metadata(match.root).dtype == torch.int8 and not are_whole:
        return "the limits are not whole numbers of eight bits"  # the kernel clamps, then rounds
    if limits[0] > limits[1]:
        return "the upper limit is below the lower one"
    if in_float64(match, x):
        return IN_FLOAT64
    if top <= 0 or (group and x.shape[-1] % group):
        return "the groups are not those of a row, or the steps are not positive"
    return None


def shaped(results, match):
    """Return the results in the shapes of the match's roots; unused ones unchanged."""
    return [
        result if root is None else result.reshape(metadata(root).shape)
        for result, root in zip(results, match.roots, strict=True)
    ]


RULES = RuleSet(
    (
        add_rms_norm_quantized,
        add_rms_norm_quantized_on_a_cpu,
        rms_norm_quantized,
        activation_quantized,
        add_rms_norm_scaled,
        rms_norm_scaled,
        activation_scaled,
    ),
    "quantization",
)
