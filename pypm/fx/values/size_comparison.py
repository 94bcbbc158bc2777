"""Comparisons of sizes that hold for all sizes that a graph is for; none adds a guard."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.types import BoolLikeType

__all__ = ["is_known_scalar", "is_scalar", "known_to_hold", "same_shape", "same_size"]


def known_to_hold(holds: Callable[..., BoolLikeType], *sizes: object) -> bool:
    """Return whether `holds(*sizes)` is known to be true, for every value of symbolic sizes.

    The sizes are numbers, symbolic sizes or proxies of these. The result is False if the condition
    is false, is undecided, or one of the sizes is not a number. No guard is added.

    >>> known_to_hold(operator.lt, 2, 3)
    True
    """
    values = [_value(size) for size in sizes]
    if not all(map(is_scalar, values)):
        return False
    if all(map(is_known_scalar, values)):
        return statically_known_true(holds(*values))
    with disable_proxy_modes_tracing():  # a comparison is no part of what is traced
        return statically_known_true(holds(*values))


def is_scalar(value: object) -> bool:
    """Return whether a value is a number, maybe symbolic, and not a tensor, node or proxy."""
    return isinstance(value, (int, float, torch.SymInt, torch.SymFloat))


def is_known_scalar(value: object) -> bool:
    """Return whether a value is a Python number, not a symbolic one."""
    return isinstance(value, (int, float))


def same_size(one: object, other: object) -> bool:
    """Return whether the sizes `one` and `other` are known to be equal for all their values."""
    return known_to_hold(operator.eq, one, other)


def same_shape(one: Sequence[object], other: Sequence[object]) -> bool:
    """Return whether the shapes `one` and `other` are known to be equal for all their values."""
    return len(one) == len(other) and all(map(same_size, one, other))


def _value(size: object) -> object:
    """Return the value of a size, or the one that tracing recorded for a proxy."""
    return size.node.meta.get("val") if isinstance(size, fx.Proxy) else size
