"""Spellings: one pattern for each computation that graphs write in several ways."""

import math

import torch

from pypm import let, pattern, predicate, var
from pypm.fx import GETITEM, aten, prims
from pypm.rules.dtypes import holds

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

# --- nothing: operators that leave every value where it is ---------------------------------------


@pattern
def NoOp(x):
    return aten.clone(x, ...) | aten.contiguous(x, ...) | aten.alias(x) | aten.detach(x)


@pattern
def NoOp(x):  # dropout where nothing is dropped
    return aten.dropout(x, _, False) | aten.dropout(x, 0.0, _)


@pattern
def NoOp(x):
    y = aten.expand(x, ...) | Reshape(x) | aten.slice(x, ...)
    assert y.shape == x.shape
    return y


@pattern
def Bare(x):  # x under any number of those
    return NoOp(Bare(x)) | x


# --- casts and shapes ----------------------------------------------------------------------------


@pattern
def Reshape(x):
    return aten.view(x, _) | aten.reshape(x, _) | aten._unsafe_view(x, _)  # no `view(dtype)`


@pattern
def Reshape(x):
    return (
        aten.flatten(x, ...) | aten.unflatten(x, ...) | aten.view_as(x, _) | aten.reshape_as(x, _)
    )


@pattern
def Rows(x):  # the same rows, perhaps in other batch dimensions
    y = Reshape(x)
    assert y.shape[-1] == x.shape[-1]
    return y


@pattern
def Rows(x):
    return x


@predicate
def keeps_order(shape, dims, then=None):
    """Return whether a permutation moves only dimensions of size 1: elements keep their order.

    `dims` is applied to a tensor of this shape, and `then`, if given, to the result.
    """
    order = dims if then is None else [dims[i] for i in then]
    long = [i for i in order if shape[i] != 1]
    return long == sorted(long)


@pattern
def Resized(x):  # the same elements in the same order
    return Reshape(x) | aten.unsqueeze(x, _) | aten.squeeze(x, ...)


@pattern
def Resized(x):
    d = var()
    y = aten.permute(x, d)
    assert keeps_order(x.shape, d)
    return y


@pattern
def Resized(x):  # einsum leaves pairs of these
    d, e = var(), var()
    y = aten.permute(aten.permute(x, d), e)
    assert keeps_order(x.shape, d, e)
    return y


@pattern
def Refitted(x):  # einsum takes up to three of those
    return Resized(x) | Resized(Resized(x)) | Resized(Resized(Resized(x)))


@pattern(through=NoOp)
def Batch(x):  # regroups batch dimensions only
    y = Refitted(x)
    assert y.shape[-2:] == x.shape[-2:]
    return y


@pattern
def Rounded(x):  # another floating-point type
    y = (
        prims.convert_element_type(x, ...)
        | aten._to_copy(x, ...)
        | aten.to(x, ...)
        | aten.type_as(x, _)
    )
    assert x.dtype in FLOATS and y.dtype in FLOATS and y.device == x.device
    return y


@pattern
def Wide(x):  # x in a type that holds it
    y = NoOp(Wide(x)) | Rounded(Wide(x))
    assert holds(y.dtype, x.dtype)
    return y


@pattern
def Wide(x):
    return x


@pattern
def Cast(x):
    return NoOp(Cast(x)) | Rounded(Cast(x)) | x


@pattern
def MaybeRounded(x):  # nothing, or rounding
    return NoOp(x) | Rounded(x)


@pattern
def Loose(x):  # nothing, rounding, or rows grouped otherwise
    return MaybeRounded(x)


@pattern
def Loose(x):
    y = Refitted(x)
    assert y.shape[-1] == x.shape[-1]
    return y


@pattern
def Loosely(x):  # x under any number of those
    return Loose(Loosely(x)) | x


@pattern
def Transposed(x):  # the last two dimensions swapped
    return aten.transpose(x, -2, -1) | aten.transpose(x, -1, -2) | aten.mT(x)


@pattern
def Transposed(x):
    return aten.permute(x, [0, 1, 3, 2]) | aten.permute(x, [0, 2, 1]) | NoOp(Transposed(x))


# --- products ------------------------------------------------------------------------------------


@pattern
def Merged(x):
    return Batch(x) | x


@pattern(through=NoOp)
def MM(a, b):
    return aten.matmul(a, b) | aten.bmm(a, b) | Batch(aten.bmm(Merged(a), Merged(b)))


@pattern(through=NoOp)
def PlainLinear(x, w, b=None, turned=False):  # x [N, in], w [in, out]
    let(turned=False)
    return aten.addmm(b, x, w) | aten.mm(x, w)


@pattern(through=NoOp)
def PlainLinear(x, w, b=None, turned=False):  # x [..., in], w [out, in]
    let(turned=True)
    assert w.rank == 2
    assert b is None or b.dtype == x.dtype  # torch has other types in eager than in a trace
    return aten.linear(x, w, b)


@pattern(through=NoOp)
def Linear(x, w, b=None, turned=True):  # w [out, in], also where it is transposed for the product
    let(turned=True)
    return aten.addmm(b, x, aten.permute(w, [1, 0])) | aten.mm(x, aten.permute(w, [1, 0]))


@pattern
def Linear(x, w, b=None, turned=True):
    return PlainLinear(x, w, b, turned)


@pattern(through=NoOp)
def Scaled(x, steps=()):  # x times and over any numbers
    r, c = var(), var()
    let(steps=(*r, ("mul", (), c)))
    assert c.numel == 1
    return Scaled(x, r) * c


@pattern(through=NoOp)
def Scaled(x, steps=()):
    r, c = var(), var()
    let(steps=(*r, ("div", (), c)))
    assert c.numel == 1
    return Scaled(x, r) / c


@pattern
def Scaled(x, steps=()):
    return Bare(x)


# --- softmax over the last dimension -------------------------------------------------------------


@pattern
def RowMax(x):  # the largest of each row, [..., 1]
    return aten.amax(x, [-1], True) | GETITEM(aten.max(x, -1, True), 0)


@pattern
def RowMax(x):
    return aten.unsqueeze(aten.amax(x, [-1], False) | GETITEM(aten.max(x, -1, False), 0), -1)


@pattern(through=Loose)
def Softmax(x):
    return aten.softmax(x, -1, ...) | aten._softmax(x, -1, ...)


@pattern(through=Loose)
def Softmax(x):  # exp(x - max x) / sum exp(x - max x)
    return Normalized(x - RowMax(x))


@pattern(through=Loose)
def Softmax(x):
    return Normalized(x) | aten.exp(aten.log_softmax(x, -1, ...) | aten._log_softmax(x, -1, ...))


@pattern(through=Loose)
def Softmax(x):  # exp(x - log sum exp x)
    y = x - RowMax(x)
    return aten.exp(y - aten.log(aten.sum(aten.exp(y), [-1], True)))


@pattern(through=Loose)
def Normalized(x):  # exp x / sum exp x
    e = aten.exp(x)
    return e / aten.sum(e, [-1], True) | e * aten.reciprocal(aten.sum(e, [-1], True))


# --- keys after the query ------------------------------------------------------------------------


@pattern
def Count():  # 0, 1, 2, ... along one dimension
    y = prims.iota(_, ...)
    assert y.start == 0 and y.step == 1
    assert y.dtype in (torch.int32, torch.int64)  # others wrap, or are compared after wrapping
    return y


@pattern
def Count():
    return aten.unsqueeze(Count(), _) | NoOp(Count())


@pattern(through=NoOp)
def Later(i, j):
    return aten.gt(j, i) | aten.ge(j - i, 1) | aten.gt(j - i, 0)


@pattern(through=NoOp)
def NotLater(i, j):
    return aten.le(j, i) | aten.le(j - i, 0) | aten.lt(j - i, 1)


# --- activations ---------------------------------------------------------------------------------


@pattern
def Activation(x, activation):  # by its name in `pypm.kernels.support.activations`
    let(activation="silu")
    return Silu(x)


@pattern
def Activation(x, activation):
    let(activation="gelu")
    return Gelu(x)


@pattern
def Activation(x, activation):
    let(activation="gelu_tanh")
    return GeluTanh(x)


@pattern
def Gelu(x):
    return aten.gelu(x) | GeluByHand(x)


@pattern
def GeluByHand(x):  # x / 2 * (1 + erf(x / sqrt 2))
    return HalfOf(x, aten.erf(x * math.sqrt(0.5) | x / math.sqrt(2)) + 1)


@pattern
def GeluTanh(x):
    return aten.gelu(x, approximate="tanh") | GeluTanhByHand(x)


@pattern
def GeluTanhByHand(x):  # x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))
    return HalfOf(x, aten.tanh(RootOf(x + SmallCube(x))) + 1)


@pattern
def GeluTanhByHand(x):  # the same with x taken out: sqrt(2 / pi) * x * (1 + 0.044715 x^2)
    y = SmallSquare(x) + 1
    return HalfOf(x, aten.tanh(RootOf(x) * y | x * RootOf(y) | RootOf(x * y)) + 1)


@pattern
def Silu(x):
    return aten.silu(x) | SiluByHand(x)


@pattern
def SiluByHand(x):
    return x * Sigmoid(x) | x / (aten.exp(-x) + 1)


@pattern
def QuickGelu(x):  # x * sigmoid(1.702 x)
    return x * Sigmoid(x * 1.702) | x / (aten.exp(-(x * 1.702) | x * -1.702) + 1)


@pattern
def Sigmoid(x):
    return aten.sigmoid(x) | Inverse(aten.exp(-x) + 1)


@pattern
def Inverse(x):
    return aten.reciprocal(x) * 1 | aten.reciprocal(x) | 1 / x  # torch itself writes the first


@pattern
def HalfOf(x, y):  # x y / 2, in any order
    return Half(x) * y | x * Half(y) | Half(x * y)


@pattern
def Half(x):
    return x * 0.5 | x / 2


@pattern
def RootOf(x):
    return x * math.sqrt(2 / math.pi)


@pattern
def SmallCube(x):  # 0.044715 x^3
    return Cube(x) * 0.044715 | x * SmallSquare(x)


@pattern
def SmallSquare(x):
    return Square(x) * 0.044715 | x * 0.044715 * x


@pattern
def Cube(x):
    return aten.pow(x, 3) | Square(x) * x


@pattern
def Square(x):
    return aten.pow(x, 2) | x * x
