"""The matcher of one rule, and the nodes at which it may match."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from torch import fx

from pypm.core.patterns import Pattern
from pypm.core.rules import Rule
from pypm.fx.matching.confinement import Confinement
from pypm.fx.subject.view import View
from pypm.match.compile.extent import Extent, bound_below
from pypm.match.matcher import Matcher

__all__ = ["RuleMatcher"]


@dataclass(frozen=True, eq=False)
class RuleMatcher:
    """A rule and the matcher for its outputs, or for some of them where others are absent."""

    rule: Rule
    matcher: Matcher
    """The compiled roots; rules that seek the same share one."""
    roots: tuple[Pattern, ...]
    """The rule's own roots, with its guard in the last one."""
    present: tuple[int, ...]
    """The indices of the rule's outputs that the matcher's roots describe."""
    extents: tuple[Extent, ...]
    """Bounds of the operators that a match of each of these roots can visit."""
    number: int
    """The place among the targets of its program, the same in each program of the same rules."""
    whole: RuleMatcher | None = None
    """The target for all outputs, where this is one for some."""

    def __str__(self) -> str:
        roots = ", ".join(f"#{item}" for item in self.matcher.items)
        return f"{self.rule.name} at {roots}"

    @cached_property
    def binds(self) -> tuple[frozenset[str], ...]:
        """Return for each of these roots the names that every match binds at or below it."""
        return tuple(map(bound_below, self.roots))

    @cached_property
    def sought(self) -> object:
        """Return a key that is equal for targets whose candidates at a node differ in the name of
        the rule alone, and in what it reads elsewhere.
        """
        rule = self.rule
        if self.whole is not None or rule.together_by:
            return self
        widened = rule.absorb, rule.redraws, rule.communicates
        return self.matcher, self.present, len(rule.roots), rule.parameters, widened

    def may_match(self, view: View, node: fx.Node, root: int = 0) -> bool:
        """Return whether the index admits a match of a root at a node."""
        if not node.op.startswith("call_") or node in view.dead:
            return False
        return self.matcher.items[root] in view.states[node].items

    def confined(self, view: View, root: fx.Node) -> Confinement | None:
        """Return the bounds of matches with this root; None if the rule has none."""
        extent = self.extents[0]
        if len(self.rule.roots) > 1 or self.rule.together_by or extent.keeps:
            return None
        return Confinement(view, root, extent, self.rule.absorb)

    def outputs(self, roots: tuple[fx.Node, ...]) -> tuple[fx.Node | None, ...]:
        """Return the nodes of the rule's outputs, None for those that are absent."""
        nodes = dict(zip(self.present, roots, strict=True))
        return tuple(nodes.get(output) for output in range(len(self.rule.roots)))
