"""A set of rules compiled for graphs: one index for all, and what can match where."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol, get_args

from torch import fx

from pypm.core.depth import with_room
from pypm.core.guards import TRUE, Guard
from pypm.core.patterns import Call, Constrained, Guarded, Mu, Pattern, Var
from pypm.core.rules import Group, Rule, RuleSet
from pypm.core.traverse import free_names, parts
from pypm.diagnostics import Diagnostic
from pypm.fx.confine import Confinement
from pypm.fx.states import Reader
from pypm.fx.view import View
from pypm.lang.schedule import schedule
from pypm.match.extent import Extent, bound_below, extent, reach
from pypm.match.index import Index
from pypm.match.lower import Compiler
from pypm.match.matcher import Matcher
from pypm.match.shadow import shadowed

__all__ = ["PatternLike", "Program", "Target", "as_rule", "program_of"]


class PatternLike(Protocol):
    """A pattern of `pypm.lang`: its roots in the calculus, and the names a rule would get."""

    @property
    def core(self) -> tuple[Pattern, ...]: ...
    @property
    def parameters(self) -> Sequence[str]: ...


def as_rule(pattern: Pattern | PatternLike | Rule) -> Rule:
    """What is looked for, as a rule without a replacement. Raises TypeError for anything else."""
    if isinstance(pattern, Rule):
        return pattern
    core = getattr(pattern, "core", None)
    roots: tuple[Pattern, ...] = core if isinstance(core, tuple) else (pattern,)
    if not all(isinstance(root, get_args(Pattern)) for root in roots):
        raise TypeError(f"expected a pattern or a rule, not {pattern!r}")
    names = getattr(pattern, "parameters", None)
    if names is None:
        names = sorted(frozenset().union(*map(free_names, roots)))
    return Rule(getattr(pattern, "name", "pattern"), tuple(names), roots, Var("_"))


@dataclass(frozen=True, eq=False)
class Target:
    """A rule and the matcher for its outputs, or for some of them where others are absent."""

    rule: Rule
    matcher: Matcher
    present: tuple[int, ...]
    """Which of the rule's outputs the matcher's roots are."""
    extents: tuple[Extent, ...]
    """What a match of each of these roots can visit."""
    whole: Target | None = None
    """The target for all outputs, where this is one for some."""

    def __str__(self) -> str:
        roots = ", ".join(f"#{item}" for item in self.matcher.items)
        return f"{self.rule.name} at {roots}"

    @cached_property
    def binds(self) -> tuple[frozenset[str], ...]:
        """The names that every match of each of these roots binds at or below it."""
        return tuple(map(bound_below, self.matcher.roots))

    def may_match(self, view: View, node: fx.Node, root: int = 0) -> bool:
        """Whether the index lets a root match at a node."""
        if not node.op.startswith("call_") or node in view.dead:
            return False
        return self.matcher.items[root] in view.states[node].items

    def confined(self, view: View, root: fx.Node) -> Confinement | None:
        """Where a match with this root can go, if that is known."""
        extent = self.extents[0]
        if len(self.rule.roots) > 1 or self.rule.together_by or extent.keeps:
            return None
        return Confinement(view, root, extent, self.rule.absorb)

    def outputs(self, roots: tuple[fx.Node, ...]) -> tuple[fx.Node | None, ...]:
        """The nodes of the rule's outputs, None for those that are absent."""
        nodes = dict(zip(self.present, roots, strict=True))
        return tuple(nodes.get(output) for output in range(len(self.rule.roots)))


class Program:
    """A set of rules, compiled: one index for all, and a target for each way to match one."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        compiler = Compiler(Index())
        self.index = compiler.index
        self.targets: list[Target] = []
        """In the order in which they are tried."""
        self.reach: float = 0
        """How far below its root any match can look."""
        for rule in rules:
            whole = self._add(compiler, rule, computed(rule.roots), None)
            for roots in rule.partial:
                some = computed(roots)
                if some and tuple(some) != whole.present:
                    self._add(compiler, rule, some, whole)
        self.reader = Reader(self.index)

    def _add(
        self, compiler: Compiler, rule: Rule, roots: dict[int, Pattern], whole: Target | None
    ) -> Target:
        patterns = tuple(roots.values())
        matcher = Matcher(_guarded(patterns, rule.guard), compiler)
        extents = tuple(extent([pattern]) for pattern in patterns)
        target = Target(rule, matcher, tuple(roots), extents, whole)
        self.reach = max(self.reach, reach(rule))
        self.index.root(matcher.items[0], len(self.targets), reach(rule))
        self.targets.append(target)
        return target

    def at(self, view: View, node: fx.Node) -> Iterator[Target]:
        """The targets that may match at a node, in order."""
        if node.op.startswith("call_") and node not in view.dead:
            for number in view.states[node].starts:
                yield self.targets[number]

    def __str__(self) -> str:
        """The items that the patterns share, then where the roots of each rule start."""
        return "\n".join([*self.index.lines(), *map(str, self.targets)])


def computed(roots: Sequence[Pattern | None]) -> dict[int, Pattern]:
    """The outputs that a region computes, by their numbers: not inputs that it gives as they are.

    Such an output is a variable that another output binds to what is not looked into. It stays as
    it is: nothing is searched for, and nothing replaced.
    """
    present = {index: root for index, root in enumerate(roots) if root is not None}
    others = [root for root in present.values() if not isinstance(root, Var)]
    inputs = frozenset[str]().union(*map(bound_below, others))
    inputs -= frozenset[str]().union(*map(_looked_into, others))
    return {i: r for i, r in present.items() if not isinstance(r, Var) or r.name not in inputs}


def _looked_into(pattern: Pattern) -> frozenset[str]:
    """Names that may be bound to what a match covers."""
    found: set[str] = set()
    for part in parts(pattern):
        match part:
            case Constrained(name=name):
                found.add(name)
            case Mu(actuals=actuals) | Call(actuals=actuals):
                found.update(actuals)
    return frozenset(found)


def _guarded(roots: tuple[Pattern, ...], guard: Guard) -> tuple[Pattern, ...]:
    """The roots, the last of which matches only where the guard of the rule holds."""
    if guard == TRUE:
        return roots
    earlier = frozenset().union(*map(free_names, roots[:-1]))
    return (*roots[:-1], schedule(Guarded(roots[-1], guard), earlier))


class _Identities:
    """Rules as a key: equal to themselves alone, for patterns are slow to compare."""

    def __init__(self, rules: tuple[Rule, ...], groups: tuple[Group, ...]) -> None:
        self.rules = rules
        grouped = [frozenset(map(id, group.rules)) for group in groups]
        ungrouped = frozenset(map(id, rules)).difference(*grouped)
        self.rivals = (ungrouped, *grouped)
        """The identities of rules that stand in each other's way: a group may not land."""
        self._key = (tuple(map(id, rules)), self.rivals)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identities) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)


def program_of(rules: Iterable[Rule]) -> Program:
    """The program of some rules, compiled once."""
    groups = rules.groups if isinstance(rules, RuleSet) else ()
    return _program(_Identities(tuple(rules), groups))


@lru_cache(maxsize=64)
@with_room
def _program(key: _Identities) -> Program:
    program = Program(key.rules)
    numbers = [number for number, target in enumerate(program.targets) if target.whole is None]
    for rivals in key.rivals:
        own = [n for n in numbers if id(program.targets[n].rule) in rivals]
        matchers = [program.targets[number].matcher for number in own]
        rules = [program.targets[number].rule for number in own]
        for diagnostic in shadowed(rules, matchers, own):
            _warn(diagnostic)
    return program


def _warn(diagnostic: Diagnostic) -> None:
    """Warn at the place that a diagnostic is about."""
    span = diagnostic.span
    file, line = (__file__, 1) if span is None else (span.file, span.line)
    warnings.warn_explicit(diagnostic.render("warning"), RuntimeWarning, file, line)
