"""Guards that stay unknown on symbolic tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import unwrap
from typing import Final

from pypm.core.guards import Apply, Attribute, Constant, Expression, Guard, Or, Reference, Tuple
from pypm.core.terms import UNDEFINED, Value
from pypm.core.traverse import expressions, subexpressions
from pypm.laws.algebra import Given
from pypm.laws.formulas import rank_of
from pypm.laws.patterns.ways import NotMatched
from pypm.laws.sizes import World, is_of_items

__all__ = [
    "at_limits",
    "check_values",
    "is_about_sizes",
    "is_about_values",
    "lacks_a_dimension",
    "reads_none",
]

OF_STORAGE: Final = frozenset({"dtype", "device", "tags", "is_contiguous", "is_constant"})
"""Attributes on which no value depends over the reals."""
OF_TENSORS: Final = frozenset({"shape", "rank", "numel"})
"""Attributes that tensors alone have."""


def _read(guard: Guard) -> Iterator[Expression]:
    """Yield the expressions that a guard reads, with those inside of them."""
    for expression in expressions(guard):
        yield from subexpressions(expression)


def at_limits(expression: Expression, world: World) -> Expression:
    """Return an expression with the limits of functions that have one in place of their calls."""
    match expression:
        case Apply(function) if function.limit is not None:
            world.limits.add(function.name.rpartition(".")[2])
            return Constant(function.limit)
        case Apply(function, arguments):
            return Apply(function, tuple(at_limits(part, world) for part in arguments))
        case Tuple(elements):
            return Tuple(tuple(at_limits(part, world) for part in elements))
    return expression


def is_about_sizes(guard: Guard) -> bool:
    """Return whether a guard reads more than types and places in memory."""
    return any(
        isinstance(part, Attribute) and part.attribute not in OF_STORAGE for part in _read(guard)
    )


def is_about_values(guard: Guard) -> bool:
    """Return whether a guard reads anything but types and places in memory."""
    return is_about_sizes(guard) or any(isinstance(part, Reference) for part in _read(guard))


def reads_none(guard: Guard, owner_of: Callable[[Attribute], Given]) -> bool:
    """Return whether a guard reads the shape of None: it cannot hold.

    `owner_of` returns whose attribute one is: values are chosen in the order that guards read them.
    """
    return not isinstance(guard, Or) and any(
        isinstance(part, Attribute) and owner_of(part) is None and part.attribute in OF_TENSORS
        for part in _read(guard)
    )


def lacks_a_dimension(guard: Guard, value_of: Callable[[str], Given]) -> bool:
    """Return whether a guard reads the size of a dimension that a tensor lacks: it cannot hold."""
    for part in () if isinstance(guard, Or) else _read(guard):
        match part:
            case Apply(function, (Attribute(name, "shape"), Constant(int() as dim))) if (
                function.name == "item"
            ):
                rank = rank_of(value_of(name))
                if rank is not None and not -rank <= dim < rank:
                    return True
    return False


def check_values(
    expression: Expression, evaluated: Callable[[Expression], Value], world: World
) -> None:
    """Reject a way where a function of known values has no value, whatever the sizes. Of dimensions
    of a known size, other ways have the items. Raises NotMatched.
    """
    if isinstance(expression, Tuple):
        for element in expression.elements:
            check_values(element, evaluated, world)
    if not isinstance(expression, Apply):
        return
    for argument in expression.arguments:
        check_values(argument, evaluated, world)
    arguments = [evaluated(argument) for argument in expression.arguments]
    if any(value is UNDEFINED for value in arguments):
        return
    before = len(world.hypotheses)
    try:
        unwrap(expression.function.apply)(*arguments)
    except (LookupError, ValueError) as why:
        if all(is_of_items(form) for form, _ in world.hypotheses[before:]):
            raise NotMatched(str(why)) from None
    except (ArithmeticError, AttributeError, TypeError):  # of what is not known
        return
