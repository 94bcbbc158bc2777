"""The operations that meanings of operators are written in, and tensors as functions of indices.

`Algebra` has two implementations: `pypm.laws.forms.symbolic`, whose sizes and values are
polynomials, for proofs, and `pypm.laws.refutation.residues`, whose sizes are numbers and whose
values are in finite fields, to refute. Tests add a third one, of floats, to compare meanings with
torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol, TypeAlias

from pypm.laws.forms.polynomials import Part

__all__ = [
    "Algebra",
    "Given",
    "Index",
    "Indexed",
    "Indivisible",
    "NoMeaning",
    "Scalar",
    "Shape",
    "SizesDiffer",
]

Scalar: TypeAlias = Part
"""A value of an algebra; it has `+`, `-` and `*`, also with integers."""
Index: TypeAlias = Scalar
"""A place along a dimension, or a size; it has `+`, `-` and `*`."""
Shape: TypeAlias = tuple[Index, ...]
Given: TypeAlias = Scalar
"""An argument of a call that is no tensor, as its canonical form has it."""


class NoMeaning(Exception):
    """An operator, or a form of it, whose meaning is not known here; and what to do about it."""

    def __init__(self, message: str, help: str = "") -> None:
        super().__init__(message)
        self.help = help


class SizesDiffer(Exception):
    """Two sizes that an operator takes to be equal are not, as far as is known."""

    def __init__(self, one: Index, two: Index) -> None:
        super().__init__("sizes differ")
        self.sizes = one, two


class Indivisible(Exception):
    """A size that an operator divides is not known to be a multiple of the divisor."""

    def __init__(self, size: Index, by: Index) -> None:
        super().__init__("a size is divided")
        self.sizes = size, by


class Algebra(Protocol):
    """Values, and functions of them."""

    def number(self, value: float) -> Scalar:
        """Return a number; a float is what its digits write, or a root that it rounds."""

    def scalar(self, index: Index) -> Scalar:
        """Return an index as a value."""

    def infinity(self) -> Scalar:
        """Return minus infinity, of which only `exp` and maxima are defined."""

    def exp(self, value: Scalar) -> Scalar:
        """Return the exponential."""

    def log(self, value: Scalar) -> Scalar:
        """Return the logarithm."""

    def absolute(self, value: Scalar) -> Scalar:
        """Return the absolute value."""

    def power(self, value: Scalar, exponent: int | Fraction) -> Scalar:
        """Return a power, which is positive where the exponent has an even denominator."""

    def function(self, name: str, *values: Scalar) -> Scalar:
        """Return another function by its name; `max` is symmetric."""

    def difference(self, one: Scalar, two: Scalar) -> Scalar:
        """Return one - two for a comparison: 0 where both are minus infinity."""

    def positive(self, value: Scalar) -> Scalar:
        """Return 1 where a value is above zero, and else 0."""

    def zero(self, value: Scalar) -> Scalar:
        """Return 1 where a value is zero, and else 0."""

    def choose(
        self, condition: Scalar, yes: Callable[[], Scalar], no: Callable[[], Scalar]
    ) -> Scalar:
        """Return one of two values; where the condition is known, the other is not computed."""

    def total(self, size: Index, of: Callable[[Index], Scalar]) -> Scalar:
        """Return the sum over the indices below a size."""

    def largest(self, size: Index, of: Callable[[Index], Scalar]) -> Scalar:
        """Return the maximum over the indices below a size."""

    def determining(self, shape: Shape, of: Callable[[Shape], Scalar]) -> Sequence[Scalar]:
        """Return values that are the same for two tensors, of elements by their place, only if the
        tensors are.
        """

    def divided(self, index: Index, by: Index) -> tuple[Index, Index]:
        """Return quotient and remainder of an index."""

    def place(self, value: Scalar) -> Index:
        """Return a value that is an index, such as one read from a tensor of indices."""

    def split(self, size: Index, parts: Sequence[Index], is_sum: bool) -> None:
        """Note that a dimension is read as several: their product, the first outermost, or sum."""


@dataclass
class Indexed:
    """A tensor: its sizes, and its value at each place; values are memoized."""

    shape: Shape
    compute: Callable[[Shape], Scalar]
    known: dict[Shape, Scalar] = field(default_factory=dict)
    kind: str = "real"
    """"real", "whole" for integers, "truth" for truth values."""
    rational: Fraction | None = None
    """The number that this is, if it is known."""
    is_cast: bool = False
    """True for whole numbers that were cast to a real type."""

    def value(self, *place: Index) -> Scalar:
        """Return the value at a place: one index for each dimension."""
        found = self.known.get(place)
        if found is None:
            found = self.known[place] = self.compute(place)
        return found

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.shape)
