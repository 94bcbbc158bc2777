"""Matching in a graph: the answers of a rule at a root, each judged; nothing is replaced here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from operator import or_
from typing import Final, TypeAlias

from torch import fx

from pypm.core.operators import CONS, LITERAL, NIL
from pypm.core.rules import Rule
from pypm.core.terms import Term, Value, exact
from pypm.diagnostics import BudgetError, InternalError
from pypm.fx.legality.judge import judge
from pypm.fx.legality.region import Refusal
from pypm.fx.matching.confinement import Confinement
from pypm.fx.matching.equal_nodes import equal_nodes
from pypm.fx.matching.gathering import together
from pypm.fx.matching.match import Match
from pypm.fx.matching.rule_matcher import RuleMatcher
from pypm.fx.subject.view import View, node_of
from pypm.match.compile.extent import Extent
from pypm.match.matcher import STEPS, Answer, Budget, admits_all
from pypm.match.search_state import UNREAD, Cell, Subject

__all__ = ["Allowance", "Candidate", "Search", "nodes_of"]

ANSWERS: Final = 1000
"""Distinct answers looked at for one rule at one root."""


ROOTS: Final = 10
"""Searches of a run that may use up all their steps."""
FREE: Final = 10_000
"""Steps that every search may take, whatever the others of its run have taken."""


Candidate: TypeAlias = Match | Refusal


class Allowance:
    """Steps for the searches of a run: each may take `root` of them at its root, and all together
    `ROOTS` times as many, beyond those that are free.
    """

    def __init__(self, root: int = STEPS) -> None:
        self.root = root
        self.left = ROOTS * root

    def grant(self) -> int:
        """Return the steps that the next search may take."""
        return min(self.root, max(FREE, self.left))

    def charge(self, taken: int) -> None:
        """Subtract what a search has taken."""
        self.left -= max(0, taken - FREE)


@dataclass
class Search:
    """Matching over one view: the answers, and what legality says of them."""

    view: View
    allowance: Allowance = field(default_factory=Allowance)
    exact: bool = False
    confining: bool = True
    """Whether branches are left out where every match would be refused."""

    def __post_init__(self) -> None:
        self._steps = Budget(self.allowance.grant())
        """What the search at the present root may still take, for all roots that belong to it."""

    def candidates(self, target: RuleMatcher, node: fx.Node) -> Iterator[Candidate]:
        """The distinct answers at a root, in order: legal ones as matches.

        Of the answers that are left out as hopeless, the last thing said is why.
        """
        seen: set[object] = set()
        confined = target.confined(self.view, node) if self.confining else None
        granted = self.allowance.grant()
        steps = self._steps = Budget(granted)
        try:
            if target.whole is not None and self._has_whole(target.whole, node):
                return
            for answer, roots in self.answers(target, node, confined):
                key = _answer_key(answer)
                if key in seen:
                    continue
                if len(seen) == ANSWERS:
                    reason = f"the first {ANSWERS} answers at `{node}` are refused"
                    yield Refusal("budget", reason, (node,))
                    return
                seen.add(key)
                yield self._candidate(target, answer, roots)
        except BudgetError as error:
            reason = error.diagnostic.message
            if granted < self.allowance.root:
                reason += f", {granted} because of what the searches before it have taken"
            yield Refusal("budget", reason, (node,))
        finally:
            self.allowance.charge(granted - steps.left)
        if confined is not None and confined.refusal is not None:
            yield confined.refusal

    def answers(
        self, target: RuleMatcher, node: fx.Node, confined: Confinement | None = None
    ) -> Iterator[tuple[Answer, tuple[fx.Node, ...]]]:
        subject = self.view.occurrence(node)
        admits = confined.admits if confined is not None else admits_all
        for answer in target.matcher.answers(subject, budget=self._steps, admits=admits):
            yield from self._extend(target, answer, (node,))

    def _extend(
        self, target: RuleMatcher, answer: Answer, roots: tuple[fx.Node, ...]
    ) -> Iterator[tuple[Answer, tuple[fx.Node, ...]]]:
        """Match the other roots of a rule under the same substitution, latest first."""
        index = len(roots)
        if index == len(target.present):
            yield answer, roots
            return
        for node in self._others(target, answer, index):
            if node in roots:
                continue
            subject = self.view.occurrence(node)
            for longer in target.matcher.answers(
                subject, root=index, given=answer, budget=self._steps
            ):
                yield from self._extend(target, longer, (*roots, node))

    def _others(self, target: RuleMatcher, answer: Answer, index: int) -> list[fx.Node]:
        """Where another root may match: at what its pattern can reach from what it has in common
        with the roots before, or anywhere if that is nothing.
        """
        return self.sharing(target, answer, answer.cells.keys() & target.binds[index], index)

    def sharing(
        self, target: RuleMatcher, answer: Answer, names: Iterable[str], index: int = 0
    ) -> list[fx.Node]:
        """Where a root may match that has the values of `names` in common, latest first."""
        places = [place for name in names for place in answer.cells[name].places[:1]]
        found = {node_of(place) for place in places if place.operator is not LITERAL}
        common = {node for node in found if node is not None}
        nodes = self._reached(common, target.extents[index]) if common else self.view.graph.nodes
        return sorted((n for n in nodes if target.may_match(self.view, n, index)), reverse=True)

    def _reached(self, nodes: set[fx.Node], extent: Extent) -> set[fx.Node]:
        """The nodes computed from `nodes`, or from equal ones, by operators that a match visits."""
        todo = [equal for node in nodes for equal in equal_nodes(self.view, node)]
        seen = set(todo)
        while todo:
            for user in todo.pop().users:
                if user in seen or user.op == "output":
                    continue
                if extent.admits(*self.view.operator(user)):
                    seen.add(user)
                    todo.append(user)
        return seen

    def _has_whole(self, whole: RuleMatcher, node: fx.Node) -> bool:
        """Whether a node is an output of a match that has all outputs."""
        near = self._reached({node, *node.all_input_nodes}, reduce(or_, whole.extents))
        near |= {source for one in near for source in one.all_input_nodes}
        return any(
            node in roots
            for first in near
            if whole.may_match(self.view, first)
            for _, roots in self.answers(whole, first)
        )

    def _candidate(
        self, target: RuleMatcher, answer: Answer, roots: tuple[fx.Node, ...]
    ) -> Candidate:
        if target.rule.together_by:
            return together(self, target, answer, roots[0])
        return self.judged(target, [answer], roots)

    def judged(
        self, target: RuleMatcher, answers: Sequence[Answer], roots: tuple[fx.Node, ...]
    ) -> Candidate:
        """What legality says of an answer, or of several that are taken together."""
        rule = target.rule
        bindings = {name: _bound(rule, name, answers) for name in rule.parameters}
        variables = list(nodes_of(tuple(bindings.values())))
        visits = chain.from_iterable(answer.visits for answer in answers)
        region = judge(self.view, roots, visits, variables, rule)
        if isinstance(region, Refusal):
            return region
        return Match(
            rule.name,
            bindings,
            roots if rule.together_by else target.outputs(roots),
            region,
            region.inputs,
            region.side_inputs,
            self.exact,
        )


def _answer_key(answer: Answer) -> object:
    cells = ((name, cell.places or exact(cell.value)) for name, cell in answer.cells.items())
    return tuple(cells), tuple([visit.subject for visit in answer.visits])


def _bound(rule: Rule, name: str, answers: Sequence[Answer]) -> object:
    """What a body gets for a name: a value, or one for each of several answers."""
    values = [_resolve_cell(answer.cells[name], answer) for answer in answers]
    if rule.together_by and name not in rule.together_by:
        return values
    nodes = [value for value in values if isinstance(value, fx.Node)]
    return min(nodes) if len(nodes) == len(values) else values[0]  # equal ones: the first computed


def _resolve_cell(cell: Cell, answer: Answer) -> object:
    """What a body gets for a variable; nothing else is asked of a node that is met only once."""
    if cell.value is UNREAD:
        (place,) = cell.places
        node = node_of(place)
        if node is not None and place.operator is not LITERAL:
            return node
    return _resolve(cell.read(), answer)


def _resolve(value: Value, answer: Answer) -> object:
    """What a body gets for a bound value, with nodes where it will get tensors."""
    if isinstance(value, Term):
        return _resolve_term(value, answer.places.get(value, ()))
    if isinstance(value, tuple):
        return tuple(_resolve(part, answer) for part in value)
    return value


def _resolve_term(term: Term, places: Sequence[Subject]) -> object:
    if term.operator == LITERAL:
        return term.attributes["value"]
    if term.operator in (CONS, NIL):
        return _resolve_list(term, places)
    nodes = [node for place in places if (node := node_of(place)) is not None]
    if not nodes:
        raise InternalError(f"no node computes {term}")
    return min(nodes)


def _resolve_list(term: Term, places: Sequence[Subject]) -> list[object]:
    elements: list[object] = []
    while term.operator == CONS:
        heads = [place.children[0] for place in places]
        elements.append(_resolve_term(term.children[0], heads))
        places = [place.children[1] for place in places]
        term = term.children[1]
    return elements


def nodes_of(value: object) -> Iterator[fx.Node]:
    """The nodes inside a resolved value."""
    if isinstance(value, fx.Node):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from nodes_of(part)
