"""Random rules for a graph: patterns read off one of its nodes, then changed a little."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import fx

from pypm import decline
from pypm.core.guards import (
    FUNCTIONS,
    TRUE,
    And,
    Apply,
    Attribute,
    Constant,
    Equal,
    Guard,
    Holds,
    Less,
    Not,
    Or,
)
from pypm.core.inference import infer
from pypm.core.operators import Operator
from pypm.core.patterns import (
    Alt,
    Call,
    Constrained,
    Definition,
    Exists,
    Fun,
    Guarded,
    Let,
    Mu,
    Op,
    Pattern,
    Var,
)
from pypm.core.rules import Rule
from pypm.core.terms import Value, argument_name
from pypm.core.traverse import free_names
from pypm.core.wellformed import bound_after_all
from pypm.fx import LITERAL
from pypm.fx.subject.view import Occurrence, View

OTHERS: Final = tuple(Operator(f"aten.{name}") for name in ("sin", "mul", "add", "div", "mm"))
NAMES: Final = ("x", "y", "z")


class RandomRules:
    """Draws rules that match in one graph, or nearly do."""

    def __init__(self, graph: fx.Graph, seed: int) -> None:
        self.draw = random.Random(seed)
        self.view = View(graph)
        self.calls = [node for node in graph.nodes if node.op.startswith("call_")]
        self._fresh = 0

    def rule(self) -> Rule:
        """A rule; most of the time one that matches somewhere or fails in one thing."""
        count = 2 if self.chance(0.15) else 1
        chosen = self.draw.choices(self.calls, k=count)
        roots = tuple(self.root(node) for node in chosen)
        bound = sorted(bound_after_all(roots) & {*NAMES})
        guard = self.guard(bound[0]) if bound and self.chance(0.4) else TRUE
        partial = ()
        if count == 2 and self.chance(0.5):
            is_enough = set(bound) <= bound_after_all(roots[:1])
            partial = ((roots[0], None),) if is_enough else ()
        absorb = "pointwise" if self.chance(0.1) else None
        return Rule("drawn", tuple(bound), roots, self.body(), guard, absorb, partial=partial)

    def chance(self, share: float) -> bool:
        return self.draw.random() < share

    def fresh(self, name: str) -> str:
        self._fresh += 1
        return f"{name}#{self._fresh}"

    def body(self) -> Callable[..., Any]:
        kind = self.draw.random()
        if kind < 0.2:
            return lambda *values, match: decline("too small to pay")
        if kind < 0.3:
            return lambda *values, match: torch.zeros(7)
        if kind < 0.35:
            return lambda *values, match: match.nothing
        return lambda *values, match: match.region.module(*match.inputs)

    # --- patterns ---

    def root(self, node: fx.Node) -> Pattern:
        pattern = self.pattern(self.view.occurrence(node), self.draw.randint(1, 4))
        while isinstance(pattern, Var):
            pattern = self.pattern(self.view.occurrence(node), 4)
        return infer(pattern)

    def pattern(self, subject: Occurrence, depth: int) -> Pattern:
        """A pattern that matches a subject, unless it was changed on the way."""
        if subject.operator == LITERAL:
            return self.literal(subject.attribute("value"))
        if depth == 0 or not subject.children or self.chance(0.1):
            return Var(self.draw.choice(NAMES)) if self.chance(0.8) else self.anything()
        kind = self.draw.random()
        if kind < 0.1:
            wrong = Op(self.draw.choice(OTHERS), (Var("x"), Var("y"))[: len(subject.children)])
            return self.either(self.called(subject, depth), wrong)
        if kind < 0.15:
            return self.recursive(subject, depth)
        return self.called(subject, depth)

    def either(self, one: Pattern, other: Pattern) -> Pattern:
        return Alt(one, other) if self.chance(0.5) else Alt(other, one)

    def anything(self) -> Pattern:
        name = self.fresh("_")
        return Exists(name, Var(name))

    def literal(self, value: Value) -> Pattern:
        name = self.fresh("literal")
        value = self.changed(value)
        test = Guarded(Var(name), Equal(Attribute(name, "value"), Constant(value)))
        return Exists(name, Constrained(test, Op(LITERAL, ()), name))

    def changed(self, value: Value) -> Value:
        if self.chance(0.9):
            return value
        return value + 1 if isinstance(value, (int, float)) else "other"

    def called(self, subject: Occurrence, depth: int) -> Pattern:
        """A call as the pattern language has it: exists n. n; guards on n; (f(p, ...) <= n)."""
        operator = subject.operator
        if self.chance(0.05):
            operator = self.draw.choice(OTHERS)
        children = [self.pattern(child, depth - 1) for child in subject.children]
        if self.chance(0.03):
            children.pop()
        name = self.fresh("node")
        tests: Pattern = Var(name)
        bound: list[str] = []
        attributes = subject.term.attributes
        for attribute in sorted(a for a in attributes if not a.startswith("@")):
            if self.chance(0.7):
                asked = Attribute(name, argument_name(attribute))
                if self.chance(0.15):
                    bound.append(self.fresh("d"))
                    tests = Let(tests, bound[-1], asked)
                else:
                    wanted = Constant(self.changed(attributes[attribute]))
                    tests = Guarded(tests, Equal(asked, wanted))
        applied: Pattern = Op(operator, tuple(children), keep=self.chance(0.2))
        if self.chance(0.1):
            function = self.fresh("f")
            applied = Exists(function, Fun(function, tuple(children)))
            tag = Apply(FUNCTIONS["in"], (Constant("pointwise"), Attribute(name, "tags")))
            tests, bound = Guarded(Var(name), Holds(tag)), []
        if self.chance(0.15):
            tests = Guarded(tests, self.guard(name))
        result: Pattern = Constrained(tests, applied, name)
        for local in bound:
            result = Exists(local, result)
        return Exists(name, result)

    def recursive(self, subject: Occurrence, depth: int) -> Pattern:
        """`P(x) = f(P(x), _) | p`: p below any number of operators of the subject's kind."""
        inner = self.called(subject, depth)
        names = tuple(sorted(free_names(inner)))
        arity = len(subject.children)
        rest = [self.anything() for _ in range(arity - 1)]
        again = Op(subject.operator, (Call(0, names), *rest))
        none: frozenset[str] = frozenset()
        body = self.either(again, inner)
        return Mu(Definition("P", names, none, none, none, body), names)

    def guard(self, name: str) -> Guard:
        """A guard of which what it asks for may be true, false or unknown."""
        tests: list[Guard] = [
            Equal(Attribute(name, "rank"), Constant(self.draw.choice([2, 4, 4, 4]))),
            Equal(Attribute(name, "dtype"), Constant(torch.float64)),
            Less(Attribute(name, "numel"), Constant(self.draw.choice([5, 1000]))),
            Holds(Attribute(name, "is_contiguous")),
            Equal(Attribute(name, "value"), Constant(2)),
        ]
        one, other = self.draw.choice(tests), self.draw.choice(tests)
        forms = [one, one, one, And(one, other), Or(one, other), Not(one)]
        return self.draw.choice(forms)
