"""Spellings: one pattern for each thing that graphs write in several ways."""

import math

import torch

from pypm import let, pattern, var
from pypm.fx.operators import aten, prims

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
    return aten.view(x, ...) | aten.reshape(x, ...) | aten._unsafe_view(x, ...)


@pattern(through=NoOp)
def Batch(x):  # regroups batch dimensions only
    y = Reshape(x)
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
    assert x.dtype in FLOATS and y.dtype in FLOATS
    return y


@pattern
def Cast(x):
    return NoOp(Cast(x)) | Rounded(Cast(x)) | x


@pattern
def Loose(x):  # nothing, rounding, or batch dimensions grouped otherwise
    return NoOp(x) | Rounded(x)


@pattern
def Loose(x):
    y = Reshape(x)
    assert y.shape[-2:] == x.shape[-2:]
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
def Scaled(x, steps=()):  # x times and over any numbers
    r, c = var(), var()
    let(steps=(*r, ("mul", c)))
    assert c.numel == 1
    return Scaled(x, r) * c


@pattern(through=NoOp)
def Scaled(x, steps=()):
    r, c = var(), var()
    let(steps=(*r, ("div", c)))
    assert c.numel == 1
    return Scaled(x, r) / c


@pattern
def Scaled(x, steps=()):
    return Bare(x)


# --- softmax over the last dimension -------------------------------------------------------------


@pattern(through=Loose)
def Softmax(x):
    return aten.softmax(x, -1, ...) | aten._softmax(x, -1, ...)


@pattern(through=Loose)
def Softmax(x):  # exp(x - max x) / sum exp(x - max x)
    e = aten.exp(x - aten.amax(x, [-1], True))
    return e / aten.sum(e, [-1], True)


@pattern(through=Loose)
def Softmax(x):  # exp x / sum exp x
    e = aten.exp(x)
    return e / aten.sum(e, [-1], True)


# --- activations ---------------------------------------------------------------------------------


@pattern
def Gelu(x):
    return aten.gelu(x)


@pattern
def Gelu(x):  # x / 2 * (1 + erf(x / sqrt 2))
    return Half(x) * (aten.erf(x * math.sqrt(0.5) | x / math.sqrt(2)) + 1)


@pattern
def GeluTanh(x):
    return aten.gelu(x, approximate="tanh")


@pattern
def GeluTanh(x):  # x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * Cube(x))
    return Half(x) * (aten.tanh(inner) + 1)


@pattern
def Silu(x):
    return aten.silu(x) | x * aten.sigmoid(x) | x / (aten.exp(-x) + 1)


@pattern
def Half(x):
    return x * 0.5 | x / 2


@pattern
def Cube(x):
    return aten.pow(x, 3) | x * x * x
