"""Arithmetic of guards, on bounded numbers, so that no guard is arbitrarily expensive."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from functools import reduce
from typing import Final, NoReturn

from pypm.core.terms import Value
from pypm.diagnostics import BudgetError, Diagnostic

__all__ = ["BITS", "EXPONENT", "LENGTH", "add", "mod", "mul", "power", "product"]

BITS: Final = 4096
"""Bits of the largest whole number that a guard computes."""
LENGTH: Final = 65_536
"""Length of the longest string or tuple that a guard concatenates."""
EXPONENT: Final = 16
"""The largest exponent of a symbolic size, whose powers have many terms."""

_SEQUENCES: Final = (str, bytes, tuple, list)


def add(left: Value, right: Value) -> Value:
    """Return the sum of numbers, or the concatenation of two strings or tuples."""
    if (
        isinstance(left, _SEQUENCES)
        and isinstance(right, _SEQUENCES)
        and len(left) + len(right) > LENGTH
    ):
        _give_up(f"joins strings or tuples to more than {LENGTH:,} items")
    return operator.add(left, right)


def mul(left: Value, right: Value) -> Value:
    """Return the product of numbers."""
    _check_numbers(left, right)
    if _bits(left) + _bits(right) > BITS:
        _give_up(f"computes a number of more than {BITS:,} bits")
    return operator.mul(left, right)


def mod(left: Value, right: Value) -> Value:
    """Return the remainder of a division of numbers."""
    _check_numbers(left, right)
    return operator.mod(left, right)


def power(base: Value, exponent: Value) -> Value:
    """Return a number raised to a power."""
    _check_numbers(base, exponent)
    if isinstance(exponent, int) and _bits(base) * exponent > BITS:
        _give_up(f"computes a number of more than {BITS:,} bits")
    is_symbolic = not isinstance(base, int | float) and hasattr(base, "__pow__")
    if is_symbolic and isinstance(exponent, int | float) and abs(exponent) > EXPONENT:
        _give_up(f"raises a symbolic size to a power above {EXPONENT}")
    return operator.pow(base, exponent)


def product(values: Iterable[Value]) -> Value:
    """Return the product of the items of a tuple."""
    one: object = 1
    return reduce(mul, values, one)


def _check_numbers(*values: Value) -> None:
    """Raise TypeError for values that Python would repeat or format; guards define neither."""
    if any(isinstance(value, _SEQUENCES) for value in values):
        raise TypeError("a sequence is no number")


def _bits(value: Value) -> int:
    """Return the bits of a whole number; 0 for 0, 1 and -1, whose powers stay small."""
    return value.bit_length() if type(value) is int and abs(value) > 1 else 0


def _give_up(what: str) -> NoReturn:
    message = f"a guard {what}"
    raise BudgetError(Diagnostic(message, help="compare sizes rather than powers of them"))
