"""Guards that stay unknown on symbolic tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from pypm.core.guards import Apply, Attribute, Constant, Expression, Guard, Or, Reference
from pypm.core.traverse import expressions, subexpressions

__all__ = ["is_about_sizes", "is_about_values", "lacks_a_dimension"]

OF_STORAGE: Final = frozenset({"dtype", "device", "tags", "is_contiguous", "is_constant"})
"""Attributes on which no value depends over the reals."""


def _read(guard: Guard) -> Iterator[Expression]:
    """Yield the expressions that a guard reads, with those inside of them."""
    for expression in expressions(guard):
        yield from subexpressions(expression)


def is_about_sizes(guard: Guard) -> bool:
    """Return whether a guard reads more than types and places in memory."""
    return any(
        isinstance(part, Attribute) and part.attribute not in OF_STORAGE for part in _read(guard)
    )


def is_about_values(guard: Guard) -> bool:
    """Return whether a guard reads anything but types and places in memory."""
    return is_about_sizes(guard) or any(isinstance(part, Reference) for part in _read(guard))


def lacks_a_dimension(guard: Guard, rank_of: Callable[[str], int | None]) -> bool:
    """Return whether a guard reads the size of a dimension that a tensor lacks: it cannot hold.

    `rank_of` returns the rank of the tensor of a name; None for other values.
    """
    for part in () if isinstance(guard, Or) else _read(guard):
        match part:
            case Apply(function, (Attribute(name, "shape"), Constant(int() as dim))) if (
                function.name == "item"
            ):
                rank = rank_of(name)
                if rank is not None and not -rank <= dim < rank:
                    return True
    return False
