"""Sizes and numbers that are symbols, for ordinary Python code: each carries a sample and its form.

Code that computes with a `Size` or a `Real` also computes its form, a polynomial. A comparison
comes out as it does for the sample, and is recorded as a condition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, Self, TypeAlias

import torch

from pypm.core.guards import Guard
from pypm.core.terms import Unresolved, Value
from pypm.laws.forms.equal import ones, solutions, without_common
from pypm.laws.forms.functions import power
from pypm.laws.forms.polynomials import ONE, Factor, Poly, factor, rational
from pypm.laws.forms.printing import shown
from pypm.laws.forms.symbolic import exact, quotient
from pypm.laws.samples import SAMPLES, SMALL, as_symbols, symbol_of

__all__ = [
    "SIGNS",
    "Assumed",
    "Contradiction",
    "Real",
    "Size",
    "SymbolicNumber",
    "World",
    "form_of",
    "is_number",
]


class Assumed(Exception):
    """Symbols have to be these polynomials: all is computed again so."""

    def __init__(self, forms: Mapping[Factor, Poly], condition: str = "") -> None:
        super().__init__(", ".join(f"{shown(factor(of))} = {shown(n)}" for of, n in forms.items()))
        self.forms = forms
        self.condition = condition
        """What is so by no guard, but for code that divides."""


class Contradiction(Exception):
    """Two values that have to be equal are not, or not by what is known here."""


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
    """True while code runs that may divide sizes which no guard divides."""
    frozen: tuple[int, int] = (0, 0)
    """Sizes and numbers up to these are what they are: no equation says more of them."""
    _sized: dict[Poly, Size] = field(default_factory=dict)
    small: int = 0
    """The number of a size with a small sample; then numbers are above 1; 0 for none."""
    dtype: torch.dtype = torch.float32
    """The type of real numbers, for code that asks."""
    plain: dict[float, Poly] = field(default_factory=dict)
    """Plain numbers that are taken for the symbols whose samples they are."""
    has_choices: bool = False
    """Whether the rank of a tensor was chosen."""
    count: int = 0
    numbers: int = 0
    places: int = 0

    def size(self) -> Size:
        """Return a new size."""
        self.count += 1
        return self.sized(factor(("size", f"n{self.count}")))

    def place(self) -> Size:
        """Return a new place along a dimension; that it is not 0 or negative is a condition."""
        found = self.item()
        if (found.form.constant or 0) < 1:
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
        while self.assumptions and form.constant is None:
            found = {of for m in form.terms for of, _ in m if of in self.assumptions}
            if not found:
                break
            total = Poly({})
            for monomial, coefficient in form.terms.items():
                product = rational(coefficient)
                for of, exponent in monomial:
                    one = self.assumptions.get(of)
                    product = product * (
                        factor(of, exponent) if one is None else power(one, exponent)
                    )
                total = total + product
            form = total
        return form

    def sized(self, form: Poly | int) -> Size:
        """Return the size of this form."""
        given = form if isinstance(form, Poly) else rational(form)
        if given not in self._sized:
            found = self.resolved(given)
            self._sized[given] = Size(self, int(self.sample(found)), found)
        return self._sized[given]

    def number(self, form: Poly) -> Real:
        """Return the number of this form."""
        found = self.resolved(form)
        return Real(self, float(self.sample(found)), found)

    def sample(self, form: Poly) -> Fraction | float:
        """Return the sample of a form."""
        total: Fraction | float = Fraction(0)
        for monomial, coefficient in form.terms.items():
            product: Fraction | float = coefficient
            for of, exponent in monomial:
                whole = exponent.denominator == 1
                product = product * self._sample(of) ** (
                    int(exponent) if whole else float(exponent)
                )
            total = total + product
        return total

    def _sample(self, of: Factor) -> Fraction | float:
        kind, name = of[0], str(of[-1])
        if kind == "size":
            number = int(name[1:].rstrip("'")) + 4 * name.count("'")
            if name[0] == "p":  # a place: less than sizes are
                return Fraction(5 + 6 * number + self.run)
            if self.small and number == self.small:
                return Fraction(SMALL[self.run])
            return Fraction(SAMPLES[self.run][number % len(SAMPLES[0])])
        if kind == "symbol":
            return bool(self.small) + 0.0123 + int(name[1:]) / 1013 + self.run / 771
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
        for symbol, other in (*solutions(a, b), *solutions(b, a), *ones(a, b), *ones(b, a)):
            if not self.is_frozen(symbol):
                found[symbol] = self.assumptions[symbol] = other
                self._unify(one, two, found)
                return
        raise Contradiction(f"{shown(a)} and {shown(b)}")

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Take plain numbers that are samples for their symbols, as in a text that is read again.

        Another number that happens to be a sample is none in the other run.
        """
        reals = (self.number(factor(("symbol", f"c{n + 1}"))) for n in range(self.numbers))
        for found in (*self._sized.values(), *reals):
            if found.form.constant is None:
                self.plain.setdefault(found.sample, found.form)
        with as_symbols(self.plain):
            yield

    def freeze(self) -> None:
        """Let no equation say more of the symbols that there are: only of new ones."""
        self.frozen = self.count, self.numbers

    def is_frozen(self, symbol: Factor) -> bool:
        """Return whether a symbol is as it is."""
        number = int(str(symbol[1])[1:].rstrip("'"))
        return number <= self.frozen[symbol[0] == "symbol"]

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
        """Record a comparison: a condition, or a hypothesis."""
        other = form_of(right)
        if not self.watched:
            self.hypotheses.append((left.form - other, sign))
        elif not _is_decided(left.form - other):
            self.conditions[f"{shown(left.form)} {sign} {shown(other)}"] = left.form - other, sign


def _is_decided(form: Poly) -> bool:
    """Return whether a form is above zero for all sizes from 2 on, or below zero for all."""
    shifted = Poly({})
    for monomial, coefficient in form.terms.items():
        product = rational(coefficient)
        for of, exponent in monomial:
            if of[0] != "size" or exponent.denominator != 1 or exponent < 0:
                return False
            product = product * power(factor(of) + 2, exponent)
        shifted = shifted + product
    signs = {c > 0 for c in shifted.terms.values()}
    return len(signs) == 1 and ONE in shifted.terms


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


def is_number(value: Value) -> bool:
    """Return whether a value is a number, maybe a symbol, and no truth value."""
    return isinstance(value, (int, float, Fraction, Poly)) and not isinstance(value, bool)


def form_of(value: Value) -> Poly:
    """Return the form of a number. Raises Contradiction for other values."""
    if isinstance(value, (Size, Real)):
        return value.form
    if isinstance(value, Poly):
        return value
    found = symbol_of(value) if isinstance(value, (int, float)) else None
    if found is not None:
        return found
    if isinstance(value, float):
        return exact(value)
    if isinstance(value, (int, Fraction)) and not isinstance(value, bool):
        return rational(value)
    raise Contradiction(f"{value!r} is no number")


_Compare: TypeAlias = Callable[["SymbolicNumber", Value], bool]


def _comparison(name: str, sign: str, opposite: str) -> _Compare:
    def compare(self: SymbolicNumber, other: Value) -> bool:
        base = int if isinstance(self, int) else float
        known = getattr(base, name)(self, other)
        if known is NotImplemented:
            return NotImplemented  # type: ignore[no-any-return]
        found = bool(known)
        if sign in ("=", "!=") and found is (sign == "!="):
            self.world.unequal.append((self, other))
        if is_number(other) and (self.form - form_of(other)).constant is None:
            self.world.note(self, sign if found else opposite, other)
        return found

    return compare


class SymbolicNumber(Unresolved):
    """A number with a form."""

    world: World
    form: Poly

    @property
    def sample(self) -> float:
        """The number itself."""
        return int(self) if isinstance(self, int) else float(self)  # type: ignore[arg-type]

    __hash__ = object.__hash__

    def equals(self, other: Value) -> bool | None:
        """Return whether this equals another value for all samples; None if for some."""
        if not is_number(other):
            return False
        left = self.form - form_of(other)
        if not left.terms:
            return True
        return False if left.constant is not None else None

    def less(self, other: Value) -> bool | None:
        """Return whether the sample is below another value."""
        return bool(self < other) if is_number(other) else None

    def greater(self, other: Value) -> bool | None:
        """Return whether the sample is above another value."""
        return bool(self > other) if is_number(other) else None

    __lt__ = _comparison("__lt__", "<", ">=")
    __le__ = _comparison("__le__", "<=", ">")
    __gt__ = _comparison("__gt__", ">", "<=")
    __ge__ = _comparison("__ge__", ">=", "<")
    __eq__ = _comparison("__eq__", "=", "!=")
    __ne__ = _comparison("__ne__", "!=", "=")


def _arithmetic(
    combine: Callable[[Poly, Poly], Poly], swapped: bool = False
) -> Callable[..., Value]:
    def method(self: SymbolicNumber, other: Value) -> Value:
        if not is_number(other):
            return NotImplemented
        a, b = (form_of(other), self.form) if swapped else (self.form, form_of(other))
        floats = isinstance(self, float) or isinstance(other, float)
        form = combine(a, b)
        return self.world.number(form) if floats else self.world.sized(form)

    return method


def _ratio(a: Poly, b: Poly) -> Poly:
    return a * power(b, -1)


class Size(SymbolicNumber, int):
    """The size of a dimension, or an integer computed from sizes."""

    def __new__(cls, world: World, sample: int, form: Poly) -> Self:
        found = int.__new__(cls, sample)
        found.world, found.form = world, form
        return found

    __hash__ = int.__hash__
    __add__ = __radd__ = _arithmetic(lambda a, b: a + b)  # type: ignore[assignment]
    __mul__ = __rmul__ = _arithmetic(lambda a, b: a * b)  # type: ignore[assignment]
    __sub__ = _arithmetic(lambda a, b: a - b)  # type: ignore[assignment]
    __rsub__ = _arithmetic(lambda a, b: a - b, swapped=True)  # type: ignore[assignment]

    def __neg__(self) -> Size:
        return self.world.sized(-self.form)

    def __truediv__(self, other: Value) -> Real:
        return self.world.number(_ratio(self.form, form_of(other)))

    def __rtruediv__(self, other: Value) -> Real:
        return self.world.number(_ratio(form_of(other), self.form))

    def __pow__(self, other: Value) -> Real | Size:  # type: ignore[override]
        exponent = form_of(other).constant
        if exponent is None:
            raise Contradiction("an exponent that is a symbol")
        form = power(self.form, exponent)
        return self.world.number(form) if isinstance(other, float) else self.world.sized(form)

    def bit_length(self) -> int:
        """Return the number of bits of the sample, whose limits become conditions."""
        found = int(self).bit_length()
        _ = 2**found > self >= 2 ** (found - 1)
        return found

    def __floordiv__(self, other: Value) -> Size:
        return self.world.sized(self._divided(other)[0])

    def __mod__(self, other: Value) -> Size:
        return self.world.sized(self._divided(other)[1])

    def __rfloordiv__(self, other: Value) -> Size:
        return self.world.sized(form_of(other)).__floordiv__(self)

    def __rmod__(self, other: Value) -> Size:
        return self.world.sized(form_of(other)).__mod__(self)

    def _divided(self, other: Value) -> tuple[Poly, Poly]:
        """Return quotient and rest; a symbol that is divided is a product, and leaves none."""
        by = form_of(other)
        whole, rest = quotient(self.form, by)
        if not rest.terms or rest.constant is not None:
            return whole, rest
        if len(rest.terms) == 1:
            ((monomial, _),) = rest.terms.items()
            for of, exponent in monomial:
                if (
                    exponent == 1
                    and of[0] == "size"
                    and not self.world.is_frozen(of)
                    and not any(g == of for m in by.terms for g, _ in m)
                ):
                    condition = f"{shown(by)} divides {of[1]}" * self.world.divides
                    raise Assumed({of: by * factor(("size", f"{of[1]}'"))}, condition)
        raise Contradiction(f"{shown(self.form)} divided by {shown(by)}")


class Real(SymbolicNumber, float):
    """A number that is no size, such as an eps."""

    def __new__(cls, world: World, sample: float, form: Poly) -> Self:
        found = float.__new__(cls, sample)
        found.world, found.form = world, form
        return found

    __hash__ = float.__hash__
    __add__ = __radd__ = _arithmetic(lambda a, b: a + b)  # type: ignore[assignment]
    __mul__ = __rmul__ = _arithmetic(lambda a, b: a * b)  # type: ignore[assignment]
    __sub__ = _arithmetic(lambda a, b: a - b)  # type: ignore[assignment]
    __rsub__ = _arithmetic(lambda a, b: a - b, swapped=True)  # type: ignore[assignment]
    __truediv__ = _arithmetic(_ratio)  # type: ignore[assignment]
    __rtruediv__ = _arithmetic(_ratio, swapped=True)  # type: ignore[assignment]

    def __neg__(self) -> Real:
        return self.world.number(-self.form)
