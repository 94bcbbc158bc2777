"""Rules and rule sets: patterns, guards and replacements, and their text."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, assert_never

from pypm.core.guards import TRUE, Guard, True_
from pypm.core.patterns import Var
from pypm.core.printing import (
    print_attributes,
    print_dotted,
    print_guard,
    print_name,
    print_names,
    print_pattern,
)
from pypm.diagnostics import Diagnostic, PyPMError, did_you_mean

if TYPE_CHECKING:
    from pypm.core.operators import Operator
    from pypm.core.patterns import Pattern
    from pypm.core.terms import Value
    from pypm.diagnostics import Span

__all__ = [
    "DECLINES",
    "EXACTNESS",
    "ON_REQUEST",
    "PAYS",
    "TOGETHER",
    "Build",
    "Communicates",
    "Decline",
    "Exactness",
    "Pays",
    "Rule",
    "RuleSet",
    "Rules",
    "Template",
    "Unless",
    "as_exactness",
    "as_rule_set",
    "print_rule",
    "print_rules",
    "print_template",
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
    """The value that a replacement returns to decline a match, with the reason."""

    reason: str = ""


# A context variable: `decline` has no argument that could carry the call of the body under way.
DECLINES: Final[ContextVar[list[tuple[CodeType, int]] | None]] = ContextVar(
    "declines", default=None
)
"""The places at which the body under way called `decline`: code, and an index into it."""


Unless: TypeAlias = Callable[[Any, Any], str | None]
"""A test of a root before the search: returns the reason for which the rule does not apply, or
None.

It is called with the root's fake value and the graph's dialect (a `pypm.fx.Dialect`). The
replacement may not rely on it.
"""


Pays: TypeAlias = Literal["always", "mostly", "sometimes", "by data"]
"""The rewrites that are applied by default, and by a choice that compares times.

"always": it is applied wherever it may be, unless a choice by cost is asked for. "mostly": the same
where nothing is compared, but wherever the compiler compares, only where it is faster. "sometimes":
it is applied only where it was compared and found to be faster. "by data": as "sometimes", for a
replacement whose time depends on its inputs' contents, as with keys that a mask hides. It is
compared on contents that leave nothing out, and applied where it is then at least 0.95 times as
fast.
"""
PAYS: Final = ("always", "mostly", "sometimes", "by data")
ON_REQUEST: Final = ("sometimes", "by data")
"""Those that are applied under a choice alone."""


Exactness: TypeAlias = Literal["reassociated", "rounding", "bitwise"]
"""Words for what a replacement keeps of the values that it replaces, from the least to the most.

"reassociated": equal in real numbers; sums and products may be taken in another order, so roundings
differ, and so do values where something is infinite or NaN. "rounding": the same operations in the
same order, some results of which are not rounded, or rounded to a wider type. "bitwise": the same
bits, NaN and the signs of zeros included.
"""
EXACTNESS: Final = ("reassociated", "rounding", "bitwise")


def as_exactness(word: object) -> Exactness:
    """Return a word of `EXACTNESS`. Raises PyPMError for anything else."""
    if word in EXACTNESS:
        return word
    known = f"{did_you_mean(str(word), EXACTNESS)} the words are {', '.join(EXACTNESS)}"
    raise PyPMError(Diagnostic(f"there is no exactness {word!r}", help=known.lstrip()))


Communicates: TypeAlias = Literal[False, True, "together"]
"""The collectives in the regions of a rule: none; those that its replacement issues too, in their
order, so that processes need not rewrite alike; or, of all rules that say "together", those that a
graph issues as a whole: each process applies the same of these rules, or none of them.
"""
TOGETHER: Final = "together"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rewrite rule, `pattern; guard => replacement`.

    `roots` are the region's outputs, one pattern each, under one substitution. `partial` are the
    roots for graphs that lack some outputs, with None for these; tried in order, after `roots`.
    `replacement` is a template, or a Python function called with the values of `parameters` (and
    with the match, if it has a parameter of that name).
    """

    name: str
    parameters: tuple[str, ...]
    roots: tuple[Pattern, ...]
    replacement: Template | Callable[..., object] = field(compare=False)
    guard: Guard = TRUE
    absorb: str | None = None
    redraws: bool = False
    """True if the region may sample random numbers, and the replacement samples its own: the values
    then have the same distribution, but are not the same samples.
    """
    communicates: Communicates = False
    """The functional collectives that the region may hold."""
    returns_kept: bool = False
    """True if values marked `keep` that have users outside are outputs too: the replacement returns
    them after `roots`, in the order of the graph. Else they stay, and all that computes them.
    """
    pays: Pays = "always"
    """The author's word on whether the rewrite makes the graph faster."""
    exactness: Exactness = "reassociated"
    """The author's word on how near the values are to those that are replaced."""
    partial: tuple[tuple[Pattern | None, ...], ...] = field(default=(), compare=False, repr=False)
    fingerprint: str = ""
    """The content of the replacement as text; it is part of the content hash."""
    unless: Unless | None = field(default=None, compare=False, repr=False)
    reads: Callable[..., object] | None = field(default=None, compare=False, repr=False)
    """From a match to what the replacement knows of the nodes that compute its operands."""
    span: Span | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        return hash((self.name, self.parameters))  # patterns may be deeper than Python hashes

    def __repr__(self) -> str:
        return f"<rule {self.name}({', '.join(self.parameters)})>"

    def keeps(self, least: Exactness) -> bool:
        """Return whether the rule says at least this word."""
        return EXACTNESS.index(self.exactness) >= EXACTNESS.index(least)


@dataclass(frozen=True, slots=True)
class RuleSet:
    """Rules in order of priority: the first rule that matches at a node wins.

    Arguments:
        rules: the rules.
        name: the set's name in reports.

    Raises TypeError if a member is not a rule.
    """

    rules: tuple[Rule, ...]
    name: str = "rules"

    def __post_init__(self) -> None:
        owner = f"the rule set `{self.name}`"
        if not isinstance(self.rules, tuple | list):
            raise TypeError(f"{owner} takes a tuple of rules, not {self.rules!r}")
        for rule in self.rules:
            if not isinstance(rule, Rule):
                raise TypeError(f"{owner} contains {rule!r}, which is not a rule")

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    def __add__(self, other: Rules) -> RuleSet:
        return RuleSet((*self.rules, *as_rule_set(other).rules), self.name)

    def content_hash(self) -> str:
        """Return a hash of the rules' patterns, guards and fingerprints, equal across processes."""
        content = print_rules(replace(self, name="rules"))
        return hashlib.sha256(content.encode()).hexdigest()


Rules: TypeAlias = RuleSet | Rule | Iterable["Rules"]
"""Rules, as every function of PyPM accepts them."""


def as_rule_set(rules: Rules) -> RuleSet:
    """Return a rule set for a rule set, a rule, or a list of those.

    Raises TypeError for anything else.
    """
    if isinstance(rules, RuleSet):
        return rules
    if isinstance(rules, Rule):
        return RuleSet((rules,), rules.name)
    found: list[Rule] = []
    try:
        if isinstance(rules, str):  # which is one of strings
            raise TypeError
        for part in rules:
            if isinstance(part, Rule):
                found.append(part)
                continue
            found += as_rule_set(part).rules
    except TypeError:
        kinds = f"expected a rule, a RuleSet or a list of them, not {rules!r}"
        raise TypeError(kinds + _hint(rules)) from None
    return RuleSet(tuple(found))


def _hint(given: object) -> str:
    """Return a hint for an argument that holds no rules."""
    if isinstance(given, ModuleType) and hasattr(given, "RULES"):
        return f": did you mean `{given.__name__}.RULES`?"
    if getattr(given, "is_pattern_form", False):
        return ": a pattern replaces nothing; make a rule of it with `@rule`"
    return ""


# --- text ---------------------------------------------------------------------------------------


def print_template(template: Template) -> str:
    """Return a replacement template as text."""
    match template:
        case Var(name):
            return print_name(name)
        case Build(operator, parts, attributes):
            arguments = ", ".join(map(print_template, parts))
            return f"{print_dotted(operator.name)}({arguments}){print_attributes(attributes)}"
        case _:
            assert_never(template)


def print_rule(rule: Rule) -> str:
    """Return a rule as text; a Python replacement prints as a reference to it."""
    head = f"rule {print_name(rule.name)}{print_names(rule.parameters)}"
    if rule.absorb is not None:
        head += f" absorb {rule.absorb!r}"
    head += " redraws" * rule.redraws
    if rule.communicates:
        head += " communicates" + f" {TOGETHER!r}" * (rule.communicates == TOGETHER)
    head += " returns_kept" * rule.returns_kept
    if rule.pays != "always":
        head += f" pays {rule.pays!r}"
    if rule.exactness != "reassociated":
        head += f" exactness {rule.exactness!r}"
    if rule.fingerprint:
        head += f" fingerprint {rule.fingerprint!r}"
    roots = ", ".join(map(print_pattern, rule.roots))
    condition = "" if isinstance(rule.guard, True_) else f" if {print_guard(rule.guard)}"
    replacement = rule.replacement
    if isinstance(replacement, Var | Build):
        result = print_template(replacement)
    else:
        result = "@" + print_dotted(f"{replacement.__module__}.{_qualified(replacement)}")
    return f"{head}: {roots}{condition} => {result}"


def _qualified(function: object) -> str:
    named = function if hasattr(function, "__qualname__") else type(function)
    return str(named.__qualname__)


def print_rules(rules: RuleSet) -> str:
    """Return a rule set as text, a rule on each line."""
    lines = (f"  {print_rule(rule)}\n" for rule in rules)
    return f"rules {print_name(rules.name)} {{\n{''.join(lines)}}}\n"
