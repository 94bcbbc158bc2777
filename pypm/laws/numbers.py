"""Sizes and numbers that are symbols, for ordinary Python code: each carries a sample and its form.

Code that computes with a `Size` or a `Real` also computes its form, a polynomial. A comparison
comes out as it does for the sample, and is recorded as a condition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from typing import Final, Protocol, Self, TypeAlias

from pypm.core.terms import Unresolved, Value
from pypm.laws.forms.equal import inverse_of_common
from pypm.laws.forms.functions import power
from pypm.laws.forms.polynomials import ONE, Factor, Poly, factor, rational
from pypm.laws.forms.printing import shown
from pypm.laws.forms.symbolic import exact, quotient

__all__ = [
    "Assumed",
    "Contradiction",
    "Real",
    "Size",
    "SymbolicNumber",
    "as_symbols",
    "form_of",
    "is_number",
]


class Assumed(BaseException):
    """Symbols have to be these polynomials: all is computed again so. It is no mistake of the code
    that runs, which lets it through.
    """

    def __init__(self, forms: Mapping[Factor, Poly], condition: str = "") -> None:
        super().__init__(", ".join(f"{shown(factor(of))} = {shown(n)}" for of, n in forms.items()))
        self.forms = forms
        self.condition = condition
        """Facts that are so by no guard, but for code that divides."""


class Contradiction(ValueError):
    """Two values that have to be equal are not, or not by what is known here. A predicate in which
    it is raised has no value.
    """


class Symbols(Protocol):
    """The symbols of one equation, as numbers ask for them."""

    watched: bool
    divides: bool
    unequal: list[tuple[Value, Value]]

    def sized(self, form: Poly) -> Size:
        """Return the size of this form."""

    def number(self, form: Poly) -> Real:
        """Return the number of this form."""

    def note(self, left: SymbolicNumber, sign: str, right: Value) -> None:
        """Record a comparison."""

    def is_frozen(self, symbol: Factor) -> bool:
        """Return whether a symbol is as it is."""


_SYMBOLS: Final[ContextVar[Mapping[float, Poly] | None]] = ContextVar("symbols", default=None)


@contextmanager
def as_symbols(known: Mapping[float, Poly]) -> Iterator[None]:
    """Take plain numbers for symbols, each for the one whose sample it is."""
    token = _SYMBOLS.set(known)
    try:
        yield
    finally:
        _SYMBOLS.reset(token)


def symbol_of(value: float) -> Poly | None:
    """Return the symbol for which a plain number is taken, if it is for one."""
    known = _SYMBOLS.get()
    return known.get(value) if known else None


def is_number(value: Value) -> bool:
    """Return whether a value is a number, maybe a symbol, and no truth value."""
    is_plain = isinstance(value, (int, float, Poly)) or type(value) is Fraction
    return is_plain and not isinstance(value, bool)


def form_of(value: Value) -> Poly:
    """Return the form of a number. Raises Contradiction for other values."""
    if isinstance(value, Poly):
        return value
    if type(value) is Size or type(value) is Real:
        return value.form
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

    world: Symbols
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

    def __new__(cls, world: Symbols, sample: int, form: Poly) -> Self:
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
        return self.world.sized(self._divided(other, self.world.divides)[0])

    def __mod__(self, other: Value) -> Size:
        is_said = self.world.divides and self.world.watched
        return self.world.sized(self._divided(other, is_said)[1])

    def __rfloordiv__(self, other: Value) -> Size:
        return self.world.sized(form_of(other)).__floordiv__(self)

    def __rmod__(self, other: Value) -> Size:
        return self.world.sized(form_of(other)).__mod__(self)

    def _divided(self, other: Value, is_said: bool) -> tuple[Poly, Poly]:
        """Return quotient and rest; a symbol that is divided is a product, and leaves none: a
        condition of the verdict if it `is_said`.
        """
        by = form_of(other)
        whole, rest = quotient(self.form, by)
        if rest.constant is not None:
            if rest.constant and by.constant is None:
                size, number = self.world.sized(by), int(rest.constant)
                _ = size > number and size >= -number
            more = -(rest.constant < 0) if by.constant is None else rest.constant // by.constant
            return whole + more, rest - by * more
        if len(rest.terms.keys() - {ONE}) == 1:
            (monomial,) = rest.terms.keys() - {ONE}
            for of, exponent in sorted(monomial, key=repr):
                if (
                    exponent == 1
                    and of[0] == "size"
                    and not self.world.is_frozen(of)
                    and not any(g == of for m in by.terms for g, _ in m)
                ):
                    condition = f"{shown(by)} divides {of[1]}" * is_said
                    needed = by * inverse_of_common(Poly({monomial: rest.terms[monomial]}), by)
                    raise Assumed({of: needed * factor(("size", f"{of[1]}'"))}, condition)
        raise Contradiction(f"{shown(self.form)} divided by {shown(by)}")


class Real(SymbolicNumber, float):
    """A number that is no size, such as an eps."""

    def __new__(cls, world: Symbols, sample: float, form: Poly) -> Self:
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
