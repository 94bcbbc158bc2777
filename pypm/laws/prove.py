"""`prove`: verdicts on the laws of rules, from their own patterns and bodies."""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from time import process_time
from typing import Final

import torch

from pypm.core.patterns import Definition
from pypm.core.rules import Rule, Rules, as_rule_set
from pypm.core.terms import Value
from pypm.core.traverse import free_names
from pypm.diagnostics import InternalError
from pypm.fx.tracing.body import takes_match
from pypm.laws.algebra import Given, NoMeaning
from pypm.laws.bodies import UNSURE, decline_early, replaced
from pypm.laws.contracts import Contracts
from pypm.laws.equations import Equation, compared
from pypm.laws.forms.deadline import DEADLINE, TimeIsUp
from pypm.laws.forms.printing import shown
from pypm.laws.formulas import Formula, Formulas
from pypm.laws.lemmas import (
    SIZES,
    TYPES,
    Declined,
    Key,
    Lemma,
    Make,
    Outcome,
    has_own_shape,
    is_narrow,
    tried,
)
from pypm.laws.numbers import Assumed, Size, form_of, is_number
from pypm.laws.patterns.ways import Meant, Way, place_of
from pypm.laws.refutation.refuting import CHECKS, SAMPLES, LawBroken, difference
from pypm.laws.sizes import World
from pypm.laws.verdicts import Law, Laws, Open, ProofExtent, Proved, Refuted

__all__ = ["equations", "prove"]

NOTHING: Final = ProofExtent(0, 0, (), (), (), False)
OF_EFFECTS: Final = "only a rule that computes the same values can be proved"
DTYPES: Final = (torch.float32, torch.bfloat16)
"""Types of real numbers that are tried, where bodies that ask for types decline the first."""
SAMPLES_OF_SIZES: Final = (None, 0), (1, 2, 3)
"""Samples that are tried, where bodies that compare sizes decline the first: None for large sizes;
a number for a small one, counted among those that the body compared, from the last one on, 0 for
none; sizes that the body finds to differ are then made equal. The first ones are tried with all
types before the others.
"""
KEPT: Final = "values that it keeps"
"""The name of what is assumed of a rule that returns values beside the outputs of its pattern."""
THRESHOLDS: Final = 20_000, 20, 10
"""Numbers of new objects, and of collections, after which garbage is looked for."""
SHOWN: Final = 3
"""Alternates that a verdict lists."""


def prove(
    rules: Rules, *, contracts: Contracts | None = None, seconds: float | None = None
) -> Laws:
    """Prove that replacements compute what their patterns match, for all sizes.

    Arguments:
        rules: a rule, a rule set, or a list of those.
        contracts: lemmas about patterns that are proved already, which other calls share.
        seconds: the CPU time after which a rule is open; by default, no limit.

    Each way through a rule's pattern is a formula, with the meanings of the patterns that it calls;
    the rule's body is run on symbolic tensors. Both are brought into one normal form, over the real
    numbers. Return a `Laws` with a verdict for each rule. Raises TypeError if `rules` are none.
    """
    shared = Contracts() if contracts is None else contracts
    with _few_collections():
        return Laws(tuple(_timed(rule, shared, seconds) for rule in as_rule_set(rules)))


@contextmanager
def _few_collections() -> Iterator[None]:
    """Look for garbage among new objects alone, and less often: torch and the rules are many."""
    if gc.get_freeze_count():
        yield
        return
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


def _timed(rule: Rule, contracts: Contracts, seconds: float | None) -> Law:
    token = DEADLINE.set(math.inf if seconds is None else process_time() + seconds)
    try:
        return _tried(rule, contracts)[0]
    except TimeIsUp:
        return Open(rule.name, "it takes longer than was allowed", NOTHING)
    finally:
        DEADLINE.reset(token)


def equations(rules: Rules, contracts: Contracts) -> Iterator[tuple[str, Equation]]:
    """Yield the proved equations that verdicts on rules rest on, each with the rule's name."""
    for rule in as_rule_set(rules):
        _, outcomes = _tried(rule, contracts)
        lemmas = contracts.prove(outcomes)
        for outcome in [*outcomes, *(o for _, some in lemmas.values() for o in some)]:
            if outcome.kind == "proved" and outcome.equation is not None:
                yield rule.name, outcome.equation


def _tried(rule: Rule, contracts: Contracts) -> tuple[Law, list[Outcome]]:
    """Return the verdict on a rule, with the outcomes of its ways."""
    effect = "samples its own random numbers" * rule.redraws or (
        "communicates" if rule.communicates else ""
    )
    if effect:
        return Open(rule.name, f"the replacement {effect}", NOTHING, help=OF_EFFECTS), []
    if takes_match(rule):
        again = tried(_maker(rule, contracts, is_opaque=True), until=("parted", "open"))
        if again[-1].kind not in ("parted", "open") and any(o.kind == "proved" for o in again):
            return Proved(rule.name, _extent([o for o in again if o.kind == "proved"], {})), again
    seen: list[int] = []
    cases = (pair for samples in SAMPLES_OF_SIZES for pair in product(DTYPES, samples))
    (_, first), *others = (
        (
            (SIZES,) * (small is not None) + (TYPES,) * (dtype != DTYPES[0]),
            _maker(rule, contracts, small, dtype=dtype, seen=seen),
        )
        for dtype, small in cases
    )
    outcomes = contracts.judged(tried(first, others=others))
    return _judged(rule, contracts, outcomes), outcomes


def _judged(rule: Rule, contracts: Contracts, outcomes: list[Outcome]) -> Law:
    """Return a verdict by all outcomes."""
    lemmas = contracts.prove(outcomes)
    proved = [o for o in outcomes if o.kind == "proved"]
    scope = _extent(proved, lemmas)
    broken = _counterexample(rule, outcomes, lemmas)
    if not broken and any(o.reason == UNSURE for o in outcomes):
        where_it_runs = contracts.possible(tried(_maker(rule, contracts, is_lenient=True)))
        broken = _counterexample(rule, where_it_runs, {})
    if broken:
        return Refuted(rule.name, broken, scope)
    reason, shown = _why_open(outcomes, lemmas)
    if reason:
        told = (shown.parted, shown.help) if shown is not None else ()
        return Open(rule.name, reason, scope, *told)
    reason = _why_nothing(outcomes) or _what_is_missing(outcomes, lemmas)
    if reason and proved:
        declined = [replace(o, kind="open") for o in outcomes if o.kind == "declined"]
        reason = _what_is_missing(outcomes, {**contracts.prove(declined), **lemmas})
    return Open(rule.name, reason, scope) if reason else Proved(rule.name, scope)


def _maker(
    rule: Rule,
    contracts: Contracts,
    small: int | None = None,
    is_lenient: bool = False,
    is_opaque: bool = False,
    dtype: torch.dtype = torch.float32,
    seen: list[int] | None = None,
) -> Make:
    """Return what makes an equation; of any results for any values of the names if `is_opaque`, so
    that only a body which computes its match again can be proved. `seen` holds the numbers of the
    sizes that a body compared before it declined large ones.
    """
    names = sorted(frozenset(rule.parameters).union(*map(free_names, rule.roots)))
    none: frozenset[str] = frozenset()
    wholes = [Definition(rule.name, tuple(names), none, none, none, root) for root in rule.roots]

    def make(way: Way, world: World) -> Equation:
        if small and seen is not None and small > max(len(seen), 1):
            raise Declined("no other size decides")
        world.small, world.dtype = seen[small - 1] if small and seen else small or 0, dtype
        formulas = Formulas(world)
        formulas.references |= {KEPT} if rule.returns_kept else set()
        slots = {name: way.slot(name) for name in names}
        way.assume(rule.guard, slots)
        called = [Meant(whole, tuple(slots.values())) for whole in wholes if is_opaque]
        way.roots += called or [way.tree(root, slots) for root in rule.roots]
        valuation = contracts.valuation(way, formulas, {})
        valuation.settle()
        if valuation.has_full_lists(slots[name] for name in rule.parameters):
            early = {name: valuation.value(slots[name]) for name in rule.parameters}
            decline_early(rule, early, dict.fromkeys(early), formulas)
        left = tuple(valuation.variable() if is_opaque else valuation.tree(r) for r in way.roots)
        valuation.settle()
        contracts.refuse(way)
        values = {name: valuation.value(slots[name]) for name in rule.parameters}
        dtypes = {name: valuation.dtypes.get(slots[name]) for name in rule.parameters}
        world.unequal.clear()
        known = len(world.conditions)
        try:
            right = replaced(rule, values, dtypes, left, formulas, is_lenient)
        except Declined as declined:
            if small is None and seen is not None:
                seen[:] = _compared_sizes(world)
            pairs = [(a, b) for a, b in world.unequal if isinstance(a, Size) and is_number(b)]
            if isinstance(small, int) and pairs:
                _make_equal(world, *pairs[-1])
            if rule.reads is None:
                sizes = {SIZES} if len(world.conditions) > known else set()
                declined.asked = sizes | ({TYPES} if world.asks_types else set())
            raise
        for one, two in zip(left, right, strict=False):
            _settle_shapes(formulas, one, two)
        if formulas.declined and compared(Equation(formulas, left, right)) is not None:
            raise NoMeaning(f"the sides differ where the reading declines: {formulas.declined}")
        return Equation(formulas, left, right)

    return make


def _make_equal(world: World, size: Size, other: Value) -> None:
    """Make a size equal to a number: a condition of the verdict. Raises Assumed."""
    try:
        world.unify(size, other)
    except Assumed as assumed:
        condition = f"{shown(size.form)} = {shown(form_of(other))}"
        raise Assumed(assumed.forms, condition) from None


def _compared_sizes(world: World) -> list[int]:
    """Return the numbers of the sizes in the conditions of a world, those of the last one first."""
    names = [
        str(of[1])
        for form, _ in reversed(world.conditions.values())
        for of in sorted({of for m in form.terms for of, _ in m if of[0] == "size"})
    ]
    numbers = [int(name[1:]) for name in names if name[0] == "n" and name[1:].isdigit()]
    return list(dict.fromkeys(numbers))


def _counterexample(
    rule: Rule,
    outcomes: Sequence[Outcome],
    lemmas: Mapping[Key, tuple[Lemma, list[Outcome]]],
) -> str:
    """Return where a rule, or a pattern that it calls, computes something else; "" if nowhere.

    Raises InternalError if an equation is proved and refuted.
    """
    undecided = {key for key, (_, some) in lemmas.items() if any(o.kind == "open" for o in some)}
    for outcome in outcomes:
        found = _difference(rule, outcome) if _is_decided(outcome, undecided) else None
        if found is not None:
            return str(found)
    for lemma, some in lemmas.values():
        for outcome in some:
            is_asked = outcome.kind == "parted" and _is_decided(outcome, undecided)
            is_asked = is_asked and not has_own_shape(lemma.definition)  # of some shapes alone
            found = _difference(rule, outcome) if is_asked else None
            if found is not None:
                return (
                    f"`{lemma.definition.name}` ({_places(outcome)}) has another meaning: {found}"
                )
    return ""


def _is_decided(outcome: Outcome, undecided: Container[Key]) -> bool:
    """Return whether a way is proved, or rests on no lemma that is open: it may be no way."""
    return outcome.kind == "proved" or not any(one.key in undecided for one in outcome.lemmas)


def _places(outcome: Outcome) -> str:
    """Return the lines of the alternates that a way takes."""
    return ", ".join(dict.fromkeys(map(place_of, outcome.way.taken)))


def _settle_shapes(formulas: Formulas, one: Given, two: Given) -> None:
    """Make shapes equal: where they are not, PyPM refuses the match."""
    single = [x for x in (one, two) if isinstance(x, Formula) and not isinstance(x.value, tuple)]
    if len(single) == 2:
        shapes = [formulas.sizes(x) for x in single]
        if len(shapes[0]) != len(shapes[1]):
            raise Declined("a result of another rank is refused")
        formulas.world.unify(*shapes)


def _difference(rule: Rule, outcome: Outcome) -> LawBroken | None:
    """Return where the sides of an equation differ. Raises InternalError if it is proved."""
    if outcome.equation is None or outcome.kind not in ("proved", "parted"):
        return None
    try:
        samples = CHECKS if outcome.kind == "proved" else SAMPLES
        found = difference(outcome.equation, samples)
    except (NoMeaning, OverflowError):
        return None
    if outcome.equation.formulas.world.unknown:
        return None  # what differs may be excluded by a guard
    if found is not None and outcome.kind == "proved":
        raise InternalError(f"an equation of `{rule.name}` is proved, and {found}")
    return found


def _extent(
    proved: Sequence[Outcome], lemmas: Mapping[Key, tuple[Lemma, list[Outcome]]]
) -> ProofExtent:
    ranks = {
        side.tensor.rank
        for o in proved
        if o.equation is not None
        for side in o.equation.left
        if isinstance(side, Formula)
    }
    everything = [*proved, *(o for _, outcomes in lemmas.values() for o in outcomes)]
    parts = [o.parts for o in everything if o.parts is not None]
    return ProofExtent(
        len(proved),
        len(lemmas),
        tuple(sorted(ranks)),
        tuple(dict.fromkeys(c for o in everything for c in o.conditions)),
        tuple(sorted({name for o in everything for name in o.references})),
        any(o.kind == "bounded" for o in everything),
        tuple(sorted({name for o in everything for name in o.limits})),
        max(parts, default=None),
        _narrow(lemmas),
    )


def _narrow(lemmas: Mapping[Key, tuple[Lemma, list[Outcome]]]) -> tuple[str, ...]:
    """Return the patterns of which some alternates are proved for particular sizes alone."""
    kinds: dict[tuple[int, ...], set[str]] = {}
    names: dict[tuple[int, ...], str] = {}
    for lemma, some in lemmas.values():
        for outcome in some:
            taken = id(lemma.definition), *map(id, outcome.way.taken)
            names[taken] = lemma.definition.name
            kinds.setdefault(taken, set()).add("narrow" if is_narrow(outcome) else outcome.kind)
    idle = {"rejected", "impossible"}
    return tuple(sorted({names[taken] for taken, k in kinds.items() if k - idle == {"narrow"}}))


def _why_open(
    outcomes: Sequence[Outcome],
    lemmas: Mapping[Key, tuple[Lemma, list[Outcome]]],
) -> tuple[str, Outcome | None]:
    """Return why a rule is not proved, with the outcome that shows it; "" if it is."""
    owners = [("", list(outcomes)), *((m.definition.name, o) for m, o in lemmas.values())]
    for owner, some in owners:
        within = f" in `{owner}`" if owner else ""
        for outcome in some:
            if outcome.kind == "parted":
                return f"the normal forms part{within} ({_places(outcome)})", outcome
        reasons = Counter(o.reason for o in some if o.kind == "open")
        if reasons:
            reason = reasons.most_common(1)[0][0]
            return reason + within, next(o for o in some if o.reason == reason)
    return "", None


def _why_nothing(outcomes: Sequence[Outcome]) -> str:
    """Return why no way is proved, or "" if one is."""
    if any(o.kind == "proved" for o in outcomes):
        return ""
    declined = Counter(o.reason for o in outcomes if o.kind == "declined").most_common(1)
    return f"the body declines: {declined[0][0]}" if declined else "no way was settled"


def _what_is_missing(
    outcomes: Sequence[Outcome],
    lemmas: Mapping[Key, tuple[Lemma, list[Outcome]]],
) -> str:
    """Return what no proof is about, nor a way that the body declines, or ""."""
    by_definition: dict[int, list[Outcome]] = {}
    for lemma, some in lemmas.values():
        by_definition.setdefault(id(lemma.definition), []).extend(some)
    every = (outcomes, *by_definition.values())
    places = [place for some in every for place in _missed(some)]
    if places:
        listed = ", ".join(dict.fromkeys(places[:SHOWN]))
        return f"alternates that fit no shapes that were tried: {listed}"
    return ""


def _missed(outcomes: Iterable[Outcome]) -> list[str]:
    """Return the places of combinations of alternates that are in no proof, and in no way that a
    body declines. Those that constants exclude, whatever the sizes, are not missed, nor those that
    shapes exclude before a guard with several sides, where other shapes come to its sides.
    """
    kinds: dict[tuple[int, ...], set[str]] = {}
    places: dict[tuple[int, ...], str] = {}
    begun: set[tuple[int, ...]] = set()
    for outcome in outcomes:
        way = outcome.way
        alternates = tuple(map(id, way.taken))
        taken = *alternates, *way.sides
        begun |= {(*alternates, *way.sides[:n]) for n in range(len(way.sides))}
        kinds.setdefault(taken, set()).add(outcome.kind)
        said = [*dict.fromkeys(map(place_of, way.taken)), *["a side of `or`"] * bool(way.sides)]
        places[taken] = " with ".join(said)
    unfit = {"rejected"}, {"impossible", "rejected"}
    return [places[taken] for taken, some in kinds.items() if some in unfit and taken not in begun]
