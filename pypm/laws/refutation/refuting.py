"""Equations refuted: both sides in finite fields, without a tolerance, and in floats.

A difference in the fields is exact where no maximum, comparison or other function occurs that is
drawn there. So an equation is refuted if its sides differ in floats as well, on the same small
sizes. The same test checks proofs: what is proved may not be refuted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import isclose, isfinite
from random import Random
from typing import Final

from pypm.laws.algebra import Algebra, Given, Indexed, NoMeaning, Scalar, Shape
from pypm.laws.equations import Equation
from pypm.laws.forms.polynomials import MINUS_INFINITY, Factor, Poly, factor, of_key
from pypm.laws.forms.printing import shown
from pypm.laws.formulas import Formula, FormulaValues
from pypm.laws.refutation.floats import Floats
from pypm.laws.refutation.residues import ResidueAlgebra
from pypm.laws.sizes import SIGNS

__all__ = ["LawBroken", "difference"]

SAMPLES: Final = 10
MOST_PLACES: Final = 24
"""Elements of each result that are compared."""


@dataclass(frozen=True)
class LawBroken:
    """Small sizes and an element at which both sides differ."""

    sizes: tuple[tuple[str, int], ...]
    place: tuple[int, ...]
    left: float
    right: float

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} = {n}" for name, n in self.sizes)
        return f"{self.left:.6g} is not {self.right:.6g} at {list(self.place)}, where {sizes}"


def difference(equation: Equation) -> LawBroken | None:
    """Return where both sides differ, in finite fields and in floats; None if nowhere.

    Raises NoMeaning if an operator has no meaning, or no element is known.
    """
    for seed in range(SAMPLES):
        found = _difference(equation, seed)
        if found is not None:
            return found
    return None


def _difference(equation: Equation, seed: int) -> LawBroken | None:
    sizes = _Sizes(seed)
    if not _allowed(equation, sizes):
        return None
    exact = ResidueAlgebra(seed)
    in_fields = _Sampled(exact, sizes, exact.drawn, exact.bit)
    if not any(_unequal_residues(*pair) for _, *pair in in_fields.elements(equation)):
        return None
    in_floats = _Sampled(Floats(), sizes, lambda *what: _float(seed, what), _bit(seed))
    for place, one, two in in_floats.elements(equation):
        is_known = isfinite(one) and isfinite(two)
        if is_known and not isclose(one, two, rel_tol=1e-6, abs_tol=1e-9):
            return LawBroken(tuple(sizes.known.items()), place, one, two)
    return None


def _allowed(equation: Equation, sizes: _Sizes) -> bool:
    """Return whether the conditions of an equation hold for small sizes."""
    sampled = _Sampled(Floats(), sizes, lambda *what: 0.3, lambda *what: 0.0)
    conditions = equation.formulas.world.conditions.values()
    return all(SIGNS[sign](sampled.scalar(form)) for form, sign in conditions)


def _unequal_residues(one: Scalar, two: Scalar) -> bool:
    a, b = one.parts[0], two.parts[0]
    return a is not None and b is not None and a != b


def _float(seed: int, what: Given) -> float:
    least = -1.5 if seed % 2 else 0.2
    return Random(f"{seed} {what}").uniform(least, 1.7)


def _bit(seed: int) -> Callable[..., float]:
    return lambda *what: float(Random(f"{seed} bit {what}").randrange(2))


class _Sizes:
    """Small numbers for sizes, by their names."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.known: dict[str, int] = {}

    def __call__(self, of: Factor) -> int:
        return self.known.setdefault(str(of[1]), self._random.choice((1, 2, 3, 2)))


class _Sampled:
    """Equations in an algebra, for small sizes."""

    def __init__(
        self,
        algebra: Algebra,
        sizes: _Sizes,
        draw: Callable[..., Scalar],
        bit: Callable[..., Scalar],
    ) -> None:
        self._algebra = algebra
        self._sizes = sizes
        self._draw = draw
        self._bit = bit
        self._evaluation = FormulaValues(algebra, self._index, self.scalar, self._read)

    def _index(self, form: Poly) -> int:
        total = Fraction(0)
        for monomial, coefficient in form.terms.items():
            value = coefficient
            for of, exponent in monomial:
                if of[0] != "size":
                    raise NoMeaning("a size that is computed from numbers")
                value *= Fraction(self._sizes(of)) ** int(exponent)
            total += value
        return int(total)

    def scalar(self, form: Poly) -> Scalar:
        """Return the value of a form."""
        if form == factor(MINUS_INFINITY):
            return self._algebra.infinity()
        total = self._algebra.number(0)
        for monomial, coefficient in form.terms.items():
            value = self._algebra.number(1)
            for of, exponent in monomial:
                value = value * self._algebra.power(self._factor(of), exponent)
            top = self._algebra.scalar(coefficient.numerator)
            total = total + value * top * self._algebra.power(
                self._algebra.scalar(coefficient.denominator), -1
            )
        return total

    def _factor(self, of: Factor) -> Scalar:
        match of:
            case ("size", _):
                return self._algebra.scalar(self._sizes(of))
            case ("symbol", name):
                root = self._draw("number", name)
                return root * root
            case ("prime", number):
                return self._algebra.number(number)
            case ("pi",):
                return self._algebra.number(3.141592653589793)
            case ("power", key):
                return self.scalar(of_key(key))
        raise NoMeaning(f"the number {shown(Poly({frozenset([(of, Fraction(1))]): Fraction(1)}))}")

    def _read(self, formula: Formula, shape: Shape) -> Indexed:
        name, kind = formula.attributes["name"], formula.attributes["kind"]
        draw = self._draw if kind == "real" else self._bit
        return Indexed(shape, lambda place: draw(name, place), kind=kind)

    def elements(self, equation: Equation) -> Iterator[tuple[Shape, Scalar, Scalar]]:
        """Yield places of the results with both sides' values there."""
        for one, two in zip(equation.left, equation.right, strict=True):
            pairs = zip(self._tensors(one), self._tensors(two), strict=True)
            for a, b in pairs:
                places = list(product(*(range(n) for n in a.shape)))
                for place in places[:: -(-len(places) // MOST_PLACES) or 1]:
                    yield place, a.value(*place), b.value(*place)

    def _tensors(self, side: Given) -> Sequence[Indexed]:
        if side is None:
            return ()
        found = self._evaluation.of(side)
        parts: list[Indexed] = []
        todo = [found]
        while todo:
            part = todo.pop(0)
            if isinstance(part, tuple):
                todo = [*part, *todo]
            else:
                parts.append(part)
        return parts
