"""Activations, as one operator or written out, and their parts."""

import math

import torch
import torch.nn.functional as F

from pypm import let, pattern
from pypm.fx import aten


def gelu_tanh(x):
    """Return GELU by tanh."""
    return F.gelu(x, approximate="tanh")


MEANT = {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": gelu_tanh}


@pattern(means=lambda x, activation: MEANT[activation](x))
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


@pattern(means=F.gelu)
def Gelu(x):
    return aten.gelu(x) | GeluByHand(x)


@pattern(means=F.gelu)
def GeluByHand(x):  # x / 2 * (1 + erf(x / sqrt 2))
    return HalfOf(x, aten.erf(x * math.sqrt(0.5) | x / math.sqrt(2)) + 1)


@pattern(means=gelu_tanh)
def GeluTanh(x):
    return aten.gelu(x, approximate="tanh") | GeluTanhByHand(x)


@pattern(means=gelu_tanh)
def GeluTanhByHand(x):  # x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))
    return HalfOf(x, aten.tanh(RootOf(x + SmallCube(x))) + 1)


@pattern
def GeluTanhByHand(x):  # the same with x taken out: sqrt(2 / pi) * x * (1 + 0.044715 x^2)
    y = SmallSquare(x) + 1
    return HalfOf(x, aten.tanh(RootOf(x) * y | x * RootOf(y) | RootOf(x * y)) + 1)


@pattern(means=F.silu)
def Silu(x):
    return aten.silu(x) | SiluByHand(x)


@pattern(means=F.silu)
def SiluByHand(x):
    return x * Sigmoid(x) | x / (aten.exp(-x) + 1)


@pattern(means=lambda x: x * torch.sigmoid(x * 1.702))
def QuickGelu(x):  # x * sigmoid(1.702 x)
    return x * Sigmoid(x * 1.702) | x / (aten.exp(-(x * 1.702) | x * -1.702) + 1)


@pattern(means=torch.sigmoid)
def Sigmoid(x):
    return aten.sigmoid(x) | Inverse(aten.exp(-x) + 1)


@pattern(means=torch.reciprocal)
def Inverse(x):
    return aten.reciprocal(x) * 1 | aten.reciprocal(x) | 1 / x  # torch itself writes the first


@pattern(means=lambda x, y: x * y / 2)
def HalfOf(x, y):  # x y / 2, in any order
    return Half(x) * y | x * Half(y) | Half(x * y)


@pattern(means=lambda x: x / 2)
def Half(x):
    return x * 0.5 | x / 2


@pattern(means=lambda x: x * math.sqrt(2 / math.pi))
def RootOf(x):
    return x * math.sqrt(2 / math.pi)


@pattern(means=lambda x: x**3 * 0.044715)
def SmallCube(x):  # 0.044715 x^3
    return Cube(x) * 0.044715 | x * SmallSquare(x)


@pattern(means=lambda x: x**2 * 0.044715)
def SmallSquare(x):
    return Square(x) * 0.044715 | x * 0.044715 * x


@pattern(means=lambda x: x**3)
def Cube(x):
    return aten.pow(x, 3) | Square(x) * x


@pattern(means=lambda x: x**2)
def Square(x):
    return aten.pow(x, 2) | x * x
