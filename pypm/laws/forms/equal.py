"""Forms that have to be equal: what a symbol in one of them has to be."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from itertools import product

from pypm.laws.forms.functions import power
from pypm.laws.forms.polynomials import Factor, Monomial, Poly, factor, rational

__all__ = ["factors", "inverse_of_common", "ones", "solutions", "without_common"]


def without_common(one: Poly, two: Poly) -> tuple[Poly, Poly]:
    """Return two forms without common terms, divided by what all terms of both contain if neither
    is zero.
    """
    difference = one - two
    one = Poly({m: c for m, c in difference.terms.items() if c > 0})
    two = Poly({m: -c for m, c in difference.terms.items() if c < 0})
    common = inverse_of_common(one, two) if one.terms and two.terms else rational(1)
    return one * common, two * common


def inverse_of_common(*forms: Poly) -> Poly:
    """Return one divided by what all terms of forms contain."""
    every = [dict(m) for form in forms for m in form.terms]
    found = rational(1)
    for of in set.intersection(*(set(m) for m in every)) if every else ():
        found = found * factor(of, -min(m[of] for m in every))
    shares = [abs(c.numerator) for form in forms for c in form.terms.values()]
    return found.scaled(Fraction(1, math.gcd(*shares) or 1))


def solutions(one: Poly, two: Poly) -> Iterable[tuple[Factor, Poly]]:
    """Yield what a symbol in `one` has to be: a number that is a term, or a size that is all."""
    for monomial, coefficient in one.terms.items():
        rest = Poly({m: c for m, c in one.terms.items() if m != monomial})
        others = [g for form in (rest, two) for m in form.terms for g, _ in m]
        match [*monomial]:
            case [(("symbol", _) as of, 1 | -1 as exponent)] if of not in others:
                yield of, power((two - rest).scaled(1 / coefficient), exponent)
    if len(one.terms) != 1 or not two.terms:
        return
    ((monomial, coefficient),) = one.terms.items()
    if len(monomial) != 1 or coefficient <= 0:
        return
    ((of, exponent),) = monomial
    mentioned = any(g == of for m in two.terms for g, _ in m)
    if of[0] == "size" and exponent == 1 and coefficient == 1 and not mentioned:
        is_size = all(
            g[0] == "size" and e > 0 and e.denominator == 1 for m in two.terms for g, e in m
        )
        if is_size and all(c.denominator == 1 for c in two.terms.values()):
            yield of, two


def ones(product: Poly, value: Poly) -> Iterable[tuple[Factor, Poly]]:
    """Yield sizes that are 1 because their product is."""
    if value == 1 and len(product.terms) == 1:
        ((monomial, _),) = product.terms.items()
        for of in sorted(of for of, _ in monomial if of[0] == "size"):
            yield of, rational(1)


def factors(one: Poly, two: Poly) -> Iterable[tuple[Factor, Poly]]:
    """Yield what sizes in a product may be if another product is equal: factors of it, in order.
    Views whose dimensions cut across one another have others.
    """
    if [*one.terms.values()] == [*two.terms.values()] == [1]:
        (left,), (right,) = one.terms, two.terms
        if all(of[0] == "size" and e == 1 for of, e in left | right):
            for of, other in product(_in_order(left), _in_order(right)):
                yield of, factor(other)


def _in_order(monomial: Monomial) -> list[Factor]:
    """Return sizes in the order in which they were made."""
    return sorted((of for of, _ in monomial), key=lambda of: (len(str(of[1])), str(of[1])))
