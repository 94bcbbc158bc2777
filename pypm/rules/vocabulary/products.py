"""Matrix products, linear layers, and scales."""

import torch

from pypm import let, pattern, var
from pypm.fx import aten
from pypm.rules.vocabulary.shapes import Batch, Merged, NoOp, UnderNoOps, batched


def linear(x, w, b, turned):
    """Return x w + b, or x w^T + b."""
    y = x @ (w.mT if turned else w)
    return y if b is None else y + b


def scaled(x, steps):
    """Return x after steps, each times or over a number."""
    for kind, _, *operands in steps:
        x = {"mul": torch.mul, "div": torch.div}[kind](x, *operands)
    return x


def product(a, b, shape=None):
    """Return a product of matrices, with other batch dimensions if a shape says so."""
    return a @ b if shape is None else batched(a @ b, shape)


@pattern(through=NoOp, means=product)
def MM(a, b):
    return aten.matmul(a, b) | aten.bmm(a, b) | Batch(aten.bmm(Merged(a), Merged(b)))


@pattern(through=NoOp, means=linear)
def PlainLinear(x, w, b=None, turned=False):  # x [N, in], w [in, out]
    let(turned=False)
    return aten.addmm(b, x, w) | aten.mm(x, w)


@pattern(through=NoOp)
def PlainLinear(x, w, b=None, turned=False):  # x [..., in], w [out, in]
    let(turned=True)
    assert w.rank == 2
    assert b is None or b.dtype == x.dtype  # torch has other types in eager than in a trace
    return aten.linear(x, w, b)


@pattern(through=NoOp, means=linear)
def Linear(x, w, b=None, turned=True):  # w [out, in], also where it is transposed for the product
    let(turned=True)
    return aten.addmm(b, x, aten.permute(w, [1, 0])) | aten.mm(x, aten.permute(w, [1, 0]))


@pattern
def Linear(x, w, b=None, turned=True):
    return PlainLinear(x, w, b, turned)


@pattern(through=NoOp, means=scaled)
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
    return UnderNoOps(x)
