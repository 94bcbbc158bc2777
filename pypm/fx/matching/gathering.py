"""Matches that are taken together: all that share some values, as one region with many roots.

From one match, the others are gathered whose shared values are equal, one for each root. Taken
are those that can be computed at one place: no one from another's output, and all between the same
writes. Legality judges their union, so that what several of them use may lie inside of it; who
stands in its way is replaced by the next answer at its root, or left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, Protocol

from pypm.core.terms import exact
from pypm.fx.legality.region import Refusal
from pypm.fx.subject.view import node_of

if TYPE_CHECKING:
    from torch import fx

    from pypm.fx.matching.match import Match
    from pypm.fx.matching.rule_matcher import RuleMatcher
    from pypm.fx.subject.view import View
    from pypm.match.matcher import Answer

__all__ = ["together"]

ANSWERS: Final = 1000
"""Answers at another root that are looked through for one with the same values."""


def together(
    search: Answers, target: RuleMatcher, answer: Answer, root: fx.Node
) -> Match | Refusal:
    """The match of all that can be taken together with an answer, or why it is left alone.

    It has the most roots that are met from the outputs up, `root` itself before the others.
    """
    found = _Gathering(search, target, answer, root)
    while True:
        roots = found.taken()
        judged = search.judged(target, [found.members[r] for r in roots], roots)
        if not isinstance(judged, Refusal):
            return judged if len(roots) > 1 else found.alone()
        if not found.give_way(roots, judged):
            return judged


class Answers(Protocol):
    """Where rules match in a graph, and what legality says of that: a `Search`."""

    @property
    def view(self) -> View: ...
    def answers(
        self, target: RuleMatcher, node: fx.Node
    ) -> Iterator[tuple[Answer, tuple[fx.Node, ...]]]: ...
    def sharing(
        self, target: RuleMatcher, answer: Answer, names: Iterable[str]
    ) -> list[fx.Node]: ...
    def judged(
        self, target: RuleMatcher, answers: Sequence[Answer], roots: tuple[fx.Node, ...]
    ) -> Match | Refusal: ...


class _Gathering:
    """The answers that share the values of one, as far as nothing speaks against them yet."""

    def __init__(self, search: Answers, target: RuleMatcher, answer: Answer, root: fx.Node) -> None:
        self.target = target
        self.root = root
        self.members = {root: answer}
        self.others: dict[fx.Node, Iterator[Answer]] = {}
        """What else matches at the roots of the members, in order."""
        self.left_out: dict[fx.Node, str] = {}
        """Why other roots with the same values are not taken."""
        names = target.rule.together_by
        view, wanted = search.view, _shared(answer, names)
        for node in search.sharing(target, answer, names):
            if node is root or not view.is_used(node):
                continue
            answers = (found for found, _ in search.answers(target, node))
            same = (a for a in islice(answers, ANSWERS) if _shared(a, names) == wanted)
            first = next(same, None)
            if first is None:
                continue
            if view.epoch(node) != view.epoch(root):
                self.left_out[node] = f"memory may be written between it and `{root}`"
                continue
            self.members[node], self.others[node] = first, same

    def taken(self) -> tuple[fx.Node, ...]:
        """The roots of which none is computed from another, in graph order."""
        below = _dependencies(sorted(self.members))
        taken = [self.root]
        for node in sorted(self.others, reverse=True):
            near = next((t for t in taken if t in below[node] or node in below[t]), None)
            if near is None:
                taken.append(node)
            else:
                is_after = near in below[node]
                self.left_out[node] = (
                    f"it is computed from `{near}`" if is_after else f"`{near}` is computed from it"
                )
        return tuple(sorted(taken))

    def give_way(self, roots: tuple[fx.Node, ...], refusal: Refusal) -> bool:
        """Go on to the next answers at those of the roots that a refusal is about, if these can."""
        about = refusal.nodes[0]
        culprits = [r for r in roots if r is about or about in _nodes(self.members[r])]
        if self.root in culprits or not culprits:
            return False
        for culprit in culprits:
            following = next(self.others[culprit], None)
            if following is not None:
                self.members[culprit] = following
            else:
                del self.members[culprit], self.others[culprit]
                self.left_out[culprit] = refusal.reason
        return True

    def alone(self) -> Refusal:
        names = " and ".join(f"`{name}`" for name in self.target.rule.together_by)
        if not self.left_out:
            return Refusal("alone", f"no other match shares {names}", (self.root,))
        node, reason = next(iter(self.left_out.items()))
        reason = f"the match at `{node}` shares {names}, but {reason}"
        return Refusal("alone", reason, (self.root, node))


def _shared(answer: Answer, names: tuple[str, ...]) -> object:
    return [exact(answer.cells[name].read()) for name in names]


def _nodes(answer: Answer) -> set[fx.Node | None]:
    return {node_of(visit.subject) for visit in answer.visits}


def _dependencies(roots: list[fx.Node]) -> Mapping[fx.Node, frozenset[fx.Node]]:
    """For each of some nodes, in graph order, the others of them that it is computed from."""
    nothing: frozenset[fx.Node] = frozenset()
    below: dict[fx.Node, frozenset[fx.Node]] = {}
    inside, last = set(roots), roots[-1]
    node = roots[0]
    while True:
        found = nothing
        for source in node.all_input_nodes:
            if source in below or source in inside:
                found |= below.get(source, nothing)
                found |= {source} if source in inside else nothing
        if found or node in inside:
            below[node] = found
        if node is last:
            return below
        node = node.next
