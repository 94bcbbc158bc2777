"""The symbols of one equation: what they have to be, and their samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Final

import torch

from pypm.core.guards import Guard
from pypm.core.terms import Value
from pypm.laws.forms.equal import factors, ones, solutions, without_common
from pypm.laws.forms.functions import function, only_factor, substituted
from pypm.laws.forms.polynomials import ONE, UNIT, Factor, Poly, factor, of_key, rational
from pypm.laws.forms.printing import shown
from pypm.laws.numbers import (
    Assumed,
    Contradiction,
    Real,
    Size,
    SymbolicNumber,
    as_symbols,
    form_of,
    is_number,
)

__all__ = ["KINDS", "SIGNS", "World", "is_of_items", "is_one"]

KINDS: Final = "npc"
"""The first letters of sizes, places and numbers."""

SAMPLES: Final = (
    (1031, 1033, 1039, 1049, 1051, 1061, 1063, 1069, 1087, 1091, 1093, 1097, 1103, 1109, 1117),
    (1511, 1523, 1531, 1543, 1549, 1553, 1559, 1567, 1571, 1579, 1583, 1597, 1601, 1607, 1609),
)
"""Samples of sizes: different primes, for each of two runs."""
SAMPLED: Final[dict[str, Callable[..., Fraction | float]]] = {"max": max, "round": round}
"""Functions of numbers that have samples."""
SMALL: Final = 3, 2
"""Samples of a size that is small."""


@dataclass
class World:
    """The symbols of one equation: what they have to be, their samples, and the conditions."""

    run: int = 0
    """The number of the run, which chooses the samples."""
    assumptions: dict[Factor, Poly] = field(default_factory=dict)
    conditions: dict[str, tuple[Poly, str]] = field(default_factory=dict)
    """Comparisons of a form with zero that came out true, by their text."""
    hypotheses: list[tuple[Poly, str]] = field(default_factory=list)
    """Comparisons with zero that came out true in guards."""
    unknown: list[Guard] = field(default_factory=list)
    """Guards about sizes and arguments of which is not known whether they hold."""
    unequal: list[tuple[Value, Value]] = field(default_factory=list)
    """Values that a comparison found to be unequal."""
    watched: bool = False
    """True while comparisons are recorded."""
    views: list[tuple[Value, Value]] = field(default_factory=list)
    """Numbers of elements that views take to be equal."""
    limits: set[str] = field(default_factory=set)
    """Predicates whose numbers are taken to be their limit."""
    parts: int | None = None
    """The most parts of a list, if there are lists."""
    divides: bool = False
    """True while code runs that may divide sizes which no guard divides: that no rest is left is a
    condition."""
    frozen: tuple[int, int, int] = (0, 0, 0)
    """Sizes, places and numbers up to these are what they are: no equation says more of them."""
    given: int = 0
    """Sizes up to this one are those of the arguments of a lemma."""
    _sized: dict[Poly, Size] = field(default_factory=dict)
    _resolved: dict[Poly, Poly] = field(default_factory=dict)
    """Forms with what symbols have to be, by so many assumptions as there were."""
    _assumed: int = 0
    small: int = 0
    """The number of a size with a small sample; then numbers are above 1; 0 for none."""
    larger: int = 0
    """1 to take one more step of loops apart, as there are for sizes from 2 on."""
    dtype: torch.dtype = torch.float32
    """The type of real numbers, for code that asks."""
    asks_types: bool = False
    """True if code asked for the type of a tensor."""
    plain: dict[float, Poly] = field(default_factory=dict)
    """Plain numbers that are taken for the symbols whose samples they are."""
    chosen: set[Factor] = field(default_factory=set)
    """Sizes of views in any shape of the rank that a tensor has: a product of them is not split in
    order, for the shape would be the same."""
    has_choices: bool = False
    """True if the rank of a tensor was chosen."""
    noted: int = 0
    """The number of comparisons of symbols so far."""
    count: int = 0
    numbers: int = 0
    places: int = 0

    def observing(self, *, watched: bool, divides: bool) -> _Observing:
        """Say for a while what becomes of comparisons and of divisions."""
        return _Observing(self, watched, divides)

    def size(self) -> Size:
        """Return a new size."""
        self.count += 1
        return self.sized(factor(("size", f"n{self.count}")))

    def place(self) -> Size:
        """Return a new place along a dimension; that it is not 0 or negative is a condition."""
        found = self.item()
        is_known = found.form.constant is not None or _is_decided(found.form - 1)
        if found.sample < 1 or not is_known:
            self.conditions[f"{shown(found.form)} >= 1"] = found.form - 1, ">="
        return found

    def item(self) -> Size:
        """Return the number of an item of a dimension, counted from 1."""
        self.places += 1
        return self.sized(factor(("size", f"p{self.places}")))

    def real(self) -> Real:
        """Return a new number."""
        self.numbers += 1
        return self.number(factor(("symbol", f"c{self.numbers}")))

    def resolved(self, form: Poly) -> Poly:
        """Return a form with what symbols have to be in place of them."""
        if not self.assumptions or form.constant is not None:
            return form
        if len(self.assumptions) != self._assumed:  # there are only ever more of them
            self._resolved.clear()
            self._assumed = len(self.assumptions)
        found = self._resolved.get(form)
        if found is None:
            found = self._resolved[form] = self._substituted(form)
        return found

    def _substituted(self, form: Poly) -> Poly:
        while any(of in self.assumptions for m in form.terms for of, _ in m):
            form = substituted(form, self.assumptions)
        return form

    def sized(self, form: Poly | int) -> Size:
        """Return the size of this form."""
        given = form if isinstance(form, Poly) else rational(form)
        known = self._sized.get(given)
        if known is None:
            found = self.resolved(given)
            known = self._sized[given] = Size(self, int(self.sample(found)), found)
        return known

    def number(self, form: Poly) -> Real:
        """Return the number of this form."""
        found = self.resolved(form)
        return Real(self, float(self.sample(found)), found)

    def sample(self, form: Poly) -> Fraction | float:
        """Return the sample of a form."""
        total: Fraction | float = 0
        for monomial, coefficient in form.terms.items():
            product: Fraction | float = 1 if coefficient is UNIT else coefficient
            for of, exponent in monomial:
                sample = self._sample(of)
                if exponent is not UNIT:
                    base = Fraction(sample) if isinstance(sample, int) else sample
                    sample = base ** (
                        int(exponent) if exponent.denominator == 1 else float(exponent)
                    )
                product = product * sample
            total = total + product
        return total

    def _sample(self, of: Factor) -> Fraction | float:
        kind, name = of[0], str(of[-1])
        if kind == "size":
            number = int(name[1:].rstrip("'")) + 4 * name.count("'")
            if name[0] == "p":  # a place: less than sizes are
                return 5 + 6 * number + self.run
            if self.small and number == self.small:
                return SMALL[self.run]
            return SAMPLES[self.run][number % len(SAMPLES[0])]
        if kind == "symbol":
            number, primes = int(name[1:].rstrip("'")), name.count("'")
            apart = primes * (23 + 4 * number + 2 * self.run)  # still so if it is rounded
            return bool(self.small) + 0.0123 + number / 1013 + self.run / 771 + apart
        if kind == "abs":
            found = self._sample(of[1])
            return found if found >= 0 else -found
        if kind == "function" and of[1] in SAMPLED:
            return SAMPLED[of[1]](*(self.sample(of_key(key)) for key in of[2:]))
        if kind == "prime":
            return Fraction(of[1])
        raise Contradiction("a number without a sample")

    def unify(self, one: Value, two: Value) -> None:
        """Make two values equal. Raises Assumed if symbols have to be something for that, and
        Contradiction if they cannot be equal or it is not clear how.
        """
        found: dict[Factor, Poly] = {}
        self._unify(one, two, found)
        if found:
            raise Assumed(found)

    def _unify(self, one: Value, two: Value, found: dict[Factor, Poly]) -> None:
        if isinstance(one, (tuple, list)) and isinstance(two, (tuple, list)):
            if len(one) != len(two):
                raise Contradiction("tuples of different lengths")
            for a, b in zip(one, two, strict=True):
                self._unify(a, b, found)
            return
        if not (is_number(one) and is_number(two)):
            if one is not two and one != two:
                raise Contradiction(f"{one} is not {two}")
            return
        a, b = self.resolved(form_of(one)), self.resolved(form_of(two))
        if a == b:
            return
        a, b = without_common(a, b)
        sides = (a, b), (b, a)
        is_chosen = any(of in self.chosen for m in (*a.terms, *b.terms) for of, _ in m)
        ways = (solutions, ones) if is_chosen else (solutions, ones, factors)
        for symbol, other in (x for of in ways for s in sides for x in of(*s)):
            if not self.is_frozen(symbol):
                found[symbol] = self.assumptions[symbol] = other
                self._unify(one, two, found)
                return
        raise Contradiction(f"{shown(a)} and {shown(b)}")

    @contextmanager
    def reading(self, given: Sequence[Real] = ()) -> Iterator[None]:
        """Take plain numbers that are samples for their symbols, as in a text that is read again:
        also the samples of these numbers.

        Another number that happens to be a sample is none in the other run.
        """
        reals = (self.number(factor(("symbol", f"c{n + 1}"))) for n in range(self.numbers))
        for found in (*self._sized.values(), *reals, *given):
            if found.form.constant is None:
                self.plain.setdefault(found.sample, found.form)
        with as_symbols(self.plain):
            yield

    @property
    def counts(self) -> tuple[int, int, int]:
        """The numbers of symbols that there are, by `KINDS`."""
        return self.count, self.places, self.numbers

    def freeze(self) -> None:
        """Let no equation say more of the symbols that there are: only of new ones."""
        self.frozen = self.counts

    def is_frozen(self, symbol: Factor) -> bool:
        """Return whether a symbol is as it is."""
        name = str(symbol[1])
        return int(name[1:].rstrip("'")) <= self.frozen[KINDS.index(name[0])]

    def suppose(self, since: int) -> bool:
        """Suppose that a guard holds which fails for the samples by the comparisons since then.

        Of one comparison the opposite is supposed, of several nothing. Return False if there are
        none, or all come out so for no size or for all sizes from 2 on.
        """
        new = self.hypotheses[since:]
        del self.hypotheses[since:]
        if len(new) == 1:
            ((form, sign),) = new
            self.hypotheses.append((form, OPPOSITES[sign]))
        return not all(_is_decided(form) for form, _ in new)

    def note(self, left: SymbolicNumber, sign: str, right: Value) -> None:
        """Record a comparison: a condition, or a hypothesis; none that the forms of limits say."""
        self.noted += 1
        other = form_of(right)
        less, more = (left.form, other) if sign == "<=" else (other, left.form)
        has_maxima = sign in ("<=", ">=") and (_has_maxima(less) or _has_maxima(more))
        if has_maxima and function("max", less, more) == more:
            return
        if not self.watched:
            self.hypotheses.append((left.form - other, sign))
        elif not _is_decided(left.form - other):
            self.conditions[f"{shown(left.form)} {sign} {shown(other)}"] = left.form - other, sign


class _Observing:
    """Says what becomes of comparisons and of divisions: made often, so it is no generator."""

    __slots__ = ("_said", "_world")

    def __init__(self, world: World, watched: bool, divides: bool) -> None:
        self._world, self._said = world, (watched, divides)

    def __enter__(self) -> None:
        self._swap()

    def __exit__(self, *_: Value) -> None:
        self._swap()

    def _swap(self) -> None:
        before = self._world.watched, self._world.divides
        self._world.watched, self._world.divides = self._said
        self._said = before


def _has_maxima(form: Poly) -> bool:
    return any(of[:2] == ("function", "max") for m in form.terms for of, _ in m)


@lru_cache(2**14)
def _is_decided(form: Poly) -> bool:
    """Return whether a form is above zero for all sizes from 2 on, or below zero for all."""
    powers = [power for monomial in form.terms for power in monomial]
    if any(of[0] != "size" or e.denominator != 1 or e < 0 for of, e in powers):
        return False
    shifted = substituted(form, {of: factor(of) + 2 for of, _ in powers})
    signs = {c > 0 for c in shifted.terms.values()}
    return len(signs) == 1 and ONE in shifted.terms


def is_one(symbol: Factor, form: Poly, count: int) -> bool:
    """Return whether a form says that one of the first sizes is 1."""
    return form == 1 and _is_given(symbol, count)


def is_another(symbol: Factor, form: Poly, count: int) -> bool:
    """Return whether a form says that two of the first sizes are equal."""
    return _is_given(symbol, count) and _is_given(only_factor(form), count)


def _is_given(of: Factor, count: int) -> bool:
    """Return whether a factor is one of the first sizes."""
    return of[:1] == ("size",) and int(of[1][1:].rstrip("'")) <= count


SIGNS: Final[dict[str, Callable[[float], bool]]] = {
    "<": lambda n: n < 0,
    "<=": lambda n: n <= 0,
    ">": lambda n: n > 0,
    ">=": lambda n: n >= 0,
    "=": lambda n: n == 0,
    "!=": lambda n: n != 0,
}
"""Comparisons with zero."""
OPPOSITES: Final = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "=": "!=", "!=": "="}


def is_of_items(form: Poly) -> bool:
    """Return whether a form has no symbols but numbers of items."""
    return all(str(of[1]).startswith("p") for m in form.terms for of, _ in m)
