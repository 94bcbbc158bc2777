"""Certificates of equations: both sides as they are written, for the checker that is proved in Coq.

`coq/oracle/equations.ml` reads them, and docs/proofs.md says what they show.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pypm.core.rules import Rules
from pypm.laws.algebra import Given, Indexed, NoMeaning, Scalar, Shape
from pypm.laws.certified.loops import same_states
from pypm.laws.certified.raw import RawAlgebra
from pypm.laws.contracts import Contracts
from pypm.laws.equations import Equation
from pypm.laws.formulas import Formula, FormulaValues
from pypm.laws.operators.orders import ORDERS
from pypm.laws.prove import equations

__all__ = ["Certificate", "Certificates", "certificates", "written"]


@dataclass(frozen=True)
class Certificate:
    """The questions that the checker is asked about a proved equation."""

    rule: str
    queries: tuple[str, ...]
    """A line for each element of a result, to which the oracle answers `accepted`."""
    missing: str = ""
    """The reason for which the equation cannot be written; "" if it can."""


@dataclass(frozen=True)
class Certificates:
    """The certificates of rules, one for each equation that their verdicts rest on."""

    equations: tuple[Certificate, ...]

    @property
    def queries(self) -> tuple[str, ...]:
        """All questions, each once."""
        return tuple(dict.fromkeys(query for one in self.equations for query in one.queries))

    @property
    def missing(self) -> tuple[tuple[str, str], ...]:
        """Rules with an equation that cannot be written, each with the reason."""
        found = [(one.rule, one.missing) for one in self.equations if one.missing]
        return tuple(dict.fromkeys(found))

    def accepted(self, oracle: Path) -> int:
        """Return of how many equations the oracle, an executable, accepts all elements."""
        asked = subprocess.run(
            [oracle, "--batch"],
            input="".join(f"{query}\n" for query in self.queries),
            capture_output=True,
            text=True,
            check=True,
        )
        answers = dict(zip(self.queries, asked.stdout.splitlines(), strict=True))
        return sum(
            not one.missing and all(answers[query] == "accepted" for query in one.queries)
            for one in self.equations
        )


def certificates(rules: Rules, *, contracts: Contracts | None = None) -> Certificates:
    """Return the certificates of the equations that verdicts on rules rest on.

    Arguments:
        rules: a rule, a rule set, or a list of those.
        contracts: lemmas about patterns that are proved already, which other calls share.
    """
    found: list[Certificate] = []
    for rule, equation in equations(rules, Contracts() if contracts is None else contracts):
        try:
            queries = tuple(f"equation\t{a}\t{b}" for a, b in written(equation))
        except NoMeaning as why:
            found.append(Certificate(rule, (), str(why)))
        else:
            found.append(Certificate(rule, queries))
    return Certificates(tuple(found))


def written(equation: Equation) -> Iterator[tuple[str, str]]:
    """Yield both sides of an equation as text, for each element of each result; of elements that
    may be minus infinity, where they are finite, and what they are there.

    The sides are those of pattern and replacement, before any normal form. Loops of any number of
    steps that have the same states have an equation for where they start, and for a step. Raises
    NoMeaning if the checker has no such value.
    """
    formulas = equation.formulas
    algebra = RawAlgebra(formulas.algebra)

    def read(formula: Formula, shape: Shape) -> Indexed:
        name, kind = formula.attributes["name"], formula.attributes["kind"]

        return Indexed(shape, lambda place: algebra.element(kind, name, place), kind=kind)

    values = _Written(
        algebra,
        lambda form: form,
        algebra.symbol,
        read,
        lifted=formulas.world.plain.get,
        proved=formulas.values,
    )
    sides = zip(map(values.of, equation.left), map(values.of, equation.right), strict=True)
    parts = [each for a, b in sides for each in zip(_parts(a), _parts(b), strict=True)]
    for a, b in (*parts, *same_states(formulas.loops, values)):
        for place in formulas.algebra.places(a.shape):
            one, two = a.value(*place), b.value(*place)
            yield from zip(one.sides(two), two.sides(one), strict=True)


class _Written(FormulaValues):
    """Values of formulas as they are written; places in sorted rows are as in proofs."""

    def computed(
        self, formula: Formula, name: str, operands: Sequence[Given], shape: Shape
    ) -> Given:
        """Return the value of a formula, given those of its operands."""
        if name not in ORDERS:
            return super().computed(formula, name, operands, shape)
        proved = formula.value
        places = proved[1] if isinstance(proved, tuple) else proved

        def at(place: Shape) -> Scalar:
            return self.symbol(places.value(*place))

        found = Indexed(places.shape, at, kind="whole")
        if name != "aten.sort":
            return found
        row = operands[0]
        return Indexed(row.shape, lambda p: row.value(places.value(*p)), kind=row.kind), found


def _parts(value: Given) -> list[Indexed]:
    if isinstance(value, tuple):
        return [part for each in value for part in _parts(each)]
    return [] if value is None else [value]
