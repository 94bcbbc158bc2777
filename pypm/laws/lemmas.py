"""Lemmas that proofs use, and the outcomes of the ways by which a lemma or a law is proved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from inspect import Parameter, signature
from typing import Final, Literal, Protocol, TypeAlias

from pypm.core.patterns import Definition
from pypm.core.terms import Value
from pypm.laws.algebra import Given, NoMeaning
from pypm.laws.equations import Equation, compared, settled
from pypm.laws.forms.polynomials import Factor, Poly
from pypm.laws.formulas import Formulas
from pypm.laws.patterns.domains import Domains
from pypm.laws.patterns.ways import Choices, Impossible, NotMatched, Way
from pypm.laws.signatures import Signature
from pypm.laws.sizes import World, is_another, is_one
from pypm.laws.verdicts import Parted

__all__ = [
    "MOST_WAYS",
    "SIZES",
    "TYPES",
    "Declined",
    "Key",
    "Lemma",
    "Lemmas",
    "Make",
    "Outcome",
    "has_own_shape",
    "is_narrow",
    "outcome_of",
    "read_by",
    "takes",
    "tried",
    "within",
]

Key: TypeAlias = int
_KEYS: Final[dict[tuple[int, Signature], Key]] = {}
"""Numbers of lemmas: their arguments are long, and asked for often."""
SIZES: Final = "sizes"
TYPES: Final = "types"
SAID: Final = "shape", "steps"
"""Parameters of meanings that patterns may lack."""
MOST_WAYS: Final = 4000
"""The most ways, with their shapes, that are tried for one lemma or rule."""
MOST_NARROW: Final = 8
"""The most shapes of a way that are proved with an argument of size 1 before the next way."""


@dataclass(frozen=True)
class Lemma:
    """The claim that a definition has its meaning, or that of its spellings, for such arguments."""

    definition: Definition
    around: tuple[Definition, ...]
    """The recursive definitions around it, which it may call."""
    given: Signature

    @cached_property
    def key(self) -> Key:
        """The number of the definition's identity and the arguments."""
        return _KEYS.setdefault((id(self.definition), self.given), len(_KEYS))


@dataclass(frozen=True)
class Outcome:
    """The outcome of one way."""

    kind: Literal["proved", "parted", "open", "declined", "rejected", "impossible", "bounded"]
    """"rejected" if the chosen shapes do not fit, "impossible" if constants exclude each other."""
    way: Way
    reason: str = ""
    parted: Parted | None = None
    conditions: tuple[str, ...] = ()
    references: frozenset[str] = frozenset()
    equation: Equation | None = None
    help: str = ""
    limits: frozenset[str] = frozenset()
    """Predicates whose numbers are taken to be their limit."""
    parts: int | None = None
    """The most parts of a list, if there are lists."""
    asked: frozenset[str] = frozenset()
    """The facts that a body which declines may have asked for: `SIZES`, `TYPES`."""

    @property
    def lemmas(self) -> list[Lemma]:
        """The lemmas that the way takes for granted."""
        found: list[Lemma] = self.way.notes
        return found


Make: TypeAlias = Callable[[Way, World], Equation]


def tried(
    make: Make,
    until: Sequence[str] = (),
    first: str = "",
    others: Sequence[tuple[Sequence[str], Make]] = (),
    is_way: Callable[[Outcome], bool] = lambda _: True,
) -> list[Outcome]:
    """Try all ways, up to one with an outcome of the kinds `until`: each is made by choices. A way
    is proved if its sides have one normal form, the same one for two samples of all sizes and
    numbers: so no sample is in it. Of last choices with the label `first`, those that are proved
    or open first stand for the others, but a few where the size of an argument has to be 1, and so
    do parted ones that are ways by `is_way`. A way that is declined is made by `others`, in turn,
    up to one that is not: by those about what its body asked for.
    """
    found = []
    choices = Choices()
    narrow = 0
    for _ in range(MOST_WAYS):
        found.append(outcome_of(make, choices))
        if found[-1].kind == "declined":
            found[-1:] = _elsewhere(others, choices, found[-1].asked) or found[-1:]
        last = found[-1]
        is_parted = bool(first) and last.kind == "parted" and is_way(last)
        is_known = is_parted or narrow == MOST_NARROW or _stands_for_others(last)
        narrow = 0 if is_known else narrow + (last.kind == "proved")
        known = first if is_known else ""
        if found[-1].kind in until or not choices.advance(known):
            return found
    return [*found, Outcome("open", Way(choices), f"more than {MOST_WAYS} ways")]


def _stands_for_others(outcome: Outcome) -> bool:
    """Return whether a way is proved for any sizes of the arguments, or open."""
    return outcome.kind in ("proved", "open") and not _is_proved_where(is_one, outcome)


def is_narrow(outcome: Outcome) -> bool:
    """Return whether a way is proved where the size of an argument is 1, or another one, alone."""
    return _is_proved_where(is_one, outcome) or _is_proved_where(is_another, outcome)


def _is_proved_where(said: Callable[[Factor, Poly, int], bool], outcome: Outcome) -> bool:
    """Return whether a way is proved for sizes of which one of the arguments has to be so."""
    if outcome.kind != "proved" or outcome.equation is None:
        return False
    world = outcome.equation.formulas.world
    return any(said(*known, world.given) for known in world.assumptions.items())


def _elsewhere(
    others: Sequence[tuple[Sequence[str], Make]], choices: Choices, asked: frozenset[str]
) -> list[Outcome]:
    """Return the outcomes of a way by the first of other makers that do not decline it."""
    for make in (make for about, make in others if asked.issuperset(about)):
        found, again = [], choices.copy()
        start = list(again.script)
        while again.script[: len(start)] == start:
            found.append(outcome_of(make, again))
            if not again.advance():
                break
        found = [o for o in found if o.kind in ("proved", "parted", "open")]
        if found:
            return found
    return []


def outcome_of(make: Make, choices: Choices) -> Outcome:
    """Return the outcome of the way that these choices make."""
    forms = []
    way = Way(choices)

    def build(world: World) -> Equation:
        nonlocal way
        way = Way(choices)
        return make(way, world)

    def build_larger(world: World) -> Equation:
        world.larger = 1
        return build(world)

    try:
        for run in (0, 1):
            equation = settled(run, choices, build)
            parted = compared(equation)
            if parted is not None and equation.formulas.loops:
                equation = settled(run, choices, build_larger)
                parted = compared(equation)
            if parted is not None:
                return Outcome("parted", way, "", parted, equation=equation)
            forms.append((equation.fingerprint, tuple(equation.formulas.world.conditions)))
        if forms[0] != forms[1]:
            return Outcome("open", way, "it holds for particular sizes or numbers alone")
    except Declined as declined:
        return Outcome("declined", way, declined.reason, asked=frozenset(declined.asked))
    except Impossible as why:
        return Outcome("impossible", way, str(why))
    except NotMatched as why:
        return Outcome("rejected", way, str(why))
    except NoMeaning as missing:
        return Outcome("open", way, str(missing), help=missing.help)
    references = frozenset(equation.formulas.references)
    proved = Outcome("proved", way, "", None, forms[0][1], references, equation)
    return within(proved, equation.formulas.world)


def within(outcome: Outcome, world: World) -> Outcome:
    """Return an outcome with what the world of its values is restricted to."""
    return replace(outcome, limits=frozenset(world.limits), parts=world.parts)


class Declined(Exception):
    """A body declined, with the reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.asked = {SIZES, TYPES}
        """The facts that the body may have asked for: another sample may change it."""


class Lemmas(Protocol):
    """The knowledge of patterns that a valuation asks for."""

    domains: Domains

    def mean(
        self,
        definition: Definition,
        values: tuple[Given, ...],
        formulas: Formulas,
        notes: list[Given],
    ) -> Given:
        """Return the meaning of a call, and note the lemma that it takes for granted."""

    def possible(self, outcomes: Iterable[Outcome]) -> list[Outcome]:
        """Return the outcomes of ways on whose sizes and constants all called patterns agree."""

    def spellings(self, lemma: Lemma) -> Sequence[Given]:
        """Return spellings, to be replayed, of which each other one is equal to one."""


def takes(definition: Definition, name: str = "shape") -> bool:
    """Return whether a meaning has a parameter of this name that the pattern lacks: `shape` is that
    of the result, `steps` any number above that of a step.
    """
    return name in _parameters(definition.means or tuple) and name not in definition.parameters


def has_own_shape(definition: Definition) -> bool:
    """Return whether a meaning says which shape the result has if it is given none."""
    parameter = _parameters(definition.means or tuple).get("shape")
    return parameter is not None and parameter.default is not Parameter.empty


@cache
def read_by(means: Callable[..., Value] | None, parameters: tuple[str, ...]) -> tuple[str, ...]:
    """Return the parameters of a pattern that its meaning reads: all, unless the meaning has fewer,
    of the same names.
    """
    own = tuple(n for n in _parameters(means or tuple) if n in parameters or n not in SAID)
    return own if own and len(own) < len(parameters) and {*own} <= {*parameters} else parameters


@cache
def _parameters(means: Callable[..., Value]) -> Mapping[str, Parameter]:
    try:
        return signature(means).parameters
    except (TypeError, ValueError):  # a function of torch, or the steps of a loop
        return {}
