"""Polynomials over the reals whose factors are reads, sizes, functions and sums: the normal form.

A monomial is a set of factors with rational exponents, and at most one `exp`. Two polynomials that
are built from equal expressions by the operations here mostly have equal terms: exponents of a
product are added, `exp` of a sum is one factor, a case distinction is drawn out of every function,
and a power of a sum leaves what its terms share. Equality in value where the terms differ is
possible, so a difference proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any, Final, TypeAlias

__all__ = [
    "LARGEST_POWER",
    "MINUS_INFINITY",
    "ONE",
    "UNIT",
    "Factor",
    "Kept",
    "Key",
    "Monomial",
    "NotDefined",
    "Part",
    "Poly",
    "by_cases",
    "cases_of",
    "factor",
    "first_condition",
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
PLAIN: Final = frozenset({"size", "index", "read", "whole", "symbol", "sum", "function"})
"""Kinds of factors whose powers have no laws but that exponents are added."""
LARGEST_POWER: Final = 8
"""The largest exponent by which a sum is multiplied out."""


UNIT: Final = Fraction(1)
"""One, mostly the same object."""
MINUS_UNIT: Final = Fraction(-1)


class NotDefined(Exception):
    """An expression without a value, such as an inverse of zero."""


class Kept(tuple[Part, ...]):
    """A tuple that computes its hash and its text once."""

    _hash: int

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            self._hash = tuple.__hash__(self)
            return self._hash

    def __repr__(self) -> str:
        found = self.__dict__.get("text")
        if found is None:
            found = self.__dict__["text"] = tuple.__repr__(self)
        return found


class Poly:
    """A sum of monomials with rational coefficients; none is zero."""

    __slots__ = ("_hash", "_key", "terms")

    def __init__(self, terms: Mapping[Monomial, Fraction]) -> None:
        self.terms = terms
        self._key: Key | None = None
        self._hash: int | None = None

    def __add__(self, other: Poly | int) -> Poly:
        other = _poly(other)
        if not self.terms or not other.terms:
            return self if self.terms else other
        found = dict(self.terms)
        _added(found, other.terms, UNIT)
        return Poly(found)

    def __mul__(self, other: Poly | int) -> Poly:
        other = _poly(other)
        if len(other.terms) == 1 and ONE in other.terms:
            return self.scaled(other.terms[ONE])
        found: dict[Monomial, Fraction] = {}
        for one, c in self.terms.items():
            for two, d in other.terms.items():
                number = d if c is UNIT else c if d is UNIT else c * d
                _added(found, _joined(one, two).terms, number)
        return Poly(found)

    def __neg__(self) -> Poly:
        return self.scaled(Fraction(-1))

    def __sub__(self, other: Poly | int) -> Poly:
        found = dict(self.terms)
        _added(found, _poly(other).terms, MINUS_UNIT)
        return Poly(found)

    def __rsub__(self, other: int) -> Poly:
        return _poly(other) - self

    __radd__ = __add__
    __rmul__ = __mul__

    def scaled(self, number: Fraction) -> Poly:
        """Return this times a number."""
        if number is UNIT or number == 1:
            return self
        return Poly({m: c * number for m, c in self.terms.items()} if number else {})

    def __eq__(self, other: Part) -> bool:
        if self is other:
            return True
        if isinstance(other, Poly):
            return self.terms == other.terms
        if len(self.terms) == 1:
            return isinstance(other, int) and self.terms.get(ONE) == other
        return not self.terms and isinstance(other, int) and other == 0

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self.terms.items()))
        return self._hash

    @property
    def key(self) -> Key:
        """The terms in one order."""
        if self._key is None:
            listed = [(tuple(_in_order(m)), c) for m, c in self.terms.items()]
            self._key = Kept(_in_order(listed))
        return self._key

    @property
    def constant(self) -> Fraction | None:
        """The number that this is; None if it depends on anything."""
        if not self.terms:
            return Fraction(0)
        return self.terms.get(ONE) if len(self.terms) == 1 else None

    def __repr__(self) -> str:
        return f"Poly({self.key})"


def _in_order(parts: Collection[Part]) -> Collection[Part]:
    return sorted(parts, key=repr) if len(parts) > 1 else parts


def _added(
    found: dict[Monomial, Fraction], terms: Mapping[Monomial, Fraction], by: Fraction
) -> None:
    """Add terms, times a number, to those found."""
    for monomial, coefficient in terms.items():
        number = coefficient if by is UNIT else by if coefficient is UNIT else coefficient * by
        before = found.get(monomial)
        total = number if before is None else before + number
        if total:
            found[monomial] = total
        else:
            del found[monomial]


def _poly(value: Poly | int) -> Poly:
    return value if isinstance(value, Poly) else rational(value)


@lru_cache(maxsize=2**12)
def rational(number: int | Fraction) -> Poly:
    """Return a polynomial that is a number."""
    return Poly({ONE: UNIT if number == 1 else Fraction(number)} if number else {})


@lru_cache(maxsize=2**16)
def factor(of: Factor, exponent: int | Fraction = 1) -> Poly:
    """Return a polynomial that is one power of one factor."""
    return Poly({frozenset([(Kept(of), UNIT if exponent == 1 else Fraction(exponent))]): UNIT})


def of_key(key: Key) -> Poly:
    """Return the polynomial with this key."""
    return Poly({frozenset(monomial): coefficient for monomial, coefficient in key})


# --- products ------------------------------------------------------------------------------------


@lru_cache(maxsize=2**16)
def _joined(one: Monomial, two: Monomial) -> Poly:
    """Return the product of two monomials: exponents added, one `exp`, powers multiplied out."""
    if not one or not two:
        return Poly({one or two: UNIT})
    exponents = dict(one)
    for of, exponent in two:
        before = exponents.get(of)
        exponents[of] = exponent if before is None else before + exponent
    if all(of[0] in PLAIN for of in exponents):
        return Poly({frozenset((of, e) for of, e in exponents.items() if e): UNIT})
    arguments = Poly({})
    whole: list[Poly] = []
    number = UNIT
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
    first = first_condition(argument)
    if first is None:
        return function(argument)
    yes, no = (by_cases(function, case) for case in cases_of(argument, first))
    condition = factor(first)
    return no + condition * (yes - no)


def first_condition(argument: Poly) -> Factor | None:
    """Return the first of a polynomial's indicators; None if it has none."""
    conditions = [of for m in argument.terms for of, _ in m if of[0] == "indicator"]
    return min(conditions, key=repr, default=None)


def cases_of(argument: Poly, condition: Factor) -> tuple[Poly, Poly]:
    """Return what a polynomial is where an indicator is 1, and where it is 0."""
    holds = Poly({})
    fails: dict[Monomial, Fraction] = {}
    for monomial, coefficient in argument.terms.items():
        if any(of == condition for of, _ in monomial):
            rest = frozenset((of, e) for of, e in monomial if of != condition)
            holds = holds + Poly({rest: coefficient})
        else:
            fails[monomial] = coefficient
    otherwise = Poly(fails)
    return holds + otherwise, otherwise
