"""Calls of operators whose meaning is asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from pypm.laws.algebra import Algebra, Given, Index, Indexed, Scalar, Shape

__all__ = ["Meaning", "Site"]


@dataclass(slots=True)
class Site:
    """A call whose meaning is asked for."""

    algebra: Algebra
    shape: Shape
    """The shape of the result, if that is one tensor."""
    number: Callable[[Given], Scalar]
    """The value of a number in an argument, which may be a symbol."""
    size: Callable[[Given], Index]
    """The size that a number in an argument is."""


Meaning: TypeAlias = Callable[..., "Indexed | tuple[Indexed, ...]"]
"""A function from a `Site`, operands and attributes to the result."""
