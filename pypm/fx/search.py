"""Matching in a graph: the answers of a rule at a root, each judged; nothing is replaced here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Protocol, TypeAlias

from torch import fx

from pypm.core.guards import holds
from pypm.core.operators import CONS, LITERAL, NIL
from pypm.core.patterns import Pattern, Var, free_names
from pypm.core.rules import Rule
from pypm.core.terms import UNDEFINED, Term, Value, exact
from pypm.diagnostics import BudgetError, InternalError
from pypm.fx.confine import Confinement
from pypm.fx.dialect import Match
from pypm.fx.legality import Refusal, judge
from pypm.fx.view import View
from pypm.match.matcher import STEPS, Answer, Matcher, Subject, admits_all

__all__ = ["Candidate", "PatternLike", "Search", "Target", "as_rule", "nodes_of"]

ANSWERS: Final = 1000
"""Distinct answers looked at for one rule at one root."""


class PatternLike(Protocol):
    """A pattern of `pypm.lang`: its roots in the calculus, and the names a rule would get."""

    @property
    def core(self) -> tuple[Pattern, ...]: ...
    @property
    def parameters(self) -> Sequence[str]: ...


def as_rule(pattern: Pattern | PatternLike | Rule) -> Rule:
    """What is looked for, as a rule without a replacement."""
    if isinstance(pattern, Rule):
        return pattern
    core = getattr(pattern, "core", None)
    roots: tuple[Pattern, ...] = core if isinstance(core, tuple) else (pattern,)
    names = getattr(pattern, "parameters", None)
    if names is None:
        names = sorted(frozenset().union(*map(free_names, roots)))
    return Rule(getattr(pattern, "name", "pattern"), tuple(names), roots, Var("_"))


@dataclass(frozen=True)
class Target:
    """A rule and the matcher for its outputs, or for some of them where others are absent."""

    rule: Rule
    matcher: Matcher
    present: tuple[int, ...]
    """Which of the rule's outputs the matcher's roots are."""
    whole: Target | None = None
    """The target for all outputs, where this is one for some."""

    @classmethod
    def all_of(cls, rule: Rule) -> tuple[Target, ...]:
        """The targets of a rule in the order in which they are tried."""
        return _targets(_Itself(rule))

    def may_match(self, view: View, node: fx.Node, root: int = 0) -> bool:
        if not node.op.startswith("call_") or node in view.dead:
            return False
        heads = self.matcher.heads[root]
        return heads is None or view.occurrence(node).term.operator.name in heads

    def confined(self, view: View, root: fx.Node) -> Confinement | None:
        """Where a match with this root can go, if that is known."""
        if len(self.rule.roots) > 1 or self.matcher.visited.keeps:
            return None
        return Confinement(view, root, self.matcher.visited, self.rule.absorb)

    def outputs(self, roots: tuple[fx.Node, ...]) -> tuple[fx.Node | None, ...]:
        """The nodes of the rule's outputs, None for those that are absent."""
        nodes = dict(zip(self.present, roots, strict=True))
        return tuple(nodes.get(output) for output in range(len(self.rule.roots)))


class _Itself:
    """A rule as a key: equal to itself alone, for patterns are slow to compare."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.rule is self.rule

    def __hash__(self) -> int:
        return id(self.rule)


@lru_cache(maxsize=256)
def _targets(key: _Itself) -> tuple[Target, ...]:
    """Made once: a large pattern takes a tenth of a second."""
    rule = key.rule
    whole = Target(rule, Matcher(rule.roots), tuple(range(len(rule.roots))))
    targets = [whole]
    for roots in rule.partial:
        some = {index: root for index, root in enumerate(roots) if root is not None}
        targets.append(Target(rule, Matcher(tuple(some.values())), tuple(some), whole))
    return tuple(targets)


Candidate: TypeAlias = Match | Refusal


@dataclass
class Search:
    """Matching over one view: answers that have a rule's guard, and what legality says of them."""

    view: View
    budget: int = STEPS
    exact: bool = False

    def candidates(self, target: Target, node: fx.Node) -> Iterator[Candidate]:
        """The distinct answers at a root that pass the guard, in order: legal ones as matches.

        Of the answers that are left out as hopeless, the last thing said is why.
        """
        if target.whole is not None and self._has_whole(target.whole, node):
            return
        seen: set[object] = set()
        confined = target.confined(self.view, node)
        try:
            for answer, roots in self._answers(target, node, confined):
                key = _answer_key(answer)
                if key in seen or holds(target.rule.guard, _lookup(answer)) is not True:
                    continue
                if len(seen) == ANSWERS:
                    reason = f"the first {ANSWERS} answers at `{node}` are refused"
                    yield Refusal("budget", reason, (node,))
                    return
                seen.add(key)
                yield self._candidate(target, answer, roots)
        except BudgetError as error:
            yield Refusal("budget", error.diagnostic.message, (node,))
        if confined is not None and confined.refusal is not None:
            yield confined.refusal

    def _answers(
        self, target: Target, node: fx.Node, confined: Confinement | None
    ) -> Iterator[tuple[Answer, tuple[fx.Node, ...]]]:
        subject = self.view.occurrence(node)
        admits = confined.admits if confined is not None else admits_all
        for answer in target.matcher.answers(subject, budget=self.budget, admits=admits):
            yield from self._extend(target, answer, (node,))

    def _extend(
        self, target: Target, answer: Answer, roots: tuple[fx.Node, ...]
    ) -> Iterator[tuple[Answer, tuple[fx.Node, ...]]]:
        """Match the other roots of a rule anywhere in the graph, under the same substitution."""
        index = len(roots)
        if index == len(target.present):
            yield answer, roots
            return
        for node in reversed(self.view.graph.nodes):
            if node in roots or not target.may_match(self.view, node, index):
                continue
            subject = self.view.occurrence(node)
            for longer in target.matcher.answers(
                subject, root=index, given=answer, budget=self.budget
            ):
                yield from self._extend(target, longer, (*roots, node))

    def _has_whole(self, whole: Target, node: fx.Node) -> bool:
        """Whether a node is an output of a match that has all outputs."""
        return any(
            node in roots
            for first in self.view.graph.nodes
            if whole.may_match(self.view, first)
            for _, roots in self._answers(whole, first, None)
        )

    def _candidate(self, target: Target, answer: Answer, roots: tuple[fx.Node, ...]) -> Candidate:
        rule = target.rule
        bindings = {name: _resolve(answer.bindings[name], answer) for name in rule.parameters}
        variables = list(nodes_of(tuple(bindings.values())))
        verdict = judge(self.view, roots, answer.visits, variables, rule.absorb)
        if isinstance(verdict, Refusal):
            return verdict
        region = verdict.region
        return Match(
            rule.name,
            bindings,
            target.outputs(roots),
            region,
            region.inputs,
            region.side_inputs,
            self.exact,
        )


def _lookup(answer: Answer) -> Any:
    return lambda name: answer.bindings.get(name, UNDEFINED)


def _answer_key(answer: Answer) -> object:
    bound = tuple((name, exact(value)) for name, value in answer.bindings.items())
    places = tuple((id(term), _place(where)) for term, where in answer.places.items())
    return bound, places, tuple(_identity(visit.subject) for visit in answer.visits)


def _identity(subject: Subject) -> int:
    node = getattr(subject, "node", None)
    return id(subject.term if node is None else node)


def _place(places: Sequence[Subject]) -> int:
    nodes = [node for place in places if (node := getattr(place, "node", None)) is not None]
    return id(min(nodes)) if nodes else 0


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
    nodes = [node for place in places if (node := getattr(place, "node", None)) is not None]
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
