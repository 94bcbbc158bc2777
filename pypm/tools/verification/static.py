"""Static checks of rules: problems that are visible without running them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pypm.core.patterns import Alt, Pattern
from pypm.core.rules import Rule
from pypm.core.traverse import alternates, pattern_span
from pypm.diagnostics import Diagnostic
from pypm.fx.matching.program import RuleProgram
from pypm.match.lint.runnable import not_runnable
from pypm.match.lint.shadowed import shadowed
from pypm.tools.verification.findings import StaticProblem

__all__ = ["unreachable", "unsound"]


def unsound(rule: Rule) -> list[StaticProblem]:
    """Names that may be unbound, and recursion that may not end: the rule cannot be run."""
    return [StaticProblem(rule.name, diagnostic) for diagnostic in not_runnable(rule)]


def unreachable(rules: Sequence[Rule]) -> Iterator[StaticProblem]:
    """Rules, and alternates of rules, to which those before them leave nothing."""
    for rule in rules:
        yield from (StaticProblem(rule.name, diagnostic) for diagnostic in _unreachable(rule))
    for diagnostic in _shadowed(rules):
        named = next(r for r in rules if diagnostic.message.startswith(f"rule `{r.name}`"))
        yield StaticProblem(named.name, diagnostic)


def _unreachable(rule: Rule) -> Iterator[Diagnostic]:
    """Alternates of the whole pattern that an earlier one leaves nothing."""
    (root, *others) = rule.roots
    if others or not isinstance(root, Alt):
        return
    written: dict[str, Pattern] = {}
    for option in alternates(root):
        span = pattern_span(option)
        if span is not None:
            written.setdefault(str(span), option)
    parts = [
        replace(rule, name=where, roots=(option,), span=pattern_span(option), partial=())
        for where, option in written.items()
    ]
    for diagnostic in _shadowed(parts):
        yield replace(
            diagnostic,
            message=f"an alternate of rule `{rule.name}` is never reached: one before it matches "
            "wherever it does",
            help="put the more special alternate first, or leave it out",
        )


def _shadowed(rules: Sequence[Rule]) -> list[Diagnostic]:
    if len(rules) < 2:
        return []
    program = RuleProgram(replace(rule, partial=()) for rule in rules)
    matchers = [target.matcher for target in program.targets]
    return list(shadowed(rules, matchers, range(len(rules))))
