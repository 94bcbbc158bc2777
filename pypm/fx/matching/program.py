"""A set of rules compiled for graphs: one index for all, and a matcher for each."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from math import inf
from typing import Final

from torch import fx

from pypm.core.patterns import Call, Constrained, Mu, Pattern, Var
from pypm.core.python_settings import with_room, without_collecting
from pypm.core.rules import Rule
from pypm.core.traverse import children, guard_key
from pypm.diagnostics import Diagnostic
from pypm.fx.matching.rule_matcher import RuleForm, RuleMatcher
from pypm.fx.operators.canonical_calls import direct_call
from pypm.fx.subject.calls import describe
from pypm.fx.subject.index_states import StateReader
from pypm.fx.subject.view import View
from pypm.match.compile.extent import bound_below
from pypm.match.compile.lower import Compiler
from pypm.match.index import Index
from pypm.match.lint.shadowed import shadowed
from pypm.match.matcher import Matcher
from pypm.match.requirements import named

__all__ = ["RuleProgram", "operators", "operators_of", "program_of"]

PARTIAL: Final = 4
"""The most programs for the operators of some graphs; what these lack, the one for all has."""


class RuleProgram:
    """A set of rules, compiled: one index for all, and a target for each way to match one."""

    def __init__(
        self,
        rules: Iterable[Rule],
        present: frozenset[str] | None = None,
        near: RuleProgram | None = None,
    ) -> None:
        """`present` are the operators that graphs have, None if the program is for all graphs.

        Other operators that patterns name are in `reader.left_out`, and nothing that needs one of
        them is compiled. Where a graph has none of these, both programs find the same.

        `near` is a program of the same rules for some of these operators. What was compiled of
        rules that name none of the others is taken from it.
        """
        forms = _forms(_Identities(rules))
        known = {} if near is None else near.naming_no_other(present)
        self.present = present
        index = Index() if near is None else near.index.copy(known)
        self._compiler = Compiler(index, present, () if near is None else near.reader.left_out)
        self._matchers: dict[object, Matcher] = {}
        """The matchers by the identities of their roots, and the rule's guard."""
        self.index: Index = self._compiler.index
        self.targets: list[RuleMatcher] = []
        """The targets in the order in which they are tried."""
        self.reach: float = 0
        """The largest number of operators below its root that a match can inspect."""
        for number, form in enumerate(forms):
            self._add(form, known.get(number))
        if self.reach < inf:
            self.reach = max((target.form.depth for target in self.targets), default=0)
        self.reader: StateReader = StateReader(self.index, self._compiler.left_out)

    def _add(self, form: RuleForm, known: Matcher | None) -> None:
        number = len(self.targets)
        matcher = known or self._matcher(form)
        whole = None if form.whole is None else self.targets[form.whole]
        self.targets.append(RuleMatcher(form, matcher, number, whole))
        if self._compiler.is_void(matcher.items[0]):
            return
        self.reach = max(self.reach, form.depth)
        if known is None:
            self.index.root(matcher.items[0], number, form.depth)

    def _matcher(self, form: RuleForm) -> Matcher:
        key = (*map(id, form.patterns), guard_key(form.rule.guard))
        if key not in self._matchers:
            self._matchers[key] = Matcher(form.roots, self._compiler)
        return self._matchers[key]

    def naming_no_other(self, present: frozenset[str] | None) -> dict[int, Matcher]:
        """Return the matchers, by number, of targets that name none of `present` but what this
        program has; none if these are not known.
        """
        if present is None or self.present is None:
            return {}
        new = present - self.present
        return {t.number: t.matcher for t in self.targets if new.isdisjoint(t.form.names)}

    def at(self, view: View, node: fx.Node) -> Iterator[RuleMatcher]:
        """Yield the targets that may match at a node, in order."""
        if node.op.startswith("call_") and node not in view.dead:
            for number in view.states[node].starts:
                yield self.targets[number]

    def __str__(self) -> str:
        """Return the items that the patterns share, then the item of each rule's roots."""
        return "\n".join([*self.index.lines(), *map(str, self.targets)])


def computed(roots: Sequence[Pattern | None]) -> dict[int, Pattern]:
    """Return the roots that a region computes, by the numbers of their outputs.

    An output may also be one of the region's inputs: a variable that another root binds, and whose
    value no pattern inspects. Such an output is neither searched for nor replaced.
    """
    present = {index: root for index, root in enumerate(roots) if root is not None}
    others = [root for root in present.values() if not isinstance(root, Var)]
    if len(others) == len(present):
        return present
    inputs = frozenset[str]().union(*map(bound_below, others))
    inputs -= frozenset[str]().union(*map(_looked_into, others))
    return {i: r for i, r in present.items() if not isinstance(r, Var) or r.name not in inputs}


def _looked_into(pattern: Pattern) -> frozenset[str]:
    """Return the names that may be bound to operators inside a match."""
    own = frozenset({pattern.name}) if isinstance(pattern, Constrained) else frozenset[str]()
    if isinstance(pattern, Mu | Call):
        own = own.union(pattern.actuals)
    if isinstance(pattern, Mu):
        return own | pattern.definition.read(_looked_into)
    return own.union(*map(_looked_into, children(pattern)))


class _Identities:
    """Rules as a key that compares identities, since patterns are slow to compare."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self._key = tuple(map(id, self.rules))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identities) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)


@lru_cache(maxsize=64)
def _forms(key: _Identities) -> tuple[RuleForm, ...]:
    """Return the ways to match some rules, in the order in which they are tried."""
    found: list[RuleForm] = []
    for rule in key.rules:
        whole = computed(rule.roots)
        number = len(found)
        found.append(RuleForm(rule, tuple(whole), tuple(whole.values())))
        for roots in rule.partial:
            some = computed(roots)
            if some and tuple(some) != tuple(whole):
                found.append(RuleForm(rule, tuple(some), tuple(some.values()), number))
    return tuple(found)


def operators(graph: fx.Graph) -> frozenset[str]:
    """Return the names of the operators that the nodes of a graph are calls of."""
    found: set[str] = set()
    for node in graph.nodes:
        plain = direct_call(node.target)
        found.add(describe(node).operator.name if plain is None else plain.overload.packet_name)
    return frozenset(found)


def operators_of(rules: Iterable[Rule]) -> frozenset[str]:
    """Return the names of the operators in the patterns of rules."""
    return _partial_programs(_Identities(rules))[0]


def program_of(
    rules: Iterable[Rule], *, in_order: bool = True, present: frozenset[str] | None = None
) -> RuleProgram:
    """Return the program of `rules`, compiled once for the same rules and operators.

    Arguments:
        rules: the rules, in the order in which they are tried.
        in_order: True if the first rule that matches is applied; False if a choice lets all of them
            compete.
        present: the operators of the graph, for a program that may be for graphs of these alone;
            None for any graph.

    In order, it warns once about rules that never fire, because an earlier rule matches wherever
    they do.
    """
    key = _Identities(rules)
    if in_order:
        _warn_of_shadowed(key)
    return _program(key) if present is None else _partial_program(key, present)


@lru_cache(maxsize=64)
@with_room
@without_collecting()
def _program(key: _Identities) -> RuleProgram:
    return RuleProgram(key.rules)


def _partial_program(key: _Identities, present: frozenset[str]) -> RuleProgram:
    """Return a program that has these operators: one that was made, one for these and those of
    all that were made, or that of all graphs.
    """
    names, made = _partial_programs(key)
    wanted = present & names
    for program in [*made]:
        if program.present is not None and wanted <= program.present:
            return program
    if len(made) >= PARTIAL:
        return _program(key)
    present = wanted.union(*(program.present or () for program in made))
    made.append(_lowered(key, present, made[-1] if made else None))
    return made[-1]


@with_room
@without_collecting()
def _lowered(key: _Identities, present: frozenset[str], near: RuleProgram | None) -> RuleProgram:
    return RuleProgram(key.rules, present, near)


@lru_cache(maxsize=64)
def _partial_programs(key: _Identities) -> tuple[frozenset[str], list[RuleProgram]]:
    """Return the operators that the rules name, and the programs made for some of them."""
    roots = (root for rule in key.rules for roots in (rule.roots, *rule.partial) for root in roots)
    return named(root for root in roots if root is not None), []


@lru_cache(maxsize=64)
@with_room
def _warn_of_shadowed(key: _Identities) -> None:
    program = _program(key)
    numbers = [number for number, target in enumerate(program.targets) if target.whole is None]
    matchers = [program.targets[number].matcher for number in numbers]
    rules = [program.targets[number].rule for number in numbers]
    for diagnostic in shadowed(rules, matchers, numbers):
        _warn(diagnostic)


def _warn(diagnostic: Diagnostic) -> None:
    """Warn at the span of a diagnostic."""
    span = diagnostic.span
    file, line = (__file__, 1) if span is None else (span.file, span.line)
    warnings.warn_explicit(diagnostic.render("warning"), RuntimeWarning, file, line)
