"""Patterns of the parts of a layer: products with weights, norms, softmax, the units of an MLP."""

import torch
import torch.nn.functional as F

from pypm import let, pattern, predicate, record, var
from pypm.events.operator import normed as normed_by
from pypm.fx import aten, hiding, observer
from pypm.rules.norm import AnyLayer, AnyRMS, MeanSquare, TimesInverseRoot
from pypm.rules.vocabulary.activations import MEANT, Activation
from pypm.rules.vocabulary.products import Linear
from pypm.rules.vocabulary.shapes import (
    Resized,
    Rounded,
    Wide,
    keeps_order,
    reshaped,
    rows,
    rows_if_said,
    same,
)
from pypm.rules.vocabulary.softmax import RowMax
from pypm.rules.vocabulary.types import holds

# --- products -------------------------------------------------------------------------------------


@pattern(means=same)
def Copied(x):  # x as it is, and no other shape
    return aten.clone(x, ...) | aten.contiguous(x, ...) | aten.alias(x) | aten.detach(x)


@predicate
def swaps_in_order(shape, a, b):
    """Return whether elements keep their order where two dimensions of this shape are swapped."""
    dims = [*range(len(shape))]
    dims[a], dims[b] = dims[b], dims[a]
    return keeps_order(shape, dims)


@pattern(means=reshaped)
def Swapped(x):  # two dimensions, so that the elements keep their order
    a, b = var(), var()
    assert swaps_in_order(x.shape, a, b)
    return aten.transpose(x, a, b)


@pattern(means=reshaped)
def InOrder(x):  # x in another shape: the same elements in the same order
    return Resized(InOrder(x)) | Copied(InOrder(x)) | Swapped(InOrder(x)) | x


@pattern(means=rows)
def Regrouped(x):  # the same rows, in other dimensions
    return Copied(Regrouped(x)) | x


@pattern
def Regrouped(x):
    y = Resized(Regrouped(x))
    assert y.shape[-1] == x.shape[-1]
    return y


def flat(x):
    """Return all rows, [rows, elements]."""
    return x.reshape(-1, x.shape[-1])


@observer((2, 1))
def matrix_of(weight):
    """Return the matrix of a product, [out, in], and its bias, [out]."""
    w, b = weight.matrix if weight.turned else weight.matrix.mT, weight.bias
    return w, w.new_zeros(w.shape[0]) if b is None else b


def multiplied(x, weight):
    """Return the product of rows with a weight."""
    return F.linear(x, *matrix_of(weight))


def product(x, weight, shape=None):
    """Return the product of rows with a weight, in other dimensions if a shape says so."""
    return rows_if_said(multiplied(x, weight), shape)


@pattern(means=hiding(matrix_of, multiplied))
def Multiplied(x, weight):
    w, b, turned = var(), var(), var()
    y = Linear(x, w, b, turned)
    assert w.is_contiguous  # so a transposed weight is matched by one alternate
    assert w.rank == 2
    assert b is None or b.rank == 1
    let(weight=record(matrix=w, bias=b, turned=turned))
    return y


@pattern(means=hiding(matrix_of, product))
def Product(x, weight):
    return Regrouped(Multiplied(Regrouped(x), weight))


# --- norms ----------------------------------------------------------------------------------------


@observer()
def normed_rows(given, norm):
    """Return a norm of rows [rows, width], as `Normed` binds it."""
    return normed_by(given, norm.kind, (norm.weight, norm.offset), norm.bias, norm.eps)


def normed(x, norm):
    """Return a norm of rows."""
    return normed_rows(flat(x), norm).reshape(x.shape)


@pattern(means=hiding(normed_rows, normed))
def Normed(x, norm):
    w, offset, eps = var(), var(), var()
    let(norm=record(kind="rms", weight=w, offset=offset, bias=None, eps=eps))
    assert w is None or w.shape == x.shape[-1:]
    return AnyRMS(x, w, offset, eps)


@pattern
def Normed(x, norm):
    w, offset, b, eps = var(), var(), var(), var()
    let(norm=record(kind="layer", weight=w, offset=offset, bias=b, eps=eps))
    assert (w is None or w.shape == x.shape[-1:]) and (b is None or b.shape == x.shape[-1:])
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
    assert w is None or w.shape == x.shape[-1:]
    return z


# --- softmax --------------------------------------------------------------------------------------


@pattern(means=lambda x: torch.softmax(x, -1))
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


@pattern(means=same)
def RoundedOnce(x):
    return Rounded(x) | x


# --- hidden units ---------------------------------------------------------------------------------


def acted(x, kind):
    """Return an activation of hidden units."""
    return MEANT[kind](x)


@observer(last=1)
def units(given, inner):
    """Return the hidden units of rows [rows, in], as `Hidden` binds them."""
    y = product(given, inner.up)
    if inner.gate is not None:
        return acted(product(given, inner.gate), inner.activation) * y
    return acted(y, inner.activation)


def hidden(y, inner, shape=None):
    """Return the hidden units of rows, in other dimensions if a shape says so."""
    found = units(flat(y), inner)
    return rows(found, y.shape if shape is None else shape)


@pattern(means=acted)
def Acted(x, kind):  # in a wider type, if it is decomposed
    y = var()
    z = Rounded(Activation(y, kind)) | Activation(y, kind)
    y <= Wide(x)
    assert z.dtype == x.dtype
    return z


@pattern(means=hiding(units, hidden))
def Hidden(y, inner):
    up, kind = var(), var()
    let(inner=record(up=up, gate=None, activation=kind))
    return Acted(Product(y, up), kind)


@pattern
def Hidden(y, inner):
    gate, up, kind = var(), var(), var()
    let(inner=record(up=up, gate=gate, activation=kind))
    return Acted(Product(y, gate), kind) * Product(y, up)
