"""Types of numbers: which one holds another, and whether a match computes in a wider one."""

import math

import torch

from pypm import predicate
from pypm.fx import metadata

IN_FLOAT64 = "a part is computed in float64, and the rest is not"


@predicate
def holds(wide, narrow):
    """Return whether a type has every value of another, NaN and -0.0 included."""
    if wide == narrow or (wide.is_floating_point and wide.itemsize == 1):
        return wide == narrow and not wide.is_complex  # eight bits: each type its own infinities
    if narrow == torch.bool:
        return not wide.is_complex
    if wide == torch.bool or wide.is_complex or narrow.is_complex:
        return False
    if narrow.is_floating_point:
        if not wide.is_floating_point:
            return False
        ours, theirs = torch.finfo(narrow), torch.finfo(wide)
        return ours.eps >= theirs.eps and ours.max <= theirs.max
    ours = integers(narrow)
    if wide.is_floating_point:
        return max(-ours.min, ours.max) <= 2 / torch.finfo(wide).eps
    theirs = integers(wide)
    return theirs.min <= ours.min and ours.max <= theirs.max


def integers(dtype):
    """Return the `torch.iinfo` of an integer type. Raises ValueError for types of bits."""
    try:
        return torch.iinfo(dtype)
    except TypeError as error:
        raise ValueError(dtype) from error


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
