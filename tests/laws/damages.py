"""Damaged rules: a sign, an operator, a dimension, a number or an order is another one, in the
pattern or the body, or a guard is missing.

`python -m tests.laws.damages [NUMBER]` proves so many damaged rules, and runs them in torch. It
prints those that are not refuted, or not wrong in torch.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from pypm.core.guards import Apply, Constant, Equal, Guard, Holds, conjunction
from pypm.core.patterns import (
    Alt,
    Constrained,
    Definition,
    Exists,
    Guarded,
    Let,
    Mu,
    Op,
    Pattern,
)
from pypm.core.rules import Rule
from pypm.core.traverse import conjuncts
from pypm.fx import aten
from pypm.laws.contracts import Contracts
from pypm.laws.equations import Equation
from pypm.laws.prove import prove
from pypm.laws.refutation.refuting import LawBroken, difference
from pypm.laws.verdicts import WORDS, Refuted
from pypm.rules import norm
from pypm.tools import NeverFired, verify
from tests.laws.adopted import ADOPTED
from tests.laws.damaged_bodies import with_damaged_bodies
from tests.laws.in_torch import differs

RULES = (*(each.rule for each in ADOPTED), norm.layer_norm)
OTHERS = {
    "aten.mul": aten.maximum,
    "aten.div": aten.mul,
    "aten.add": aten.sub,
    "aten.sub": aten.add,
    "aten.rsqrt": aten.sqrt,
    "aten.sqrt": aten.rsqrt,
    "aten.mean": aten.amax,
    "aten.exp": aten.tanh,
    "aten.tanh": aten.erf,
    "aten.erf": aten.tanh,
    "aten.neg": aten.exp,
    "aten.sigmoid": aten.tanh,
    "aten.reciprocal": aten.neg,
}


def damages(pattern: Pattern, seen: set[int]) -> Iterator[tuple[str, Pattern]]:
    """The damaged forms of a pattern; each definition is damaged once."""
    match pattern:
        case Op(operator, arguments, _, span):
            if operator.name in OTHERS:
                yield (
                    f"{span}: {OTHERS[operator.name]}",
                    replace(pattern, operator=OTHERS[operator.name]),
                )
            for at, part in enumerate(arguments):
                for what, other in damages(part, seen):
                    changed = (*arguments[:at], other, *arguments[at + 1 :])
                    yield what, replace(pattern, arguments=changed)
        case Guarded(body, guard, span):
            for other in guards(guard):
                yield f"{span}: {other}", replace(pattern, guard=other)
            yield from within(pattern, "body", body, seen)
        case Let(body, _, Constant(float() as value), span):
            yield f"{span}: {value + 1}", replace(pattern, expression=Constant(value + 1))
            yield from within(pattern, "body", body, seen)
        case Let(body) | Exists(_, body):
            yield from within(pattern, "body", body, seen)
        case Constrained(body, inner):
            yield from within(pattern, "body", body, seen)
            yield from within(pattern, "pattern", inner, seen)
        case Alt(left, right):
            yield from within(pattern, "left", left, seen)
            yield from within(pattern, "right", right, seen)
        case Mu(Definition() as definition) if id(definition.body) not in seen:
            seen.add(id(definition.body))
            for what, other in damages(definition.body, seen):
                yield what, replace(pattern, definition=definition.of(other))


def within(pattern: Any, name: str, part: Pattern, seen: set[int]) -> Iterator[tuple[str, Pattern]]:
    for what, other in damages(part, seen):
        yield what, replace(pattern, **{name: other})


def guards(guard: Guard) -> Iterator[Guard]:
    """Guards with another number, truth value or dimension of an operator's argument."""
    match guard:
        case Equal(tested, Constant(bool() as value), origin=origin) if origin is not None:
            yield replace(guard, right=Constant(not value))
        case Equal(tested, Constant(int() | float() as value)):
            yield replace(guard, right=Constant(value + 1))
        case Holds(Apply(function, (tested, Constant(float() as value)))) if (
            function.name == "close"
        ):
            yield Holds(Apply(function, (tested, Constant(value + 0.5))))
        case Holds(Apply(function, (tested, Constant((-1,)), rank))):
            yield Holds(Apply(function, (tested, Constant((-2,)), rank)))


def damaged(rule: Rule) -> Iterator[tuple[str, Rule]]:
    """A rule with each damage of its first root, of its guards, and of its body."""
    root, *others = rule.roots
    for what, other in damages(root, set()):
        yield what, replace(rule, roots=(other, *others))
    guards = conjuncts(rule.guard)
    for i, guard in enumerate(guards):
        yield f"without {guard}", replace(rule, guard=conjunction(guards[:i] + guards[i + 1 :]))
    yield from with_damaged_bodies(rule)


def every_damage() -> list[tuple[str, Rule]]:
    """All damaged rules, each with a text."""
    return [(f"{rule.name}: {what}", other) for rule in RULES for what, other in damaged(rule)]


@dataclass(frozen=True)
class Judged:
    """A damaged rule: the word of its verdict, and what torch says."""

    what: str
    word: str
    torch: str

    @property
    def is_noticed(self) -> bool:
        """Whether it is refuted by inputs for which torch differs, or nothing is wrong with it."""
        return (self.word, self.torch) == ("refuted", "differs") or (
            self.word == "proved" and self.torch in ("right", "never fires", "wrong for integers")
        )


def judged(what: str, rule: Rule, contracts: Contracts) -> Judged:
    """The verdict on a rule, and whether torch differs for the inputs of a counterexample.

    Without a counterexample, the rule is tried in torch on samples of its pattern.
    """
    seen: list[tuple[Equation, LawBroken]] = []

    def recorded(equation: Equation, samples: tuple[int, int]) -> LawBroken | None:
        found = difference(equation, samples)
        if found is not None:
            seen.append((equation, found))
        return found

    with patch("pypm.laws.prove.difference", recorded):
        law = prove(rule, contracts=contracts, seconds=20).verdicts[0]
    if isinstance(law, Refuted):
        try:
            return Judged(what, "refuted", "differs" if differs(*seen[-1]) else "agrees")
        except RuntimeError:
            return Judged(what, "refuted", "raises")
    return Judged(what, WORDS[type(law)], sampled(rule))


def sampled(rule: Rule) -> str:
    """What torch says of a rule on samples of its pattern."""
    found = verify(rule, samples=25)
    kinds = {wrong.kind for wrong in found.wrong}
    if kinds & {"raises", "crash"}:
        return "raises"
    if "value" in kinds:
        is_real = any("torch.int" not in w.counterexample.code for w in found.wrong)
        return "wrong" if is_real else "wrong for integers"
    never = any(isinstance(finding, NeverFired) for finding in found.findings)
    return "never fires" if never else "right"


def main() -> None:
    every = every_damage()
    number = min(int([*sys.argv, "300"][1]), len(every))
    contracts = Contracts()
    counts: Counter[str] = Counter()
    for what, rule in (every[i * len(every) // number] for i in range(number)):
        found = judged(what, rule, contracts)
        counts[f"{found.word}, torch: {found.torch}"] += 1
        if not found.is_noticed:
            print(f"{found.word}, torch: {found.torch}: {what}", flush=True)
    for kind, count in counts.most_common():
        print(f"{count:4} {kind}")


if __name__ == "__main__":
    main()
