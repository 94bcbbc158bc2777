"""Values that may be minus infinity, in comparisons."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from pypm.laws.forms.polynomials import MINUS_INFINITY, Monomial, NotDefined, Poly, by_cases

__all__ = ["difference", "infinite_part", "lowest_of"]

INFINITE: Final[Monomial] = frozenset([(MINUS_INFINITY, Fraction(1))])


def difference(one: Poly, two: Poly) -> Poly:
    """Return one - two; 0 where both are the same infinity."""
    if not all(any(of == MINUS_INFINITY for m in x.terms for of, _ in m) for x in (one, two)):
        return one - two
    return by_cases(lambda a: by_cases(lambda b: _apart(a, b), two), one)


def _apart(one: Poly, two: Poly) -> Poly:
    is_same = one.terms.get(INFINITE, 0) * two.terms.get(INFINITE, 0) > 0
    return Poly({}) if is_same else one - two


def lowest_of(value: Poly) -> Poly | None:
    """Return the difference of a maximum and minus infinity, if a value is that and what is finite:
    zero if all of the maximum's values are minus infinity. None for others.
    """
    parts = {m: c for m, c in value.terms.items() if MINUS_INFINITY[0] in repr(m)}
    if len(parts) != 2 or parts.pop(INFINITE, 0) != -1:
        return None
    ((monomial, coefficient),) = parts.items()
    ((of, exponent), *others) = monomial
    is_largest = of[0] == "max" or of[:2] == ("function", "max")
    if others or not is_largest or not coefficient == exponent == 1:
        return None
    return Poly({monomial: Fraction(1), INFINITE: Fraction(-1)})


def infinite_part(value: Poly) -> Fraction | None:
    """Return by how much minus infinity a value is; None if it is finite. Raises NotDefined."""
    finite = Poly({m: c for m, c in value.terms.items() if m != INFINITE})
    if MINUS_INFINITY[0] in repr(finite.key):
        raise NotDefined("a value that may be infinite is compared")
    return value.terms.get(INFINITE)
