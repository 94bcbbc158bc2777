"""Identities of other systems' rule sets as rules, each with a wrong variant.

The variant has another body, or lacks the guards of the rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import torch
import torch.nn.functional as F

from pypm import let, pattern, rule, var
from pypm.core.guards import TRUE
from pypm.core.rules import Rule
from pypm.fx import aten

XLA: Final = "XLA, algebraic simplifier, as TensorRight lists its rules"
XLA_REALS: Final = "XLA, algebraic simplifier, rules of real functions that TensorRight lacks"
ONNX: Final = "ONNX Runtime, graph transformers"
TVM: Final = "TVM, Relay's passes"
TASO: Final = "TASO, generated substitutions"
END: Final = 2**63 - 1
"""The end of a slice up to the last element."""


@dataclass(frozen=True)
class Adopted:
    """A rule of another system, and a wrong variant of it."""

    source: str
    rule: Rule
    wrong: Rule


ADOPTED: Final[list[Adopted]] = []


def adopt(source: str, wrong: Callable[..., object] | None = None) -> Callable[[Rule], Rule]:
    """Add a rule to the list, with a variant that has the body `wrong`; without one, no guards."""

    def add(made: Rule) -> Rule:
        assert wrong is not None or made.guard != TRUE, made.name
        bad = replace(made, guard=TRUE) if wrong is None else replace(made, replacement=wrong)
        ADOPTED.append(Adopted(source, made, bad))
        return made

    return add


# --- XLA, as TensorRight lists its rules ----------------------------------------------------------


@pattern
def AddOfConstants(a, one, two):
    c, d = var(), var()
    let(one=c.value, two=d.value)
    return (a + c) + d


@adopt(XLA, wrong=lambda a, one, two: a + (one - two))
@rule(AddOfConstants)
def add_of_constants(a, one, two):
    return a + (one + two)


@pattern
def SubOfItself(a):
    return a - a


@adopt(XLA, wrong=lambda a: a * 0 + 1)
@rule(SubOfItself)
def sub_of_itself(a):
    return torch.zeros_like(a)


@pattern
def SubOfConstant(a, c):
    d = var()
    let(c=d.value)
    return a - d


@adopt(XLA, wrong=lambda a, c: a + c)
@rule(SubOfConstant)
def sub_of_constant(a, c):
    return a + -c


@pattern
def NegOfNeg(a):
    return aten.neg(aten.neg(a))


@adopt(XLA, wrong=lambda a: -a)
@rule(NegOfNeg)
def neg_of_neg(a):
    return a


@pattern
def NotOfNot(p):
    return aten.logical_not(aten.logical_not(p))


@adopt(XLA)
@rule(NotOfNot)
def not_of_not(p):
    assert p.dtype == torch.bool
    return p


@pattern
def AndOfItself(p):
    return aten.logical_and(p, p)


@adopt(XLA)
@rule(AndOfItself)
def and_of_itself(p):
    assert p.dtype == torch.bool
    return p


@pattern
def OrOfItsOpposite(p):
    assert p.dtype == torch.bool
    return aten.logical_or(p, aten.logical_not(p))


@adopt(XLA, wrong=lambda p: p)
@rule(OrOfItsOpposite)
def or_of_its_opposite(p):
    return torch.ones_like(p)


@pattern
def LessThanItself(a):
    return a < a


@adopt(XLA, wrong=lambda a: torch.ones_like(a, dtype=torch.bool))
@rule(LessThanItself)
def less_than_itself(a):
    return torch.zeros_like(a, dtype=torch.bool)


@pattern
def SelectOfOne(p, a):
    assert p.dtype == torch.bool
    return aten.where(p, a, a)


@adopt(XLA, wrong=lambda p, a: torch.where(p, a, -a))
@rule(SelectOfOne)
def select_of_one(p, a):
    assert p.shape == a.shape
    return a


@pattern
def SelectByNot(p, a, b):
    assert p.dtype == torch.bool
    return aten.where(aten.logical_not(p), a, b)


@adopt(XLA, wrong=lambda p, a, b: a.where(p, b))
@rule(SelectByNot)
def select_by_not(p, a, b):
    assert p.shape == a.shape
    return torch.where(p, b, a)


@pattern
def ClampBySteps(a, low, high):
    return aten.clamp(a, low, high)


@adopt(XLA, wrong=lambda a, low, high: torch.maximum(low, torch.minimum(a, high)))
@rule(ClampBySteps)
def clamp_by_steps(a, low, high):
    assert low.rank == 0 and high.rank == 0
    return torch.minimum(torch.maximum(a, low), high)


@pattern
def AddOfBroadcasts(a, b):
    c, d = aten.expand(a, ...), aten.expand(b, ...)
    return c + d


@adopt(XLA, wrong=lambda a, b, match: (a - b).expand(match.roots[0].meta["val"].shape))
@rule(AddOfBroadcasts)
def add_of_broadcasts(a, b, match):
    assert a.shape == b.shape
    return (a + b).expand(match.roots[0].meta["val"].shape)


@pattern
def ReduceOfReduce(x):
    return aten.sum(aten.sum(x, [0], False), [0], False)


@adopt(XLA)
@rule(ReduceOfReduce)
def reduce_of_reduce(x):
    assert x.rank >= 2
    return x.sum((0, 1))


@pattern
def ReduceOfConcat(x, y):
    return aten.sum(aten.cat([x, y], 0), [0], False)


@adopt(XLA, wrong=lambda x, y: x.sum(0) - y.sum(0))
@rule(ReduceOfConcat)
def reduce_of_concat(x, y):
    return x.sum(0) + y.sum(0)


@pattern
def ReduceTimesConstant(x, c):
    d = var()
    let(c=d.value)
    return aten.sum(x, [0], False) * d


@adopt(XLA, wrong=lambda x, c: (x + c).sum(0))
@rule(ReduceTimesConstant)
def reduce_times_constant(x, c):
    return (x * c).sum(0)


@pattern
def ReduceTimesReduce(x, y):
    return aten.sum(x, [0], False) * aten.sum(y, [0], False)


@adopt(XLA)
@rule(ReduceTimesReduce)
def reduce_times_reduce(x, y):
    assert x.rank == 1 and y.rank == 1
    return (x[:, None] * y[None]).sum((0, 1))


@pattern
def ReduceOfTranspose(x):
    return aten.sum(aten.permute(x, [1, 2, 0]), [0], False)


@adopt(XLA, wrong=lambda x: x.sum(1))
@rule(ReduceOfTranspose)
def reduce_of_transpose(x):
    return x.sum(1).permute(1, 0)


@pattern
def ReduceOfOne(x):
    return aten.sum(x, [0], False)


@adopt(XLA, wrong=lambda x: x.squeeze(0) * 2)
@rule(ReduceOfOne)
def reduce_of_one(x):
    assert x.shape[0] == 1
    return x.squeeze(0)


@pattern
def DotOfDot(a, b, c):
    return a @ (b @ c)


@adopt(XLA)
@rule(DotOfDot)
def dot_of_dot(a, b, c):
    assert a.rank == 2 and b.rank == 2 and c.rank == 2
    return (a @ b) @ c


@pattern
def DotOfConcats(x, y, c, d):
    return aten.mm(aten.cat([x, y], 1), aten.cat([c, d], 0))


@adopt(XLA)
@rule(DotOfConcats)
def dot_of_concats(x, y, c, d):
    assert x.shape[1] == c.shape[0]
    return x @ c + y @ d


@pattern
def DotWithoutContraction(a, b):
    return aten.outer(a, b)


@adopt(XLA, wrong=lambda a, b: a[None] * b[:, None])
@rule(DotWithoutContraction)
def dot_without_contraction(a, b):
    return a[:, None] * b[None]


@pattern
def DotOfVector(a, b):
    return aten.mv(a, b)


@adopt(XLA, wrong=lambda a, b: (a * b).sum(0))
@rule(DotOfVector)
def dot_of_vector(a, b):
    return (a * b).sum(-1)


@pattern
def ReduceOfDot(x, y):
    return aten.sum(aten.bmm(x, y), [0], False)


@adopt(XLA, wrong=lambda x, y: x.sum(0) @ y.sum(0))
@rule(ReduceOfDot)
def reduce_of_dot(x, y):
    return x.transpose(0, 1).flatten(1) @ y.flatten(0, 1)


@pattern
def SliceOfSlice(x):
    return aten.slice(aten.slice(x, 0, 2, 9, 1), 0, 3, 5, 1)


@adopt(XLA, wrong=lambda x: x[3:5])
@rule(SliceOfSlice)
def slice_of_slice(x):
    return x[5:7]


@pattern
def SliceOfConcat(a, b, n):
    return aten.slice(aten.cat([a, b], 0), 0, n, END, 1)


@adopt(XLA, wrong=lambda a, b, n: b.flip(0))
@rule(SliceOfConcat)
def slice_of_concat(a, b, n):
    assert n == a.shape[0]
    return b


@pattern
def SliceOfPad(x):
    return aten.slice(aten.constant_pad_nd(x, [3, 2], ...), -1, 3, -2, 1)


@adopt(XLA, wrong=lambda x: x.flip(-1))
@rule(SliceOfPad)
def slice_of_pad(x):
    return x


@pattern
def ConcatOfSlices(x, n):
    return aten.cat([aten.slice(x, 0, 0, n, 1), aten.slice(x, 0, n, END, 1)], 0)


@adopt(XLA, wrong=lambda x, n: torch.cat([x[n:], x[:n]]))
@rule(ConcatOfSlices)
def concat_of_slices(x, n):
    return x


@pattern
def ConcatOfConstant(x):
    zeros = aten.full([4], 2.5, ...)
    return aten.cat([zeros, x], 0)


@adopt(XLA, wrong=lambda x: F.pad(x, (0, 4), value=2.5))
@rule(ConcatOfConstant)
def concat_of_constant(x):
    return F.pad(x, (4, 0), value=2.5)


@pattern
def ConcatOfConcat(a, b, c):
    return aten.cat([a, aten.cat([b, c], 0)], 0)


@adopt(XLA, wrong=lambda a, b, c: torch.cat([torch.cat([b, a]), c]))
@rule(ConcatOfConcat)
def concat_of_concat(a, b, c):
    return torch.cat([torch.cat([a, b]), c])


@pattern
def PadOfNothing(x):
    return aten.constant_pad_nd(x, [0, 0], ...)


@adopt(XLA, wrong=lambda x: -x)
@rule(PadOfNothing)
def pad_of_nothing(x):
    return x


@pattern
def ReverseOfReverse(x):
    return aten.flip(aten.flip(x, [0, 1]), [1, 2])


@adopt(XLA, wrong=lambda x: x.flip((0, 1, 2)))
@rule(ReverseOfReverse)
def reverse_of_reverse(x):
    return x.flip((0, 2))


@pattern
def ReverseOfSum(x, c):
    return aten.flip(x + c, [0])


@adopt(XLA)
@rule(ReverseOfSum)
def reverse_of_sum(x, c):
    assert c.rank == 0
    return x.flip(0) + c


@pattern
def TransposeOfTranspose(x):
    return aten.permute(aten.permute(x, [2, 0, 1]), [2, 0, 1])


@adopt(XLA, wrong=lambda x: x.permute(2, 0, 1))
@rule(TransposeOfTranspose)
def transpose_of_transpose(x):
    return x.permute(1, 2, 0)


# --- XLA, real functions --------------------------------------------------------------------------


@pattern
def ProductOfExps(a, b):
    return aten.exp(a) * aten.exp(b)


@adopt(XLA_REALS, wrong=lambda a, b: torch.exp(a * b))
@rule(ProductOfExps)
def product_of_exps(a, b):
    return torch.exp(a + b)


@pattern
def QuotientByExp(a, b):
    return a / aten.exp(b)


@adopt(XLA_REALS, wrong=lambda a, b: a * torch.exp(b))
@rule(QuotientByExp)
def quotient_by_exp(a, b):
    return a * torch.exp(-b)


@pattern
def LogOfExp(a):
    return aten.log(aten.exp(a))


@adopt(XLA_REALS, wrong=lambda a: a.exp())
@rule(LogOfExp)
def log_of_exp(a):
    return a


@pattern
def QuotientOfQuotients(a, b, c, d):
    return (a / b) / (c / d)


@adopt(XLA_REALS, wrong=lambda a, b, c, d: (a * c) / (b * d))
@rule(QuotientOfQuotients)
def quotient_of_quotients(a, b, c, d):
    assert a.shape == b.shape and c.shape == d.shape
    return (a * d) / (b * c)


@pattern
def RootOfSquare(a):
    return aten.sqrt(aten.pow(a, 2))


@adopt(XLA_REALS, wrong=lambda a: a)
@rule(RootOfSquare)
def root_of_square(a):
    return torch.abs(a)


@pattern
def ReciprocalRootOfPower(a):
    return aten.rsqrt(aten.pow(a, -2))


@adopt(XLA_REALS, wrong=lambda a: 1 / torch.abs(a))
@rule(ReciprocalRootOfPower)
def reciprocal_root_of_power(a):
    return torch.abs(a)


# --- ONNX Runtime ---------------------------------------------------------------------------------


@pattern
def MeanFree(x):
    return x - aten.mean(x, [-1], True)


@pattern
def LayerNormByHand(x, w, b, eps):
    e = var()
    let(eps=e.value)
    d = MeanFree(x)
    return d / aten.sqrt(aten.mean(aten.pow(d, 2), [-1], True) + e) * w + b


@adopt(ONNX, wrong=lambda x, w, b, eps: F.layer_norm(x, w.shape, b, w, eps))
@rule(LayerNormByHand)
def layer_norm_fusion(x, w, b, eps):
    assert w.rank == 1 and b.rank == 1 and w.shape[0] == x.shape[-1] == b.shape[0]
    return F.layer_norm(x, w.shape, w, b, eps)


@pattern
def RmsNormByHand(x, w, eps):
    e = var()
    let(eps=e.value)
    return x / aten.sqrt(aten.mean(aten.pow(x, 2), [-1], True) + e) * w


@adopt(ONNX, wrong=lambda x, w, eps: F.rms_norm(x, w.shape, w, eps * eps))
@rule(RmsNormByHand)
def simplified_layer_norm_fusion(x, w, eps):
    assert w.rank == 1 and w.shape[0] == x.shape[-1]
    return F.rms_norm(x, w.shape, w, eps)


@pattern
def GeluByErf(x):
    return x * 0.5 * (aten.erf(x / 1.4142135623730951) + 1)


@adopt(ONNX, wrong=lambda x: F.gelu(x, approximate="tanh"))
@rule(GeluByErf)
def gelu_fusion(x):
    assert x.rank == 2
    return F.gelu(x)


@pattern
def Cubic(x):
    return 0.7978845608028654 * (x + 0.044715 * aten.pow(x, 3))


@pattern
def GeluByTanh(x):
    return 0.5 * x * (1 + aten.tanh(Cubic(x)))


@adopt(ONNX, wrong=lambda x: F.gelu(x, approximate="none"))
@rule(GeluByTanh)
def fast_gelu_fusion(x):
    assert x.rank == 2
    return F.gelu(x, approximate="tanh")


@pattern
def GeluBySigmoid(x):
    return x * aten.sigmoid(x * 1.702)


@adopt(ONNX, wrong=lambda x: F.gelu(x, approximate="none"))
@rule(GeluBySigmoid)
def quick_gelu_fusion(x):
    return F.silu(x * 1.702) / 1.702


@pattern
def ProductPlus(x, y, b):
    return aten.mm(x, y) + b


@adopt(ONNX)
@rule(ProductPlus)
def matmul_add_fusion(x, y, b):
    assert b.rank == 1
    return torch.addmm(b, x, y)


@pattern
def ProductOfScaled(x, y, s, t):
    c, d = var(), var()
    let(s=c.value, t=d.value)
    return (x * c) @ (y / d)


@adopt(ONNX, wrong=lambda x, y, s, t: (x @ y) * (s * t))
@rule(ProductOfScaled)
def matmul_scale_fusion(x, y, s, t):
    return (x @ y) * (s / t)


@pattern
def ProductOfTransposes(x, y):
    return aten.mm(aten.t(x), aten.t(y))


@adopt(ONNX, wrong=lambda x, y: y @ x)
@rule(ProductOfTransposes)
def matmul_transpose_fusion(x, y):
    return (y @ x).t()


@pattern
def ReciprocalTimes(x, y):
    return aten.reciprocal(x) * y


@adopt(ONNX, wrong=lambda x, y: x / y)
@rule(ReciprocalTimes)
def div_mul_fusion(x, y):
    return y / x


@pattern
def ReluThenClip(x, low, high):
    return aten.clamp(aten.relu(x), low, high)


@adopt(ONNX, wrong=lambda x, low, high: x.clamp(low, high))
@rule(ReluThenClip)
def relu_clip_fusion(x, low, high):
    assert low.rank == 0 and high.rank == 0
    return torch.clamp(x, torch.relu(low), high)


@pattern
def ReshapeOfReshape(x):
    y = aten.reshape(x, _)
    return aten.reshape(y, _)


@adopt(ONNX, wrong=lambda x, match: -x.reshape(match.roots[0].meta["val"].shape))
@rule(ReshapeOfReshape)
def reshape_fusion(x, match):
    return x.reshape(match.roots[0].meta["val"].shape)


@pattern
def ProductThenBatchNorm(x, w, mean, variance, g, b, eps):
    e = var()
    let(eps=e.value)
    return (aten.mm(x, w) - mean) / aten.sqrt(variance + e) * g + b


@adopt(ONNX, wrong=lambda x, w, mean, variance, g, b, eps: torch.addmm(b - mean, x, w * g))
@rule(ProductThenBatchNorm)
def matmul_bn_fusion(x, w, mean, variance, g, b, eps):
    assert mean.rank == 1 and g.rank == 1 and mean.shape == variance.shape and b.rank == 1
    scale = g * torch.rsqrt(variance + eps)
    return torch.addmm(b - mean * scale, x, w * scale)


@pattern
def NormOfRows(x):
    return aten.softmax(x, -1, ...) / aten.sum(aten.softmax(x, -1, ...), [-1], True)


@adopt(ONNX, wrong=lambda x: torch.softmax(x, 0))
@rule(NormOfRows)
def softmax_divided_by_its_sum(x):
    return torch.softmax(x, -1)


# --- TVM ------------------------------------------------------------------------------------------


@pattern
def Reciprocal(x):
    return 1 / aten.sqrt(x) | aten.reciprocal(aten.sqrt(x))


@adopt(TVM, wrong=lambda x: x.sqrt())
@rule(Reciprocal)
def simplify_rsqrt(x):
    return torch.rsqrt(x)


@pattern
def Binomial(a, b):
    return a * a + 2 * (a * b) + b * b


@adopt(TVM, wrong=lambda a, b: a * a + b * b)
@rule(Binomial)
def simplify_binomial(a, b):
    assert a.rank == 2 and a.shape == b.shape
    return (a + b) * (a + b)


@pattern
def Nothing(x):
    return x + 0 | x - 0 | x * 1 | x / 1


@adopt(TVM, wrong=lambda x: x * 2)
@rule(Nothing)
def eliminate_identity(x):
    return x


@pattern
def DenseOfScaled(x, s, w):
    return aten.linear(x * s, w, None)


@adopt(TVM, wrong=lambda x, s, w: F.linear(x, w / s))
@rule(DenseOfScaled)
def fold_scale_axis_forward(x, s, w):
    assert s.rank == 1 and w.rank == 2 and s.shape[0] == x.shape[-1]
    return F.linear(x, w * s)


@pattern
def DenseThenScale(x, s, w):
    return aten.linear(x, w, None) * s


@adopt(TVM, wrong=lambda x, s, w: F.linear(x, w, s))
@rule(DenseThenScale)
def fold_scale_axis_backward(x, s, w):
    assert s.rank == 1 and w.rank == 2
    return F.linear(x, w * s[:, None])


@pattern
def TwoDense(x, v, w):
    return aten.mm(x, v), aten.mm(x, w)


@adopt(TVM, wrong=lambda x, v, w: (x @ w, x @ v))
@rule(TwoDense)
def combine_parallel_dense(x, v, w):
    both = x @ torch.cat([v, w], 1)
    return both[:, : v.shape[1]], both[:, v.shape[1] :]


@pattern
def GroupNorm(x, w, b, eps):
    return aten.group_norm(x, 2, w, b, eps, ...)


@adopt(TVM)
@rule(GroupNorm)
def simplify_inference_of_group_norm(x, w, b, eps):
    assert x.rank == 3 and w.rank == 1 and b.rank == 1
    g = x.unflatten(1, (2, -1)).flatten(2)
    d = g - g.mean(-1, True)
    y = d * torch.rsqrt((d * d).mean(-1, True) + eps)
    return y.unflatten(2, (-1, x.shape[2])).flatten(1, 2) * w[:, None] + b[:, None]


# --- TASO -----------------------------------------------------------------------------------------


@pattern
def ReluOfTranspose(x):
    return aten.relu(aten.transpose(x, 0, 1))


@adopt(TASO, wrong=lambda x: x.relu())
@rule(ReluOfTranspose)
def relu_of_transpose(x):
    return torch.relu(x).transpose(0, 1)


@pattern
def ProductByConcat(x, y, z):
    return aten.mm(x, aten.cat([y, z], 1))


@adopt(TASO, wrong=lambda x, y, z: torch.cat([x @ z, x @ y], 1))
@rule(ProductByConcat)
def product_by_concat(x, y, z):
    return torch.cat([x @ y, x @ z], 1)


@pattern
def ProductOfSum(x, y, z):
    return aten.mm(x, y) + aten.mm(x, z)


@adopt(TASO, wrong=lambda x, y, z: x @ (y - z))
@rule(ProductOfSum)
def product_of_sum(x, y, z):
    return x @ (y + z)
