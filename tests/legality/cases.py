"""Random graphs in which the pattern of a rule is planted, and what the rule would make of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, TypeAlias, TypeVar

import torch
from torch import Tensor, fx

from pypm.core.patterns import Op, Pattern, Var
from pypm.core.rules import Rule
from pypm.fx.operators.targets import torch_operator
from tests.hunt.outcomes import kept_modes
from tests.legality.judge import Roots
from tests.legality.operators import BY_STRIDES, KINDS, OPERATORS, SIGNATURES

__all__ = ["RULES", "ByHand", "Case", "Planted", "applied", "case", "copied", "replaced"]

Term: TypeAlias = "str | tuple[Any, ...]"
"""A variable, or the name of an operator with its terms."""
_Value = TypeVar("_Value")


def computed(
    terms: Sequence[Term], values: Mapping[str, _Value], call: Callable[..., _Value]
) -> list[_Value]:
    """Return the values of terms; `call` computes each different one once, from an operator's name
    and its operands.
    """
    known: dict[Term, _Value] = dict(values)

    def value(term: Term) -> _Value:
        if term not in known:
            known[term] = call(term[0], *map(value, term[1:]))
        return known[term]

    return [value(term) for term in terms]


def variables(term: Term) -> set[str]:
    return {term} if isinstance(term, str) else set().union(*map(variables, term[1:]))


@dataclass(frozen=True)
class Planted:
    """A rule as data: its outputs, and what they become. The equation holds to the last bit."""

    roots: tuple[Term, ...]
    results: tuple[Term, ...]

    @property
    def redraws(self) -> bool:
        """Return whether the rule samples anew what its region samples."""
        return any("rand_like" in str(term) for term in self.roots)

    @property
    def unaliases(self) -> bool:
        """Return whether the rule puts a tensor in the place of its alias, another tensor."""
        return (self.roots, self.results) == ((("alias", "x"),), ("x",))

    @property
    def variables(self) -> tuple[str, ...]:
        return tuple(sorted(set().union(*map(variables, self.roots))))

    @property
    def rule(self) -> Rule:
        def body(*values: Tensor) -> Tensor | tuple[Tensor, ...]:
            given = dict(zip(self.variables, values, strict=True))
            results = computed(self.results, given, lambda name, *read: OPERATORS[name](*read))
            return results[0] if len(results) == 1 else tuple(results)

        roots = tuple(map(_pattern, self.roots))
        return Rule("planted", self.variables, roots, body, redraws=self.redraws)


def _pattern(term: Term) -> Pattern:
    if isinstance(term, str):
        return Var(term)
    target = OPERATORS[term[0]].target
    return Op(torch_operator(target), tuple(map(_pattern, term[1:])))


NEG_TWICE: Final = ("neg", ("neg", "x"))
TURNED_TWICE: Final = ("t", ("t", "x"))
SAMPLED: Final = ("maximum", "x", ("minimum", "x", ("rand_like", "x")))
"""It is `x`, whatever is sampled."""
RULES: Final = tuple(
    Planted(roots, results)
    for roots, *each in (
        ((NEG_TWICE,), ("x",), (("clone", "x"),), (("alias", "x"),), (("contiguous", "x"),)),
        ((NEG_TWICE,), (SAMPLED,)),
        ((SAMPLED,), (("clone", "x"),)),
        ((TURNED_TWICE,), ("x",), (("alias", "x"),), (("clone", "x"),), (("contiguous", "x"),)),
        ((("clone", "x"),), ("x",), (("contiguous", "x"),), (NEG_TWICE,)),
        ((("alias", "x"),), ("x",), (("clone", "x"),)),
        ((("contiguous", "x"),), ("x",), (("clone", "x"),)),
        ((("maximum", ("neg", "x"), ("neg", "y")),), (("neg", ("minimum", "x", "y")),)),
        ((("mm", ("neg", "x"), "y"),), (("mm", "x", ("neg", "y")),)),
        ((("abs", ("t", "x")),), (("t", ("abs", "x")),)),
        ((("t", ("abs", "x")),), (("abs", ("t", "x")),)),
        ((("maximum", "x", ("rand_like", "y")),), (("maximum", ("rand_like", "y"), "x"),)),
        ((("neg", "x"), ("abs", "x")), (("neg", "x"), ("maximum", "x", ("neg", "x")))),
        ((("abs", "x"), ("abs", ("neg", "x"))), (("abs", "x"), ("abs", "x"))),
        (
            (("maximum", "x", "y"), ("minimum", "x", "y")),
            (("maximum", "y", "x"), ("minimum", "y", "x")),
        ),
        (
            (("neg", "x"), ("t", ("neg", "x"))),
            (("t", ("neg", ("t", "x"))), ("neg", ("t", "x"))),
            (("neg", "x"), ("neg", ("t", "x"))),
        ),
    )
    for results in each
)


@dataclass
class Case:
    """A graph, and where a rule's pattern is in it."""

    planted: Planted
    module: fx.GraphModule
    operands: dict[str, str]
    """The nodes that the rule's variables stand for."""
    roots: list[str]
    region: list[str]
    """The planted nodes, roots included."""
    aliased: bool
    """True if inputs share memory; their metadata do not tell."""
    make: Callable[[float], list[Tensor]] = field(repr=False)


def case(seed: int) -> Case | None:
    """Return the case of a seed; None if a planted operator does not fit its operands."""
    with kept_modes():
        draw = Random(seed)
        return _Drawing(draw, has_items=seed % 3 == 0, by_strides=seed % 4 == 3).case()


class _Drawing:
    """Draws a graph node by node; each is run at once, so that only what runs is in it."""

    def __init__(self, draw: Random, *, has_items: bool, by_strides: bool) -> None:
        """`has_items`: items of a call with several results take the place of random clones;
        `by_strides`: operators of `BY_STRIDES` take the place of others.
        """
        self.draw = draw
        self.has_items = has_items
        self.by_strides = by_strides
        self.graph = fx.Graph()
        self.values: dict[fx.Node, Any] = {}
        self.entered: list[fx.Node] = []

    def case(self) -> Case | None:
        draw = self.draw
        planted = draw.choice(RULES)
        seed, count = draw.randrange(2**31), draw.randint(1, 3)
        aliased = count > 1 and draw.random() < 0.3

        def make(_: float) -> list[Tensor]:
            made = torch.randn(count, 2, 2, generator=torch.Generator().manual_seed(seed))
            return [made[0], made[0].t(), made[0]][:count] if aliased else [x.clone() for x in made]

        for number, value in enumerate(make(0.0)):
            self.values[self.graph.placeholder(f"x{number}")] = value
        steps = [*(["other"] * draw.randint(2, 9)), "planted"]
        draw.shuffle(steps)
        before = steps.index("planted")
        for _ in range(before):
            self.other()
        found = self.plant(planted)
        if found is None:
            return None
        operands, roots, region = found
        for _ in steps[before + 1 :]:
            self.other()
        while self.entered:
            self.add("exit", self.entered.pop())
        tensors = [node for node, value in self.values.items() if isinstance(value, Tensor)]
        outputs = draw.sample(tensors, draw.randint(1, min(3, len(tensors))))
        outputs += [root for root in roots if draw.random() < 0.5 and root not in outputs]
        self.graph.output(tuple(outputs))
        self.erase_unused()
        if not all(root.users for root in roots):
            return None
        module = fx.GraphModule(torch.nn.Module(), self.graph)
        names = {variable: node.name for variable, node in operands.items()}
        return Case(planted, module, names, [r.name for r in roots], region, aliased, make)

    def erase_unused(self) -> None:
        """Erase pure nodes that nothing reads, as every rewrite does."""
        for node in reversed(self.graph.nodes):
            is_pure = SIGNATURES.get(node.target) in {"f", "v0", "m0"}
            if is_pure and not node.users:
                self.graph.erase_node(node)

    def plant(self, planted: Planted) -> tuple[dict[str, fx.Node], list[fx.Node], list[str]] | None:
        """Add the nodes of a pattern, with others between them."""
        operands = {name: self.tensor() for name in planted.variables}
        region: list[str] = []

        def call(name: str, *read: fx.Node | None) -> fx.Node | None:
            if None in read:
                return None
            while region and self.draw.random() < 0.35:
                self.other()
            node = self.add(name, *read)
            region.append("" if node is None else node.name)
            return node

        roots = computed(planted.roots, operands, call)
        return None if "" in region else (operands, roots, region)

    def other(self) -> None:
        """Add a random node."""
        draw = self.draw
        weights = {"computes": 8, "views": 4, "writes": 3, "draws": 2, "acts": 1, "switches": 1}
        (kind,) = draw.choices([*weights], [*weights.values()])
        name = draw.choice(KINDS[kind])
        if kind == "switches" and draw.random() < 0.5:
            if self.entered:
                self.add("exit", self.entered.pop())
            elif (node := self.add("enter")) is not None:
                self.entered.append(node)
            return
        read = [self.tensor() for _ in range(OPERATORS[name].tensors)]
        if name == "clone" and self.has_items and (found := self.add("sort", *read)) is not None:
            name, read = "item", [found]
        self.add(BY_STRIDES.get(name, name) if self.by_strides else name, *read)

    def tensor(self) -> fx.Node:
        """Choose a node whose value is a tensor, most of the time a late one."""
        tensors = [node for node, value in self.values.items() if isinstance(value, Tensor)]
        return self.draw.choice(tensors[-4:] if self.draw.random() < 0.6 else tensors)

    def add(self, name: str, *read: fx.Node) -> fx.Node | None:
        """Add a call if it can be run."""
        operator = OPERATORS[name]
        try:
            value = operator(*(self.values[node] for node in read))
        except (RuntimeError, IndexError):
            return None
        node = operator.node(self.graph, *read)
        self.values[node] = value
        return node


@dataclass
class ByHand:
    """A rule applied without asking whether it may be."""

    module: fx.GraphModule
    roots: Roots
    escaping: frozenset[str]
    """Nodes of the region that are no views and that others read: the rule means them to go."""


def applied(case: Case) -> ByHand:
    """Return the graph with the rule applied; it may read a value before it is computed.

    The replacement stands before the first root, or before the last one where its operands are
    computed later. Nodes of the region that nothing reads any more are erased, whatever they do.
    """
    graph = copied(case.module.graph)
    named = {node.name: node for node in graph.nodes}
    roots = [named[name] for name in case.roots]
    operands = {variable: named[name] for variable, name in case.operands.items()}
    is_early = all(node < min(roots) for node in operands.values())

    def call(name: str, *read: fx.Node) -> fx.Node:
        return OPERATORS[name].node(graph, *read)

    with graph.inserting_before(min(roots) if is_early else max(roots)):
        results = computed(case.planted.results, operands, call)
    made = {node for node in graph.nodes if node.name not in named}
    for root, result in zip(roots, results, strict=True):
        root.replace_all_uses_with(result, lambda user: user not in made)
    for name in reversed(case.region):
        if not named[name].users:
            graph.erase_node(named[name])
    left = [named[name] for name in case.region if not named[name]._erased]
    return ByHand(
        fx.GraphModule(torch.nn.Module(), graph),
        {root.name: result.name for root, result in zip(roots, results, strict=True)},
        frozenset(node.name for node in left if SIGNATURES[node.target] not in {"v0", "m0"}),
    )


def replaced(case: Case) -> ByHand | None:
    """Return the graph with the rule applied; None if it would read what is computed later."""
    by_hand = applied(case)
    try:
        by_hand.module.graph.lint()
    except RuntimeError:
        return None
    return by_hand


def copied(graph: fx.Graph) -> fx.Graph:
    """Return a copy in which nodes have the same names."""
    copy, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in graph.nodes:
        copies[node] = copy.node_copy(node, copies.__getitem__)
    return copy
