"""Rules that are right, bit for bit or up to rounding: none may be called wrong."""

import math

import torch
import torch.nn.functional as F

from pypm import decline, keep, let, pattern, rule, var
from pypm.fx import GETITEM, aten
from pypm.tools import Bitwise, UpToRounding


@pattern
def Halved(x):
    return x / 2


@rule(Halved)
def half(x):
    assert x.dtype in (torch.float32, torch.float64)
    return x * 0.5


@pattern
def DoubleNegation(x):
    return aten.neg(aten.neg(x))


@rule(DoubleNegation)
def double_negation(x):
    return x


@pattern
def ReluTwice(x):
    return aten.relu(aten.relu(x))


@rule(ReluTwice)
def relu_once(x):
    return torch.relu(x)


@pattern
def PlusNegative(x, y):
    return x + aten.neg(y)


@rule(PlusNegative)
def minus(x, y):
    assert x.dtype == y.dtype and x.dtype not in (torch.complex64, torch.complex128)
    return x - y


@pattern
def Cancelled(x):
    assert x.dtype == torch.float64
    return x - x


@rule(Cancelled)
def cancelled(x):
    return x * 3 / 3 - x


@pattern
def TwoTransposes(x):
    return aten.transpose(aten.transpose(x, 0, 1), 0, 1)


@rule(TwoTransposes)
def no_transpose(x):
    return x


@pattern
def SoftmaxByHand(x, d):
    e = aten.exp(x - aten.amax(x, [d], True))
    return e / aten.sum(e, [d], True)


@rule(SoftmaxByHand)
def softmax(x, d):
    assert x.dtype in (torch.float32, torch.float64)
    return torch.softmax(x, d)


@pattern
def SiluByHand(x):
    return x * aten.sigmoid(x)


@rule(SiluByHand)
def silu(x):
    assert x.dtype in (torch.float32, torch.float64, torch.bfloat16)
    return F.silu(x)


@pattern
def GeluByHand(x):
    return x * 0.5 * (1 + aten.erf(x / math.sqrt(2)))


@rule(GeluByHand)
def gelu(x):
    assert x.dtype == torch.float64
    return F.gelu(x)


@pattern
def LayerNorm(x, w, b):
    c = x - aten.mean(x, [-1], True)
    return c * aten.rsqrt(aten.mean(c * c, [-1], True) + 1e-5) * w + b


@rule(LayerNorm)
def layer_norm(x, w, b):
    assert w.rank == 1 and b.rank == 1
    assert w.shape[0] == x.shape[-1] and b.shape[0] == x.shape[-1]
    assert x.dtype == w.dtype and w.dtype == b.dtype
    assert x.dtype in (torch.float64, torch.float32, torch.bfloat16)
    return F.layer_norm(x, x.shape[-1:], w, b, eps=1e-5)


@pattern
def RmsNorm(x, eps):
    e = var()
    let(eps=e.value)
    return x * aten.rsqrt(aten.mean(x * x, [-1], True) + e)


@rule(RmsNorm)
def rms_norm(x, eps):
    assert eps >= 0 and x.dtype == torch.float64
    return x / torch.sqrt(torch.mean(x * x, [-1], True) + eps)


@pattern
def TransposedProduct(x, y):
    return aten.mm(aten.permute(x, [1, 0]), aten.permute(y, [1, 0]))


@rule(TransposedProduct)
def product_transposed(x, y):
    return torch.mm(y, x).t()


@pattern
def Fused(b, x, y):
    return aten.mm(x, y) + b


@rule(Fused)
def addmm(b, x, y):
    assert b.rank <= 2 and x.dtype == torch.float64
    assert b.dtype == x.dtype and b.shape == (y.shape[1],)
    return torch.addmm(b, x, y)


@pattern
def SineAndCosine(x, y):
    p = aten.mul(x, y)
    return aten.sin(p), aten.cos(p)


@rule(SineAndCosine)
def two_outputs(x, y):
    assert x.dtype == y.dtype == torch.float64
    p = torch.mul(x, y)
    return torch.sin(p), torch.sin(p + math.pi / 2)


@pattern
def Joined(x, rest):
    return aten.cat([aten.relu(x), *rest], 0)


@rule(Joined)
def list_of_tensors(x, rest):
    return torch.cat([torch.clamp_min(x, 0), *rest], 0)


@pattern
def Nested(x, y, z):
    return aten.cat([aten.cat([x, y], 0), z], 0)


@rule(Nested)
def flat_list(x, y, z):
    assert x.rank > 0 and y.rank == x.rank and z.rank == x.rank
    return torch.cat([x, y, z], 0)


@pattern
def TimesConstant(x, c):
    assert c.is_constant and c.rank == 0
    return x * c * 2


@rule(TimesConstant)
def constant_doubled(x, c):
    assert x.dtype == torch.float64
    return x * (c * 2)


@pattern
def ManyNegations(x):
    return aten.neg(aten.neg(ManyNegations(x)))


@pattern
def ManyNegations(x):
    return aten.neg(x)


@rule(ManyNegations)
def recursive(x, match):
    if len(match.region.nodes) == 1:
        return decline("one negation")
    return torch.neg(x)


@pattern
def OperatorOfTransposed(f, x):
    return f(aten.permute(x, [1, 0]))


@rule(OperatorOfTransposed)
def operator_variable(f, x):
    assert f.name in ("aten.neg", "aten.abs", "aten.sigmoid")
    return getattr(torch, f.name.removeprefix("aten."))(x).t()


@pattern
def Copied(x):
    return aten.clone(x) | aten.alias(x)


@pattern(through=Copied)
def ThroughCopies(x, y):
    return aten.neg(x) * aten.neg(y)


@rule(ThroughCopies)
def through_copies(x, y):
    assert x.dtype == y.dtype == torch.float64
    return x * y


@pattern
def Kept(x, y):
    return aten.relu(keep(x - y))


@rule(Kept)
def kept(x, y):
    assert x.dtype == y.dtype
    return torch.clamp_min(x - y, 0)


@pattern
def WideRows(x):
    return aten.sum(x, [1], False)


@rule(WideRows)
def many_rows(x):
    assert x.rank == 2 and x.shape[0] >= 16
    assert x.dtype in (torch.float32, torch.float64)
    return x @ torch.ones(x.shape[1], dtype=x.dtype)


@pattern
def SecondPiece(x, sizes):
    return aten.neg(GETITEM(aten.split_with_sizes(x, sizes, -1), 1))


@rule(SecondPiece)
def piece_as_narrow(x, sizes):
    return -torch.narrow(x, -1, sizes[0], sizes[1])


@pattern
def Padded(x, value):
    return aten.constant_pad_nd(x, [1, 1], value)


@rule(Padded)
def padded_by_cat(x, value):
    assert x.dtype == torch.float64 and x.rank > 0
    sides = torch.full((*x.shape[:-1], 1), value, dtype=x.dtype)
    return torch.cat([sides, x, sides], -1)


@pattern
def Counted(n, dtype):
    return aten.neg(aten.arange(n, dtype=dtype, layout=_, device=_, pin_memory=_))


@rule(Counted)
def counts_that_wrap(n, dtype):
    assert dtype is not None
    return -torch.arange(n).to(dtype)


@pattern
def MeanOfRows(x):
    assert x.rank == 2 and x.dtype == torch.float64
    return aten.mean(x, [0], True)


@rule(MeanOfRows)
def mean_as_sum(x):
    return torch.sum(x, [0], True) / x.shape[0]


RIGHT = {
    half: Bitwise,
    double_negation: Bitwise,
    relu_once: Bitwise,
    minus: Bitwise,
    cancelled: UpToRounding,
    no_transpose: Bitwise,
    softmax: UpToRounding,
    silu: UpToRounding,
    gelu: UpToRounding,
    layer_norm: UpToRounding,
    rms_norm: UpToRounding,
    product_transposed: Bitwise | UpToRounding,  # the CPU's products decide
    addmm: UpToRounding,
    two_outputs: UpToRounding,
    list_of_tensors: Bitwise,
    flat_list: Bitwise,
    constant_doubled: Bitwise,
    recursive: Bitwise,
    operator_variable: Bitwise,
    through_copies: Bitwise,
    kept: Bitwise,
    many_rows: UpToRounding,
    piece_as_narrow: Bitwise,
    padded_by_cat: Bitwise,
    counts_that_wrap: Bitwise,
    mean_as_sum: Bitwise | UpToRounding,
}
"""Every rule with what it is found to be."""
