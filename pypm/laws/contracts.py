"""Contracts: each alternate of a pattern computes what the pattern says it means.

A call of a pattern is replaced by its meaning, and what that takes for granted is to be proved: of
the called definition, for arguments of these kinds and shapes. A recursive pattern calls itself on
smaller terms alone, so a proof that uses the meaning of its own calls is an induction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pypm.core.patterns import Definition
from pypm.laws.algebra import Given, NoMeaning
from pypm.laws.domains import Domains
from pypm.laws.equations import Equation, Parted, compared, settled
from pypm.laws.formulas import Formula, Formulas
from pypm.laws.signatures import Signature, instance, signature
from pypm.laws.sizes import World
from pypm.laws.tracing import formulas_of, running, tensor_of
from pypm.laws.valuation import Valuation, takes_shape
from pypm.laws.ways import Choices, Impossible, Rejected, Slot, Way

__all__ = ["Contracts", "Declined", "Key", "Lemma", "Make", "Outcome", "meaning_of", "tried"]

Key: TypeAlias = tuple[int, Signature]
MOST_WAYS: Final = 4000
"""The most ways, with their shapes, that are tried for one lemma or rule."""


@dataclass(frozen=True)
class Lemma:
    """The claim that a definition has its meaning, for arguments like these."""

    definition: Definition
    given: Signature

    @property
    def key(self) -> Key:
        """The definition's identity, and the arguments."""
        return id(self.definition), self.given


@dataclass(frozen=True)
class Outcome:
    """The outcome of one way."""

    kind: Literal["proved", "parted", "open", "declined", "rejected", "impossible"]
    """"rejected" if the chosen shapes do not fit, "impossible" if constants exclude each other."""
    way: Way
    reason: str = ""
    parted: Parted | None = None
    conditions: tuple[str, ...] = ()
    references: frozenset[str] = frozenset()
    equation: Equation | None = None

    @property
    def lemmas(self) -> list[Lemma]:
        """The lemmas that the way takes for granted."""
        found: list[Lemma] = self.way.notes
        return found


Make: TypeAlias = Callable[[Way, World], Equation]


def tried(make: Make) -> list[Outcome]:
    """Try all ways: each is made by choices. A way is proved if its sides have one normal form,
    the same one for two samples of all sizes and numbers: so no sample is in it.
    """
    found = []
    choices = Choices()
    for _ in range(MOST_WAYS):
        found.append(_outcome(make, choices))
        if not choices.advance():
            return found
    return [*found, Outcome("open", Way(choices), f"more than {MOST_WAYS} ways")]


def _outcome(make: Make, choices: Choices) -> Outcome:
    forms = []
    way = Way(choices)

    def build(world: World) -> Equation:
        nonlocal way
        way = Way(choices)
        return make(way, world)

    try:
        for run in (0, 1):
            equation = settled(run, choices, build)
            parted = compared(equation)
            if parted is not None:
                return Outcome("parted", way, "", parted, equation=equation)
            forms.append((equation.fingerprint, tuple(equation.formulas.world.conditions)))
        if forms[0] != forms[1]:
            return Outcome("open", way, "it holds for particular sizes or numbers alone")
    except Declined as declined:
        return Outcome("declined", way, declined.reason)
    except Impossible as why:
        return Outcome("impossible", way, str(why))
    except Rejected as why:
        return Outcome("rejected", way, str(why))
    except NoMeaning as missing:
        return Outcome("open", way, str(missing))
    references = frozenset(equation.formulas.references)
    return Outcome("proved", way, "", None, forms[0][1], references, equation)


class Declined(Exception):
    """A body declined, with the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def meaning_of(definition: Definition, values: Sequence[Given], formulas: Formulas) -> Given:
    """Return what a definition means for arguments. Raises NoMeaning."""
    assert definition.means is not None
    given = [tensor_of(value, formulas) for value in values]
    try:
        with running(formulas):
            found = definition.means(*given)
    except IndexError:
        raise Rejected("an operand of too few dimensions") from None
    except (TypeError, AttributeError) as error:
        if None in values:  # nothing has a meaning only where the author says which
            return None
        raise NoMeaning(f"the meaning of `{definition.name}`: {error}") from error
    return formulas_of(found, formulas)


class Contracts:
    """Lemmas, proved once each."""

    def __init__(self) -> None:
        self.domains = Domains()
        self._known: dict[Key, list[Outcome]] = {}
        self._impossible: set[Key] = set()

    def possible(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        """Return the outcomes of ways on whose sizes and constants all called patterns agree:
        no alternate of a pattern refuses its arguments.
        """
        listed = [o for o in outcomes if o.kind in ("proved", "parted", "open", "declined")]
        self.prove(listed)
        return [o for o in listed if not self._is_impossible(o)]

    def prove(self, outcomes: Iterable[Outcome]) -> dict[Key, tuple[Lemma, list[Outcome]]]:
        """Return what ways take for granted, and what that does, each with what came of it."""
        todo = [lemma for o in outcomes if o.kind != "declined" for lemma in o.lemmas]
        found: dict[Key, tuple[Lemma, list[Outcome]]] = {}
        while todo:
            lemma = todo.pop()
            key = lemma.key
            if key in found:
                continue
            if key not in self._known:
                self._known[key] = tried(self._maker(lemma))
            found[key] = lemma, self._known[key]
            todo += [
                needed
                for o in self._known[key]
                if o.kind not in ("impossible", "rejected")
                for needed in o.lemmas
            ]
        self._mark(found)
        return {
            key: (lemma, [o for o in outcomes if not self._is_impossible(o)])
            for key, (lemma, outcomes) in found.items()
            if key not in self._impossible
        }

    def _mark(self, found: Mapping[Key, tuple[Lemma, list[Outcome]]]) -> None:
        """Find the lemmas of which no way is possible."""
        while True:
            new = {
                key
                for key, (_, outcomes) in found.items()
                if key not in self._impossible and all(map(self._is_impossible, outcomes))
            }
            if not new:
                return
            self._impossible |= new

    def _is_impossible(self, outcome: Outcome) -> bool:
        return outcome.kind in ("impossible", "rejected") or any(
            lemma.key in self._impossible for lemma in outcome.lemmas
        )

    def _maker(self, lemma: Lemma) -> Make:
        definition = lemma.definition

        def make(way: Way, world: World) -> Equation:
            formulas = Formulas(world)
            slots = {name: way.slot(name) for name in definition.parameters}
            root = way.enter(definition, slots)
            result = way.slot("result")
            result.described.append(root)
            made = instance(lemma.given, formulas)
            given = dict(zip(slots.values(), made, strict=False))
            valuation = self.valuation(way, formulas, given)
            if takes_shape(definition):
                valuation.shapes[result] = made[-1]
            left = valuation.value(result)
            valuation.settle()
            values = [valuation.value(slot) for slot in slots.values()]
            if takes_shape(definition):
                if isinstance(left, Formula):
                    valuation.settle([(formulas.sizes(left), made[-1])])
                values.append(made[-1])
            right = meaning_of(definition, values, formulas)
            return Equation(formulas, (left,), (right,))

        return make

    def valuation(
        self,
        way: Way,
        formulas: Formulas,
        given: Mapping[Slot, Given],
    ) -> Valuation:
        """Return a valuation of a way that notes what its calls take for granted."""

        def mean(definition: Definition, values: tuple[Given, ...]) -> Given:
            way.notes.append(Lemma(definition, signature(values)))
            return meaning_of(definition, values, formulas)

        return Valuation(way, formulas, way.choices.choose, self.domains, mean, given)
