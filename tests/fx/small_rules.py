"""Small rules that several tests try."""

from typing import Final

import torch

from pypm import RuleSet, let, pattern, rule, var
from pypm.fx import aten
from pypm.rules.vocabulary.shapes import Reshape


@pattern
def LessItself(x):
    return x - x


@rule(LessItself)
def zeros(x):
    return torch.zeros_like(x)


# --- operators that undo each other: what is left is an input, or a view of one ------------------


@pattern
def Same(x):
    c = var()
    y = x * c
    assert c.value == 1 and y.dtype == x.dtype and y.shape == x.shape
    return y


@pattern
def Same(x):
    return aten.neg(aten.neg(x))


@rule(Same)
def same(x):  # of complex numbers, infinity times 1 gives NaN
    assert not x.dtype.is_complex
    return x


@pattern
def Viewed(x):
    y = Reshape(x) | aten.alias(x) | aten.cat([x], ...)
    assert y.shape == x.shape
    return y


@rule(Viewed)
def viewed_as_it_is(x):
    return x


@pattern
def ReshapedTwice(x, shape):
    y = Reshape(Reshape(x))
    let(shape=y.shape)
    assert y.dtype == x.dtype
    return y


@rule(ReshapedTwice)
def reshaped_twice(x, shape):
    return x.reshape(shape)


@pattern
def TurnedTwice(x):
    a, b = var(), var()
    return aten.transpose(aten.transpose(x, a, b), a, b)


@rule(TurnedTwice)
def turned_back(x):
    return x


@pattern
def Rejoined(x):
    y = aten.cat([aten.slice(x, ...)], ...)
    assert y.shape == x.shape
    return y


@rule(Rejoined)
def rejoined(x):
    return x


TIDY: Final = RuleSet((same, viewed_as_it_is, rejoined, reshaped_twice, turned_back), "tidy")
"""Rules that keep every bit."""
