"""The algebra of floats: formulas as numbers, for samples of their inputs."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Final

from pypm.laws.algebra import Given

__all__ = ["Floats"]

FUNCTIONS: Final[dict[str, Callable[..., float]]] = {
    "max": max,
    "erf": math.erf,
    "sin": math.sin,
    "cos": math.cos,
    "atan": math.atan,
    "sign": lambda x: math.copysign(float(x != 0), x),
    "round": lambda x: float(round(x)),
}


def _or_nan(function: Callable[..., float | complex], *values: float) -> float:
    """Return a function of values; NaN where it is no real number, or one that no float holds."""
    try:
        found = function(*values)
    except (ArithmeticError, ValueError):
        return math.nan
    return math.nan if isinstance(found, complex) else float(found)


class Floats:
    """Floats; sizes and indices are integers."""

    number = staticmethod(float)
    scalar = staticmethod(float)
    place = staticmethod(int)
    absolute = staticmethod(abs)

    def infinity(self) -> float:
        """Return minus infinity."""
        return -math.inf

    def exp(self, value: float) -> float:
        """Return the exponential; infinity for one that a float does not hold."""
        return math.exp(value) if value < 700 else math.inf

    def log(self, value: float) -> float:
        """Return the logarithm; of zero, minus infinity; NaN below."""
        return _or_nan(math.log, value) if value else -math.inf

    def power(self, value: float, exponent: int | Fraction) -> float:
        """Return a power; NaN where it has no real value, or one that a float does not hold."""
        return _or_nan(operator.pow, float(value), float(exponent))

    def function(self, name: str, *values: float) -> float:
        """Return a function by its name; NaN for one that is not known, or has no value."""
        if name not in FUNCTIONS:
            return math.nan
        return _or_nan(FUNCTIONS[name], *values) if len(values) > 1 or name != "max" else values[0]

    def difference(self, one: float, two: float) -> float:
        """Return one - two; 0 where they are equal."""
        return 0.0 if one == two else one - two

    def positive(self, value: float) -> float:
        """Return 1 for a value above zero, else 0."""
        return float(value > 0)

    def zero(self, value: float) -> float:
        """Return 1 for zero, else 0."""
        return float(value == 0)

    def choose(self, condition: float, yes: Callable[[], float], no: Callable[[], float]) -> float:
        """Return one of two values."""
        return yes() if condition else no()

    def total(self, size: int, of: Callable[[int], float]) -> float:
        """Return a sum."""
        return math.fsum(map(of, range(size)))

    def largest(self, size: int, of: Callable[[int], float]) -> float:
        """Return a maximum."""
        return max(map(of, range(size)))

    def determining(self, *_: Given) -> Sequence[float]:
        """Return nothing: functions without laws are not known."""
        return ()

    def divided(self, index: int, by: int) -> tuple[int, int]:
        """Return quotient and remainder."""
        return divmod(index, by)

    def split(self, size: int, parts: Sequence[int], is_sum: bool) -> None:
        """Do nothing: all indices are numbers."""
