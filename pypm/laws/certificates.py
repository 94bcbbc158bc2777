"""Certificates of equations: both sides as they are written, for the checker that is proved in Coq.

`coq/oracle/equations.ml` reads them. What a certificate says is in docs/proofs.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from pypm.laws.algebra import Given, Indexed, Shape
from pypm.laws.equations import Equation, places
from pypm.laws.formulas import Evaluation, Formula
from pypm.laws.raw import Raw, RawAlgebra, written

__all__ = ["certificates"]


def certificates(equation: Equation) -> Iterator[tuple[str, str]]:
    """Yield both sides of an equation as text, for each element of each result.

    The sides are those of the pattern and of the replacement, before any normal form. Raises NoMeaning if
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

    evaluation = Evaluation(algebra, lambda form: form, algebra.symbol, read)
    for one, two in zip(equation.left, equation.right, strict=True):
        left, right = evaluation.of(one), evaluation.of(two)
        for a, b in zip(_parts(left), _parts(right), strict=True):
            for place in places(indices, a.shape):
                yield written(a.value(*place).tree), written(b.value(*place).tree)


def _parts(value: Given) -> list[Indexed]:
    if isinstance(value, tuple):
        return [part for each in value for part in _parts(each)]
    return [] if value is None else [value]
