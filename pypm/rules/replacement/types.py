"""Tests of types: does one have a number; does a match compute in a wider one than its input's."""

import math

import torch

from pypm.fx import metadata

IN_FLOAT64 = "a part is computed in float64, and the rest is not"


def holds_number(dtype, number):
    """Return whether a type of 16 bits has a number, which wider ones round as eager does."""
    if dtype.itemsize > 2 or number == 0:
        return True
    info = torch.finfo(dtype)
    mantissa, _ = math.frexp(number)
    is_short = (2 * mantissa / info.eps).is_integer()
    return is_short and info.smallest_normal <= abs(number) <= info.max


def in_float64(match, x):
    """Return whether a part of a match is computed in float64, and x is of another type.

    A kernel that computes in float32 loses what that part was to keep.
    """
    types = (getattr(metadata(node), "dtype", None) for node in match.region.nodes)
    return x.dtype != torch.float64 and torch.float64 in types
