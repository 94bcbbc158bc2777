"""Functions of polynomials, each in one form: powers, `exp`, `log`, absolute values and others.

Over the reals, where both sides are defined: a root of a product is the product of the roots of its
factors only where these are not negative.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache, reduce
from typing import Final

from pypm.laws.forms.maxima import clauses_of, maximum_of
from pypm.laws.forms.polynomials import (
    LARGEST_POWER,
    MINUS_INFINITY,
    ONE,
    Factor,
    Monomial,
    NotDefined,
    Poly,
    by_cases,
    factor,
    of_key,
    rational,
)
from pypm.laws.forms.sums import new_index, opened, summand, total

__all__ = [
    "absolute",
    "exp",
    "function",
    "is_whole",
    "log",
    "never_positive",
    "never_zero",
    "only_factor",
    "power",
    "substituted",
    "vanishing",
]

UNDEFINED: Final[Factor] = ("undefined",)
"""An inverse of zero: sides are compared where they are defined, so it may be anything."""
POSITIVE: Final = frozenset({"size", "prime", "pi", "exp", "abs", "index", "indicator"})
"""Kinds of factors that are never negative."""


# --- powers --------------------------------------------------------------------------------------


def power(base: Poly, exponent: int | Fraction) -> Poly:
    """Return a power; a symbol without laws for an inverse of zero."""
    return by_cases(lambda argument: _power(argument, Fraction(exponent)), base)


def only_factor(value: Poly) -> Factor:
    """Return the factor that a value is, () if it is none."""
    factors = [of for m in value.terms for of, _ in m]
    return factors[0] if len(factors) == 1 and value == factor(factors[0]) else ()


def substituted(form: Poly, known: Mapping[Factor, Poly]) -> Poly:
    """Return a polynomial with others in place of some factors."""
    total = Poly({})
    for monomial, coefficient in form.terms.items():
        product = rational(coefficient)
        for of, exponent in monomial:
            one = known.get(of)
            product = product * (factor(of, exponent) if one is None else power(one, exponent))
        total = total + product
    return total


@lru_cache(maxsize=2**16)
def _power(base: Poly, exponent: Fraction) -> Poly:
    if not exponent:
        return rational(1)
    if not base.terms:
        return base if exponent > 0 else factor(UNDEFINED)
    if len(base.terms) == 1:
        ((monomial, coefficient),) = base.terms.items()
        return _power_of_monomial(monomial, coefficient, exponent)
    if exponent.denominator == 1 and 0 < exponent <= LARGEST_POWER:
        return reduce(Poly.__mul__, [base] * int(exponent))
    shared, rest = _shared(base, exponent.denominator == 1)
    if len(rest.terms) == 1:
        return _power(shared, exponent) * _power(rest, exponent)
    return _power(shared, exponent) * factor(("power", rest.key), exponent)


def _shared(base: Poly, with_signs: bool) -> tuple[Poly, Poly]:
    """Return a monomial that all terms of a sum contain, with a coefficient, and the rest.

    Without `with_signs` the monomial is positive, so that a root of the product is a product.
    """
    each = [dict(monomial) for monomial in base.terms]
    common = {
        of: min(powers[of] for powers in each)
        for of in each[0]
        if all(of in powers for powers in each) and of[0] not in ("exp", "indicator")
    }
    if not with_signs:
        common = {of: e for of, e in common.items() if _is_positive(of, e)}
    arguments = [
        next((of_key(of[1]) for of, _ in m if of[0] == "exp"), Poly({})) for m in base.terms
    ]
    zero = Fraction(0)
    least = {m: min(a.terms.get(m, zero) for a in arguments) for b in arguments for m in b.terms}
    inside = Poly({m: c for m, c in least.items() if c})
    shared = Poly({frozenset(common.items()): Fraction(1)}) * exp(inside)
    inverse = _power(shared, Fraction(-1))
    rest = base * inverse
    lead = min(rest.terms.items(), key=lambda term: repr(sorted(term[0], key=repr)))[1]
    lead = lead if with_signs else abs(lead)
    return shared.scaled(lead), rest.scaled(1 / lead)


def _power_of_monomial(monomial: Monomial, coefficient: Fraction, exponent: Fraction) -> Poly:
    """Return a power of one term: each factor's, where a root of the product is one of factors."""
    is_whole = exponent.denominator == 1
    found, inside = rational(1), Poly({ONE: Fraction(1)})
    for of, old in monomial:
        if of[0] == "exp":
            found = found * exp(of_key(of[1]).scaled(old * exponent))
        elif of[0] == "prime":
            found = found * _root(Fraction(of[1]), old * exponent)
        elif is_whole:
            found = found * factor(of, old * exponent)
        elif _is_positive(of, old):
            is_even = old.denominator == 1 and old % 2 == 0 and not _is_positive(of, Fraction(1))
            base = ("abs", of) if is_even else of
            found = found * factor(base, old * exponent)
        else:
            inside = inside * factor(of, old)
    if is_whole:
        return found.scaled(coefficient ** int(exponent))
    if coefficient < 0:
        inside = -inside
    found = found * _root(abs(coefficient), exponent)
    return found if inside == 1 else found * factor(("power", inside.key), exponent)


def _root(number: Fraction, exponent: Fraction) -> Poly:
    """Return a power of a positive number as powers of primes."""
    found = rational(1)
    for whole, sign in ((number.numerator, 1), (number.denominator, -1)):
        left, prime = whole, 2
        while left > 1:
            if prime * prime > left or prime > 10_000:
                prime = left
            times = 0
            while left % prime == 0:
                left, times = left // prime, times + 1
            total = times * sign * exponent
            found = found.scaled(Fraction(prime) ** int(total // 1))
            if total % 1:
                found = found * factor(("prime", prime), total % 1)
            prime += 1
    return found


def _is_positive(of: Factor, exponent: Fraction) -> bool:
    """Return whether a power of a factor is certainly not negative, where it is defined."""
    if exponent.denominator == 1 and exponent % 2 == 0:
        return True
    if of[0] == "sum":
        return all(_is_positive(inner, e) for inner, e in of[2])
    if of[0] == "power" and exponent.denominator % 2 == 0:
        return True
    if of[0] == "max":
        return never_positive(-of_key(of[2]))
    if of[0] == "function":
        is_some = of[1] == "max" and any(never_positive(-of_key(key)) for key in of[2:])
        return is_some or str(of[1]).partition(" ")[0] in PLACES
    if of[0] == "power":
        return all(c > 0 and all(_is_positive(g, e) for g, e in m) for m, c in of[1])
    return of[0] in POSITIVE


def never_positive(value: Poly) -> bool:
    """Return whether a value is certainly zero or below."""
    return all(c < 0 and all(_is_positive(of, e) for of, e in m) for m, c in value.terms.items())


def never_zero(value: Poly) -> bool:
    """Return whether a value is certainly not zero: all its terms are positive, or all negative."""
    signs = {c > 0 for c in value.terms.values()}
    return len(signs) == 1 and all(_is_above_zero(m) for m in value.terms)


def _is_above_zero(monomial: Iterable[tuple[Factor, Fraction]]) -> bool:
    return all(
        of[0] in ("exp", "size", "prime", "pi") or (of[0] == "sum" and _is_above_zero(of[2]))
        for of, _ in monomial
    )


def vanishing(value: Poly) -> Poly:
    """Return a value that is zero where another one is: without factors that are never zero, also
    in sums of what is not negative.
    """
    if len(value.terms) > 1:
        shared, rest = _shared(value, False)
        found = vanishing(shared) * _vanishing_rest(rest)
    else:
        found = rational(1 if value.terms else 0)
        for monomial in value.terms:
            for of, exponent in monomial:
                if not _is_above_zero([(of, exponent)]):
                    found = found * _vanishing_sum(of, exponent)
    lead = min(found.terms.items(), key=lambda t: repr(sorted(t[0], key=repr)))[1]
    return found.scaled(1 / lead)


def _vanishing_rest(value: Poly) -> Poly:
    """Return a value, or of a sum of positive values where conditions hold that of conditions."""
    sizes = {size for m in value.terms for of, _ in m if of[0] == "sum" for size in of[1]}
    if len(sizes) != 1:
        return value
    (size,), index = sizes, new_index()
    body = summand(value, size, index)
    if body is None:
        return value
    shared, rest = _shared(body, True)
    lead = rest.terms.get(ONE, Fraction(1))
    rest = rest.scaled(1 / lead)
    is_of_conditions = rest * rest == rest and all(_is_above_zero(m) for m in shared.terms)
    return total(rest, {index: of_key(size)}) if is_of_conditions else value


def _vanishing_sum(of: Factor, exponent: Fraction) -> Poly:
    if of[0] != "sum" or exponent < 0 or not all(_is_positive(inner, e) for inner, e in of[2]):
        return factor(of, exponent)
    sizes, body = opened(of)
    return total(Poly({frozenset(p for p in body if not _is_above_zero([p])): Fraction(1)}), sizes)


def absolute(argument: Poly) -> Poly:
    """Return the absolute value."""
    return by_cases(_absolute, argument)


def _absolute(argument: Poly) -> Poly:
    if len(argument.terms) > 1:
        lead = min(argument.terms.items(), key=lambda term: repr(sorted(term[0], key=repr)))[1]
        positive = argument if lead > 0 else -argument
        return factor(("abs", ("power", positive.key)))
    found = rational(1)
    for monomial, coefficient in argument.terms.items():
        found = found.scaled(abs(coefficient))
        for of, exponent in monomial:
            is_positive = _is_positive(of, exponent)
            found = found * factor(of if is_positive else ("abs", of), exponent)
    return found if argument.terms else argument


# --- functions -----------------------------------------------------------------------------------


def exp(argument: Poly) -> Poly:
    """Return `exp`, as one factor; that of minus infinity is zero."""
    return by_cases(_exp, argument)


def _exp(argument: Poly) -> Poly:
    found = rational(1)
    left: dict[Monomial, Fraction] = {}
    for monomial, coefficient in argument.terms.items():
        kinds = [of for of, _ in monomial]
        if MINUS_INFINITY in kinds:
            if len(kinds) > 1 or coefficient < 0:
                raise NotDefined("an infinity times a value")
            return Poly({})
        if (
            len(kinds) == 1
            and kinds[0][:2] == ("function", "log")
            and monomial == frozenset([(kinds[0], Fraction(1))])
        ):
            found = found * power(of_key(kinds[0][2]), coefficient)
        else:
            left[monomial] = coefficient
    return found * factor(("exp", Poly(left).key)) if left else found


def log(argument: Poly) -> Poly:
    """Return the logarithm, with what it is of an `exp` outside."""
    return by_cases(_log, argument)


def _log(argument: Poly) -> Poly:
    if not argument.terms:
        return factor(MINUS_INFINITY)
    shared, rest = argument, rational(1)
    if len(argument.terms) > 1:
        shared, rest = _shared(argument, False)
    ((monomial, coefficient),) = shared.terms.items()
    outside, inside = Poly({}), rest.scaled(coefficient)
    for of, exponent in monomial:
        if of[0] == "exp":
            outside = outside + of_key(of[1])
        elif _is_above_zero([(of, exponent)]):
            outside = outside + factor(("function", "log", factor(of).key)).scaled(exponent)
        else:
            inside = inside * factor(of, exponent)
    return outside if inside == 1 else outside + factor(("function", "log", inside.key))


ODD: Final = frozenset({"erf", "sin", "sign", "atan", "round"})
EVEN: Final = frozenset({"cos"})
INVERSES: Final = {"order": "rank", "rank": "order"}
"""Functions of places, each named with a number, that undo one another."""
PLACES: Final = frozenset({*INVERSES, "ends", "largest"})
"""Functions of places that are places or numbers of these."""


def function(name: str, *arguments: Poly) -> Poly:
    """Return a function that has no laws here but its symmetry: `erf`, `sin`, `max`."""
    if len(arguments) == 1:
        return by_cases(lambda argument: _function(name, (argument,)), arguments[0])
    *first, last = arguments

    def of_last(argument: Poly) -> Poly:
        return _with_first(name, first, (argument,))

    return by_cases(of_last, last)


def _with_first(name: str, first: Iterable[Poly], last: tuple[Poly, ...]) -> Poly:
    *before, argument = first
    if before:
        return by_cases(lambda a: _with_first(name, before, (a, *last)), argument)
    return by_cases(lambda a: _function(name, (a, *last)), argument)


@lru_cache(maxsize=2**16)
def _function(name: str, arguments: tuple[Poly, ...]) -> Poly:
    if name == "max":
        return maximum_of(arguments, _is_positive)
    if name == "round":
        clauses = clauses_of(arguments[0], _is_positive)
        if clauses != [frozenset(arguments)]:  # it keeps the order of values
            return -maximum_of(tuple(-_largest_rounded(c) for c in clauses), _is_positive)
        if is_whole(arguments[0]):
            return arguments[0]
        if arguments[0].constant is not None:
            return rational(round(arguments[0].constant))
    if name in ODD or name in EVEN:
        (argument,) = arguments
        if not argument.terms:
            return rational(0) if name in ODD else rational(1)
        lead = min(argument.terms.items(), key=lambda term: repr(sorted(term[0], key=repr)))[1]
        if lead < 0:
            found = factor(("function", name, (-argument).key))
            return -found if name in ODD else found
    kind, _, number = name.partition(" ")
    if kind == "to" and only_factor(arguments[0])[:2] == ("function", name):  # rounded so already
        return arguments[0]
    if kind in INVERSES:
        undone = f"{INVERSES[kind]} {number}"
        of = only_factor(arguments[0])
        if of[:2] == ("function", undone):
            return of_key(of[2])
    return factor(("function", name, *(argument.key for argument in arguments)))


def _largest_rounded(clause: Iterable[Poly]) -> Poly:
    return maximum_of(tuple(_function("round", (a,)) for a in clause), _is_positive)


def is_whole(value: Poly) -> bool:
    """Return whether a value is certainly a whole number."""
    return all(
        coefficient.denominator == 1
        and all(
            exponent.denominator == 1
            and exponent > 0
            and (of[0] in ("size", "index", "whole") or of[:2] == ("function", "round"))
            for of, exponent in monomial
        )
        for monomial, coefficient in value.terms.items()
    )
