"""Patterns, rules and graphs that belong to no tool; each peer translates them into its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TypeAlias, assert_never

__all__ = [
    "BINARY",
    "UNARY",
    "Call",
    "CannotExpress",
    "Chain",
    "Either",
    "NotTried",
    "Pattern",
    "Replacement",
    "Rule",
    "Subject",
    "Var",
    "plain",
    "variables",
]

UNARY = (
    "relu", "neg", "abs", "exp", "sigmoid", "tanh",
    "sin", "cos", "sqrt", "erf", "floor", "log",
)  # fmt: skip
"""Unary operators, by their ATen names."""
BINARY = ("add", "mul", "maximum")


@dataclass(frozen=True, slots=True)
class Var:
    """Anything; the same value wherever the name occurs."""

    name: str


@dataclass(frozen=True, slots=True)
class Call:
    """An operator applied to patterns."""

    operator: str
    arguments: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """The first alternative, and then the second."""

    first: Pattern
    second: Pattern


@dataclass(frozen=True, slots=True)
class Chain:
    """Any number of unary operators over a variable, as many as there are."""

    over: Var


Pattern: TypeAlias = Var | Call | Either | Chain
Replacement: TypeAlias = Var | Call


@dataclass(frozen=True, slots=True)
class Rule:
    """What to look for and what to put there, over the same variables.

    `more` are further outputs of the same region. With `commutes`, sums and products must match in
    either order; without, they may.
    """

    pattern: Call
    replacement: Replacement
    more: tuple[tuple[Call, Replacement], ...] = ()
    commutes: bool = False


@dataclass(frozen=True, slots=True)
class Subject:
    """A graph: `inputs` values from outside, then one value a call, on values before it."""

    inputs: int
    calls: tuple[tuple[str, tuple[int, ...]], ...]
    outputs: tuple[int, ...]


class CannotExpress(Exception):
    """A tool has no form for a rule."""


class NotTried(CannotExpress):
    """A tool may have a form for a rule, which the benchmark does not use."""


def variables(pattern: Pattern) -> tuple[str, ...]:
    """The names in a pattern, in the order of their first occurrence."""
    match pattern:
        case Var(name) | Chain(Var(name)):
            return (name,)
        case Call(_, parts):
            return tuple(dict.fromkeys(name for part in parts for name in variables(part)))
        case Either(first, second):
            return tuple(dict.fromkeys(variables(first) + variables(second)))
        case _:
            assert_never(pattern)


def plain(rule: Rule, *, limit: int = 5000) -> list[Rule]:
    """The rule as many, without alternatives and in every order of commutative arguments.

    Raises CannotExpress where these are more than `limit`, and for chains.
    """
    if rule.more:
        return [rule]
    found = _spellings(rule.pattern, rule.commutes, limit)
    return [replace(rule, pattern=p, commutes=False) for p in found if isinstance(p, Call)]


def _spellings(pattern: Pattern, commutes: bool, limit: int) -> list[Pattern]:
    match pattern:
        case Var():
            return [pattern]
        case Chain():
            raise CannotExpress("no recursion")
        case Either(first, second):
            found = _spellings(first, commutes, limit)
            found += found if second is first else _spellings(second, commutes, limit)
        case Call(name, parts):
            choices = [_spellings(part, commutes, limit) for part in parts]
            found = [Call(name, chosen) for chosen in product(*choices)]
            if commutes and name in ("add", "mul"):
                found += [Call(name, chosen[::-1]) for chosen in product(*choices)]
        case _:
            assert_never(pattern)
    if len(found) > limit:
        raise CannotExpress(f"over {limit} rules")
    return found
