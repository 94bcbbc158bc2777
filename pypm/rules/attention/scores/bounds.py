"""Bounds of indices: what integers that places alone make can be."""

from itertools import product

import torch

from pypm.kernels.attention.expressions import INDICES, Applied, Name, Number


def bounds(x, sizes):
    """Return the least and the largest number that an index may be, or None if it is no index.

    Arguments:
        x: an expression.
        sizes: batches, heads, queries and keys.

    An index may be in a narrower range, but in no other.
    """
    match x:
        case Name(name) if name in INDICES:
            return 0, sizes[INDICES.index(name)] - 1
        case Number(value) if type(value) is int:
            return value, value
        case Applied(name, operands) if name in RULES:
            found = [bounds(operand, sizes) for operand in operands]
            return None if None in found else RULES[name](*found)
    return None


def fits(x, low, high, sizes):
    """Return whether an expression is known to be an index from low to high."""
    found = bounds(x, sizes)
    return found is not None and low <= found[0] and found[1] <= high


def fits_type(x, dtype, sizes):
    """Return whether an expression is known to be an index that a type of integers holds."""
    info = torch.iinfo(dtype)
    return fits(x, info.min, info.max, sizes)


def multiplied(a, b):
    """Return the bounds of a product."""
    corners = [x * y for x, y in product(a, b)]
    return min(corners), max(corners)


def divided(a, b):
    """Return the bounds of a quotient that is rounded down, by a positive number."""
    return (a[0] // b[0], a[1] // b[0]) if b[0] == b[1] > 0 else None


def remaining(a, b):
    """Return the bounds of a remainder of a division by a positive number."""
    if not b[0] == b[1] > 0:
        return None
    return a if a[0] >= 0 and a[1] < b[0] else (0, b[0] - 1)


def magnitude(a):
    """Return the bounds of an absolute value."""
    return max(0, a[0], -a[1]), max(-a[0], a[1])


RULES = {
    "+": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "-": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "*": multiplied,
    "//": divided,
    "%": remaining,
    "abs": magnitude,
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
}
"""Bounds of each operator from those of its operands; None where these do not bound it."""
