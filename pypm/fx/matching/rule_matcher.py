"""The matcher of one rule, and the nodes at which it may match."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property

from torch import fx

from pypm.core.guards import TRUE
from pypm.core.patterns import Guarded, Pattern
from pypm.core.python_settings import with_room
from pypm.core.rules import Rule
from pypm.core.schedule import schedule
from pypm.core.traverse import free_names
from pypm.fx.matching.confinement import Confinement
from pypm.fx.subject.view import View
from pypm.match.compile.extent import Extent, bound_below, extent, reach
from pypm.match.matcher import Matcher
from pypm.match.requirements import named

__all__ = ["RuleForm", "RuleMatcher"]


@dataclass(frozen=True, eq=False)
class RuleForm:
    """A way to match a rule: all of its outputs, or some of them where others are absent."""

    rule: Rule
    present: tuple[int, ...]
    """The indices of the rule's outputs that are described."""
    patterns: tuple[Pattern, ...]
    """The patterns of these outputs."""
    whole: int | None = None
    """The place of the form for all outputs, where this is one for some."""

    @cached_property
    @with_room
    def roots(self) -> tuple[Pattern, ...]:
        """Return the patterns, with the guard of the rule in the last one."""
        guard, roots = self.rule.guard, self.patterns
        if guard == TRUE:
            return roots
        earlier = frozenset().union(*map(free_names, roots[:-1]))
        return (*roots[:-1], schedule(Guarded(roots[-1], guard), earlier))

    @cached_property
    @with_room
    def extents(self) -> tuple[Extent, ...]:
        """Return bounds of the operators that a match of each of the patterns can visit."""
        return tuple(extent([pattern]) for pattern in self.patterns)

    @cached_property
    def names(self) -> frozenset[str]:
        """Return the names of the operators in the patterns."""
        return named(self.patterns)

    @cached_property
    @with_room
    def depth(self) -> float:
        """Return how many operators below its root a match can inspect."""
        return reach(self.rule)


@dataclass(frozen=True, eq=False)
class RuleMatcher:
    """A form of a rule, with its matcher."""

    form: RuleForm
    matcher: Matcher
    """The compiled roots; rules that seek the same share one."""
    number: int
    """The place among the targets of its program, the same in each program of the same rules."""
    whole: RuleMatcher | None = None
    """The target for all outputs, where this is one for some."""

    def __str__(self) -> str:
        roots = ", ".join(f"#{item}" for item in self.matcher.items)
        return f"{self.rule.name} at {roots}"

    @property
    def rule(self) -> Rule:
        return self.form.rule

    @property
    def roots(self) -> tuple[Pattern, ...]:
        return self.form.roots

    @property
    def present(self) -> tuple[int, ...]:
        return self.form.present

    @property
    def extents(self) -> tuple[Extent, ...]:
        return self.form.extents

    @cached_property
    @with_room
    def binds(self) -> tuple[frozenset[str], ...]:
        """Return for each of these roots the names that every match binds at or below it."""
        return tuple(map(bound_below, self.roots))

    @cached_property
    def sought(self) -> Hashable:
        """Return a key that is equal for targets whose candidates at a node differ in the name of
        the rule alone, and in what it reads elsewhere.
        """
        rule = self.rule
        if self.whole is not None:
            return self
        widened = rule.absorb, rule.redraws, rule.communicates, rule.returns_kept
        return self.matcher, self.present, len(rule.roots), rule.parameters, widened

    def may_match(self, view: View, node: fx.Node, root: int = 0) -> bool:
        """Return whether the index admits a match of a root at a node."""
        if not node.op.startswith("call_") or node in view.dead:
            return False
        return self.matcher.items[root] in view.states[node].items

    def confined(self, view: View, root: fx.Node) -> Confinement | None:
        """Return the bounds of matches with this root; None if the rule has none."""
        extent = self.extents[0]
        if len(self.rule.roots) > 1 or extent.keeps:
            return None
        return Confinement(view, root, extent, self.rule.absorb)

    def outputs(self, roots: tuple[fx.Node, ...]) -> tuple[fx.Node | None, ...]:
        """Return the nodes of the rule's outputs, None for those that are absent."""
        nodes = dict(zip(self.present, roots, strict=True))
        return tuple(nodes.get(output) for output in range(len(self.rule.roots)))
