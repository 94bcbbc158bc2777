"""Rules and rule sets: what to look for, when, and what to put in its place."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from pypm.core.guards import TRUE, Guard
from pypm.core.patterns import Var

if TYPE_CHECKING:
    from pypm.core.operators import Operator
    from pypm.core.patterns import Pattern
    from pypm.core.terms import Value
    from pypm.diagnostics import Span

__all__ = ["Build", "Decline", "Rule", "RuleSet", "Rules", "Template", "as_rule_set"]


@dataclass(frozen=True, slots=True)
class Build:
    """A call of an operator in a replacement template, on templates and constant attributes."""

    operator: Operator
    arguments: tuple[Template, ...]
    attributes: tuple[tuple[str, Value], ...] = ()


Template: TypeAlias = Var | Build
"""A replacement as data: a bound variable, or an operator applied to templates."""


@dataclass(frozen=True, slots=True)
class Decline:
    """What a replacement gives back instead of a value where it does not apply after all."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """`pattern; guard => replacement`.

    `roots` are the region's outputs, one pattern each, under one substitution. `partial` are the
    roots for graphs that lack some outputs, with None for these; in order, after `roots`.
    `replacement` is a template, or a Python function called with the values of `parameters`
    (and the match, where it has a parameter of that name).
    """

    name: str
    parameters: tuple[str, ...]
    roots: tuple[Pattern, ...]
    replacement: Template | Callable[..., object] = field(compare=False)
    guard: Guard = TRUE
    absorb: str | None = None
    partial: tuple[tuple[Pattern | None, ...], ...] = field(default=(), compare=False, repr=False)
    fingerprint: str = ""
    """What the replacement's behaviour depends on, as text: part of the content hash."""
    span: Span | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules in order of priority: at a node the first that matches wins."""

    rules: tuple[Rule, ...]
    name: str = "rules"

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def __add__(self, other: Rules) -> RuleSet:
        return RuleSet((*self.rules, *as_rule_set(other).rules), self.name)

    def content_hash(self) -> str:
        """A hash of everything that decides what the rules do, equal across processes."""
        from pypm.core.printing import print_rule  # which prints rules, and so imports this

        content = "\n".join(map(print_rule, self.rules))
        return hashlib.sha256(content.encode()).hexdigest()


Rules: TypeAlias = RuleSet | Rule | Iterable["Rules"]
"""What is accepted wherever rules are taken."""


def as_rule_set(rules: Rules) -> RuleSet:
    """A rule set from a rule set, a rule, or a list of either."""
    if isinstance(rules, RuleSet):
        return rules
    if isinstance(rules, Rule):
        return RuleSet((rules,), rules.name)
    try:
        return RuleSet(tuple(rule for part in rules for rule in as_rule_set(part)))
    except TypeError:
        raise TypeError(f"expected a rule, a RuleSet or a list of them, not {rules!r}") from None
