"""Joined matches: those of a rule with `together_by` that share its values, as one region.

From one match, the others with equal shared values are gathered, one for each root. Matches are
joined if none depends on another's output and no write separates them. Legality judges their union,
so nodes that several of them use may lie inside of it. A match that makes the union illegal is
exchanged for the next answer at its root, or left out.
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
"""The largest number of answers at another root that are compared with the shared values."""


def together(
    search: Answers, target: RuleMatcher, answer: Answer, root: fx.Node
) -> Match | Refusal:
    """Return the match that joins an answer with others, or the reason for which none is joined.

    Arguments:
        search: the search that found the answer.
        target: the rule, which has `together_by`.
        answer: the answer at `root`.
        root: a node that is a root of the result.

    Other roots are added greedily, from the outputs of the graph upwards.
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
    """The functions of a `Search` that gathering uses."""

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
    """The answers that share the values of one, without those that were found unfit."""

    def __init__(self, search: Answers, target: RuleMatcher, answer: Answer, root: fx.Node) -> None:
        self.target = target
        self.root = root
        self.members = {root: answer}
        self.others: dict[fx.Node, Iterator[Answer]] = {}
        """Further answers at the roots of the members, in order."""
        self.left_out: dict[fx.Node, str] = {}
        """Other roots with the same values, each with the reason for which it is left out."""
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
        """Return the joined roots in graph order; none of them is computed from another."""
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
        """Exchange the answers that a refusal is about for the next ones at their roots.

        Returns False if nothing can be exchanged: the refusal is about `root` itself, or no member.
        """
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
        """Return the reason for which no other match is joined."""
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
    """Return for each of `roots`, in graph order, those from which it is computed.

    Nodes between them that are computed from one have an entry, too.
    """
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
