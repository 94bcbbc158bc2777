"""Equations refuted: both sides in finite fields, without a tolerance, and in floats.

Results of different shapes differ. A difference in the fields is exact where no maximum, comparison
or other function occurs that is drawn there. So an equation is refuted if its sides differ in
floats as well, on the same small sizes. The same test checks proofs: what is proved may not be
refuted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import isclose, isfinite, prod
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

__all__ = [
    "CHECKS",
    "SAMPLES",
    "LawBroken",
    "Sampled",
    "difference",
    "drawn_bit",
    "drawn_float",
    "sizes_of",
]

SAMPLES: Final = 10, 60, 2**15
"""Samples, and the most if the sides differ in a field: by a maximum or a comparison, perhaps, that
is drawn. And the elements that are read for all places of a result, if each reads all of them."""
CHECKS: Final = 3, 3, 2**12
"""The same of what is proved: a check of the prover."""
RANGES: Final = ((1, 2, 3, 2), (2, 3, 5, 9), (8, 12, 17))
"""Sizes to draw from: the first for which conditions and guards hold."""
MOST_READ: Final = 2**15
"""Elements of all inputs of a sample: conditions that hold for larger sizes alone take too long."""
MOST_PLACES: Final = 24
LEAST_PLACES: Final = 2
"""Elements of each result that are compared: the fewer the more are read for one of them."""


@dataclass(frozen=True)
class LawBroken:
    """Small inputs for which both sides differ: in an element, or in their shapes."""

    seed: int
    """It decides the inputs' values."""
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    """The inputs that were read, each with its shape."""
    place: tuple[int, ...] | None
    """The place of the element; None if the shapes differ."""
    left: str
    right: str

    def __str__(self) -> str:
        where = ", ".join(f"{name} has the shape {[*shape]}" for name, shape in self.shapes)
        if self.place is None:
            return f"the shape {self.left} is not {self.right}, where {where}"
        at = f" at {[*self.place]}" if self.place else ""
        return f"{self.left} is not {self.right}{at}, where {where}"


def _texts(one: float, two: float) -> tuple[str, str]:
    """Return numbers that differ as texts that differ."""
    left, right = f"{one:.6g}", f"{two:.6g}"
    return (left, right) if left != right else (repr(one), repr(two))


def difference(equation: Equation, samples: tuple[int, int, int] = SAMPLES) -> LawBroken | None:
    """Return where both sides differ, in finite fields and in floats; None if in no sample.

    Raises NoMeaning if an operator has no meaning, or no element is known.
    """
    seed, (last, most, budget) = 0, samples
    while seed < last:
        found = _difference(equation, seed, budget)
        if isinstance(found, LawBroken):
            return found
        if found:
            last = most
        seed += 1
    return None


def _difference(equation: Equation, seed: int, budget: int) -> LawBroken | bool:
    """Return a difference in fields and floats, or whether there is one in fields alone."""
    sizes = sizes_of(equation, seed)
    if sizes is None:
        return False
    exact = ResidueAlgebra(seed)
    in_fields = Sampled(exact, sizes, exact.drawn, exact.bit)
    pairs = list(in_fields.pairs(equation))
    shapes = tuple(in_fields.shapes.items())
    for a, b in pairs:
        if a.shape != b.shape:
            return LawBroken(seed, shapes, None, f"{[*a.shape]}", f"{[*b.shape]}")
    read = sum(prod(shape) for _, shape in shapes)
    if read > MOST_READ:
        return False
    most = max(LEAST_PLACES, min(MOST_PLACES, budget // max(read, 1)))
    if not any(_unequal_residues(*pair) for _, *pair in _elements(pairs, most)):
        return False
    tolerance = 1e-12 if exact.is_exact else 1e-6
    in_floats = Sampled(Floats(), sizes, lambda *what: drawn_float(seed, what), drawn_bit(seed))
    for place, one, two in _elements(in_floats.pairs(equation), most):
        is_known = isfinite(one) and isfinite(two)
        if is_known and not isclose(one, two, rel_tol=tolerance, abs_tol=tolerance / 1000):
            return LawBroken(seed, shapes, place, *_texts(one, two))
    return True


def _elements(
    pairs: Iterable[tuple[Indexed, Indexed]], most: int
) -> Iterator[tuple[Shape, Scalar, Scalar]]:
    """Yield places of results, at `most` so many of each, the last one among them, with both sides'
    values there.
    """
    for a, b in pairs:
        places = list(product(*(range(n) for n in a.shape)))
        for place in reversed(places[:: -len(places) // most or -1]):
            yield place, a.value(*place), b.value(*place)


def sizes_of(equation: Equation, seed: int) -> _Sizes | None:
    """Return small sizes for which the conditions and guards of an equation hold, if some do."""
    drawn = (_Sizes(seed, within) for within in RANGES)
    return next((found for found in drawn if _allowed(equation, found)), None)


def _allowed(equation: Equation, sizes: _Sizes) -> bool:
    """Return whether the conditions and guards of an equation hold for small sizes."""
    sampled = Sampled(Floats(), sizes, lambda *what: 0.3, lambda *what: 0.0)
    world = equation.formulas.world
    conditions = (*world.conditions.values(), *world.hypotheses)
    return all(SIGNS[sign](sampled.scalar(form)) for form, sign in conditions)


def _unequal_residues(one: Scalar, two: Scalar) -> bool:
    a, b = one.parts[0], two.parts[0]
    return a is not None and b is not None and a != b


def drawn_float(seed: int, what: Given) -> float:
    """Return an input's element: a float that its name, its place and the seed decide."""
    least = -1.5 if seed % 2 else 0.2
    return Random(f"{seed} {what}").uniform(least, 1.7)


def drawn_bit(seed: int) -> Callable[..., float]:
    """Return a function that draws truth values, by their names and places."""
    return lambda *what: float(Random(f"{seed} bit {what}").randrange(2))


class _Sizes:
    """Small numbers for sizes, by their names."""

    def __init__(self, seed: int, within: tuple[int, ...]) -> None:
        self._random = Random(seed)
        self._within = within
        self.known: dict[str, int] = {}

    def __call__(self, of: Factor) -> int:
        return self.known.setdefault(str(of[1]), self._random.choice(self._within))


class Sampled:
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
        self._evaluation = FormulaValues(algebra, self.index, self.scalar, self._read)
        self.shapes: dict[str, tuple[int, ...]] = {}
        """Of the inputs, by name."""

    def index(self, form: Poly) -> int:
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
        self.shapes[name] = shape
        return Indexed(shape, lambda place: draw(name, place), kind=kind)

    def pairs(self, equation: Equation) -> Iterator[tuple[Indexed, Indexed]]:
        """Yield the results of both sides, as far as both have some."""
        for one, two in zip(equation.left, equation.right, strict=False):
            yield from zip(self._tensors(one), self._tensors(two), strict=False)

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
