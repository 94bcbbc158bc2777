"""Damaged rules: a sign, an operator, a dimension or a number of a pattern is another one.

`python -m tests.laws.damages [NUMBER]` proves so many damaged rules, and prints those that are
proved all the same. There should be none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pypm.core.guards import Apply, Constant, Equal, Guard, Holds
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
from pypm.fx import aten
from pypm.laws.contracts import Contracts
from pypm.laws.prove import prove
from pypm.laws.verdicts import Proved
from pypm.rules import activation, norm

RULES = (norm.rms_norm, norm.layer_norm, activation.whole)
OTHERS = {
    "aten.mul": aten.div,
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
    """A rule with each damage of its first root."""
    root, *others = rule.roots
    for what, other in damages(root, set()):
        yield what, replace(rule, roots=(other, *others))


def survivors(number: int) -> tuple[int, list[str]]:
    """Prove so many damaged rules; return their number, and the damages that were not noticed."""
    every = [(rule.name, what, other) for rule in RULES for what, other in damaged(rule)]
    chosen = every[:: -(-len(every) // number)]
    contracts = Contracts()
    found = []
    for name, what, other in chosen:
        if isinstance(prove(other, contracts=contracts).verdicts[0], Proved):
            found.append(f"{name}: {what}")
    return len(chosen), found


if __name__ == "__main__":
    tried, proved = survivors(int([*sys.argv, "100"][1]))
    print(f"{tried} damaged rules, {len(proved)} proved")
    for line in proved:
        print(line)
