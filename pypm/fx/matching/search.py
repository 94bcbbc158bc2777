"""Matching in a graph: the answers of a rule at a root, each judged; nothing is replaced here."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from typing import Final, TypeAlias

from torch import fx

from pypm.core.operators import CONS, LITERAL, NIL
from pypm.core.records import Record, as_tuple, mapped
from pypm.core.rules import Rule
from pypm.core.terms import Term, Value, exact
from pypm.diagnostics import BudgetError, Diagnostic, InternalError, PyPMError
from pypm.fx.legality.judge import judge, judge_reading
from pypm.fx.legality.region import Refusal
from pypm.fx.matching.confinement import Confinement
from pypm.fx.matching.equal_nodes import equal_nodes
from pypm.fx.matching.match import Match, Reading
from pypm.fx.matching.rule_matcher import RuleMatcher
from pypm.fx.subject.view import Occurrence, View, node_of
from pypm.fx.values.symbolic import UnknownSize
from pypm.match.compile.extent import Extent
from pypm.match.matcher import STEPS, Answer, Budget, admits_all
from pypm.match.search_state import COMPOUND, UNREAD, Cell, Subject

__all__ = ["Allowance", "Candidate", "Known", "MatchSearch", "nodes_of"]

ANSWERS: Final = 1000
"""The largest number of distinct answers that are judged for one rule at one root."""


ROOTS: Final = 10
"""The number of searches in a run that may use their whole budget."""
FREE: Final = 10_000
"""Steps that every search may take, however many the others of its run have taken."""


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


class Found:
    """The candidates of one search, found when first asked for, and kept for other rules."""

    def __init__(self, candidates: Iterator[Candidate], steps: Budget) -> None:
        """`steps` are those that the search has left, at any time."""
        self._rest = candidates
        self._steps = steps
        self._known: list[tuple[Candidate | None, int]] = []

    def __iter__(self) -> Iterator[tuple[Candidate | None, int]]:
        """Yield each candidate, and None at the end, with the steps that were left then."""
        index = 0
        while True:
            if index == len(self._known):
                self._known.append((next(self._rest, None), self._steps.left))
            found = self._known[index]
            yield found
            if found[0] is None:
                return
            index += 1


Known: TypeAlias = dict[tuple[Hashable, int], Found]
"""Searches at one root in one state of the graph, by `RuleMatcher.sought` and the steps granted."""


@dataclass
class MatchSearch:
    """Matching over one view: the answers of rules, judged by legality."""

    view: View
    allowance: Allowance = field(default_factory=Allowance)
    confining: bool = True
    """True if branches are skipped in which legality would refuse every match."""

    def __post_init__(self) -> None:
        self._steps = Budget(self.allowance.grant())
        """The remaining steps of the present search, which all roots of a match share."""

    def candidates(
        self, target: RuleMatcher, node: fx.Node, known: Known | None = None
    ) -> Iterator[Candidate]:
        """Yield the distinct answers of a target at a root, in order: legal ones as matches.

        If branches were skipped because legality would refuse every match there, the refusal of the
        first one comes last. A search that exceeds its budget ends with a refusal.

        `known` holds the searches that were made at this root in the graph as it is. One that would
        only repeat one of them is not made; its steps count for each target.
        """
        granted = left = self.allowance.grant()
        key = target.sought, granted
        found = None if known is None else known.get(key)
        if found is None:
            steps = Budget(granted)
            found = Found(self._found(target, node, steps), steps)
            if known is not None:
                known[key] = found
        try:
            for candidate, remaining in found:
                left = remaining
                if candidate is not None:
                    yield self._of_rule(target.rule, candidate)
        finally:
            self.allowance.charge(granted - left)

    def _found(self, target: RuleMatcher, node: fx.Node, steps: Budget) -> Iterator[Candidate]:
        """Yield the candidates of a target at a root, without what its rule reads elsewhere."""
        seen: set[object] = set()
        confined = target.confined(self.view, node) if self.confining else None
        granted = steps.left
        self._steps = steps
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
                yield self._legal(target, answer, roots)
                self._steps = steps
        except BudgetError as error:
            reason = error.diagnostic.message
            if granted < self.allowance.root:
                reason += f", {granted} because of what the searches before it have taken"
            yield Refusal("budget", reason, (node,))
        if confined is not None and confined.refusal is not None:
            yield confined.refusal

    def answers(
        self, target: RuleMatcher, node: fx.Node, confined: Confinement | None = None
    ) -> Iterator[tuple[Answer, tuple[fx.Node, ...]]]:
        """Yield the answers of a target with its first root at a node, each with all its roots.

        Raises BudgetError if the steps of the search are used up.
        """
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
        """Return the nodes at which another root may match.

        These are the nodes that its pattern can reach from values that it shares with earlier
        roots, latest first; all nodes, if it shares none.
        """
        names = answer.cells.keys() & target.binds[index]
        places = [place for name in names for place in answer.cells[name].places[:1]]
        found = {node_of(place) for place in places if place.operator is not LITERAL}
        common = {node for node in found if node is not None}
        nodes = self._reached(common, target.extents[index]) if common else self.view.graph.nodes
        return sorted((n for n in nodes if target.may_match(self.view, n, index)), reverse=True)

    def _reached(self, nodes: set[fx.Node], extent: Extent) -> set[fx.Node]:
        """Return the nodes computed from `nodes` or equal ones by operators of the extent."""
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
        """Return whether a node is an output of a match that has all outputs."""
        near = self._reached({node, *node.all_input_nodes}, reduce(or_, whole.extents))
        near |= {source for one in near for source in one.all_input_nodes}
        return any(
            node in roots
            for first in near
            if whole.may_match(self.view, first)
            for _, roots in self.answers(whole, first)
        )

    def _of_rule(self, rule: Rule, candidate: Candidate) -> Candidate:
        """Return a candidate that was found for a rule that seeks the same as that of `rule`."""
        if isinstance(candidate, Refusal):
            return candidate
        if candidate.rule != rule.name:
            candidate = replace(candidate, rule=rule.name, bindings=dict(candidate.bindings))
        return self._read(candidate, rule.reads)

    def _legal(self, target: RuleMatcher, answer: Answer, roots: tuple[fx.Node, ...]) -> Candidate:
        rule = target.rule
        bindings = {name: _resolve_cell(answer.cells[name], answer) for name in rule.parameters}
        variables = list(nodes_of(tuple(bindings.values())))
        region = judge(self.view, roots, answer.visits, variables, rule)
        if isinstance(region, Refusal):
            return region
        return Match(
            rule.name,
            bindings,
            (*target.outputs(roots), *region.roots[len(roots) :]),
            region,
            region.inputs,
            region.side_inputs,
            memory=self.view.memory,
        )

    def _read(self, match: Candidate, reads: Callable[..., object] | None) -> Candidate:
        """Return a match with what its rule reads outside of it, or the refusal of legality."""
        if reads is None or isinstance(match, Refusal):
            return match
        try:
            reading = reads(match)
        except UnknownSize as unknown:
            return Refusal("symbolic", str(unknown), (match.root,))
        if not isinstance(reading, Reading):
            what = f"`reads` of rule `{match.rule}` returns a `pypm.fx.Reading`, not {reading!r}"
            raise PyPMError(Diagnostic(what))
        region = judge_reading(self.view, match.region, reading.nodes, reading.through)
        if isinstance(region, Refusal):
            return region
        inputs, sides = region.inputs, region.side_inputs
        return replace(match, region=region, inputs=inputs, side_inputs=sides, reading=reading)


def _answer_key(answer: Answer) -> Hashable:
    cells = [
        (name, cell.places if cell.value is UNREAD else _cell_key(cell))
        for name, cell in answer.cells.items()
    ]
    return tuple(cells), tuple([visit.subject for visit in answer.visits])


def _cell_key(cell: Cell) -> Hashable:
    if isinstance(cell.value, COMPOUND):
        return exact(cell.value), cell.places
    return cell.places or exact(cell.value)


def _resolve_cell(cell: Cell, answer: Answer) -> Value:
    """Return the argument of a body for a variable."""
    if cell.value is UNREAD:
        (place,) = cell.places
        return _resolve_place(place, answer)
    return _resolve(cell.value, answer)


def _resolve_place(place: Subject, answer: Answer, is_read: bool = False) -> Value:
    """Return the argument of a body for an occurrence.

    For a node whose term was not read that is the node, and no term is created.
    """
    node = None if is_read else node_of(place)
    if node is not None and place.operator is not LITERAL:
        return node
    return _resolve_term(place.term, answer.places.get(place.term, (place,)))


def _resolve(value: Value, answer: Answer) -> Value:
    """Return the argument of a body for a bound value, with nodes in place of tensors."""
    if isinstance(value, Occurrence):
        return _resolve_place(value, answer, value.is_made)
    if isinstance(value, Term):
        return _resolve_term(value, answer.places.get(value, ()))
    if isinstance(value, tuple):
        return tuple(_resolve(part, answer) for part in value)
    if isinstance(value, Record):
        return mapped(lambda part: _resolve(part, answer), value)
    return value


def _resolve_term(term: Term, places: Sequence[Subject]) -> Value:
    if term.operator == LITERAL:
        return term.attributes["value"]
    if term.operator in (CONS, NIL):
        return _resolve_list(term, places)
    nodes = [node for place in places if (node := node_of(place)) is not None]
    if not nodes:
        raise InternalError(f"no node computes {term}")
    return min(nodes)


def _resolve_list(term: Term, places: Sequence[Subject]) -> list[Value]:
    elements: list[object] = []
    while term.operator == CONS:
        heads = [place.children[0] for place in places]
        elements.append(_resolve_term(term.children[0], heads))
        places = [place.children[1] for place in places]
        term = term.children[1]
    return elements


def nodes_of(value: Value) -> Iterator[fx.Node]:
    """Yield the nodes inside a resolved value."""
    if isinstance(value, fx.Node):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from nodes_of(part)
    elif isinstance(value, Record):
        yield from nodes_of(as_tuple(value))
