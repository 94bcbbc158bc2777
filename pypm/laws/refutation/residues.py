"""The algebra of refutations: sizes are numbers, values are residues in finite fields, exactly.

A value has a residue in each field of a chain. The order of the next field divides that of the
multiplicative group of the one before, so that `exp` is a homomorphism: from sums in the next field
to products in this one. A root is the one of two that is a square itself; where there is none, the
value is not known. Maxima, comparisons and other functions are drawn at random, the same for the
same arguments; so equal expressions over the reals may differ here where those occur, and what
differs is compared in floats as well before it is called different.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cache, lru_cache
from hashlib import blake2b
from itertools import count, product
from math import prod
from typing import Final, TypeAlias

from sympy import isprime  # type: ignore[import-untyped]

from pypm.laws.algebra import Given, NoMeaning
from pypm.laws.forms.symbolic import exact

__all__ = ["Residue", "ResidueAlgebra"]

LEVELS: Final = 3
"""The number of fields in a chain: values of `exp` of an `exp` are known in the first alone."""
SQUARES: Final = (2, 3, 5)
"""Numbers that have roots in all fields."""
START: Final = 10**9
DIGEST: Final = 24
"""Bytes of which a value is drawn: far more than all fields together have."""
MOST_WEIGHED: Final = 16
"""Elements of a tensor that a function without laws is given."""


@cache
def _chain() -> tuple[tuple[int, int], ...]:
    """Return the primes of the fields, the first largest, each with a number whose powers are as
    many as the next prime says.
    """
    below = next(p for p in count(START) if p % 4 == 3 and isprime(p) and _has_roots(p))
    found = [(below, 1)]
    for _ in range(LEVELS - 1):
        prime = next(
            p
            for p in (2 * k * below + 1 for k in count(1))
            if p % 4 == 3 and isprime(p) and _has_roots(p)
        )
        power = (prime - 1) // below
        generator = next(g for g in (pow(b, power, prime) for b in count(2)) if g != 1)
        found.insert(0, (prime, generator))
        below = prime
    return tuple(found)


def _has_roots(prime: int) -> bool:
    return all(pow(n, (prime - 1) // 2, prime) == 1 for n in SQUARES)


Parts: TypeAlias = tuple[int | None, ...]
EVERY: Final = (1 << LEVELS) - 1
"""The fields, as bits."""


@cache
def _moduli() -> tuple[int, ...]:
    """Return the product of the primes of each set of fields, by its bits."""
    primes = [prime for prime, _ in _chain()]
    return tuple(
        prod(p for level, p in enumerate(primes) if known >> level & 1)
        for known in range(EVERY + 1)
    )


@cache
def _weights(known: int) -> tuple[tuple[int, int], ...]:
    """Return the fields of a set, each with the number that is 1 in it, and 0 in the others."""
    product = _moduli()[known]
    fields = [(level, p) for level, (p, _) in enumerate(_chain()) if known >> level & 1]
    return tuple((level, product // p * pow(product // p, -1, p)) for level, p in fields)


class Residue:
    """A value in each field, and the number it is, if that is known."""

    __slots__ = ("is_infinite", "known", "number", "value")

    def __init__(
        self,
        value: int,
        known: int = EVERY,
        number: int | Fraction | None = None,
        is_infinite: bool = False,
    ) -> None:
        self.value = value
        """Its residue for the product of the primes of the fields in which it is known."""
        self.known = known
        """The fields in which it is known, as bits."""
        self.number = number
        self.is_infinite = is_infinite
        """True for minus infinity."""

    @property
    def parts(self) -> Parts:
        """The value in each field, None where it is not known."""
        every = enumerate(_chain())
        return tuple(self.value % p if self.known >> i & 1 else None for i, (p, _) in every)

    def __add__(self, other: Residue | int) -> Residue:
        other = _residue(other)
        if self.is_infinite or other.is_infinite:
            return _INFINITE
        known = self.known & other.known
        is_number = self.number is not None and other.number is not None
        number = self.number + other.number if is_number else None  # type: ignore[operator]
        return Residue((self.value + other.value) % _moduli()[known], known, number)

    def __mul__(self, other: Residue | int) -> Residue:
        other = _residue(other)
        for one, two in ((self, other), (other, self)):
            if one.is_infinite:
                if two.number is None or two.number <= 0:
                    return _UNKNOWN
                return _INFINITE
        known = self.known & other.known
        is_number = self.number is not None and other.number is not None
        number = self.number * other.number if is_number else None  # type: ignore[operator]
        return Residue(self.value * other.value % _moduli()[known], known, number)

    def __neg__(self) -> Residue:
        return self * -1

    def __sub__(self, other: Residue | int) -> Residue:
        return self + -_residue(other)

    def __rsub__(self, other: int) -> Residue:
        return _residue(other) - self

    __radd__ = __add__
    __rmul__ = __mul__


_INFINITE: Final = Residue(0, 0, is_infinite=True)
_UNKNOWN: Final = Residue(0, 0)


def _residue(value: Residue | int | Fraction) -> Residue:
    return value if isinstance(value, Residue) else _of_number(value)


@lru_cache(2**14)
def _of_number(number: int | Fraction) -> Residue:
    number = int(number) if number.denominator == 1 else number
    parts = tuple(
        number.numerator * pow(number.denominator, -1, p) % p if number.denominator % p else None
        for p, _ in _chain()
    )
    return _of_parts(parts, number)


def _of_parts(parts: Parts, number: int | Fraction | None = None) -> Residue:
    """Return the value that has these residues."""
    known = sum(1 << level for level, part in enumerate(parts) if part is not None)
    value = sum(weight * (parts[level] or 0) for level, weight in _weights(known))
    return Residue(value % _moduli()[known], known, number)


class ResidueAlgebra:
    """Residues; `seed` decides all values that are drawn."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.is_exact = True
        """False once a value of a function without laws here was drawn."""

    def drawn(self, *what: Given) -> Residue:
        """Return a value that depends on these names and on the seed alone."""
        digest = blake2b(f"{self._seed} {what}".encode(), digest_size=DIGEST).digest()
        return Residue(int.from_bytes(digest, "big") % _moduli()[EVERY])

    def bit(self, *what: Given) -> Residue:
        """Return 0 or 1, by these names and the seed alone."""
        return _residue(blake2b(f"{self._seed} bit {what}".encode()).digest()[0] % 2)

    def number(self, value: float) -> Residue:
        """Return the number that a float stands for."""
        found = _residue(0)
        for monomial, coefficient in exact(value).terms.items():
            term = _residue(coefficient)
            for of, exponent in monomial:
                if of[0] == "-inf":
                    return _INFINITE
                base = self._square("pi") if of[0] == "pi" else _residue(of[1])
                term = term * self.power(base, exponent)
            found = found + term
        return found

    def _square(self, name: str) -> Residue:
        root = self.drawn(name)
        return root * root

    def scalar(self, index: int) -> Residue:
        """Return an index as a value."""
        return _residue(index)

    def place(self, value: Residue) -> int:
        """Return a value as an index."""
        if value.number is None or value.number.denominator != 1:
            raise NoMeaning("an index that is computed")
        return int(value.number)

    def infinity(self) -> Residue:
        """Return minus infinity."""
        return _INFINITE

    def exp(self, value: Residue) -> Residue:
        """Return a power of each field's generator, by the residue in the next field."""
        if value.is_infinite or value.number == 0:
            return _residue(0 if value.is_infinite else 1)
        below = (*value.parts[1:], None)
        pairs = zip(below, _chain(), strict=True)
        return _of_parts(tuple(None if x is None else pow(g, x, p) for x, (p, g) in pairs))

    def log(self, value: Residue) -> Residue:
        """Return a value that is drawn."""
        if value.number in (0, 1):
            return _INFINITE if value.number == 0 else _residue(0)
        return self.function("log", value)

    def absolute(self, value: Residue) -> Residue:
        """Return the one of a value and its opposite that is a square."""
        return self.power(value * value, Fraction(1, 2))

    def power(self, value: Residue, exponent: int | Fraction) -> Residue:
        """Return a power; of denominators two and four only."""
        exponent = Fraction(exponent)
        if (
            exponent.denominator == 1
            and value.number is not None
            and (value.number or exponent > 0)
        ):
            return _residue(Fraction(value.number) ** int(exponent))
        found = list[int | None]()
        for part, (prime, _) in zip(value.parts, _chain(), strict=True):
            root, left = part, exponent.denominator
            while left % 2 == 0 and root is not None:
                root, left = _square_root(root, prime), left // 2
            if root is None or left != 1 or (root == 0 and exponent < 0):
                found.append(None)
            else:
                found.append(pow(root, exponent.numerator, prime))
        return _of_parts(tuple(found))

    def function(self, name: str, *values: Residue) -> Residue:
        """Return a value that is drawn; `max` does not depend on the order."""
        if name == "max":
            finite = [*{(v.value, v.known): v for v in values if not v.is_infinite}.values()]
            if len(finite) < 2:
                return finite[0] if finite else values[0]
            numbers = [v.number for v in finite]
            if None not in numbers:
                return _residue(max(n for n in numbers if n is not None))
            values = tuple(sorted(finite, key=lambda v: (v.value, v.known)))
        if not all(v.known & 1 for v in values):
            return _UNKNOWN
        self.is_exact = False
        return self.drawn(name, *(value.parts for value in values))

    def difference(self, one: Residue, two: Residue) -> Residue:
        """Return one - two; 0 where both are minus infinity."""
        return _residue(0) if one.is_infinite and two.is_infinite else one - two

    def positive(self, value: Residue) -> Residue:
        """Return 1 where a value is above zero; drawn where it is no number."""
        if value.is_infinite:
            return _residue(0)
        if value.number is not None:
            return _residue(int(value.number > 0))
        self.is_exact = False
        return self.bit("positive", value.parts)

    def zero(self, value: Residue) -> Residue:
        """Return 1 where a value is zero."""
        if value.number is not None:
            return _residue(int(value.number == 0))
        return _residue(int(not value.is_infinite and value.parts[0] == 0))

    def choose(
        self, condition: Residue, yes: Callable[[], Residue], no: Callable[[], Residue]
    ) -> Residue:
        """Return one of two values."""
        return yes() if condition.number == 1 else no()

    def total(self, size: int, of: Callable[[int], Residue]) -> Residue:
        """Return a sum."""
        return sum(map(of, range(size)), _residue(0))

    def largest(self, size: int, of: Callable[[int], Residue]) -> Residue:
        """Return a maximum."""
        return self.function("max", *map(of, range(size)))

    def determining(
        self, shape: Sequence[int], of: Callable[[tuple[int, ...]], Residue]
    ) -> Sequence[Residue]:
        """Return a sum of elements, of all that a small tensor has, each with a weight that is
        drawn.
        """
        every = [*product(*map(range, shape))]
        places = every[:: -(-len(every) // MOST_WEIGHED) or 1]
        return [sum((of(p) * self.drawn("weight", p) for p in places), _residue(0))]

    def divided(self, index: int, by: int) -> tuple[int, int]:
        """Return quotient and remainder."""
        return divmod(index, by)

    def split(self, size: int, parts: Sequence[int], is_sum: bool) -> None:
        """Do nothing: all indices are numbers."""


def _square_root(value: int, prime: int) -> int | None:
    root = pow(value, (prime + 1) // 4, prime)
    return root if root * root % prime == value % prime else None
