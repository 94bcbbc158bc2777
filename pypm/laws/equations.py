"""Equations of formulas: run until all symbols are settled, and compared by their normal forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from pypm.laws.algebra import Given, Indexed, Indivisible, NoMeaning, SizesDiffer
from pypm.laws.forms.comparing import are_equal
from pypm.laws.forms.deadline import check_time
from pypm.laws.forms.polynomials import Factor, NotDefined, Part, Poly, rational
from pypm.laws.forms.printing import shown
from pypm.laws.forms.sums import NAMES
from pypm.laws.forms.symbolic import SymbolicAlgebra
from pypm.laws.formulas import Formula, Formulas
from pypm.laws.numbers import Assumed, Contradiction, form_of
from pypm.laws.patterns.ways import Choices, Impossible, NotMatched
from pypm.laws.sizes import World
from pypm.laws.verdicts import Parted

__all__ = ["Equation", "compared", "settled"]

Built = TypeVar("Built")
TRUE: Final = (rational(1), ">")
"""A comparison with zero that holds."""


MOST_ASSUMED: Final = 60
"""The most values of symbols that one equation settles."""


@dataclass
class Equation:
    """Two sides, each a result for each output, in one world."""

    formulas: Formulas
    left: tuple[Given, ...]
    right: tuple[Given, ...]
    fingerprint: list[Part] = field(default_factory=list)
    """The normal forms, once they were compared."""


def settled(run: int, choices: Choices, build: Callable[[World], Built]) -> Built:
    """Return the equation or value that `build` makes, again and again until no symbol has to be
    something else. Raises NotMatched and NoMeaning.
    """
    assumptions: dict[Factor, Poly] = {symbol: form for _, symbol, form, _ in choices.settled}
    for _ in range(MOST_ASSUMED):
        check_time()
        world = World(run, dict(assumptions))
        world.conditions |= {text: TRUE for *_, text in choices.settled if text}
        choices.restart()
        NAMES.restart()
        try:
            try:
                return build(world)
            except SizesDiffer as differ:
                if not world.has_choices and all(type(n) is int for n in differ.sizes):
                    raise Impossible("ranks that differ") from None
                world.unify(*differ.sizes)
            except Indivisible as differ:
                _ = world.sized(form_of(differ.sizes[0])) // world.sized(form_of(differ.sizes[1]))
            raise NotMatched("sizes that differ")
        except Assumed as assumed:
            for symbol, form in assumed.forms.items():
                if symbol in assumptions:
                    raise NotMatched("sizes that depend on themselves") from None
                assumptions[symbol] = form
                choices.settle(symbol, form, assumed.condition)
        except Contradiction as why:
            raise NotMatched(str(why)) from None
    raise NotMatched("sizes that are not settled")


def compared(equation: Equation) -> Parted | None:
    """Compare normal forms; return where they part, or None if they are equal.

    Raises NoMeaning and NotDefined if a value has none.
    """
    algebra = equation.formulas.algebra
    if len(equation.left) != len(equation.right):
        return Parted(f"{len(equation.left)} results", f"{len(equation.right)} results")
    for one, two in zip(equation.left, equation.right, strict=True):
        parted = _compared(algebra, one, two, equation.fingerprint)
        if parted is not None:
            return parted
    return None


def _compared(algebra: SymbolicAlgebra, one: Given, two: Given, forms: list[Part]) -> Parted | None:
    left, right = _values(one), _values(two)
    if len(left) != len(right):
        return Parted(f"{len(left)} tensors", f"{len(right)} tensors")
    for a, b in zip(left, right, strict=True):
        if len(a.shape) != len(b.shape) or any(
            form_of(n) != form_of(m) for n, m in zip(a.shape, b.shape, strict=True)
        ):
            return Parted(_shape(a), _shape(b))
        for place in algebra.places(a.shape):
            check_time()
            try:
                x, y = a.value(*place), b.value(*place)
            except NotDefined as why:
                raise NoMeaning(str(why)) from None
            if not are_equal(x, y):
                return _parted(x, y)
            forms.append((x.key, y.key))
    return None


def _parted(x: Poly, y: Poly) -> Parted:
    own, others = (
        Poly({m: c for m, c in a.terms.items() if b.terms.get(m) != c}) for a, b in ((x, y), (y, x))
    )
    if len(own.terms) == len(x.terms) and len(others.terms) == len(y.terms):
        return Parted(shown(x), shown(y))
    return Parted(shown(x), shown(y), shown(own), shown(others))


def _values(side: Given) -> Sequence[Indexed]:
    if isinstance(side, Formula):
        return side.value if isinstance(side.value, tuple) else (side.value,)
    if side is None:
        return ()
    if isinstance(side, tuple):
        return [value for part in side for value in _values(part)]
    raise NoMeaning(f"the result {side!r}")


def _shape(x: Indexed) -> str:
    return f"a shape of ({', '.join(shown(form_of(n)) for n in x.shape)})"
