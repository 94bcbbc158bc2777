"""The algebra of certificates: values are expressions as they are written, which nothing rewrites.

Sizes and indices are polynomials, as in proofs: what views, splits and broadcasts do to indices is
done before. Everything else is left to the checker, `coq/theories/laws`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, TypeAlias

from pypm.laws.algebra import Given, NoMeaning
from pypm.laws.forms.polynomials import MINUS_INFINITY, Factor, Poly, factor, of_key, rational
from pypm.laws.forms.symbolic import SymbolicAlgebra, exact

__all__ = ["Raw", "RawAlgebra"]

Tree: TypeAlias = "str | tuple[Tree, ...]"
"""An expression: a word, or a form with its parts."""
FUNCTIONS: Final = {
    name: number
    for start, names in ((0, "positive zero log max"), (4, "erf sin sign atan round"), (10, "cos"))
    for number, name in enumerate(names.split(), start)
}
"""The functions of which the checker knows something, by their numbers in `Structures.v`: those
from 4 on are odd, those from 10 on symmetric."""
OTHERS: Final = 12
"""The number from which on nothing is known of functions; of the opposites, that they round to the
numbers of a type: twice is once."""


@dataclass(frozen=True, eq=False)
class Raw:
    """An expression, and the index that it is, if it is one."""

    words: Tree
    index: Poly | None = None
    finite: Tree | None = None
    """A condition: 1 where the value is `words`, 0 where it is infinite; None if it never is."""
    is_above: bool = False
    """True if it is plus infinity there, which is compared with zero alone."""
    taken: Tree | None = None
    """The expression where a value that may be infinite is taken to be finite, if it may be."""

    @property
    def tree(self) -> Tree:
        """The expression of a finite value. Raises NoMeaning for one that may be infinite."""
        if self.finite is None:
            return self.words
        if self.taken is None:
            raise NoMeaning("minus infinity")
        return self.taken

    @property
    def as_taken(self) -> Raw:
        """The value, taken to be finite if it may be."""
        return self if self.taken is None else Raw(self.taken)

    @property
    def lower(self) -> Tree | None:
        """`finite` of a value that is never plus infinity. Raises NoMeaning for others."""
        if self.is_above:
            raise NoMeaning("plus infinity")
        return self.finite

    def sides(self, other: Raw) -> Sequence[str]:
        """Return the value as text, as one side of an equation with another: what it is; or where
        it is finite, and what it is there. Raises NoMeaning for one that may be plus infinity.
        """
        if self.lower is other.lower is None:
            return (_written(self.words),)
        finite = "1" if self.lower is None else self.lower
        return _written(finite), _written(("mul", finite, self.words))

    def __add__(self, other: Raw | int) -> Raw:
        one, two = self, _raw(other)
        if one.finite and two.finite and one.is_above != two.is_above:
            one, two = one.as_taken, two.as_taken
            if one.finite and two.finite:
                raise NoMeaning("an infinity minus another")
        index = None if one.index is None or two.index is None else one.index + two.index
        taken = None
        if one.taken or two.taken:
            taken = "add", one.as_taken.words, two.as_taken.words
        above = one.is_above or two.is_above
        return Raw(
            ("add", one.words, two.words), index, _product(one.finite, two.finite), above, taken
        )

    def __mul__(self, other: Raw | int) -> Raw:
        one, two = self, _raw(other)
        if one.finite is None:
            one, two = two, one
        index = None if one.index is None or two.index is None else one.index * two.index
        words = ("mul", self.words, _raw(other).words)
        if one.finite is None:
            return Raw(words, index)
        by = None if two.index is None else two.index.constant
        if not by:
            raise NoMeaning("an infinity times a value")
        taken = None if one.taken is None else ("mul", one.taken, two.words)
        return Raw(words, None, one.finite, one.is_above == (by > 0), taken)

    def __neg__(self) -> Raw:
        return self * -1

    def __sub__(self, other: Raw | int) -> Raw:
        return self + _raw(other) * -1

    def __rsub__(self, other: int) -> Raw:
        return -self + other

    __radd__ = __add__
    __rmul__ = __mul__


def _raw(value: Raw | int) -> Raw:
    return value if isinstance(value, Raw) else _number(rational(value))


def _product(one: Tree | None, two: Tree | None) -> Tree | None:
    return ("mul", one, two) if one is not None and two is not None else one or two


def _number(form: Poly) -> Raw:
    assert form.constant is not None
    return Raw(str(form.constant), form)


class RawAlgebra:
    """Expressions as they are written. `indices` knows how sizes are split."""

    def __init__(self, indices: SymbolicAlgebra) -> None:
        self._indices = indices
        self._numbers: dict[tuple[Given, ...], int] = {}
        self._places: list[Raw] = []
        self.divided = indices.divided
        self.split = indices.split

    def _named(self, kind: str, *name: Given) -> str:
        """Return the number of a name, in the order in which they are asked for."""
        return str(self._numbers.setdefault((kind, *name), len(self._numbers)))

    def determining(
        self, shape: Sequence[Poly | int], of: Callable[[tuple[Poly, ...]], Raw]
    ) -> Sequence[Raw]:
        """Return the elements at all places, as an argument of a function, for each of the parts
        in which dimensions are read.
        """
        if not shape:
            return [of(())]
        first, *rest = shape

        def within(index: Poly) -> Sequence[Raw]:
            return self.determining(rest, lambda place: of((index, *place)))

        return [
            Raw(self._bound("each", names, value.tree))
            for index, names in self._parts(first)
            for value in within(index)
        ]

    # --- numbers and indices ---

    def number(self, value: float) -> Raw:
        """Return the number that a float stands for."""
        return self.symbol(exact(value))

    def scalar(self, index: Poly | int) -> Raw:
        """Return an index as a value."""
        return self.symbol(index if isinstance(index, Poly) else rational(index))

    def place(self, value: Raw) -> Poly:
        """Return a value as an index."""
        if value.index is not None:
            return value.index
        self._places.append(value)
        return factor(("place", len(self._places) - 1))

    def symbol(self, form: Poly) -> Raw:
        """Return a polynomial in numbers, sizes and indices as it is written."""
        if form == factor(MINUS_INFINITY):
            return self.infinity()
        terms = [self._term(m, c) for m, c in form.key]
        if not terms:
            return Raw("0", form)
        *before, tree = terms
        for term in reversed(before):
            tree = ("add", term, tree)
        return Raw(tree, form)

    def _term(self, monomial: Sequence[tuple[Factor, Fraction]], coefficient: Fraction) -> Tree:
        parts = [self._power(of, exponent) for of, exponent in monomial]
        if coefficient != 1 or not parts:
            parts.insert(0, str(coefficient))
        *before, tree = parts
        for part in reversed(before):
            tree = ("mul", part, tree)
        return tree

    def _power(self, of: Factor, exponent: Fraction) -> Tree:
        found = self._factor(of)
        return found if exponent == 1 else ("pow", found, str(exponent))

    def _factor(self, of: Factor) -> Tree:
        match of:
            case ("size", name):
                return f"s{self._named('size', name)}"
            case ("index", name):
                return f"i{self._named('index', name)}"
            case ("prime", number):
                return str(number)
            case ("place", number):
                return self._places[number].tree
            case ("symbol", _) | ("pi",):
                return ("read", self._named("read", *of))
            case ("power", key):
                return self.symbol(of_key(key)).tree
            case ("read" | "whole" as kind, str(name), *keys):
                return self.element(kind, name, [of_key(key) for key in keys]).tree
            case ("indicator", kind, key):
                return self.function(kind, self.symbol(of_key(key))).tree
            case ("abs", inner):
                return self.absolute(Raw(self._factor(inner))).tree
            case ("function", name, *keys):
                return self.function(name, *(self.symbol(of_key(key)) for key in keys)).tree
        raise NoMeaning(f"a number {of[0]}")

    # --- values ---

    def read(self, name: str, place: Sequence[Poly | int]) -> Raw:
        """Return an element of an input."""
        return Raw(("read", self._named("read", name), *(self.scalar(i).tree for i in place)))

    def element(self, kind: str, name: str, place: Sequence[Poly | int]) -> Raw:
        """Return an element of an input of a kind of numbers: the checker knows nothing of whole
        numbers but that what is rounded is one.
        """
        value = self.read(name, place)
        if kind == "truth":
            return self.positive(value)
        return self.function("round", value) if kind == "whole" else value

    def infinity(self) -> Raw:
        """Return minus infinity."""
        return Raw("0", None, "0")

    def exp(self, value: Raw) -> Raw:
        """Return the exponential, which is zero of minus infinity."""
        found: Tree = ("exp", value.words)
        return Raw(found if value.lower is None else ("mul", value.lower, found))

    def log(self, value: Raw) -> Raw:
        """Return the logarithm."""
        return self.function("log", value)

    def absolute(self, value: Raw) -> Raw:
        """Return the root of the square."""
        return self.power(self.power(value, 2), Fraction(1, 2))

    def power(self, value: Raw, exponent: int | Fraction) -> Raw:
        """Return a power."""
        return Raw(("pow", value.tree, str(Fraction(exponent))))

    def function(self, name: str, *values: Raw) -> Raw:
        """Return another function; the maximum of several is one of pairs."""
        if name == "max":
            values = tuple(value for value in values if value.lower != "0") or values[:1]
            if len(values) == 1:
                return values[0]
            first, *rest = values
            values = first, self.function("max", *rest)
        number = FUNCTIONS.get(name)
        if number is None:
            number = OTHERS + int(self._named("function", name))
            if name.startswith("to "):
                number = -number
        return Raw(("fn", str(number), *(value.tree for value in values)))

    def difference(self, one: Raw, two: Raw) -> Raw:
        """Return one - two; 0 where both are minus infinity. Raises NoMeaning where both may be
        infinite, and neither is for certain.
        """
        above, below = one.lower, two.lower
        if above is None or below is None or "0" not in (above, below):
            return one - two
        is_above = below == "0"
        return Raw("0", None, (1 - Raw(above if is_above else below)).tree, is_above)

    def positive(self, value: Raw) -> Raw:
        """Return 1 where a value is above zero."""
        if value.lower is None:
            return self._condition("positive", self._indices.positive, value)
        return Raw(value.lower) * self.positive(Raw(value.words))

    def zero(self, value: Raw) -> Raw:
        """Return 1 where a value is zero."""
        found = self._condition("zero", self._indices.zero, Raw(value.words, value.index))
        return found if value.finite is None else found * Raw(value.finite)

    def _condition(self, name: str, known: Callable[[Poly], Poly], value: Raw) -> Raw:
        if value.index is not None:
            found = known(value.index)
            if found.constant is not None:
                return _number(found)
        return self.function(name, value)

    def choose(self, condition: Raw, yes: Callable[[], Raw], no: Callable[[], Raw]) -> Raw:
        """Return one of two values, as a sum of both with factors that are 0 or 1; these are
        compared with zero once more: what divides in one may be zero where it is not taken.
        """
        if condition.index == 1:
            return yes()
        if condition.index == 0:
            return no()
        one, two = yes(), no()
        if two.lower == "0":
            return Raw(one.words, None, _product(condition.tree, one.lower))
        if one.lower == "0":
            return Raw(two.words, None, _product((1 - condition).tree, two.lower))
        one, two = one.as_taken, two.as_taken
        if one.lower or two.lower:
            raise NoMeaning("two values that may be infinite")
        branch = self.function("positive", condition)
        return branch * one + (1 - branch) * two

    def total(self, size: Poly | int, of: Callable[[Poly], Raw]) -> Raw:
        """Return the sum over a dimension."""
        first, *rest = (self._total(of(index), names) for index, names in self._parts(size))
        return sum(rest, first)

    def _total(self, value: Raw, names: dict[str, Poly]) -> Raw:
        if value.lower is not None:
            raise NoMeaning("a sum of infinities")
        return Raw(self._bound("sum", names, value.words))

    def largest(self, size: Poly | int, of: Callable[[Poly], Raw]) -> Raw:
        """Return the maximum over a dimension."""
        parts = [self._largest(of(index), names) for index, names in self._parts(size)]
        if len(parts) == 1:
            return parts[0]
        return self.function("max", *(part.as_taken for part in parts))

    def _largest(self, value: Raw, names: dict[str, Poly]) -> Raw:
        """Return a maximum; of one number or minus infinity, it is finite where one value is."""
        if value.lower is None:
            return Raw(self._bound("max", names, value.words))
        masked = self.function("masked", Raw(value.lower), Raw(value.words))
        taken = self._bound("max", names, masked.tree)
        if any(_mentions(value.words, f"i{self._named('index', name)}") for name in names):
            return Raw(taken)
        none = self.zero(Raw(self._bound("sum", names, value.lower)))
        return Raw(value.words, None, (1 - none).tree, False, taken)

    def _parts(self, size: Poly | int) -> Iterator[tuple[Poly, dict[str, Poly]]]:
        return self._indices.indices(size if isinstance(size, Poly) else rational(size))

    def _bound(self, head: str, names: dict[str, Poly], tree: Tree) -> Tree:
        """Return a form over indices, each below its size."""
        for name, n in reversed(names.items()):
            tree = (head, self._named("index", name), self.symbol(n).tree, tree)
        return tree


def _mentions(tree: Tree, word: str) -> bool:
    return tree == word if isinstance(tree, str) else any(_mentions(each, word) for each in tree)


def _written(tree: Tree) -> str:
    return tree if isinstance(tree, str) else f"({' '.join(map(_written, tree))})"
