"""Softmax over the last dimension, and the keys after a query."""

import math

import torch

from pypm import pattern
from pypm.fx import GETITEM, aten, prims
from pypm.rules.vocabulary.shapes import LooseStep, NoOp


def normalized(x, shape):
    """Return softmax over the last dimension, whose rows may be grouped otherwise."""
    return torch.softmax(x, -1).reshape(*shape[:-1], x.shape[-1])


@pattern(means=lambda x: x.amax(-1, True))
def RowMax(x):  # the largest of each row, [..., 1]
    return aten.amax(x, [-1], True) | GETITEM(aten.max(x, -1, True), 0)


@pattern
def RowMax(x):
    return aten.unsqueeze(aten.amax(x, [-1], False) | GETITEM(aten.max(x, -1, False), 0), -1)


@pattern(through=LooseStep, means=normalized)
def Softmax(x):
    return aten.softmax(x, -1, ...) | aten._softmax(x, -1, ...)


@pattern(through=LooseStep)
def Softmax(x):  # exp(x - max x) / sum exp(x - max x)
    return Normalized(x - RowMax(x))


@pattern(through=LooseStep)
def Softmax(x):
    return Normalized(x) | aten.exp(aten.log_softmax(x, -1, ...) | aten._log_softmax(x, -1, ...))


@pattern(through=LooseStep)
def Softmax(x):  # exp(x - log sum exp x)
    y = x - RowMax(x)
    return aten.exp(y - aten.log(aten.sum(aten.exp(y), [-1], True)))


@pattern(through=LooseStep, means=normalized)
def Normalized(x):  # exp x / sum exp x
    e = aten.exp(x)
    return e / aten.sum(e, [-1], True) | e * aten.reciprocal(aten.sum(e, [-1], True))


# --- keys after the query ------------------------------------------------------------------------


def counted(shape):
    """Return 0, 1, 2, ... in a shape."""
    return torch.arange(math.prod(shape)).reshape(shape)


@pattern(means=counted)
def CountedRow():  # 0, 1, 2, ...
    y = prims.iota(_, ...)
    assert y.start == 0 and y.step == 1
    assert y.dtype in (torch.int32, torch.int64)  # others wrap, or are compared after wrapping
    return y


@pattern
def CountedRow():
    return NoOp(CountedRow())


@pattern(means=counted)
def Count():  # the same along one dimension of several
    return CountedRow()


@pattern
def Count():
    return aten.unsqueeze(Count(), _) | NoOp(Count())


@pattern(through=NoOp, means=lambda i, j: j > i)
def Later(i, j):
    return aten.gt(j, i) | aten.ge(j - i, 1) | aten.gt(j - i, 0)


@pattern(through=NoOp, means=lambda i, j: j <= i)
def NotLater(i, j):
    return aten.le(j, i) | aten.le(j - i, 0) | aten.lt(j - i, 1)
