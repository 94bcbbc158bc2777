"""Polynomials over the reals whose factors are reads, sizes, functions and sums: the normal form.

A monomial is a set of factors with rational exponents, and at most one `exp`. Two polynomials that
are built from equal expressions by the operations here mostly have equal terms: exponents of a
product are added, `exp` of a sum is one factor, a case distinction is drawn out of every function,
and a power of a sum leaves what its terms share. Equality in value where the terms differ is
possible, so a difference proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final, TypeAlias

__all__ = [
    "LARGEST_POWER",
    "MINUS_INFINITY",
    "ONE",
    "Factor",
    "Key",
    "Monomial",
    "NotDefined",
    "Part",
    "Poly",
    "by_cases",
    "factor",
    "indicator",
    "of_key",
    "rational",
]

Part: TypeAlias = Any
"""A part of a factor: a name, a number, or a tuple of parts."""
Factor: TypeAlias = tuple[Part, ...]
"""A kind, and what it says: keys of polynomials, names of inputs, indices."""
Monomial: TypeAlias = frozenset[tuple[Factor, Fraction]]
Key: TypeAlias = tuple[tuple[tuple[tuple[Factor, Fraction], ...], Fraction], ...]
"""The terms of a polynomial in order, which can be hashed."""
ONE: Final[Monomial] = frozenset()
MINUS_INFINITY: Final[Factor] = ("-inf",)
LARGEST_POWER: Final = 8
"""The largest exponent by which a sum is multiplied out."""


class NotDefined(Exception):
    """An expression without a value, such as an inverse of zero."""


class Poly:
    """A sum of monomials with rational coefficients; none is zero."""

    __slots__ = ("_key", "terms")

    def __init__(self, terms: Mapping[Monomial, Fraction]) -> None:
        self.terms = terms
        self._key: Key | None = None

    def __add__(self, other: Poly | int) -> Poly:
        found = dict(self.terms)
        for monomial, coefficient in _poly(other).terms.items():
            total = found.get(monomial, 0) + coefficient
            if total:
                found[monomial] = Fraction(total)
            else:
                del found[monomial]
        return Poly(found)

    def __mul__(self, other: Poly | int) -> Poly:
        other = _poly(other)
        if len(other.terms) == 1 and ONE in other.terms:
            return self.scaled(other.terms[ONE])
        found = Poly({})
        for one, c in self.terms.items():
            for two, d in other.terms.items():
                found = found + _joined(one, two).scaled(c * d)
        return found

    def __neg__(self) -> Poly:
        return self.scaled(Fraction(-1))

    def __sub__(self, other: Poly | int) -> Poly:
        return self + -_poly(other)

    def __rsub__(self, other: int) -> Poly:
        return _poly(other) - self

    __radd__ = __add__
    __rmul__ = __mul__

    def scaled(self, number: Fraction) -> Poly:
        """Return this times a number."""
        return Poly({m: c * number for m, c in self.terms.items()} if number else {})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (Poly, int)) and self.terms == _poly(other).terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    @property
    def key(self) -> Key:
        """The terms in one order."""
        if self._key is None:
            listed = [(tuple(sorted(m, key=repr)), c) for m, c in self.terms.items()]
            self._key = tuple(sorted(listed, key=repr))
        return self._key

    @property
    def constant(self) -> Fraction | None:
        """The number that this is; None if it depends on anything."""
        if not self.terms:
            return Fraction(0)
        return self.terms.get(ONE) if len(self.terms) == 1 else None

    def __repr__(self) -> str:
        return f"Poly({self.key})"


def _poly(value: Poly | int) -> Poly:
    return value if isinstance(value, Poly) else rational(value)


def rational(number: int | Fraction) -> Poly:
    """Return a polynomial that is a number."""
    return Poly({ONE: Fraction(number)} if number else {})


def factor(of: Factor, exponent: int | Fraction = 1) -> Poly:
    """Return a polynomial that is one power of one factor."""
    return Poly({frozenset([(of, Fraction(exponent))]): Fraction(1)})


def of_key(key: Key) -> Poly:
    """Return the polynomial with this key."""
    return Poly({frozenset(monomial): coefficient for monomial, coefficient in key})


# --- products ------------------------------------------------------------------------------------


def _joined(one: Monomial, two: Monomial) -> Poly:
    """Return the product of two monomials: exponents added, one `exp`, powers multiplied out."""
    if not one or not two:
        return Poly({one or two: Fraction(1)})
    exponents = dict(one)
    for of, exponent in two:
        exponents[of] = exponents.get(of, Fraction(0)) + exponent
    arguments = Poly({})
    whole: list[Poly] = []
    number = Fraction(1)
    for of, exponent in list(exponents.items()):
        if of[0] == "indicator":
            exponents[of] = Fraction(1)
        elif of[0] == "exp":
            arguments = arguments + of_key(of[1]).scaled(exponents.pop(of))
        elif of[0] == "power" and 1 <= exponent <= LARGEST_POWER:
            exponents[of] = exponent % 1
            whole += [of_key(of[1])] * int(exponent // 1)
        elif of[0] == "abs" and exponent % 2 == 0:
            inner, times = of[1], int(exponents.pop(of))
            is_sum = inner[0] == "power" and times > 0
            whole += [of_key(inner[1])] * times if is_sum else [factor(inner, times)]
        elif of[0] == "prime":
            number *= Fraction(of[1]) ** int(exponent // 1)
            exponents[of] = exponent % 1
    if arguments.terms:
        exponents["exp", arguments.key] = Fraction(1)
    found = Poly({frozenset((of, e) for of, e in exponents.items() if e): number})
    for each in whole:
        found = found * each
    return found


# --- cases ---------------------------------------------------------------------------------------


def indicator(kind: str, key: Key) -> Poly:
    """Return 1 if a condition ("positive" or "zero") holds of a polynomial, else 0."""
    return factor(("indicator", kind, key))


def by_cases(function: Callable[[Poly], Poly], argument: Poly) -> Poly:
    """Return a function of a polynomial without indicators in the function's argument."""
    conditions = [of for m in argument.terms for of, _ in m if of[0] == "indicator"]
    if not conditions:
        return function(argument)
    first = min(conditions, key=repr)
    holds = Poly({})
    fails: dict[Monomial, Fraction] = {}
    for monomial, coefficient in argument.terms.items():
        if any(of == first for of, _ in monomial):
            rest = frozenset((of, e) for of, e in monomial if of != first)
            holds = holds + Poly({rest: coefficient})
        else:
            fails[monomial] = coefficient
    otherwise = Poly(fails)
    holds = holds + otherwise
    yes, no = by_cases(function, holds), by_cases(function, otherwise)
    condition = factor(first)
    return no + condition * (yes - no)
