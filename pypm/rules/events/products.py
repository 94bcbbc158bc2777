"""Patterns of the parts of a layer: products with weights, norms, softmax, the units of an MLP."""

import torch

from pypm import let, pattern, predicate, record, var
from pypm.fx import aten
from pypm.rules.norm import AnyLayer, AnyRMS, MeanSquare, TimesInverseRoot
from pypm.rules.vocabulary.activations import Activation
from pypm.rules.vocabulary.products import Linear
from pypm.rules.vocabulary.shapes import Resized, Rounded, Wide, keeps_order
from pypm.rules.vocabulary.softmax import RowMax
from pypm.rules.vocabulary.types import holds

# --- products -------------------------------------------------------------------------------------


@pattern
def Copied(x):  # x as it is, and no other shape
    return aten.clone(x, ...) | aten.contiguous(x, ...) | aten.alias(x) | aten.detach(x)


@predicate
def swaps_in_order(shape, a, b):
    """Return whether elements keep their order where two dimensions of this shape are swapped."""
    dims = [*range(len(shape))]
    dims[a], dims[b] = dims[b], dims[a]
    return keeps_order(shape, dims)


@pattern
def InOrder(x):  # x in another shape: the same elements in the same order
    return Resized(InOrder(x)) | Copied(InOrder(x)) | x


@pattern
def InOrder(x):
    y, a, b = var(), var(), var()
    y <= InOrder(x)
    assert swaps_in_order(y.shape, a, b)
    return aten.transpose(y, a, b)


@pattern
def Regrouped(x):  # the same rows, in other dimensions
    return Copied(Regrouped(x)) | x


@pattern
def Regrouped(x):
    y = Resized(Regrouped(x))
    assert y.shape[-1] == x.shape[-1]
    return y


@pattern
def Multiplied(x, weight):
    w, b, turned = var(), var(), var()
    y = Linear(x, w, b, turned)
    assert w.is_contiguous  # so a transposed weight is matched by one alternate
    let(weight=record(matrix=w, bias=b, turned=turned))
    return y


@pattern
def Product(x, weight):
    return Regrouped(Multiplied(Regrouped(x), weight))


# --- norms ----------------------------------------------------------------------------------------


@pattern
def Normed(x, norm):
    w, offset, eps = var(), var(), var()
    let(norm=record(kind="rms", weight=w, offset=offset, bias=None, eps=eps))
    return AnyRMS(x, w, offset, eps)


@pattern
def Normed(x, norm):
    w, offset, b, eps = var(), var(), var(), var()
    let(norm=record(kind="layer", weight=w, offset=offset, bias=b, eps=eps))
    return AnyLayer(x, w, offset, b, eps)


@pattern
def Raised(v, eps):  # by a number that is known when the graph runs, as with `dynamic=True`
    assert eps.numel == 1 and eps.dtype == torch.float32  # a literal has no dtype
    return v + eps


@pattern
def Normed(x, norm):
    w, offset, eps, y, v = var(), var(), var(), var(), var()
    z = TimesInverseRoot(y, v, w, offset)
    y <= Wide(x)
    v <= Raised(MeanSquare(Wide(x)), eps)
    let(norm=record(kind="rms", weight=w, offset=offset, bias=None, eps=eps))
    return z


# --- softmax --------------------------------------------------------------------------------------


@pattern
def Probabilities(x):  # rounded nowhere
    y = aten.softmax(Wide(x), -1, ...) | aten._softmax(Wide(x), -1, ...)
    assert holds(y.dtype, x.dtype)
    return y


@pattern
def Probabilities(x):
    y = var()
    e = aten.exp(y - RowMax(y))
    y <= Wide(x)
    return e / aten.sum(e, [-1], True)


@pattern
def RoundedOnce(x):
    return Rounded(x) | x


# --- hidden units ---------------------------------------------------------------------------------


@pattern
def Acted(x, kind):  # in a wider type, if it is decomposed
    y = var()
    z = Rounded(Activation(y, kind)) | Activation(y, kind)
    y <= Wide(x)
    assert z.dtype == x.dtype
    return z


@pattern
def Hidden(y, inner):
    up, kind = var(), var()
    let(inner=record(up=up, gate=None, activation=kind))
    return Acted(Product(y, up), kind)


@pattern
def Hidden(y, inner):
    gate, up, kind = var(), var(), var()
    let(inner=record(up=up, gate=gate, activation=kind))
    return Acted(Product(y, gate), kind) * Product(y, up)
