"""Values that are equal, or are so where a condition holds."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Final

from pypm.laws.forms.functions import substituted, vanishing
from pypm.laws.forms.polynomials import (
    Factor,
    Monomial,
    Part,
    Poly,
    cases_of,
    factor,
    first_condition,
    of_key,
    rational,
)
from pypm.laws.forms.sums import indices_in, new_index, summand

__all__ = ["are_equal", "where_it_holds"]

ROUNDS: Final = 8
MOST_CONDITIONS: Final = 6
"""The most conditions of two values whose cases are compared one by one."""


def are_equal(one: Poly, two: Poly) -> bool:
    """Return whether two values are equal where both are defined.

    That a value is zero is left out if, were it so, one side would divide by it. False says only
    that no reason was found.
    """
    if is_zero(one - two):
        return True
    conditions = {
        of for side in (one, two) for m in side.terms for of, _ in m if of[0] == "indicator"
    }
    if len(conditions) > MOST_CONDITIONS or not any(of[1] == "zero" for of in conditions):
        inner = _summand(one - two)
        return inner is not None and are_equal(inner, Poly({}))
    condition = min(conditions, key=lambda of: (of[1] == "zero", repr(of)))
    holds, fails = zip(*(cases_of(side, condition) for side in (one, two)), strict=True)
    if not are_equal(*fails):
        return False
    is_left_out = condition[1] == "zero" and any(_divides(x, of_key(condition[2])) for x in holds)
    return is_left_out or are_equal(*holds)


def _divides(side: Poly, by: Poly) -> bool:
    """Return whether a side divides by a value, whatever its conditions are."""
    condition = first_condition(side)
    if condition is not None:
        return all(_divides(case, by) for case in cases_of(side, condition))
    divisors = {of for m in side.terms for of, exponent in m if exponent < 0}
    return any(
        vanishing(of_key(of[1]) if of[0] == "power" else factor(of)) == by for of in divisors
    )


def _summand(difference: Poly) -> Poly | None:
    """Return what a difference is the sum of, over an index on which a condition in it depends."""
    sizes = (size for m in difference.terms for of, _ in m for size in _sizes_of_conditions(of))
    size = next(sizes, None)
    return None if size is None else summand(difference, size, new_index())


def _sizes_of_conditions(of: Factor) -> Iterator[Part]:
    """Yield the ranges of indices of a sum on which it depends whether a value in it is zero."""
    if of[0] == "sum":
        _, sizes, body = of
        for inner, _ in body:
            if inner[:2] == ("indicator", "zero"):
                bound = {name.rpartition("_")[2] for name in indices_in(inner) if name[0] == "%"}
                yield from (size for place, size in enumerate(sizes) if str(place) in bound)


def is_zero(difference: Poly) -> bool:
    """Return whether a polynomial is zero once denominators are multiplied out.

    False says only that no reason for zero was found.
    """
    for _ in range(ROUNDS):
        if not difference.terms:
            return True
        least: dict[Factor, Fraction] = {}
        for monomial in difference.terms:
            for of, exponent in monomial:
                if of[0] == "power" and exponent < 0:
                    least[of] = min(least.get(of, exponent), exponent)
        if not least:
            return False
        found = Poly({})
        for monomial, coefficient in difference.terms.items():
            product, left = rational(1), dict(monomial)
            for of, exponent in least.items():
                product = product * _multiplied(of, left.pop(of, Fraction(0)) - exponent)
            found = found + product * Poly({frozenset(left.items()): coefficient})
        difference = found
    return not difference.terms


def _multiplied(of: Factor, exponent: Fraction) -> Poly:
    """Return a power of a sum, its whole part multiplied out."""
    whole = exponent.numerator // exponent.denominator
    found = rational(1)
    for _ in range(whole):
        found = found * of_key(of[1])
    left = exponent - whole
    return found * factor(of, left) if left else found


def where_it_holds(condition: Poly, value: Poly) -> Poly:
    """Return a condition times a value, in which a factor is what it then has to be."""
    found = Poly({})
    for monomial, coefficient in condition.terms.items():
        known = dict(_known(monomial))
        is_read = any(of in known for m in value.terms for of, _ in m)
        same = substituted(value, known) if is_read else value
        found = found + Poly({monomial: coefficient}) * same
    return found


def _known(monomial: Monomial) -> Iterator[tuple[Factor, Poly]]:
    """Yield factors, each with what it has to be where conditions hold."""
    for of, _ in monomial:
        form = of_key(of[2]) if of[:2] == ("indicator", "zero") else Poly({})
        alone = [(m, c) for m, c in form.terms.items() if len(m) == 1]
        for one, coefficient in sorted(alone, key=lambda term: repr(term[0]))[-1:]:
            ((known, exponent),) = one
            if exponent == 1 and (known[0] == "sum" or len(alone) == 1):
                rest = form - factor(known).scaled(coefficient)
                yield known, rest.scaled(-1 / coefficient)
