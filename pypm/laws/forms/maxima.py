"""Maxima and minima in one form: a minimum of maxima, or the opposite of one.

A minimum is the opposite of the maximum of opposites. What is positive and in all terms stands
outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import Final, TypeAlias

from pypm.laws.forms.polynomials import (
    MINUS_INFINITY,
    Factor,
    Monomial,
    Poly,
    factor,
    of_key,
    rational,
)

__all__ = ["clauses_of", "maximum_of"]

Clauses: TypeAlias = list[frozenset[Poly]]
"""A minimum of maxima."""
Positive: TypeAlias = Callable[[Factor, Fraction], bool]
MOST: Final = 64
"""The most maxima of which a minimum is made."""


@lru_cache(maxsize=2**14)
def maximum_of(arguments: tuple[Poly, ...], is_positive: Positive) -> Poly:
    """Return the maximum of values. `is_positive` says of a power that it is never negative."""
    clauses = _largest([clauses_of(a, is_positive) for a in arguments], is_positive)
    if len(clauses) == 1:
        return _of_clause(clauses[0], is_positive)
    opposite = _opposite(clauses, is_positive)
    if len(opposite) > MOST:
        return _of_clauses(clauses, is_positive)
    one, two = _of_clauses(clauses, is_positive), _of_clauses(opposite, is_positive)
    return one if repr(one.key) <= repr(two.key) else -two


def clauses_of(value: Poly, is_positive: Positive) -> Clauses:
    """Return a value as a minimum of maxima."""
    if len(value.terms) == 1:
        ((monomial, coefficient),) = value.terms.items()
        maxima = [of for of, e in monomial if of[:2] == ("function", "max") and e == 1]
        rest = [(of, e) for of, e in monomial if of[:2] != ("function", "max")]
        is_one = len(maxima) == 1 and len(rest) == len(monomial) - 1
        if is_one and all(is_positive(of, e) for of, e in rest):
            scale = Poly({frozenset(rest): abs(coefficient)})
            inner = [of_key(key) * scale for key in maxima[0][2:]]
            largest = _largest([clauses_of(a, is_positive) for a in inner], is_positive)
            return largest if coefficient > 0 else _opposite(largest, is_positive)
    return [frozenset([value])]


def _largest(each: Sequence[Clauses], is_positive: Positive) -> Clauses:
    """Return the maximum of minima of maxima."""
    return _reduced((frozenset().union(*chosen) for chosen in product(*each)), is_positive)


def _opposite(clauses: Clauses, is_positive: Positive) -> Clauses:
    """Return the opposite: a maximum of minima, as a minimum of maxima."""
    chosen = product(*clauses)
    return _reduced((frozenset(-a for a in one) for one in chosen), is_positive)


def _reduced(clauses: Iterable[frozenset[Poly]], is_positive: Positive) -> Clauses:
    """Return clauses without those that contain another one, each with one number at most."""
    found = list(dict.fromkeys(_with_one_number(c, is_positive) for c in clauses))
    return [c for c in found if not any(_is_below(other, c) for other in found if other != c)]


def _is_below(one: frozenset[Poly], other: frozenset[Poly]) -> bool:
    """Return whether a clause is certainly not above another one."""
    numbers = [a.constant for a in other if a.constant is not None]
    return all(a.constant is not None and a.constant <= max(numbers, default=a.constant - 1)
               for a in one - other)  # fmt: skip


def _with_one_number(clause: frozenset[Poly], is_positive: Positive) -> frozenset[Poly]:
    """Return a clause with the largest of its numbers, without what is certainly not above it."""
    numbers = {a: a.constant for a in clause if a.constant is not None}
    others = frozenset(a for a in clause if a not in numbers and a != factor(MINUS_INFINITY))
    if not numbers:
        return others or clause
    number = max(numbers.values())
    if number <= 0 and any(_is_least_zero(a, is_positive) for a in others):
        return others
    if number >= 0:
        others = frozenset(a for a in others if not _is_least_zero(-a, is_positive))
    return others | {rational(number)}


def _is_least_zero(value: Poly, is_positive: Positive) -> bool:
    return all(c > 0 and all(is_positive(of, e) for of, e in m) for m, c in value.terms.items())


def _of_clauses(clauses: Clauses, is_positive: Positive) -> Poly:
    if len(clauses) == 1:
        return _of_clause(clauses[0], is_positive)
    return -_of_clause([-_of_clause(clause, is_positive) for clause in clauses], is_positive)


def _of_clause(clause: Iterable[Poly], is_positive: Positive) -> Poly:
    """Return the maximum of some values, with what is positive and in all terms outside."""
    ordered = sorted(dict.fromkeys(clause), key=repr)
    if len(ordered) == 1:
        return ordered[0]
    terms = [term for a in ordered for term in a.terms.items()]
    each = [dict(monomial) for monomial, _ in terms]
    lowest = {of: min(p.get(of, Fraction(0)) for p in each) for powers in each for of in powers}
    common = {
        of: e
        for of, e in lowest.items()
        if is_positive(of, Fraction(1))
        and (all(of in powers for powers in each) or (of[0] == "abs" and e < 0))
    }
    inverse = Poly({frozenset((of, -e) for of, e in common.items()): Fraction(1)})
    ordered = [a * inverse for a in ordered]
    terms = [term for a in ordered for term in a.terms.items()]
    last = max((monomial for monomial, _ in terms), key=_order)
    largest = max(abs(coefficient) for monomial, coefficient in terms if monomial == last)
    inside = sorted((a.scaled(1 / largest) for a in ordered), key=repr)
    outside = Poly({frozenset(common.items()): largest})
    return outside * factor(("function", "max", *(a.key for a in inside)))


def _order(monomial: Monomial) -> str:
    return repr(sorted(monomial, key=repr))
