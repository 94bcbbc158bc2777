"""Sizes compared without a guard: what holds for all sizes that a graph is for."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true

__all__ = ["is_known_scalar", "is_scalar", "known_to_hold", "same_shape", "same_size"]


def known_to_hold(holds: Callable[..., Any], *sizes: Any) -> bool:
    """Return whether a condition on sizes, symbolic or traced ones, is known to hold.

    >>> known(operator.lt, 2, 3)
    True
    """
    values = [_value(size) for size in sizes]
    if not all(map(is_scalar, values)):
        return False
    return statically_known_true(holds(*values))


def is_scalar(value: Any) -> bool:
    """Return whether a value is a number, maybe symbolic, and no tensor, node or proxy."""
    return isinstance(value, (int, float, torch.SymInt, torch.SymFloat))


def is_known_scalar(value: Any) -> bool:
    """Return whether a value is a number, and not symbolic."""
    return isinstance(value, (int, float))


def same_size(one: Any, other: Any) -> bool:
    """Return whether two sizes are known to be equal."""
    return known_to_hold(operator.eq, one, other)


def same_shape(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Return whether two shapes are known to be equal."""
    return len(one) == len(other) and all(map(same_size, one, other))


def _value(size: Any) -> Any:
    """What tracing knows of a size that a proxy stands for."""
    return size.node.meta.get("val") if isinstance(size, fx.Proxy) else size
