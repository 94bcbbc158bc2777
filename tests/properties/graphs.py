"""Random graphs in which equal nodes occur more than once, and rules of several roots for them.

The search in a graph (`pypm.fx.matching.search`) is held to the reference machine at every tuple
of nodes: the same distinct answers with the same visits, in the same order.
"""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from random import Random
from typing import Any, Final

import torch
from torch import fx

from pypm.core.operators import CONS, NIL, Operator
from pypm.core.patterns import Pattern, Var
from pypm.core.printing import print_pattern
from pypm.core.rules import Rule
from pypm.core.terms import Term
from pypm.core.traverse import free_names
from pypm.diagnostics import BudgetError
from pypm.fx.matching.program import RuleProgram, computed
from pypm.fx.matching.search import MatchSearch
from pypm.fx.subject.view import View
from pypm.match.matcher import Answer
from tests.match.test_matcher import Found, distinct, found, reference
from tests.properties.generate import Maker

aten: Final = torch.ops.aten
SPELLINGS: Final[dict[int, list[list[Any]]]] = {
    0: [[aten.arange.default], [aten.zeros.default]],
    1: [
        [aten.relu.default, torch.relu, "relu"],
        [aten.exp.default, torch.exp],
        [aten.neg.default, operator.neg],
        [aten.sin.default],
    ],
    2: [[aten.maximum.default], [aten.sub.Tensor, operator.sub], [aten.cat.default]],
}
SCALED: Final = [aten.mul.Tensor, torch.mul, operator.mul]
"""Operators by the number of tensors they take, each in all spellings that are one term."""
OPERATORS: Final = {
    0: [NIL, Operator("aten.arange")],
    1: [Operator("aten.relu"), Operator("aten.exp")],
    2: [Operator("aten.maximum"), Operator("aten.sub"), CONS],
    3: [Operator("aten.where")],
}
STEPS: Final = 400
"""Steps of the reference machine at one tuple of nodes after which a case is left alone."""


@dataclass(frozen=True)
class Site:
    """A rule's roots for one graph."""

    graph: fx.Graph
    patterns: tuple[Pattern, ...]

    def __str__(self) -> str:
        return "\n".join([*map(print_pattern, self.patterns), str(self.graph)])


class GraphMaker:
    """Draws a graph node by node; many compute what another does already."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.graph = fx.Graph()
        self.equal: dict[fx.Node, list[fx.Node]] = {}
        """The nodes that compute the same, for each of them."""
        self.numbers: list[list[Any]] = []
        """Numbers, each with the nodes that stand for it."""
        self.made: dict[fx.Node, tuple[list[Any], tuple[Any, ...]]] = {}
        """For calls, the operator's spellings and the arguments."""

    def draw(self, size: int) -> fx.Graph:
        for name in "xy":
            self._put(self.graph.placeholder(name))
        for number in (1.0, 2.0):
            node = self.graph.call_function(aten.full.default, ([], number))
            self.numbers.append([number, node])
        for _ in range(size):
            again = self.made and self.random.random() < 0.4
            self._again() if again else self._new()
        unused = [node for node in self.made if not node.users]
        self.graph.output(tuple(unused))
        return self.graph

    def _put(self, node: fx.Node, equal: list[fx.Node] | None = None) -> None:
        self.equal[node] = [] if equal is None else equal
        self.equal[node].append(node)

    def _new(self) -> None:
        arity = self.random.choices((0, 1, 2), (1, 6, 5))[0]
        spellings = self.random.choice(SPELLINGS[arity])
        recent = list(self.equal)[-6:]
        arguments: list[Any] = [self.random.choice(recent) for _ in range(arity)]
        if arguments and self.random.random() < 0.3:
            spellings, arguments[1:] = SCALED, [self.random.choice(self.numbers)[0]]
            self.random.shuffle(arguments)
        self._call(spellings, tuple(arguments), None)

    def _again(self) -> None:
        node = self.random.choice(list(self.made))
        spellings, arguments = self.made[node]
        same = tuple(self.random.choice(self._equal(argument)) for argument in arguments)
        self._call(spellings, same, self.equal[node])

    def _equal(self, argument: Any) -> list[Any]:
        known = [number for number in self.numbers if argument in number]
        return known[0] if known else self.equal[argument]

    def _call(
        self, spellings: list[Any], arguments: tuple[Any, ...], equal: list[fx.Node] | None
    ) -> None:
        target = self.random.choice(spellings)
        actual: tuple[Any, ...] = arguments or ((4,) if target is aten.arange.default else ([4],))
        if target is aten.cat.default:
            actual = (list(arguments),)
        make: Callable[..., fx.Node] = self.graph.call_function
        node = self.graph.call_method("relu", actual) if target == "relu" else make(target, actual)
        self.made[node] = spellings, arguments
        self._put(node, equal)


def site(seed: str) -> Site:
    """A graph, and patterns made along some of its nodes."""
    random = Random(seed)
    graph = GraphMaker(random).draw(random.randint(3, 9))
    view = View(graph)
    calls = [node for node in graph.nodes if node.op.startswith("call_")]
    count = min(len(calls), random.choices((1, 2, 3), (1, 8, 2))[0])
    terms = [view.occurrence(node).term for node in random.sample(calls, count)]
    return Site(graph, Maker(random, OPERATORS).roots(terms, random.randint(2, 4)))


@dataclass
class Compared:
    """How the search did on some sites."""

    shares: Counter[str] = field(default_factory=Counter)
    problem: str = ""

    def add(self, other: Compared) -> None:
        self.shares += other.shares
        self.problem = self.problem or other.problem

    def __str__(self) -> str:
        return ", ".join(f"{count:,} {name}" for name, count in self.shares.items())


def compare(case: Site) -> Compared:
    """Put one site to the search and to the reference machine."""
    compared = Compared(Counter(sites=1))
    if len(computed(case.patterns)) < len(case.patterns):
        compared.shares["an input as output"] += 1  # one that a rule does not search for
        return compared
    names = tuple(sorted(frozenset().union(*map(free_names, case.patterns))))
    program = RuleProgram([Rule("drawn", names, case.patterns, Var("_"))])
    view = View(case.graph, program.reader)
    calls = [n for n in case.graph.nodes if n.op.startswith("call_") and n not in view.dead]
    try:
        expected = dict(_expected(view, calls, case.patterns))
        actual = _actual(program, MatchSearch(view), calls)
    except BudgetError:
        compared.shares["unfinished"] += 1
        return compared
    compared.shares["tuples"] += len(expected)
    compared.shares["matching"] += any(expected.values())
    compared.shares["several roots"] += len(case.patterns) > 1
    compared.shares["equal nodes"] += len({view.occurrence(n).term for n in calls}) < len(calls)
    for nodes, answers in expected.items():
        theirs = distinct(found(iter(actual[nodes])))
        if theirs != distinct(answers):
            compared.problem = f"at {nodes}: {theirs}, not {distinct(answers)}\n{case}"
            break
    return compared


def _expected(
    view: View, calls: Sequence[fx.Node], patterns: Sequence[Pattern]
) -> Iterator[tuple[tuple[fx.Node, ...], list[Found]]]:
    known: dict[tuple[Term, ...], list[Found]] = {}
    for nodes in permutations(calls, len(patterns)):
        terms = tuple(view.occurrence(node).term for node in nodes)
        if terms not in known:
            known[terms] = list(reference(patterns, terms, STEPS))
        yield nodes, known[terms]


def _actual(
    program: RuleProgram, search: MatchSearch, calls: Sequence[fx.Node]
) -> dict[tuple[fx.Node, ...], list[Answer]]:
    answers: dict[tuple[fx.Node, ...], list[Answer]] = defaultdict(list)
    for node in calls:
        for target in program.at(search.view, node):
            for answer, roots in search.answers(target, node):
                answers[roots].append(answer)
    return answers
