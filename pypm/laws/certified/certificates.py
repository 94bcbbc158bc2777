"""Certificates of equations: both sides as they are written, for the checker that is proved in Coq.

`coq/oracle/equations.ml` reads them, and docs/proofs.md says what they show.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pypm.core.rules import Rules
from pypm.laws.algebra import Given, Indexed, NoMeaning, Shape
from pypm.laws.certified.raw import Raw, RawAlgebra
from pypm.laws.contracts import Contracts
from pypm.laws.equations import Equation, places
from pypm.laws.formulas import Formula, FormulaValues
from pypm.laws.prove import equations

__all__ = ["Certificates", "certificates", "written"]


@dataclass(frozen=True)
class Certificates:
    """The certificates of rules."""

    queries: tuple[str, ...]
    """Questions to the oracle, which answers `accepted`: a line for each element of a result."""
    missing: tuple[tuple[str, str], ...]
    """Rules with an equation that has no certificate, each with the reason."""


def certificates(rules: Rules, *, contracts: Contracts | None = None) -> Certificates:
    """Return the certificates of the equations that verdicts on rules rest on.

    Arguments:
        rules: a rule, a rule set, or a list of those.
        contracts: lemmas about patterns that are proved already, which other calls share.
    """
    queries: dict[str, None] = {}
    missing: dict[tuple[str, str], None] = {}
    for rule, equation in equations(rules, Contracts() if contracts is None else contracts):
        try:
            queries |= dict.fromkeys(f"equation\t{a}\t{b}" for a, b in written(equation))
        except NoMeaning as why:
            missing[rule, str(why)] = None
    return Certificates(tuple(queries), tuple(missing))


def written(equation: Equation) -> Iterator[tuple[str, str]]:
    """Yield both sides of an equation as text, for each element of each result.

    The sides are those of pattern and replacement, before any normal form. Raises NoMeaning if
    the checker has no such value.
    """
    indices = equation.formulas.algebra
    algebra = RawAlgebra(indices)

    def read(formula: Formula, shape: Shape) -> Indexed:
        name, kind = formula.attributes["name"], formula.attributes["kind"]

        def at(place: Shape) -> Raw:
            value = algebra.read(name, place)
            return algebra.positive(value) if kind == "truth" else value

        return Indexed(shape, at, kind=kind)

    evaluation = FormulaValues(algebra, lambda form: form, algebra.symbol, read)
    for one, two in zip(equation.left, equation.right, strict=True):
        left, right = evaluation.of(one), evaluation.of(two)
        for a, b in zip(_parts(left), _parts(right), strict=True):
            for place in places(indices, a.shape):
                yield str(a.value(*place)), str(b.value(*place))


def _parts(value: Given) -> list[Indexed]:
    if isinstance(value, tuple):
        return [part for each in value for part in _parts(each)]
    return [] if value is None else [value]
