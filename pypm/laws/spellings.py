"""Spellings: patterns that do not say what they mean are compared with themselves.

Of all ways through a pattern, for arguments of the same kinds and shapes, some stand for the
others: each other way has the value of one of them, for all values of its arguments and of the
names that it binds. So a call is entered by these alone. A recursive pattern calls itself on
smaller terms, so the calls in its own ways are entered by the ways that are found to be needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from pypm.core.records import Record
from pypm.core.terms import UNDEFINED
from pypm.laws.algebra import Given, NoMeaning
from pypm.laws.equations import Equation, settled
from pypm.laws.forms.deadline import TimeIsUp
from pypm.laws.forms.functions import absolute, function, power, substituted
from pypm.laws.forms.polynomials import Factor, Poly, factor, of_key, rational
from pypm.laws.forms.sums import NAMES
from pypm.laws.formulas import Formula, Formulas, is_several
from pypm.laws.lemmas import MOST_WAYS, Key, Lemma, Lemmas, Outcome, outcome_of, within
from pypm.laws.numbers import Assumed, Contradiction
from pypm.laws.patterns.listing import parts_of
from pypm.laws.patterns.valuation import entered
from pypm.laws.patterns.ways import Choices, Entered, Impossible, NotMatched, Replay, Way
from pypm.laws.signatures import FREE, Signature, instance, signature
from pypm.laws.sizes import KINDS, World

__all__ = ["Spelling", "Spellings"]

DEEPEST: Final = 1
"""Levels of recursion of ways that stand for others."""
ROUNDS: Final = 4
"""The most times that the ways of a recursive pattern are tried, with those found before."""


def _moved(form: Poly, renamed: Callable[[Factor], Factor | None]) -> Poly:
    """Return a form of other symbols. Raises LookupError where one of them is not known."""
    total = Poly({})
    for monomial, coefficient in form.terms.items():
        product = rational(coefficient)
        for of, exponent in monomial:
            product = product * power(_moved_factor(of, renamed), exponent)
        total = total + product
    return total


def _moved_factor(of: Factor, renamed: Callable[[Factor], Factor | None]) -> Poly:
    match of:
        case ("size" | "symbol", _) if (found := renamed(of)) is not None:
            return factor(found)
        case ("prime" | "pi", *_):
            return factor(of)
        case ("abs", inner):
            return absolute(_moved_factor(inner, renamed))
        case ("function", name, *keys):
            return function(name, *(_moved(of_key(key), renamed) for key in keys))
    raise LookupError(of)


def _is_in(symbol: Factor, form: Poly) -> bool:
    return any(of == symbol for m in form.terms for of, _ in m)


@dataclass(frozen=True, eq=False)
class Spelling:
    """A way through a pattern, by its choices."""

    lemma: Lemma
    taken: tuple[tuple[str, Given], ...]
    bound: Signature
    """The kinds of values that its parameters then have, also those that it binds."""

    start: tuple[int, int, int] = (0, 0, 0)
    """The symbols that its arguments have."""
    assumptions: Mapping[Factor, Poly] = field(default_factory=dict)
    """The forms that symbols have to have in this way."""

    def settle(self, world: World, names: Mapping[str, Factor]) -> None:
        """Settle the symbols that the way is about to make, for sizes of its arguments by name.

        Raises Assumed if those have to be something themselves.
        """
        needed: dict[Factor, Poly] = {}
        shift = [now - then for now, then in zip(world.counts, self.start, strict=True)]

        def renamed(of: Factor) -> Factor | None:
            kind, name = of
            number = int(name[1:].rstrip("'"))
            of_kind = KINDS.index(name[0])
            if number > self.start[of_kind]:
                primes = "'" * name.count("'")
                return kind, f"{name[0]}{number + shift[of_kind]}{primes}"
            return names.get(name)

        for symbol, form in self.assumptions.items():
            found = renamed(symbol)
            if found is None or world.is_frozen(found):
                continue
            with suppress(LookupError):
                new = substituted(world.resolved(_moved(form, renamed)), needed)
                if found not in world.assumptions and not _is_in(found, new):
                    settled = needed if found in names.values() else world.assumptions
                    settled.setdefault(found, new)
        if needed:
            raise Assumed(needed)

    def replay(self, values: Sequence[Given]) -> Replay:
        """Return its choices for values of the parameters, `UNDEFINED` for those to be bound."""
        names = zip(self.lemma.definition.parameters, self.lemma.given, values, strict=True)
        known = [n for n, kind, v in names if kind == FREE and v is not UNDEFINED]
        return Replay(self.taken, known)

    @property
    def depth(self) -> int:
        """The number of times that the pattern is entered within itself."""
        return _depth(self.taken, id(self.lemma.definition))


def _depth(taken: Sequence[tuple[str, Given]], definition: int) -> int:
    inner = (
        _depth(one.taken, definition) + (id(one.lemma.definition) == definition)
        for _, one in taken
        if isinstance(one, Spelling)
    )
    return max(inner, default=0)


@dataclass
class _Found:
    """Knowledge about a lemma: ways that stand for all, and the outcomes of all ways."""

    spellings: list[Spelling] = field(default_factory=list)
    outcomes: dict[tuple[int, ...], Outcome] = field(default_factory=dict)
    """By the numbers of the options chosen; spellings are only added behind those known."""
    is_bounded: bool = False


class Spellings:
    """Ways that stand for all ways of a pattern, for each kind of arguments."""

    def __init__(self, lemmas: Lemmas) -> None:
        self._lemmas = lemmas
        self._found: dict[Key, _Found] = {}
        self._stack: list[Key] = []
        self._lowest = 0
        """The lowest place of the stack whose unfinished result was used."""
        self._stamps: dict[Key, int] = {}
        """The number of spellings known when a result was found that uses unfinished ones."""
        self._count = 0

    def of(self, lemma: Lemma) -> Sequence[Spelling]:
        """Return the ways that stand for all."""
        key = lemma.key
        if key in self._stack:
            self._lowest = min(self._lowest, self._stack.index(key))
            return self._found[key].spellings
        stamp = self._stamps.get(key)
        if key not in self._found or (stamp is not None and stamp != self._count):
            self._find(lemma)
        elif stamp is not None:
            self._lowest = 0
        return self._found[key].spellings

    @property
    def depth(self) -> int:
        """The number of lemmas whose ways are being tried."""
        return len(self._stack)

    def place_of(self, key: Key) -> int | None:
        """Return the place of a lemma among those whose ways are being tried, outermost first."""
        return self._stack.index(key) if key in self._stack else None

    def is_unfinished(self, key: Key) -> bool:
        """Return whether the ways of a lemma may be more, as they use ways that are being tried."""
        return key in self._stamps

    def outcomes(self, lemma: Lemma) -> list[Outcome]:
        """Return the outcomes of all ways."""
        self.of(lemma)
        return list(self._found[lemma.key].outcomes.values())

    def _find(self, lemma: Lemma) -> None:
        key = lemma.key
        before, self._lowest = self._lowest, len(self._stack) + 1
        self._stack.append(key)
        found = self._found.setdefault(key, _Found())
        try:
            with NAMES.apart():
                for _ in range(ROUNDS):
                    known = self._count
                    self._explore(lemma, found)
                    is_recursive = self._lowest < len(self._stack)
                    if self._count == known or not is_recursive:
                        break
        except TimeIsUp:
            del self._found[key]
            raise
        finally:
            self._stack.pop()
        if self._lowest < len(self._stack):
            self._stamps[key] = self._count
        else:
            self._stamps.pop(key, None)
        self._lowest = min(before, self._lowest)

    def _explore(self, lemma: Lemma, found: _Found) -> None:
        """Try all ways that were not tried; add those that none stands for."""
        choices = Choices()
        for _ in range(MOST_WAYS):
            outcome = self._outcome(lemma, choices, found)
            found.outcomes.setdefault(choices.made, outcome)
            if not choices.advance():
                return
        found.outcomes[()] = Outcome("open", Way(Choices()), f"more than {MOST_WAYS} ways")

    def _outcome(self, lemma: Lemma, choices: Choices, found: _Found) -> Outcome:
        """Return whether a way is possible; it is added if none stands for it."""
        way = Way(choices)
        outcome = Outcome("proved", way)

        def build(world: World) -> Spelling:
            nonlocal way, outcome
            way = Way(choices)
            formulas = Formulas(world)
            given = instance(lemma.given, formulas)
            start = world.counts
            made = entered(lemma, given, way, formulas, self._lemmas)
            bound = signature(made.values)
            outcome = within(Outcome("proved", way), world)
            return Spelling(lemma, choices.taken, bound, start, dict(world.assumptions))

        try:
            new = settled(0, choices, build)
        except Impossible as why:
            return Outcome("impossible", way, str(why))
        except NotMatched as why:
            return Outcome("rejected", way, str(why))
        except NoMeaning as missing:
            return Outcome("open", way, str(missing))
        if not self._lemmas.possible([outcome]):
            return Outcome("impossible", way)
        return self._placed(new, outcome, found)

    def _placed(self, new: Spelling, outcome: Outcome, found: _Found) -> Outcome:
        if any(new.taken == known.taken for known in found.spellings):
            return outcome
        for spelling in found.spellings:
            if new.bound == spelling.bound:
                equal = self._equal(new, spelling)
                if equal.kind == "proved":
                    return replace(outcome, equation=equal.equation, conditions=equal.conditions)
        if new.depth > DEEPEST:
            return Outcome("bounded", outcome.way)
        found.spellings.append(new)
        self._count += 1
        return outcome

    def _equal(self, new: Spelling, known: Spelling) -> Outcome:
        """Return the outcome of the equation that a known way computes what a new one does: for any
        values that the new one takes and binds.
        """
        lemma = new.lemma

        def make(way: Way, world: World) -> Equation:
            formulas = Formulas(world)

            def value(of: Spelling, values: Sequence[Given]) -> Entered:
                return entered(
                    lemma, values, Way(of.replay(values), way.notes), formulas, self._lemmas
                )

            one = value(new, instance(lemma.given, formulas))
            world.freeze()
            two = value(known, one.values)
            if all(isinstance(x, Formula) and not is_several(x) for x in (one.result, two.result)):
                try:
                    world.unify(formulas.sizes(two.result), formulas.sizes(one.result))
                except Contradiction as why:
                    raise NotMatched(str(why)) from None
            return Equation(formulas, _compared(one), _compared(two))

        return outcome_of(make, Choices())


def _compared(made: Entered) -> tuple[Given, ...]:
    return (made.result, *_formulas((*made.values,)))


def _formulas(value: Given) -> Iterator[Formula]:
    if isinstance(value, Formula):
        yield value
    elif isinstance(value, (tuple, Record)):
        for part in parts_of(value):
            yield from _formulas(part)
