"""Rules and rule sets: what to look for, when, and what to put in its place."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from pypm.core.guards import TRUE, Guard
from pypm.core.patterns import Var

if TYPE_CHECKING:
    from pypm.core.operators import Operator
    from pypm.core.patterns import Pattern
    from pypm.core.terms import Value
    from pypm.diagnostics import Span

__all__ = [
    "Build",
    "Decline",
    "Group",
    "Rule",
    "RuleSet",
    "Rules",
    "Template",
    "Unless",
    "as_rule_set",
]


@dataclass(frozen=True, slots=True)
class Build:
    """A call of an operator in a replacement template, on templates and constant attributes."""

    operator: Operator
    arguments: tuple[Template, ...]
    attributes: tuple[tuple[str, Value], ...] = ()
    span: Span | None = field(default=None, compare=False, repr=False)


Template: TypeAlias = Var | Build
"""A replacement as data: a bound variable, or an operator applied to templates."""


@dataclass(frozen=True, slots=True)
class Decline:
    """What a replacement gives back instead of a value where it does not apply after all."""

    reason: str = ""


Unless: TypeAlias = Callable[[Any, Any], str | None]
"""Why a rule does not apply at a root, or None: from the root's fake value and the graph's dialect
(a `pypm.fx.Dialect`). Asked before anything is searched; the replacement may not rely on
it."""


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
    redraws: bool = False
    """Whether the region may draw random numbers, and the replacement draws its own instead: the
    values then have the same distribution, not the same draws."""
    communicates: bool = False
    """Whether the region may hold functional collectives, and the replacement issues the same ones
    in the same order."""
    together_by: tuple[str, ...] = ()
    """Where there are any: the names that several matches must have in common, which are then
    replaced at once. The replacement gets each of them once, every other name as a list with an
    item for each match, in graph order; and gives a value for each."""
    partial: tuple[tuple[Pattern | None, ...], ...] = field(default=(), compare=False, repr=False)
    fingerprint: str = ""
    """What the replacement's behaviour depends on, as text: part of the content hash."""
    unless: Unless | None = field(default=None, compare=False, repr=False)
    span: Span | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.name


def check_rules(rules: object, owner: str) -> None:
    """Raise TypeError where these are not rules, in a tuple."""
    if not isinstance(rules, tuple | list):
        raise TypeError(f"{owner} takes a tuple of rules, not {rules!r}")
    for rule in rules:
        if not isinstance(rule, Rule):
            raise TypeError(f"{owner} holds {rule!r}, which is no rule")


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are applied together or not at all, in a whole graph or in each layer of it.

    A group *lands* where each of its rules was applied and none of their matches is left: one that
    is left is refused. Where it does not land, all that it did is undone. Its rules have priority
    in order; the group takes its turn where it stands in a rule set, when the rules before it have
    settled. Raises TypeError for what is no rule, and ValueError where it has no rules, or `per`
    is neither "graph" nor "layer".
    """

    rules: tuple[Rule, ...]
    name: str = "group"
    per: Literal["graph", "layer"] = "graph"
    """A layer is a module of the model with a number for a name, as `model.layers.3` has."""

    def __post_init__(self) -> None:
        check_rules(self.rules, f"the group `{self.name}`")
        if not self.rules:
            raise ValueError(f"the group `{self.name}` has no rules")
        if self.per not in ("graph", "layer"):
            raise ValueError(f"a group lands per 'graph' or 'layer', not {self.per!r}")

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules in order of priority: at a node the first that matches wins.

    Where there are groups, the rules before one, the group, and those after it take turns.
    Raises TypeError for what is no rule, and ValueError where a group's rules are not in the set,
    once and side by side.
    """

    rules: tuple[Rule, ...]
    name: str = "rules"
    groups: tuple[Group, ...] = ()
    """In order; their rules are among `rules`."""

    def __post_init__(self) -> None:
        check_rules(self.rules, f"the rule set `{self.name}`")
        if self.groups:
            self.stages()

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def __add__(self, other: Rules) -> RuleSet:
        added = as_rule_set(other)
        return RuleSet((*self.rules, *added.rules), self.name, (*self.groups, *added.groups))

    def stages(self) -> tuple[Group | RuleSet, ...]:
        """The groups, and what stands between them, in order."""
        if not self.groups:
            return (self,)
        owners = {id(rule): group for group in self.groups for rule in group.rules}
        stages: list[Group | RuleSet] = []
        for _, run in groupby(self.rules, key=lambda rule: id(owners.get(id(rule)))):
            rules = tuple(run)
            stages.append(owners.get(id(rules[0])) or RuleSet(rules, self.name))
        found = [id(stage) for stage in stages if isinstance(stage, Group)]
        in_order = [id(rule) for stage in stages for rule in stage.rules]
        if found != [*map(id, self.groups)] or in_order != [*map(id, self.rules)]:
            raise ValueError(f"the rules of each group are not in `{self.name}` once, side by side")
        return tuple(stages)

    def content_hash(self) -> str:
        """A hash of everything that decides what the rules do, equal across processes."""
        from pypm.core.printing import print_rules  # which prints rules, and so imports this

        content = print_rules(replace(self, name="rules"))
        return hashlib.sha256(content.encode()).hexdigest()


Rules: TypeAlias = RuleSet | Group | Rule | Iterable["Rules"]
"""What is accepted wherever rules are taken."""


def as_rule_set(rules: Rules) -> RuleSet:
    """A rule set from a rule set, a group, a rule, or a list of those."""
    if isinstance(rules, RuleSet):
        return rules
    if isinstance(rules, Group):
        return RuleSet(rules.rules, rules.name, (rules,))
    if isinstance(rules, Rule):
        return RuleSet((rules,), rules.name)
    found: list[Rule] = []
    groups: list[Group] = []
    try:
        if isinstance(rules, str):  # which is one of strings
            raise TypeError
        for part in rules:
            if isinstance(part, Rule):
                found.append(part)
                continue
            several = as_rule_set(part)
            found += several.rules
            groups += several.groups
    except TypeError:
        kinds = f"expected a rule, a RuleSet or a list of them, not {rules!r}"
        raise TypeError(kinds + _hint(rules)) from None
    return RuleSet(tuple(found), groups=tuple(groups))


def _hint(given: object) -> str:
    """What may have been meant by something that holds no rules."""
    if isinstance(given, ModuleType) and hasattr(given, "RULES"):
        return f": did you mean `{given.__name__}.RULES`?"
    if getattr(given, "is_pattern_form", False):
        return ": a pattern replaces nothing; make a rule of it with `@rule`"
    return ""
