"""Types of numbers: which one holds another."""

import torch

from pypm import predicate

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


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
