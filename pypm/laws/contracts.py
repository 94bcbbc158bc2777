"""Contracts: each alternate of a pattern computes what the pattern says it means.

A call of a pattern is replaced by its meaning, and what that takes for granted is to be proved: of
the called definition, for arguments of these kinds and shapes. A recursive pattern calls itself on
smaller terms alone, so a proof that uses the meaning of its own calls is an induction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Literal

from pypm.core.patterns import Definition
from pypm.core.terms import UNDEFINED
from pypm.fx.values.observers import joins_of, steps_of
from pypm.laws.algebra import Given, NoMeaning
from pypm.laws.equations import Equation
from pypm.laws.forms.polynomials import Poly
from pypm.laws.forms.sums import NAMES
from pypm.laws.formulas import Formula, Formulas, is_several
from pypm.laws.lemmas import Key, Lemma, Make, Outcome, read_by, takes, tried
from pypm.laws.meanings_of_patterns import meaning_of
from pypm.laws.numbers import form_of
from pypm.laws.patterns.domains import Domains
from pypm.laws.patterns.hidden import STEPS, Hidden
from pypm.laws.patterns.listing import aligned, tensors_in
from pypm.laws.patterns.valuation import Valuation
from pypm.laws.patterns.ways import Impossible, Meant, NotMatched, Way, WayName, is_meant
from pypm.laws.signatures import instance, signature
from pypm.laws.sizes import World
from pypm.laws.spellings import Spelling, Spellings

__all__ = ["Contracts"]


class Contracts:
    """Lemmas, proved once each."""

    def __init__(self) -> None:
        self.domains = Domains()
        self._known: dict[Key, list[Outcome]] = {}
        self._impossible: set[Key] = set()
        self._never: set[Key] = set()
        """Those of which no way is possible whatever the sizes."""
        self._settled: set[Key] = set()
        """Those of which is known whether a way is possible, by no hypothesis."""
        self._under_way: dict[Key, int] = {}
        """Those that are being proved, with the number of patterns whose ways were then tried."""
        self._spellings = Spellings(self)

    def possible(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        """Return the outcomes of ways on whose sizes and constants all called patterns agree:
        no alternate of a pattern refuses its arguments.
        """
        listed = [o for o in outcomes if o.kind in ("proved", "parted", "open", "declined")]
        self._settle(listed, self._settled)
        return [o for o in listed if not self._is_impossible(o)]

    def judged(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Return outcomes of ways; those on which a called pattern does not agree are rejected."""
        self._settle(outcomes, self._settled)
        return [*map(self._judged, outcomes)]

    def refuse(self, way: Way) -> None:
        """Raise NotMatched if a pattern that a way calls takes no such arguments."""
        with NAMES.apart():
            judged = self.judged([Outcome("proved", way)])[0]
        if judged.kind == "impossible":
            raise Impossible(judged.reason)
        if judged.kind == "rejected":
            raise NotMatched(judged.reason)

    def prove(self, outcomes: Iterable[Outcome]) -> dict[Key, tuple[Lemma, list[Outcome]]]:
        """Return what ways take for granted, and what that does, each with what came of it."""
        return {
            key: (lemma, [self._judged(o) for o in outcomes])
            for key, (lemma, outcomes) in self._settle(outcomes, frozenset()).items()
            if key not in self._impossible
        }

    def _settle(
        self, outcomes: Iterable[Outcome], settled: Set[Key]
    ) -> dict[Key, tuple[Lemma, list[Outcome]]]:
        """Find out what ways take for granted, but for what is settled, and return it."""
        idle = "declined", "impossible", "rejected"
        todo = [lemma for o in outcomes if o.kind not in idle for lemma in o.lemmas]
        found: dict[Key, tuple[Lemma, list[Outcome]]] = {}
        hypotheses: set[Key] = set()
        while todo:
            lemma = todo.pop()
            key = lemma.key
            if key in found or key in settled:
                continue
            if key in self._under_way or self._spellings.place_of(key) is not None:
                hypotheses.add(key)
                continue
            found[key] = lemma, self._outcomes(lemma)
            if self._spellings.is_unfinished(key):
                hypotheses.add(key)
            todo += [
                needed
                for o in found[key][1]
                if o.kind not in ("impossible", "rejected")
                for needed in o.lemmas
            ]
        self._mark(found)
        self._settled |= _without(found, hypotheses)
        return found

    def _outcomes(self, lemma: Lemma) -> list[Outcome]:
        """Return the outcomes of the ways by which a lemma is proved."""
        key = lemma.key
        if not is_meant(lemma.definition):
            return self._spellings.outcomes(lemma)
        if key not in self._known:
            self._under_way[key] = self._spellings.depth
            try:
                self._known[key] = tried(
                    self._maker(lemma),
                    first="shape",
                    is_way=lambda o: bool(self.possible([o])),
                )
            finally:
                del self._under_way[key]
        return self._known[key]

    def _mark(self, found: Mapping[Key, tuple[Lemma, list[Outcome]]]) -> None:
        """Find the lemmas of which no way is possible: none that ends, as matches are finite."""
        unknown = {key: some for key, (_, some) in found.items() if key not in self._impossible}
        new = set(unknown)
        while True:
            ends = {key for key in new if any(self._is_open(o, new) for o in unknown[key])}
            if not ends:
                break
            new -= ends
        self._impossible |= new
        while True:
            ends = {key for key in new if not all(self._is_never(o, new) for o in unknown[key])}
            if not ends:
                break
            new -= ends
        self._never |= new

    def _is_open(self, outcome: Outcome, excluded: Set[Key]) -> bool:
        """Return whether a way is possible if these lemmas have none."""
        keys = {lemma.key for lemma in outcome.lemmas}
        return not self._is_impossible(outcome) and keys.isdisjoint(excluded)

    def _is_never(self, outcome: Outcome, excluded: Set[Key] = frozenset()) -> bool:
        keys = {lemma.key for lemma in outcome.lemmas}
        return outcome.kind == "impossible" or not keys.isdisjoint(self._never | excluded)

    def _is_impossible(self, outcome: Outcome) -> bool:
        return outcome.kind in ("impossible", "rejected") or any(
            lemma.key in self._impossible for lemma in outcome.lemmas
        )

    def _judged(self, outcome: Outcome) -> Outcome:
        """Return the outcome of a way, but that it is none if one of its lemmas admits no way."""
        is_known = outcome.kind in ("impossible", "rejected")
        if is_known or not self._is_impossible(outcome):
            return outcome
        kind: Literal["impossible", "rejected"]
        kind = "impossible" if self._is_never(outcome) else "rejected"
        return Outcome(kind, outcome.way, "a pattern that takes no such arguments")

    def _maker(self, lemma: Lemma) -> Make:
        definition = lemma.definition

        def make(way: Way, world: World) -> Equation:
            formulas = Formulas(world)
            slots = {name: way.slot(name) for name in definition.parameters}
            root = way.enter(definition, lemma.around, slots)
            result = way.slot("result")
            result.described.append(root)
            made = instance(lemma.given, formulas)
            world.given = world.count
            if joins_of(definition.means) is not None:
                valuation = self.valuation(way, formulas, {})
                valuation.take_list(definition, made[0])
                left = valuation.value(result)
                valuation.settle()
                right = valuation.gathered(definition, slots, made[0])
                return Equation(formulas, (left,), (right,))
            pairs = zip(slots.values(), made, strict=False)
            given = {slot: value for slot, value in pairs if value is not UNDEFINED}
            valuation = self.valuation(way, formulas, given)
            if takes(definition, "shape"):
                valuation.shapes[result] = made[-1]
            steps = steps_of(definition.means)
            if steps is not None:
                valuation.take_any_steps(definition, slots, made[-1])
            valuation.exclude()
            left = valuation.value(result)
            valuation.settle()
            read = read_by(definition.means, definition.parameters) if steps is None else slots
            values = [valuation.value(s) if n in read else UNDEFINED for n, s in slots.items()]
            if steps is not None:
                copies = valuation.copied(values)
                right, after = valuation.repeated(Meant(definition, copies))
                own = [valuation.value(slot) for slot in after]
                right, left = aligned(formulas, right, left)
                one, two = (left, *own), (right, *after.values())
                return Equation(formulas, tuple(tensors_in(one)), tuple(tensors_in(two)))
            if takes(definition, "shape"):
                if isinstance(left, Formula):
                    valuation.settle([(formulas.sizes(left), made[-1])])
                values.append(made[-1])
            right = meaning_of(definition, values, formulas)
            return Equation(formulas, (left,), (right,))

        return make

    def valuation(self, way: Way, formulas: Formulas, given: Mapping[WayName, Given]) -> Valuation:
        """Return a valuation of a way that notes what its calls take for granted."""
        return Valuation(way, formulas, self, given)

    def mean(
        self,
        definition: Definition,
        values: tuple[Given, ...],
        formulas: Formulas,
        notes: list[Given],
    ) -> Given:
        """Return the meaning of a call, and note the lemma that it takes for granted.

        Raises NotMatched if it is known that the pattern takes no such arguments.
        """
        known = [UNDEFINED if isinstance(value, Hidden) else value for value in values]
        if takes(definition, STEPS):  # the same is proved of any step
            known[definition.parameters.index("t")] = formulas.world.size() - 1
        if takes(definition, "shape") and any(isinstance(value, Hidden) for value in values):
            seen = [x for x in values if isinstance(x, Formula) and not is_several(x)]
            sizes = [form_of(n) for x in seen for n in formulas.sizes(x)]
            known[-1] = _of_any_sizes(values[-1], sizes, formulas.world)
        lemma = Lemma(definition, (), signature(known))
        if lemma.key in self._impossible:
            refused = Impossible if lemma.key in self._never else NotMatched
            raise refused(f"{definition.name} takes no such arguments")
        notes.append(lemma)
        return meaning_of(definition, values, formulas)

    def spellings(self, lemma: Lemma) -> Sequence[Spelling]:
        """Return spellings of a pattern, one of which each other one is equal to.

        Raises NoMeaning where a lemma would rest on ways that are not all found yet.
        """
        place = self._spellings.place_of(lemma.key)
        if place is not None and any(depth > place for depth in self._under_way.values()):
            name = lemma.definition.name
            raise NoMeaning(f"`{name}` calls itself through patterns that say what they mean")
        return self._spellings.of(lemma)


def _of_any_sizes(shape: Sequence[Given], seen: Sequence[Poly], world: World) -> tuple[Given, ...]:
    """Return a shape of any sizes from 2 on, where they are not 1 and say nothing of those that are
    seen: those that are equal are one.
    """
    symbols = {of for size in seen for m in size.terms for of, _ in m}
    any_sizes = [world.size() for _ in shape]
    forms = [*map(form_of, shape)]
    return tuple(
        n if form == 1 or any(of in symbols for m in form.terms for of, _ in m) else any_sizes[i]
        for n, form, i in zip(shape, forms, map(forms.index, forms), strict=True)
    )


def _without(found: Mapping[Key, tuple[Lemma, list[Outcome]]], hypotheses: Set[Key]) -> Set[Key]:
    """Return the lemmas that take no hypothesis for granted, nor a lemma that does."""
    needed = {key: {m.key for o in some for m in o.lemmas} for key, (_, some) in found.items()}
    left = needed.keys() - hypotheses
    while True:
        resting = {key for key in left if not needed[key].isdisjoint(hypotheses)}
        if not resting:
            return left
        left -= resting
        hypotheses = resting
