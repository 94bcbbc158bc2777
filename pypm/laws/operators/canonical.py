"""Calls of torch in canonical form, for any numbers that are symbols."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from torch import Tensor, fx

from pypm.fx.subject.calls import CanonicalCall
from pypm.laws.algebra import Given
from pypm.laws.numbers import SymbolicNumber

__all__ = ["filled", "node_of", "of_any"]


@dataclass(frozen=True)
class _Place:
    """The place of a number that is a symbol among those of a call."""

    number: int


def of_any(call: CanonicalCall, numbers: Sequence[SymbolicNumber]) -> CanonicalCall | None:
    """Return a call of any numbers; None if it does not hold those that are given, or others."""
    places = {id(number): _Place(i) for i, number in enumerate(numbers)}
    left = set(places)

    def placed(value: Given) -> Given:
        if isinstance(value, SymbolicNumber):
            left.discard(id(value))
            return places[id(value)]
        return tuple(map(placed, value)) if isinstance(value, (tuple, list)) else value

    try:
        arguments = tuple(map(placed, call.arguments))
        attributes = {key: placed(value) for key, value in call.attributes.items()}
    except KeyError:
        return None
    return None if left else replace(call, arguments=arguments, attributes=attributes)


def filled(
    value: Given, known: Mapping[fx.Node, Given], numbers: Sequence[SymbolicNumber]
) -> Given:
    """Return an argument of a call with these values of nodes, and these numbers."""
    if isinstance(value, fx.Node):
        return known[value]
    if isinstance(value, _Place):
        return numbers[value.number]
    if isinstance(value, (tuple, list)):
        return tuple([filled(part, known, numbers) for part in value])
    return value


def node_of(
    graph: fx.Graph,
    func: Callable[..., Given],
    name: str,
    given: tuple[Given, ...],
    named: dict[str, Given],
) -> fx.Node:
    """Return the node of a call."""
    if name in _SWAPPED:
        return graph.call_function(_SWAPPED[name], given[::-1])
    if name in _INFIX:
        return graph.call_function(_INFIX[name], given)
    if _is_method(func):
        return graph.call_method(name, given, named)
    return graph.call_function(func, given, named)


def _is_method(func: Callable[..., Given]) -> bool:
    """Return whether a function of torch is a method of tensors."""
    is_descriptor = isinstance(func, (type(Tensor.mul), type(Tensor.__getitem__)))
    return is_descriptor or getattr(func, "__qualname__", "").startswith("Tensor")


_SWAPPED: Final[dict[str, Callable[..., Given]]] = {
    "__rsub__": operator.sub,
    "__rdiv__": operator.truediv,
    "__rtruediv__": operator.truediv,
    "__rpow__": operator.pow,
    "__rmatmul__": operator.matmul,
}
_INFIX: Final[dict[str, Callable[..., Given]]] = {"__getitem__": operator.getitem}
