"""Amounts of work and bytes: integers, or sympy expressions in the symbolic sizes of a graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy  # type: ignore[import-untyped]
from torch import fx
from torch.types import IntLikeType

from pypm.fx.values.fake_tensors import fake_mode
from pypm.fx.values.symbolic import Symbolic, size

__all__ = [
    "Amount",
    "SizeHints",
    "Value",
    "amount",
    "amounts",
    "is_zero",
    "least",
    "most",
    "product",
]

Amount: TypeAlias = int | sympy.Expr
"""A count; with symbolic sizes, an expression in them."""
Value: TypeAlias = Any
"""A tensor, or metadata of one: it has a shape and a type; maybe strides."""


def amount(given: IntLikeType) -> Amount:
    """Return a size as an integer or expression; no guard is added."""
    found = size(given)
    return found.expression if isinstance(found, Symbolic) else int(found)


def amounts(shape: Iterable[IntLikeType]) -> tuple[Amount, ...]:
    """Return a shape as integers and expressions."""
    return tuple(map(amount, shape))


def product(factors: Iterable[Amount]) -> Amount:
    """Return the product of some amounts."""
    result: Amount = 1
    for each in factors:
        result = result * each
    return result


def least(*given: Amount) -> Amount:
    """Return the least of some amounts."""
    return min(given) if all(isinstance(each, int) for each in given) else sympy.Min(*given)


def most(*given: Amount) -> Amount:
    """Return the largest of some amounts."""
    return max(given) if all(isinstance(each, int) for each in given) else sympy.Max(*given)


def is_zero(given: Amount) -> bool:
    """Return whether an amount is zero for all sizes."""
    return bool(given == 0)


@dataclass(frozen=True, slots=True)
class SizeHints:
    """Values for the symbolic sizes of a graph: those of its example inputs."""

    environment: object
    """The shape environment of the graph; None if all sizes are numbers."""

    @staticmethod
    def of(nodes: Sequence[fx.Node]) -> SizeHints:
        """Return the hints of the graph that some nodes are of."""
        mode = fake_mode(nodes)
        return SizeHints(None if mode is None else mode.shape_env)

    def value(self, given: Amount) -> float:
        """Return an amount for the values that `assumed` gives."""
        if isinstance(given, sympy.Basic):
            given = given.subs({symbol: self._of(symbol) for symbol in given.free_symbols})
        return float(given)

    def assumed(self, given: Iterable[Amount]) -> dict[str, int]:
        """Return the value of each symbolic size in some amounts, by name.

        A size that depends on data has no example; it counts with the least value it may have.
        """
        symbols = {s for each in given if isinstance(each, sympy.Basic) for s in each.free_symbols}
        return {str(symbol): self._of(symbol) for symbol in sorted(symbols, key=str)}

    def _of(self, symbol: sympy.Symbol) -> int:
        env = self.environment
        newest = "backed_var_to_val" if hasattr(env, "backed_var_to_val") else "var_to_val"
        found = getattr(env, newest, {}).get(symbol)
        if found is not None:
            return int(found)
        known = getattr(env, "var_to_range", {}).get(symbol)
        return max(int(known.lower), 0) if known is not None and known.lower.is_Integer else 0
