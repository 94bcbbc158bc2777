"""Symbolic sizes as guards see them. Nothing here asks a shape environment to decide."""

from __future__ import annotations

import operator as python
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from math import comb, prod
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeGuard, overload

import sympy  # type: ignore[import-untyped]
import torch
from torch.types import IntLikeType

from pypm.core.terms import Unresolved, Value
from pypm.torch_internals import FloorDiv, Mod

if TYPE_CHECKING:
    from torch import fx

__all__ = [
    "Dimension",
    "Symbolic",
    "UnknownSize",
    "hint",
    "is_symbolic",
    "opaque",
    "size",
    "sizes",
]


class UnknownSize(TypeError):
    """A Python comparison of symbolic sizes that cannot be decided without a shape guard."""


_Function: TypeAlias = Callable[[sympy.Basic, sympy.Basic], sympy.Basic]
_Method: TypeAlias = Callable[["Symbolic", Value], "Dimension | float"]


def _both_ways(function: _Function) -> tuple[_Method, _Method]:
    """Return the methods for `number + other` and `other + number`."""

    def forward(self: Symbolic, other: Value) -> Dimension | float:
        return self._apply(function, other, swapped=False)

    def backward(self: Symbolic, other: Value) -> Dimension | float:
        return self._apply(function, other, swapped=True)

    return forward, backward


class Symbolic(Unresolved):
    """A number known only as an expression in symbolic sizes; immutable and hashable.

    Two are equal if the difference of their expressions is zero for all sizes, and unequal if it is
    zero for none. A size of the graph's inputs is a positive integer, at least the lower bound that
    its shape environment had recorded. If undecided, `equals`, `less` and `greater` return None,
    and the Python operators `==`, `<` and so on raise `UnknownSize`.
    """

    __slots__ = ("_lower", "expression")

    def __init__(
        self, expression: sympy.Basic, lower: Mapping[sympy.Symbol, int] | None = None
    ) -> None:
        self.expression = expression
        self._lower = lower or {}

    def equals(self, other: Value) -> bool | None:
        sign = self._sign_of_difference(other)
        return None if sign is None else sign.zero

    def less(self, other: Value) -> bool | None:
        sign = self._sign_of_difference(other)
        return None if sign is None else sign.negative

    def greater(self, other: Value) -> bool | None:
        sign = self._sign_of_difference(other)
        return None if sign is None else sign.positive

    def _sign_of_difference(self, other: Value) -> _Sign | None:
        if not _is_number(other):
            return _NOT_A_NUMBER
        if not isinstance(self.expression, sympy.Expr):  # the truth of a comparison
            same = isinstance(other, Symbolic) and other.expression == self.expression
            return _ZERO if same else None
        expression, lower = _parts(other)
        bounds = {**self._lower, **lower}
        return _sign(self.expression - expression, tuple(sorted(bounds.items(), key=str)))

    def __eq__(self, other: object) -> bool:
        return _decided(self.equals(other), self, "==", other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: Value) -> bool:
        return _decided(self.less(other), self, "<", other)

    def __gt__(self, other: Value) -> bool:
        return _decided(self.greater(other), self, ">", other)

    def __le__(self, other: Value) -> bool:
        return not self > other

    def __ge__(self, other: Value) -> bool:
        return not self < other

    def __bool__(self) -> bool:
        return self != 0

    def __hash__(self) -> int:
        return hash((Symbolic, self.expression))

    def __repr__(self) -> str:
        return str(self.expression)

    def __neg__(self) -> Dimension | float:
        return _number(-self.expression, self._lower)

    def __abs__(self) -> Dimension | float:
        return _number(sympy.Abs(self.expression), self._lower)

    __add__, __radd__ = _both_ways(python.add)
    __sub__, __rsub__ = _both_ways(python.sub)
    __mul__, __rmul__ = _both_ways(python.mul)
    __truediv__, __rtruediv__ = _both_ways(python.truediv)
    __floordiv__, __rfloordiv__ = _both_ways(FloorDiv)
    __mod__, __rmod__ = _both_ways(Mod)
    __pow__, __rpow__ = _both_ways(python.pow)

    def _apply(self, function: _Function, other: Value, *, swapped: bool) -> Dimension | float:
        if not _is_number(other):
            return NotImplemented  # type: ignore[no-any-return]
        expression, lower = _parts(other)
        pair = (expression, self.expression) if swapped else (self.expression, expression)
        if function in (FloorDiv, Mod) and prod(map(_terms, pair)) > _TERMS:
            raise OverflowError(f"{pair[0]} and {pair[1]} have too many terms to be divided")
        return _number(function(*pair), {**self._lower, **lower})


Dimension: TypeAlias = int | Symbolic


class _Sign(NamedTuple):
    """The sign of a number as three Kleene truths."""

    zero: bool | None
    negative: bool | None
    positive: bool | None


_ZERO: Final = _Sign(zero=True, negative=False, positive=False)
_NOT_A_NUMBER: Final = _Sign(zero=False, negative=None, positive=None)
_UNKNOWN: Final = _Sign(zero=None, negative=None, positive=None)

_TERMS: Final = 1024
"""Terms of the largest expression that is expanded, or divided; what is larger is unknown."""


@lru_cache(maxsize=4096)
def _sign(difference: sympy.Expr, bounds: tuple[tuple[sympy.Symbol, int], ...]) -> _Sign:
    if _terms(difference, symbol=2) > _TERMS:
        return _UNKNOWN
    lower = dict(bounds)
    above = {}
    for symbol in difference.free_symbols:
        bound = lower.get(symbol, 1 if symbol.is_positive else None)
        if bound is not None and symbol.is_integer:
            # sympy proves signs of sums of non-negative terms: count each size from its bound.
            above[symbol] = bound + sympy.Dummy(symbol.name, integer=True, nonnegative=True)
    shifted = sympy.expand(difference.xreplace(above))
    return _Sign(shifted.is_zero, shifted.is_negative, shifted.is_positive)


def _terms(expression: sympy.Basic, symbol: int = 1) -> int:
    """Return how many terms an expression may have when it is expanded, and each of its symbols is
    a sum of so many; `_TERMS` + 1 for more.
    """
    if isinstance(expression, sympy.Symbol):
        return symbol
    counts = [_terms(part, symbol) for part in expression.args]
    if isinstance(expression, sympy.Add):
        found = sum(counts)
    elif isinstance(expression, sympy.Pow) and expression.exp.is_Integer:
        degree = abs(int(expression.exp))
        found = comb(counts[0] + degree - 1, degree)
        if expression.exp.is_negative:  # the sign of a quotient takes sympy much longer
            found **= 3
    else:  # a product, or a division, which looks for common factors
        found = prod(counts)
    return min(found, _TERMS + 1)


def _is_number(value: Value) -> TypeGuard[Dimension | float]:
    return isinstance(value, (int, float, Symbolic)) and not isinstance(value, bool)


def _parts(value: Dimension | float) -> tuple[sympy.Basic, Mapping[sympy.Symbol, int]]:
    if isinstance(value, Symbolic):
        return value.expression, value._lower
    return sympy.sympify(value), {}


def _number(expression: sympy.Basic, lower: Mapping[sympy.Symbol, int]) -> Dimension | float:
    """Return the number itself if the expression is constant, else a `Symbolic`."""
    if isinstance(expression, sympy.Integer):
        return int(expression)
    if isinstance(expression, sympy.Number):
        return float(expression)
    return Symbolic(expression, lower)


def _decided(verdict: bool | None, left: Symbolic, sign: str, right: Value) -> bool:
    if verdict is None:
        raise UnknownSize(f"whether {left} {sign} {right} depends on the sizes of the inputs")
    return verdict


def is_symbolic(value: object) -> TypeGuard[torch.SymInt | torch.SymFloat | torch.SymBool]:
    """Return whether a metadata value is one of torch's symbolic numbers."""
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


@overload
def size(value: IntLikeType) -> Dimension: ...
@overload
def size(value: object) -> object: ...
def size(value: object) -> object:
    """Return a Python number unchanged, and torch's symbolic ones as `Symbolic` (or their
    constant).
    """
    if not is_symbolic(value):
        return value
    node = value.node
    expression = getattr(node, "expr", None)
    if expression is None:  # constants and nested ints have no expression in sizes
        constant = node.maybe_as_int()
        return opaque(value) if constant is None else int(constant)
    if expression is sympy.true or expression is sympy.false:
        return bool(expression)
    return _number(expression, _lower_bounds(node, expression))


def _lower_bounds(node: object, expression: sympy.Basic) -> dict[sympy.Symbol, int]:
    ranges = getattr(getattr(node, "shape_env", None), "var_to_range", {})
    bounds = {}
    for symbol in expression.free_symbols:
        found = ranges.get(symbol)
        if found is not None and found.lower.is_Integer:
            bounds[symbol] = int(found.lower)
    return bounds


def sizes(shape: Iterable[IntLikeType]) -> tuple[Dimension, ...]:
    """Return a shape as a tuple of numbers and `Symbolic`."""
    return tuple([n if type(n) is int else size(n) for n in shape])


def opaque(owner: fx.Node | object) -> Symbolic:
    """Return an unknown number: equal to itself, and not known to equal anything else."""
    name = getattr(owner, "name", "unknown")
    return Symbolic(sympy.Dummy(str(name), dummy_index=id(owner)))


def hint(number: object) -> int | float | None:
    """Return a number, a symbolic one as in the example inputs; None for anything else.

    Reading it adds no guard. A symbolic number that depends on data has no example.
    """
    if isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        found: int | float | None = number.node.hint if number.node.has_hint() else None
        return found
    return number if isinstance(number, (int, float)) else None
