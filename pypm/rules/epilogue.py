"""Matrix products and convolutions in bfloat16, with the elementwise operators after them.

On a CPU with instructions for bfloat16, oneDNN's kernel computes the product with an activation or
a residual. On other CPUs, the region is computed in float32 and rounded once. Float32 regions are
left alone: no rule gained over `torch.compile` there. Products of a few rows are the exception, of
both types and on all CPUs: a kernel in C++ is a candidate, and the compiler fuses what follows.
"""

import math
import operator

import torch

from pypm import RuleSet, decline, let, op_var, pattern, rule
from pypm.fx import Reading, aten, describe, known_to_hold
from pypm.kernels.linear import has_fast_bfloat16, in_float32, linear_pointwise
from pypm.kernels.row_linear import row_linear, unsupported
from pypm.kernels.support.devices import off_cpu
from pypm.rules.replacement.items import has_shape
from pypm.rules.vocabulary.activations import Activation
from pypm.rules.vocabulary.products import PlainLinear
from pypm.rules.vocabulary.shapes import Cast, NoOp, Rows

FAST = "bfloat16 products are fast here"
TYPED = ("aten.nan_to_num", "aten.nextafter")
OF_THE_TYPE = "an operator after the product depends on the limits of its type"
FEWEST_ROWS = 8
"""The least number of rows for which converting the weight to float32 pays."""
FEW = 2**14
"""Elements of a weight below which a call takes longer than the product."""


@pattern
def Bfloat16Linear(x, w, b, turned):
    y = PlainLinear(x, w, b, turned)
    assert torch.bfloat16 == x.dtype == w.dtype == y.dtype
    return y


@pattern(through=NoOp)
def AnyConvolution(x, w, b):
    return (
        aten.convolution(x, w, b, ...)
        | (aten.conv1d(x, w, b, ...) | aten.conv_transpose1d(x, w, b, ...))
        | (aten.conv2d(x, w, b, ...) | aten.conv_transpose2d(x, w, b, ...))
        | (aten.conv3d(x, w, b, ...) | aten.conv_transpose3d(x, w, b, ...))
    )


# --- one region, one recursive pattern -----------------------------------------------------------


@pattern(through=NoOp)
def Region(x, w, b, turned):
    f = op_var(tag="pointwise")
    return f(..., Region(x, w, b, turned), ...)


@pattern
def Region(x, w, b, turned):
    return Rows(PlainLinear(x, w, b, turned))


@pattern
def Region(x, w, b, turned):
    let(turned=None)
    return AnyConvolution(x, w, b)


@pattern
def Bfloat16Region(x, w, b, turned, shape):
    y = Region(x, w, b, turned)
    assert y.dtype == torch.bfloat16
    let(shape=y.shape)
    return y


def where_slow(match):
    """Return the reading of a match: declined if the processor computes bfloat16 products fast."""
    return Reading(None, declined=FAST if has_fast_bfloat16() else None)


@rule(Bfloat16Region, absorb="pointwise", pays="mostly", reads=where_slow)
def product_in_float32(x, w, b, turned, shape, match):
    assert torch.bfloat16 == x.dtype == w.dtype
    assert b is None or b.dtype == torch.bfloat16
    if x.device.type != "cpu":
        return decline(FAST)
    if any(describe(node).operator.name in TYPED for node in match.region.nodes):
        return decline(OF_THE_TYPE)
    transposes = w.is_contiguous() is turned
    if transposes and known_to_hold(operator.lt, math.prod(shape[:-1]), FEWEST_ROWS):
        return decline("too few rows to pay for the weight's conversion")
    return in_float32(match.region.module, match.inputs)


@pattern(through=NoOp)
def BatchedProduct(x, y):  # alone: what follows may be attention, which is to see it as it was
    assert x.rank > 1 and y.rank > 2
    return aten.bmm(x, y) | aten.matmul(x, y)


@rule(BatchedProduct, pays="mostly", reads=where_slow)
def batched_product_in_float32(x, y, match):
    assert torch.bfloat16 == x.dtype == y.dtype
    if x.device.type != "cpu":
        return decline(FAST)
    if not y.is_contiguous() and known_to_hold(operator.lt, x.shape[-2], FEWEST_ROWS):
        return decline("too few rows to pay for the other operand's conversion")
    return in_float32(match.region.module, match.inputs)


# --- oneDNN's fused kernel -----------------------------------------------------------------------


@pattern
def ActivatedLinear(x, w, b, turned, activation, shape):
    y = Cast(Activation(Cast(Rows(Bfloat16Linear(x, w, b, turned))), activation))
    let(shape=y.shape)
    return y


@pattern
def ActivatedLinear(x, w, b, turned, activation, shape):
    let(activation="relu")
    y = Cast(aten.relu(Cast(Rows(Bfloat16Linear(x, w, b, turned)))))
    let(shape=y.shape)
    return y


@rule(ActivatedLinear, pays="mostly")
def linear_activation(x, w, b, turned, activation, shape):
    return fused(x, w if turned else w.t(), b, None, activation, shape)


@pattern(through=NoOp)
def Residual(x, w, b, turned, other, shape):
    y = Rows(Bfloat16Linear(x, w, b, turned))
    z = y + other
    assert z.shape == y.shape
    let(shape=z.shape)
    return z


@rule(Residual, pays="mostly")
def linear_residual(x, w, b, turned, other, shape):
    assert other.dtype == torch.bfloat16
    if not has_shape(other, shape):
        return decline("the other operand is broadcast")
    return fused(x, w if turned else w.t(), b, other, "none", shape)


def fused(x, weight, bias, other, activation, shape):
    """Return activation(x weight^T + bias) + other by oneDNN's kernel, or decline.

    Arguments:
        x: [..., in], in bfloat16, as `weight`, `bias` and `other`.
        weight: [out, in].
        bias: [out], or None.
        other: of the shape of the result, or None.
        activation: a key of `pypm.kernels.linear.ONEDNN`; "none" beside `other`.
        shape: the shape of the result, [..., out].
    """
    if x.device.type != "cpu" or not has_fast_bfloat16():
        return decline("oneDNN has no fused bfloat16 kernel here")
    if any(isinstance(n, int) and n == 0 for n in weight.shape):
        return decline("the weight is empty")
    if bias is not None and not has_shape(bias, weight.shape[:1]):
        return decline("the bias is not one number for each output")
    if not isinstance(x, torch.Tensor) and not all(isinstance(n, int) for n in shape):
        return decline("the sizes are not known while tracing")
    flat = None if other is None else other.reshape(-1, weight.shape[0])
    x = x.reshape(-1, weight.shape[1])
    return linear_pointwise(x, weight, bias, flat, activation).view(shape)


# --- a few rows ----------------------------------------------------------------------------------


@pattern
def Layer(x, w, b, turned):
    y = PlainLinear(x, w, b, turned)
    assert x.dtype == w.dtype == y.dtype
    assert b is None or b.dtype == y.dtype
    return y


@rule(Layer, unless=off_cpu, pays="sometimes")
def linear_of_few_rows(x, w, b, turned):
    weight = w if turned else w.t()
    reason = unsupported(x, weight)
    if reason is not None:
        return decline(reason)
    if known_to_hold(operator.lt, w.numel(), FEW):
        return decline(f"a weight of fewer than {FEW:,} elements")
    if b is not None and not has_shape(b, weight.shape[:1]):
        return decline("the bias is not one number for each output")
    return row_linear(x, weight, b)


RULES = RuleSet(
    (
        linear_activation,
        linear_residual,
        product_in_float32,
        batched_product_in_float32,
        linear_of_few_rows,
    ),
    "epilogue",
)
