"""Guards that stay unknown on symbolic tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from pypm.core.guards import (
    And,
    Apply,
    Attribute,
    Constant,
    Equal,
    Expression,
    Guard,
    Holds,
    Less,
    Not,
    Or,
    True_,
    Tuple,
)

__all__ = ["is_about_sizes", "lacks_a_dimension"]

OF_STORAGE: Final = frozenset({"dtype", "device", "tags", "is_contiguous", "is_constant"})
"""Attributes on which no value depends over the reals."""


def expressions(guard: Guard) -> Iterator[Expression]:
    """Yield the expressions that a guard reads, with those inside of them."""
    match guard:
        case Equal(left, right) | Less(left, right):
            yield from (*_parts(left), *_parts(right))
        case Holds(expression):
            yield from _parts(expression)
        case And(left, right) | Or(left, right):
            yield from (*expressions(left), *expressions(right))
        case Not(inner):
            yield from expressions(inner)
        case True_():
            return


def _parts(expression: Expression) -> Iterator[Expression]:
    yield expression
    inner: tuple[Expression, ...] = ()
    if isinstance(expression, Apply):
        inner = expression.arguments
    elif isinstance(expression, Tuple):
        inner = expression.elements
    for part in inner:
        yield from _parts(part)


def is_about_sizes(guard: Guard) -> bool:
    """Return whether a guard reads more than types and places in memory."""
    return any(
        isinstance(part, Attribute) and part.attribute not in OF_STORAGE
        for part in expressions(guard)
    )


def lacks_a_dimension(guard: Guard, rank_of: Callable[[str], int | None]) -> bool:
    """Return whether a guard reads the size of a dimension that a tensor lacks: it cannot hold.

    `rank_of` returns the rank of the tensor of a name; None for other values.
    """
    for part in () if isinstance(guard, Or) else expressions(guard):
        match part:
            case Apply(function, (Attribute(name, "shape"), Constant(int() as dim))) if (
                function.name == "item"
            ):
                rank = rank_of(name)
                if rank is not None and not -rank <= dim < rank:
                    return True
    return False
