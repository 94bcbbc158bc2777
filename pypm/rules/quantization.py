"""RMSNorm, also of a sum, whose result is quantized: float8 (e4m3) or int8, in one pass over a row.

The scale is given, or that of a row or of groups of a row. On GPUs, at Inductor's hooks and in
exported programs; on CPUs there is no kernel, and the rules hold back. A value half way between two
of eight bits may become the other one: the norm is computed in float32 and in another order.
"""

import torch

from pypm import RuleSet, decline, let, pattern, rule, var
from pypm.fx.operators import GETITEM, aten, prims
from pypm.fx.view import metadata
from pypm.kernels.quantized import quantized_norm, unsupported
from pypm.rules.norm import AnyRMS, Loose, Wide
from pypm.rules.spellings import FLOATS, NoOp, Reshape

# --- the scale -----------------------------------------------------------------------------------


@pattern(through=Loose)
def Largest(x):  # max |x| of each row, whose dimension may be kept
    y = var()
    y <= aten.abs(x)
    return aten.amax(y, [-1], _) | GETITEM(aten.max(y, -1, _), 0)


@pattern(through=Loose)
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


@pattern(through=Loose)
def AtLeast(x, low):
    c = var()
    let(low=c.value)
    return aten.clamp(x, c) | aten.clamp_min(x, c) | aten.maximum(x, c)


@pattern(through=Loose)
def AtMost(x, high):
    c = var()
    let(high=c.value)
    return aten.clamp(x, None, c) | aten.clamp_max(x, c) | aten.minimum(x, c)


@pattern(through=Loose)
def Over(x, top):  # x / top
    c = var()
    let(top=c.value)
    return x / c


@pattern(through=Loose)
def Over(x, top):
    c = var()
    let(top=1 / c.value)
    return x * c


@pattern
def Step(x, top, low):  # max(max |x|, low) / top
    return Over(AtLeast(Largest(Wide(x)), low), top)


@pattern
def Step(x, top, low):
    least = var()
    y = AtLeast(Over(Largest(Wide(x)), top), least)
    let(low=least * top)
    return y


@pattern
def Step(x, top, low):
    let(low=0.0)
    return Over(Largest(Wide(x)), top)


# --- steps of that size --------------------------------------------------------------------------


@pattern(through=Loose)
def InSteps(x, c):
    return Wide(x) / c | Wide(x) * (aten.reciprocal(c) | aten.reciprocal(c) * 1 | 1 / c)


@pattern(through=Loose)
def Clamped(x, least, most):
    return aten.clamp(x, least, most) | AtLeast(AtMost(x, most), least)


@pattern
def Clamped(x, least, most):
    return AtMost(AtLeast(x, least), most)


@pattern(through=Loose)
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
    s <= Step(z, top, low)
    let(group=z.shape[-1])
    assert s.dtype == torch.float32
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


# --- the rules -----------------------------------------------------------------------------------


@rule(NormInItsSteps)
def rms_norm_quantized(x, w, offset, eps, kind, group, top, low, least, most, match):
    assert x.dtype in FLOATS and x.rank > 0 and (w is None or w.shape == x.shape[-1:])
    return fused(x, None, w, None, eps, offset, kind, group, top, low, least, most, match)


@rule(SumInItsSteps)
def add_rms_norm_quantized(x, y, w, offset, eps, kind, group, top, low, least, most, match):
    assert x.dtype in FLOATS and x.rank > 0 and (w is None or w.shape == x.shape[-1:])
    assert x.shape == y.shape
    return fused(x, y, w, None, eps, offset, kind, group, top, low, least, most, match)


@rule(NormInSteps)
def rms_norm_scaled(x, w, offset, eps, kind, s, least, most, match):
    assert x.dtype in FLOATS and x.rank > 0 and (w is None or w.shape == x.shape[-1:])
    n = x.shape[-1]
    return fused(x, None, w, s, eps, offset, kind, n, 1.0, 0.0, least, most, match)


@rule(SumInSteps)
def add_rms_norm_scaled(x, y, w, offset, eps, kind, s, least, most, match):
    assert x.dtype in FLOATS and x.rank > 0 and (w is None or w.shape == x.shape[-1:])
    assert x.shape == y.shape
    n = x.shape[-1]
    return fused(x, y, w, s, eps, offset, kind, n, 1.0, 0.0, least, most, match)


def fused(x, y, w, scale, eps, offset, kind, group, top, low, least, most, match):
    dtype = metadata(match.root).dtype
    reason = unsupported(group, dtype, x, y, w, scale)
    if reason is not None:
        return decline(reason)
    if x.shape[-1] % group or top <= 0:
        return decline("the groups are not those of a row, or the steps are not positive")
    q, scales, total = quantized_norm(
        x, y, w, scale, eps, offset, kind, group, top, low, least, most, dtype
    )
    results = (q, *([] if scale is not None else [scales]), *([] if y is None else [total]))
    return [
        result if root is None else result.reshape(metadata(root).shape)
        for result, root in zip(results, match.roots, strict=True)
    ]


RULES = RuleSet(
    (add_rms_norm_quantized, rms_norm_quantized, add_rms_norm_scaled, rms_norm_scaled),
    "quantization",
)
