"""The algebra of proofs: sizes, indices and values are polynomials in symbols."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Final

from pypm.laws.forms import functions
from pypm.laws.forms.comparing import where_it_holds
from pypm.laws.forms.functions import (
    is_whole,
    never_positive,
    never_zero,
    only_factor,
    power,
    vanishing,
)
from pypm.laws.forms.infinities import difference, infinite_part, lowest_of
from pypm.laws.forms.orders import Orders
from pypm.laws.forms.polynomials import (
    MINUS_INFINITY,
    ONE,
    Monomial,
    NotDefined,
    Poly,
    by_cases,
    factor,
    indicator,
    of_key,
    rational,
)
from pypm.laws.forms.sums import Sizes, indices_in, maximum, new_index, total, with_fixed_indices

__all__ = ["SymbolicAlgebra", "exact", "quotient", "size"]

CLOSE: Final = 4e-16
"""The relative error of a float that rounds a number once or twice."""
SMALL: Final = 1000
"""The largest denominator of a number that a float is taken to round."""


def size(name: str) -> Poly:
    """Return the symbol of a size, a whole number from 1 on."""
    return factor(("size", name))


@lru_cache(2**12, typed=True)
def exact(value: float) -> Poly:
    """Return the number that a float stands for: by its digits, or as a fraction or a root.

    1e-6 is 1/1000000; a float that rounds a fraction with a small denominator, or the root of one,
    perhaps with pi or a root of pi, is that number: 0.7071067811865476 is the root of 1/2.
    """
    if isinstance(value, int):
        return rational(int(value))
    if math.isinf(value) or math.isnan(value):
        if value == -math.inf:
            return factor(MINUS_INFINITY)
        raise NotDefined(f"the number {value}")
    written = Fraction(repr(value))
    if written.denominator <= 10**9:
        return rational(written)
    near = Fraction(value).limit_denominator(SMALL)
    if near and abs(float(near) - value) <= CLOSE * abs(value):
        return rational(near)
    sign = 1 if value > 0 else -1
    for pi in (0, 1, -1, 2, -2):
        square = value * value / math.pi**pi
        near = Fraction(square).limit_denominator(SMALL)
        if near and abs(float(near) - square) <= 2 * CLOSE * square:
            root = power(rational(near), Fraction(1, 2)) * sign
            return root * factor(("pi",), Fraction(pi, 2)) if pi else root
    return rational(written)


class SymbolicAlgebra:
    """Polynomials, with the sizes of the indices that were made."""

    def __init__(self) -> None:
        self.ranges: dict[str, Poly] = {}
        self._splits: dict[Poly, tuple[tuple[Poly, ...], bool]] = {}
        self._orders = Orders()

    number = staticmethod(exact)
    exp = staticmethod(functions.exp)
    log = staticmethod(functions.log)
    absolute = staticmethod(functions.absolute)
    power = staticmethod(power)
    function = staticmethod(functions.function)
    difference = staticmethod(difference)

    def scalar(self, index: Poly | int) -> Poly:
        """Return an index as a value."""
        return index if isinstance(index, Poly) else rational(index)

    def place(self, value: Poly) -> Poly:
        """Return a value as an index."""
        return value

    def infinity(self) -> Poly:
        """Return minus infinity."""
        return factor(MINUS_INFINITY)

    # --- conditions ---

    def positive(self, value: Poly) -> Poly:
        """Return 1 where a value is above zero; a number where that is known for all sizes."""
        return by_cases(self._positive, value)

    def _positive(self, value: Poly) -> Poly:
        if self.is_least(value, 1):
            return rational(1)
        if self.is_least(-value, 0):
            return rational(0)
        infinite = infinite_part(value)
        if infinite:
            return rational(int(infinite < 0))
        if never_positive(value):
            return rational(0)
        opposite = rational(1) - value
        if (
            is_whole(value) and value.terms.get(ONE, 0) > 0
        ):  # of a number and its opposite, one has none
            return 1 - indicator("positive", opposite.key)
        if not is_whole(value):
            lead = abs(min(value.terms.items(), key=lambda t: repr(sorted(t[0], key=repr)))[1])
            value = value.scaled(1 / lead)
        return indicator("positive", value.key)

    def zero(self, value: Poly) -> Poly:
        """Return 1 where a value is zero; a number where that is known for all sizes."""
        return by_cases(self._zero, value)

    def _zero(self, value: Poly) -> Poly:
        if not value.terms:
            return rational(1)
        if never_zero(value) or self.is_least(value, 1) or self.is_least(-value, 1):
            return rational(0)
        lowest = lowest_of(value)
        value = vanishing(value) if lowest is None else lowest
        if lowest is None and infinite_part(value):
            return rational(0)
        logarithm = _logarithm_of(value)
        return indicator("zero", value.key) if logarithm is None else self.zero(logarithm - 1)

    def choose(self, condition: Poly, yes: Callable[[], Poly], no: Callable[[], Poly]) -> Poly:
        """Return one of two values, by cases where the condition is not known."""
        if condition == 1:
            return yes()
        if condition == 0:
            return no()
        return where_it_holds(condition, yes()) + (1 - condition) * no()

    def is_least(self, value: Poly, least: int) -> bool:
        """Return whether a whole number is certainly at least a number, for all sizes from 1 on."""
        low = {m: c for m, c in value.terms.items() if c < 0 or not self._is_rounded(m)}
        value = Poly(low) - least
        for name in sorted({name for m in value.terms for name in indices_in(m)}):
            rest, slope = _linear(value, name)
            if slope is None or name not in self.ranges:
                return False
            if _is_positive_in_sizes(slope):
                value = rest
            elif _is_positive_in_sizes(-slope):
                value = rest + slope * (self.ranges[name] - 1)
            else:
                return False
        return _is_positive_in_sizes(value)

    def _is_rounded(self, monomial: Monomial) -> bool:
        """Return whether a term has a whole number that was divided, rounding down, and no factor
        is negative.
        """
        factors = [of for of, _ in monomial if of[0] not in ("size", "index")]
        return bool(factors) and all(
            of[:2] == ("function", "floor")
            and self.is_least(of_key(of[2]), 0)
            and _is_positive_in_sizes(of_key(of[3]) - 1)
            for of in factors
        )

    # --- orders ---

    def order(self, size: Poly, row: Callable[[Poly], Poly]) -> Callable[[Poly], Poly]:
        """Return the places of the elements of a row from the least on."""
        self._probe(size)
        return self._orders.of(row, is_one=size == 1)

    def order_back(self, size: Poly, row: Callable[[Poly], Poly]) -> Callable[[Poly], Poly] | None:
        """Return the inverse of an order; None if the row is none."""
        self._probe(size)
        return self._orders.back(row)

    def search(
        self,
        size: Poly,
        row: Callable[[Poly], Poly],
        count: Poly,
        values: Callable[[Poly], Poly],
    ) -> Callable[[Poly], Poly] | None:
        """Return how many elements of a row are up to each value, if orders say so."""
        self._probe(size)
        return self._orders.search(row, count, values)

    def note_place(self, value: Poly, size: Poly) -> None:
        """Note that a value is a place in a dimension, maybe counted from its end."""
        self._orders.note_place(value, size)

    def _probe(self, size: Poly) -> None:
        self.ranges["probe"] = size

    # --- indices ---

    def split(self, size: Poly, parts: Sequence[Poly], is_sum: bool) -> None:
        """Note that a dimension is read as several; the first note of a size counts."""
        real = tuple(part for part in parts if part != (0 if is_sum else 1))
        if len(real) > 1:
            self._splits.setdefault(size, (real, is_sum))

    def indices(self, size: Poly) -> Iterator[tuple[Poly, dict[str, Poly]]]:
        """Yield indices that together run over a dimension, each with its symbols and their sizes.

        A dimension that is read as a product has one symbol for each of its parts; one that is
        read as a sum has an index for each part; one of two elements, their numbers.
        """
        if size in (1, 2):
            yield from ((rational(i), {}) for i in range(1 if size == 1 else 2))
            return
        found = self._splits.get(size)
        if found is None:
            name = new_index()
            self.ranges[name] = size
            yield factor(("index", name)), {name: size}
            return
        parts, is_sum = found
        if is_sum:
            start = rational(0)
            for part in parts:
                for index, names in self.indices(part):
                    yield start + index, names
                start = start + part
            return
        yield from self._of_product(parts)

    def _of_product(self, parts: tuple[Poly, ...]) -> Iterator[tuple[Poly, dict[str, Poly]]]:
        *outer, last = parts
        if not outer:
            yield from self.indices(last)
            return
        for first, names in self._of_product(tuple(outer)):
            for index, more in self.indices(last):
                yield first * last + index, {**names, **more}

    def total(self, size: Poly, of: Callable[[Poly], Poly]) -> Poly:
        """Return the sum over a dimension."""
        found = Poly({})
        for index, names in self.indices(size):
            found = found + total(of(index), names)
        return found

    def largest(self, size: Poly, of: Callable[[Poly], Poly]) -> Poly:
        """Return the maximum over a dimension."""
        parts = [self._largest(of(index), names) for index, names in self.indices(size)]
        return functions.function("max", *parts)

    def _largest(self, value: Poly, names: Sizes) -> Poly:
        """Return a maximum; where values are one number or minus infinity, by whether all are."""
        infinite = Poly({})
        for monomial, coefficient in value.terms.items():
            if any(of == MINUS_INFINITY for of, _ in monomial):
                rest = frozenset(part for part in monomial if part[0] != MINUS_INFINITY)
                infinite = infinite + Poly({rest: coefficient})
        low = factor(MINUS_INFINITY)
        finite = value - infinite * low
        depends = any(indices_in(m) & names.keys() for m in finite.terms)
        if not infinite.terms or depends or infinite * infinite != infinite:
            return maximum(value, names)
        return finite + self.zero(total(1 - infinite, names)) * low

    def determining(
        self, shape: Sequence[Poly], of: Callable[[tuple[Poly, ...]], Poly]
    ) -> Sequence[Poly]:
        """Return the elements at any place, for each of the parts in which dimensions are read."""
        return [with_fixed_indices(of(place), place) for place in self.places(shape)]

    def places(self, shape: Sequence[Poly | int]) -> Iterator[tuple[Poly, ...]]:
        """Yield indices that together run over all places of a tensor."""
        if not shape:
            yield ()
            return
        first, *rest = shape
        for index, _ in self.indices(first if isinstance(first, Poly) else rational(first)):
            for others in self.places(rest):
                yield (index, *others)

    def divided(self, index: Poly | int, by: Poly | int) -> tuple[Poly, Poly]:
        """Return quotient and remainder, as symbols of their own where they are not known."""
        index, by = (n if isinstance(n, Poly) else rational(n) for n in (index, by))
        if by == 1:
            return index, rational(0)
        numbers = index.constant, by.constant
        if numbers[0] is not None and numbers[1] is not None:
            return rational(numbers[0] // numbers[1]), rational(numbers[0] % numbers[1])
        if _is_of_sizes(index) and _is_of_sizes(by):
            return _size_divided(index, by)
        return self._divided(index, by)

    def _divided(self, index: Poly, by: Poly) -> tuple[Poly, Poly]:
        whole, rest = quotient(index, by)
        if self.is_least(rest, 0) and self.is_least(by - 1 - rest, 0):
            return whole, rest
        if self.is_least(-rest, 1) and self.is_least(rest + by, 0):
            return whole - 1, rest + by
        inner = _divided_before(rest)
        if inner is not None:  # dividing twice is dividing by the product
            whole = whole + self.divided(inner[0], inner[1] * by)[0]
        else:
            whole = whole + factor(("function", "floor", *(n.key for n in self._reduced(rest, by))))
        return whole, index - whole * by

    def _reduced(self, index: Poly, by: Poly) -> tuple[Poly, Poly]:
        """Return dividend and divisor without a size of the divisor, if what it leaves of the
        dividend is an index below it, which rounds away.
        """
        sizes = [of for m in by.terms for of, _ in m if of[0] == "size" and len(by.terms) == 1]
        for common in map(factor, sorted(sizes)):
            whole, rest = quotient(index, common)
            if self.is_least(rest, 0) and self.is_least(common - 1 - rest, 0):
                return self._reduced(whole, quotient(by, common)[0])
        return index, by


def _is_of_sizes(value: Poly) -> bool:
    return all(of[0] == "size" for m in value.terms for of, _ in m)


@lru_cache(2**14)
def _size_divided(size: Poly, by: Poly) -> tuple[Poly, Poly]:
    """Return quotient and remainder of a size by another, which are the same in all equations."""
    return SymbolicAlgebra()._divided(size, by)


@lru_cache(2**16)
def _is_positive_in_sizes(value: Poly) -> bool:
    """Return whether a polynomial in sizes 1 + t has no negative coefficient, nor value."""
    shifted = Poly({})
    for monomial, coefficient in value.terms.items():
        product = rational(1)
        for of, exponent in monomial:
            if of[0] != "size" or exponent.denominator != 1 or exponent < 0:
                return False
            product = product * power(factor(of) + 1, exponent)
        shifted = shifted + product.scaled(coefficient)
    return all(coefficient >= 0 for coefficient in shifted.terms.values())


def _divided_before(index: Poly) -> tuple[Poly, Poly] | None:
    """Return dividend and divisor of a whole number that one quotient rounds down to: that is added
    to others, which are taken inside.
    """
    for monomial, coefficient in sorted(index.terms.items(), key=repr):
        match [*monomial]:
            case [(("function", "floor", of, by), 1)] if coefficient == 1:
                others = index - Poly({monomial: coefficient})
                return of_key(of) + others * of_key(by), of_key(by)
    return None


def _logarithm_of(value: Poly) -> Poly | None:
    """Return that of which a value is the logarithm, or None."""
    of = only_factor(value)
    return of_key(of[2]) if of[:2] == ("function", "log") else None


def _linear(value: Poly, name: str) -> tuple[Poly, Poly | None]:
    """Return what does not depend on an index, and its factor; None if it is not linear."""
    rest: dict[Monomial, Fraction] = {}
    slope: dict[Monomial, Fraction] = {}
    for monomial, coefficient in value.terms.items():
        if name not in indices_in(monomial):
            rest[monomial] = coefficient
            continue
        others = monomial - {(("index", name), Fraction(1))}
        if name in indices_in(others) or len(others) == len(monomial):
            return value, None
        slope[others] = coefficient
    return Poly(rest), Poly(slope)


@lru_cache(2**14)
def quotient(value: Poly, by: Poly) -> tuple[Poly, Poly]:
    """Return quotient and rest of a division by the term of highest degree."""
    lead, coefficient = max(
        by.terms.items(), key=lambda term: (sum(e for _, e in term[0]), repr(sorted(term[0])))
    )
    whole = Poly({})
    for _ in range(64):
        for monomial, c in value.terms.items():
            left = dict(monomial)
            for of, exponent in lead:
                left[of] = left.get(of, Fraction(0)) - exponent
            ratio = c / coefficient
            if ratio.denominator == 1 and all(e >= 0 for e in left.values()):
                step = Poly({frozenset((of, e) for of, e in left.items() if e): ratio})
                whole, value = whole + step, value - step * by
                break
        else:
            break
    return whole, value
