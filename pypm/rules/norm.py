"""RMSNorm, LayerNorm, GroupNorm and InstanceNorm, in graphs that run as they are.

A norm becomes torch's own operator. Casts may be anywhere: the result is rounded once. For
training, use the rules before autograd. 512 rows of 4096 elements in float32, on one core of a CPU:

                 written out   one operator
    RMSNorm           7.5 ms         2.7 ms
    LayerNorm        10.6 ms         1.7 ms

Under torch.compile, both forms took 1.8 to 2.9 ms, so the rules decline; on GPUs it fuses a norm
with its neighbours as well.

`F.normalize(x) * sqrt(d)` of diffusion models is no RMSNorm: torch's operator adds eps to the mean
square, while here the length is at least eps, so rows near zero differ. It stays a division by the
length, which takes the factor: one pass over x less. With the factor at the length already,
`x / (vector_norm(x) * d**-0.5).clamp(min=eps)`, nothing is gained.

The weights of a GroupNorm must be finite: torch's operator multiplies the mean by them, and gives
NaN where the graph computes infinities from them.
"""

import functools

import torch
import torch.nn.functional as F

from pypm import RuleSet, decline, let, pattern, predicate, rule, var
from pypm.fx import GETITEM, aten, expect, metadata
from pypm.kernels.support.devices import under_torch_compile
from pypm.rules.replacement.types import in_float64
from pypm.rules.vocabulary.activations import Square
from pypm.rules.vocabulary.shapes import NoOpOrRounding, Reshape, Wide
from pypm.rules.vocabulary.types import FLOATS


def weighted(x, w, offset):
    return x if w is None else x * (w + offset)


def biased(x, b):
    return x if b is None else x + b


def standard(x, eps):
    return (x - x.mean(-1, True)) * (x.var(-1, correction=0, keepdim=True) + eps).rsqrt()


# --- parts ---------------------------------------------------------------------------------------


@pattern(through=NoOpOrRounding, means=lambda x: x.mean(-1, True))
def Mean(x):
    return aten.mean(x, [-1], True, ...)


@pattern(through=NoOpOrRounding)
def Mean(x):
    n, s = var(), aten.sum(x, [-1], True, ...)
    assert n.value == x.shape[-1]
    return s / n


@pattern(through=NoOpOrRounding, means=lambda x: x * x)
def SquareOf(x):
    return Square(x)


@pattern(means=torch.add)
def Total(x, y):
    return x + y


@pattern(through=NoOpOrRounding, means=torch.sqrt)
def Root(x):
    return aten.sqrt(x) | aten.pow(x, 0.5)


@pattern(through=NoOpOrRounding, means=torch.rsqrt)
def InverseRoot(x):  # 1 / sqrt x
    return aten.rsqrt(x) | aten.pow(x, -0.5)


@pattern(through=NoOpOrRounding)
def InverseRoot(x):
    y = var()
    y <= Root(x)
    return 1 / y | aten.reciprocal(y) | aten.reciprocal(y) * 1


@pattern(through=NoOpOrRounding, means=lambda x, v: x * v.rsqrt())
def OverRoot(x, v):  # x / sqrt v
    return x * InverseRoot(v) | x / Root(v)


@pattern(through=NoOpOrRounding, means=lambda w, offset: w + offset)
def Weight(w, offset):  # 1 + w
    let(offset=1.0)
    y = Wide(w)
    assert y.dtype in FLOATS  # integers wrap
    return y + 1


@pattern
def Weight(w, offset):
    let(offset=0.0)
    return Wide(w)


@pattern(through=NoOpOrRounding, means=weighted)
def Weighted(x, w=None, offset=0.0):
    return x * Weight(w, offset)


@pattern
def Weighted(x, w=None, offset=0.0):
    return x


@pattern(through=NoOpOrRounding, means=lambda x, v, w, offset: weighted(x * v.rsqrt(), w, offset))
def TimesInverseRoot(x, v, w, offset):  # x / sqrt v * w
    y = var()
    y <= OverRoot(x, v)
    return Weighted(y, w, offset)


@pattern(through=NoOpOrRounding)
def TimesInverseRoot(x, v, w, offset):
    y = var()
    y <= InverseRoot(v)
    return x * Weighted(y, w, offset)


@pattern(through=NoOpOrRounding, means=biased)
def Biased(x, b=None):
    return x + Wide(b)


@pattern
def Biased(x, b=None):
    return x


@pattern(through=NoOpOrRounding, means=lambda v, eps: v + eps)
def PlusEpsilon(v, eps):
    e = var()
    let(eps=e.value)
    return v + e


@pattern(through=NoOpOrRounding, means=lambda x: (x * x).mean(-1, True))
def MeanSquare(x):
    return Mean(SquareOf(x))


@pattern(through=NoOpOrRounding)
def MeanSquare(x):
    n, y = var(), SquareOf(Length(x))
    assert n.value == x.shape[-1]
    return y / n


@pattern(through=NoOpOrRounding, means=lambda x: (x * x).sum(-1, True).sqrt())
def Length(x):  # sqrt(sum x^2)
    return aten.linalg_vector_norm(x, 2, [-1], True, ...) | Root(aten.sum(SquareOf(x), [-1], True))


# --- the norms -----------------------------------------------------------------------------------


@pattern(
    means=lambda x, w, offset, eps: weighted(F.rms_norm(x, x.shape[-1:], None, eps), w, offset)
)
def RMS(x, w, offset, eps):  # x / sqrt(mean x^2 + eps) * w
    v, y = var(), var()
    y <= Wide(x)
    v <= PlusEpsilon(MeanSquare(Wide(x)), eps)
    return TimesInverseRoot(y, v, w, offset)


@pattern(through=NoOpOrRounding, means=lambda x: torch.var_mean(x, -1, correction=0, keepdim=True))
def Moments(x):
    return aten.var_mean(Wide(x), [-1], correction=0, keepdim=True)


@pattern(through=NoOpOrRounding, means=lambda x: x - x.mean(-1, True))
def Centered(x):  # x - mean x
    return Wide(x) - (Mean(Wide(x)) | GETITEM(Moments(x), 1))


@pattern(through=NoOpOrRounding, means=lambda x: x.var(-1, correction=0, keepdim=True))
def Variance(x):
    return Mean(SquareOf(Centered(x))) | GETITEM(Moments(x), 0)


@pattern(through=NoOpOrRounding)
def Variance(x):
    y = aten.var(Wide(x), [-1], correction=0, keepdim=True)
    return y | aten.var(Wide(x), [-1], False, True)


@pattern(means=lambda x, w, offset, eps: weighted(standard(x, eps), w, offset))
def Standardized(x, w, offset, eps):  # (x - mean x) / sqrt(var x + eps) * w
    v, y = var(), var()
    y <= Centered(x)
    v <= PlusEpsilon(Variance(x), eps)
    return TimesInverseRoot(y, v, w, offset)


@pattern(means=lambda x, w, offset, b, eps: biased(weighted(standard(x, eps), w, offset), b))
def LAYER(x, w, offset, b, eps):
    y = var()
    y <= Standardized(x, w, offset, eps)
    return Biased(y, b)


@pattern
def AtLeast(x, d, least):  # the length of x along d, or more
    e, n = var(), aten.linalg_vector_norm(x, 2, d, True)
    let(least=e.value)
    return aten.clamp_min(n, e) | aten.clamp(n, e)


@pattern
def Spread(x):
    return aten.expand_as(x, _) | aten.expand(x, ...) | x


@pattern
def ScaledUnit(x, d, least, c):  # x / max(length of x, least) * c
    n = var()
    let(c=n.value)
    return x / Spread(AtLeast(x, d, least)) * n


# --- also where the norm is one operator ---------------------------------------------------------


@pattern(
    means=lambda x, w, offset, eps: weighted(F.rms_norm(x, x.shape[-1:], None, eps), w, offset)
)
def AnyRMS(x, w, offset, eps):
    return RMS(x, w, offset, eps)


@pattern
def AnyRMS(x, w, offset, eps):
    n = var()
    let(offset=0.0)
    assert n == x.shape[-1:] and eps is not None
    return aten.rms_norm(x, n, w, eps)


@pattern(means=lambda x, w, offset, b, eps: biased(weighted(standard(x, eps), w, offset), b))
def AnyLayer(x, w, offset, b, eps):
    return LAYER(x, w, offset, b, eps)


@pattern
def AnyLayer(x, w, offset, b, eps):
    n = var()
    let(offset=0.0)
    assert n == x.shape[-1:]
    return aten.layer_norm(x, n, w, b, eps, ...)


# --- GroupNorm -----------------------------------------------------------------------------------


@predicate
def by_channel(shape, whole):
    """Return whether `shape` is [C, 1, ...], which broadcasts to `whole`, [N, C, ...]."""
    return tuple(shape) == (whole[1], *(1 for _ in whole[2:]))


@pattern(through=NoOpOrRounding, means=lambda x, groups, eps: F.group_norm(x, groups, eps=eps))
def Grouped(x, groups, eps):  # [N, C, ...] as [N, groups, the rest], normalized, and back
    w, y = var(), Reshape(x)
    z = Reshape(Standardized(y, w, _, eps))
    let(groups=y.shape[1])
    assert w is None and z.shape == x.shape and y.rank == 3 and y.shape[0] == x.shape[0]
    assert x.shape[1] % y.shape[1] == 0
    return z


@pattern
def GROUP(x, groups, w, offset, b, eps):
    y, z = var(), var()
    y <= Weighted(z, w, offset)
    z <= Grouped(x, groups, eps)
    assert w is None or by_channel(w.shape, x.shape)
    assert b is None or by_channel(b.shape, x.shape)
    return Biased(y, b)


@pattern(through=NoOpOrRounding)
def GROUP(x, groups, w, offset, b, eps):  # InstanceNorm: a group for each channel
    let(groups=x.shape[1])
    let(offset=0.0)
    assert x.rank > 2 and x.shape[1] != 0
    assert (w is None or w.rank == 1) and (b is None or b.rank == 1)
    return aten.instance_norm(x, w, b, None, None, True, _, eps, _)


# --- the rules -----------------------------------------------------------------------------------


LEAST = 1e-10
"""The least eps: torch's GroupNorm returns rounding errors / sqrt(eps) where x - mean x is 0."""
BY_ITSELF = "torch.compile makes as much of it by itself"


def left_to_the_compiler(value, dialect):
    """Return a reason if `torch.compile` is compiling; else None. For `rule(unless=...)`."""
    return BY_ITSELF if under_torch_compile() else None


@rule(RMS, unless=left_to_the_compiler, pays="mostly")
def rms_norm(x, w, offset, eps, match):
    assert x.dtype in FLOATS and x.rank > 0 and (w is None or w.shape == x.shape[-1:])
    return by_torch(torch.rms_norm, x, x.shape[-1:], w, offset, None, eps, match)


@rule(LAYER, unless=left_to_the_compiler, pays="mostly")
def layer_norm(x, w, offset, b, eps, match):
    assert x.dtype in FLOATS and x.rank > 0 and (w is None or w.shape == x.shape[-1:])
    assert b is None or b.shape == x.shape[-1:]
    return by_torch(torch.layer_norm, x, x.shape[-1:], w, offset, b, eps, match)


@rule(GROUP, unless=left_to_the_compiler, pays="mostly")
def group_norm(x, groups, w, offset, b, eps, match):
    assert x.dtype in FLOATS
    if 0 in x.shape[2:]:
        return decline("torch's gradient of the weight is NaN if a group has no elements")
    single = x.shape[1] == groups and all(n == 1 for n in x.shape[2:])
    if single or (isinstance(eps, (int, float)) and eps < LEAST):
        return decline("torch's operator returns rounding errors where x - mean x is 0")
    w, b = (None if c is None else c.reshape(-1) for c in (w, b))
    if w is None and b is not None:
        w = torch.ones_like(b)  # torch has no gradient of a bias without a weight
    x = x.contiguous()  # torch's kernel for channels_last returns that layout, and is often slower
    return by_torch(torch.group_norm, x, groups, w, offset, b, eps, match)


LARGEST_FACTOR = 2.0**20
"""The largest factor of a unit that its length takes."""


@rule(ScaledUnit, unless=left_to_the_compiler, pays="mostly")
def scaled_unit(x, d, least, c):
    assert x.dtype in FLOATS
    if not all(isinstance(number, (int, float)) for number in (least, c)):
        return decline("the factor, or the least length, is not a number")
    if not (1 <= c <= LARGEST_FACTOR and c * torch.finfo(x.dtype).tiny <= least):
        return decline("a length over this factor may overflow, or lose digits")
    return x / (torch.linalg.vector_norm(x, 2, d, True).clamp_min(least) / c)


def by_torch(function, x, shape, w, offset, b, eps, match):
    """Return a norm by torch's own operator, or decline.

    Arguments:
        function: `torch.rms_norm`, `torch.layer_norm` or `torch.group_norm`.
        x, w, b: the operands; w, to which `offset` is added, and b may be None.
        shape: the second argument of the function: the normalized shape, or the number of groups.
        eps: a number that is added to the variance.
        match: the match, which gives the dtype of the result.

    The operator computes in the widest of the dtypes, so that the result is rounded once.
    """
    name = function.__name__
    expect(frozenset({f"aten.{name}"}), name)
    result = metadata(match.root).dtype
    if offset:
        w = w.to(torch.promote_types(w.dtype, torch.float32)) + offset
    given = [c for c in (x, w, b) if c is not None]
    widest = torch.float64 if in_float64(match, x) else result
    kind = functools.reduce(torch.promote_types, (c.dtype for c in given), widest)
    if kind not in FLOATS:
        return decline("a weight is complex")
    x, w, b = (None if c is None else c.to(kind) for c in (x, w, b))
    affine = {"weight": w} if b is None else {"weight": w, "bias": b}
    return function(x, shape, eps=eps, **affine).to(result)


RULES = RuleSet(
    (group_norm, layer_norm, rms_norm, scaled_unit), "norm"
)  # an RMSNorm of x - mean x is a LayerNorm
