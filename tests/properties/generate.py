"""Random pairs of a pattern and a term in bulk, most of them made so that they match.

The forms are those of `tests.core.strategies`; here they are drawn from a seeded `Random`, which
is a hundred times as fast. A pattern is made along a term, together with values that its names
could have, so that a large share of the pairs matches, some with several answers; names shadow one
another, recursive patterns nest and call outer ones, and guards read what is undefined.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, TypeAlias

from pypm.core.guards import (
    FUNCTIONS,
    TRUE,
    And,
    Apply,
    Attribute,
    Constant,
    Equal,
    Expression,
    Function,
    Guard,
    Holds,
    Less,
    Not,
    Or,
    Reference,
    Tuple,
    less,
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
from pypm.core.record_expressions import made, selected
from pypm.core.records import Record
from pypm.core.terms import UNDEFINED, Term, Terms, Value

OPERATORS: Final = {
    arity: [Operator(name) for name in names]
    for arity, names in enumerate([("a", "b", "c"), ("g", "h"), ("f", "k"), ("t",)])
}
NAMES: Final = ("x", "y", "z", "u")
OPERATOR_NAMES: Final = ("F", "G")
FLOATS: Final = (1.0, 0.5, -0.0, 1e-05, math.inf, math.nan)
CONSTANTS: Final = (*(0, 1, 2, 3, -1, True, False, "s", None, (), (0, 1), (1,)), *FLOATS)
FORMS: Final = (
    "var",
    *["op"] * 4,
    "fun",
    *["alt"] * 2,
    "exists",
    "guarded",
    "let",
    "constrained",
    *["mu"] * 2,
)
FIELDS: Final = ("v", "w")
UNARY: Final = ("neg", "abs", "len", "product", "is_none")
BINARY: Final = (
    *("add", "sub", "mul", "floordiv", "mod", "in", "item", "min", "max", "is_value"),
    *("add", "in", "item"),
)


STRANGE: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(("add", "sub", "floordiv", "neg", "abs", "is_value"), (float,)),
    **dict.fromkeys(("mul", "mod", "pow"), (str, float)),
    **dict.fromkeys(("item", "slice"), (str,)),
    "product": (str, float, tuple),
    **dict.fromkeys(("min", "max"), (Term, Operator, Record)),
}
"""What the oracle's functions are not defined on: it compares fractions, but does not round; the
rest are accidents of Python (arithmetic and indexing of strings, the least of some terms).
"""


def _plain(name: str) -> Function:
    """A function where the oracle has it too."""

    def apply(*arguments: Value) -> Value:
        if any(isinstance(part, STRANGE[name]) for part in _parts(arguments, name)):
            return UNDEFINED
        if name in ("min", "max"):
            if isinstance(arguments[0], str) and len(arguments) == 1:
                return UNDEFINED
            compared = arguments if len(arguments) > 1 else arguments[0]
            if len(compared) > 1 and any(less(part, part) is None for part in compared):  # type: ignore[attr-defined,arg-type]
                return UNDEFINED
        found = FUNCTIONS[name].apply(*arguments)
        return UNDEFINED if float in STRANGE[name] and isinstance(found, float) else found

    return Function(name, apply)


def _parts(arguments: tuple[Value, ...], name: str) -> Iterator[Value]:
    for value in arguments[name == "is_value" :]:
        if name == "product":
            yield from value  # type: ignore[misc]
        elif name in ("min", "max") and isinstance(value, tuple):
            yield from _parts(value, name)
        else:
            yield value


DOMAIN: Final = {
    name: _plain(name) if name in STRANGE else function for name, function in FUNCTIONS.items()
}
"""The functions of guards, at the oracle's constants."""

Scope: TypeAlias = dict[str, Value]
"""Values that names could have where a pattern is made."""


@dataclass(frozen=True)
class Case:
    """Patterns, one a root, and the terms they are matched with."""

    patterns: tuple[Pattern, ...]
    terms: tuple[Term, ...]


def cases(seed: int | str, count: int) -> list[Case]:
    """So many cases, the same ones for the same seed."""
    maker = Maker(Random(seed))
    return [maker.case() for _ in range(count)]


class Maker:
    """Draws terms and patterns; `operators` are those of patterns made for no term, by arity."""

    def __init__(
        self, random: Random, operators: Mapping[int, Sequence[Operator]] = OPERATORS
    ) -> None:
        self.random = random
        self.operators = operators
        self.terms = Terms()
        self.names: Sequence[str] = NAMES
        self.wild = False

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def case(self) -> Case:
        self.wild = self.chance(0.05)
        models = [self.term(4) for _ in range(2 if self.chance(0.1) else 1)]
        patterns = self.roots(models)
        return Case(patterns, tuple(self.term(3) if self.chance(0.04) else t for t in models))

    def roots(self, terms: Sequence[Term], fuel: int = 4) -> tuple[Pattern, ...]:
        """A pattern for each term, under one substitution."""
        scope: Scope = {}
        patterns = []
        for term in terms:
            pattern = self.pattern(None if self.chance(0.05) else term, scope, (), fuel)
            patterns.append(pattern if self.chance(0.1) else infer(pattern))
        return tuple(patterns)

    # --- terms ---

    def term(self, fuel: int) -> Term:
        arity = self.random.choices((0, 1, 2, 3), (3, 4, 4, 1))[0] if fuel else 0
        operator = self.random.choice(self.operators[arity])
        children = [self.term(fuel - 1) for _ in range(arity)]
        if arity > 1 and self.chance(0.3):
            children[1] = children[0]
        attributes = {"v": self.random.choice(CONSTANTS)} if self.chance(0.3) else {}
        return self.terms.make(operator, children, attributes)

    # --- patterns ---

    def pattern(
        self, term: Term | None, scope: Scope, arities: tuple[int, ...], fuel: int
    ) -> Pattern:
        """A pattern for a term (None: for any), where names have these values; extends them."""
        choice = self.random.choice
        form = choice(FORMS) if fuel > 0 else "var"
        if arities and self.chance(0.12):
            form = "call"
        match form:
            case "var":
                return Var(self.bind(term, scope))
            case "op" | "fun":
                return self.application(form, term, scope, arities, fuel)
            case "alt":
                return self.alternates(term, scope, arities, fuel)
            case "exists":
                return self.exists(term, scope, arities, fuel)
            case "guarded":
                body = self.pattern(term, scope, arities, fuel - 1)
                likely = not self.chance(0.25)
                return Guarded(body, self.likely(scope) if likely else self.guard(scope, 2))
            case "let":
                body = self.pattern(term, scope, arities, fuel - 1)
                if self.chance(0.3):
                    other = self.read(scope)
                    return Let(body, self.bind(scope.get(other), scope), Reference(other))
                expression = self.expression(scope, 1)
                return Let(body, self.bind(None, scope), expression)
            case "constrained":
                body = self.pattern(term, scope, arities, fuel - 1)
                name = self.read(scope)
                value = scope.get(name)
                inner = value if isinstance(value, Term) else None
                return Constrained(body, self.pattern(inner, scope, arities, fuel - 2), name)
            case "call":
                index = self.random.randrange(len(arities))
                if self.wild and self.chance(0.1):
                    return Call(len(arities), ())
                return Call(index, self.actuals(arities[index]))
            case _:
                return self.mu(term, scope, arities, fuel)

    def bind(self, value: Value | None, scope: Scope, names: Sequence[str] = ()) -> str:
        """A name: mostly a fresh one, or one that has the value."""
        names = names or self.names
        fresh = [name for name in names if name not in scope]
        same = [name for name in names if value is not None and scope.get(name) == value]
        if same and (not fresh or self.chance(0.6)) and not self.chance(0.05):
            return self.random.choice(same)
        name = self.random.choice(fresh if fresh and not self.chance(0.1) else names)
        scope.setdefault(name, value)
        return name

    def read(self, scope: Scope) -> str:
        """Mostly a name that is bound."""
        known = [name for name in scope if name in self.names]
        return self.random.choice(known if known and not self.chance(0.05) else self.names)

    def application(
        self, form: str, term: Term | None, scope: Scope, arities: tuple[int, ...], fuel: int
    ) -> Pattern:
        arity = len(term.children) if term is not None else self.random.randrange(3)
        children: Sequence[Term | None] = term.children if term is not None else [None] * arity
        operator = term.operator if term is not None else self.random.choice(self.operators[arity])
        if self.wild and self.chance(0.2):
            operator, children = self.random.choice(self.operators[1]), children[1:]
        keep = self.chance(0.1)
        if form == "op":
            parts = [self.pattern(child, scope, arities, fuel - 1) for child in children]
            return Op(operator, tuple(parts), keep)
        names = (*OPERATOR_NAMES, *self.names) if self.chance(0.1) else OPERATOR_NAMES
        inside = self.names if self.names is not NAMES else names
        name = self.bind(operator, scope, inside)
        parts = [self.pattern(child, scope, arities, fuel - 1) for child in children]
        return Fun(name, tuple(parts), keep)

    def alternates(
        self, term: Term | None, scope: Scope, arities: tuple[int, ...], fuel: int
    ) -> Pattern:
        other = term if self.chance(0.6) else None
        after, beside = dict(scope), dict(scope)
        sides = [
            self.pattern(term, after, arities, fuel - 1),
            self.pattern(other, beside, arities, fuel - 1),
        ]
        scope |= {name: value for name, value in after.items() if name in beside}
        self.random.shuffle(sides)
        return Alt(sides[0], sides[1])

    def exists(
        self, term: Term | None, scope: Scope, arities: tuple[int, ...], fuel: int
    ) -> Pattern:
        name = self.random.choice((*self.names, "F"))
        inner = {n: value for n, value in scope.items() if n != name}
        match self.random.randrange(8):
            case 0:
                body = self.pattern(term, inner, arities, fuel - 1)
            case 1:
                body = Var(name)
            case 2 | 3 if term is not None:
                inner[name] = term.operator
                parts = [self.pattern(t, inner, arities, fuel - 1) for t in term.children]
                body = Fun(name, tuple(parts))
            case 4:
                inner[name] = term
                rest = self.pattern(term, inner, arities, fuel - 1)
                test = self.likely(inner)
                body = Constrained(Guarded(Var(name), test), rest, name)
            case _:
                inner[name] = term
                body = Constrained(Var(name), self.pattern(term, inner, arities, fuel - 1), name)
        scope |= {n: value for n, value in inner.items() if n != name}
        return Exists(name, body)

    def actuals(self, arity: int, names: Sequence[str] = ()) -> tuple[str, ...]:
        if self.wild and self.chance(0.1):
            arity = self.random.randrange(3)
        return tuple(self.random.choices(names or self.names, k=arity))

    def mu(self, term: Term | None, scope: Scope, arities: tuple[int, ...], fuel: int) -> Pattern:
        """Mostly a step under an operator down to a child, and a base case for that child."""
        arity = self.random.choices((0, 1, 2, 3), (1, 4, 4, 1))[0]
        names = ("x", "y", "z", "w", "F")
        parameters = tuple(self.random.sample(names, arity))
        if self.wild and arity > 1 and self.chance(0.2):
            parameters = (parameters[0],) * arity
        actuals = self.actuals(arity, (*self.names, "F"))
        inner = {
            parameter: scope[actual]
            for parameter, actual in zip(parameters, actuals, strict=False)
            if actual in scope
        }
        outside, self.names = self.names, parameters or ("x",)
        body = self.recursive(term, inner, (arity, *arities), fuel)
        self.names = outside
        for parameter, actual in zip(parameters, actuals, strict=False):
            if parameter in inner:
                scope.setdefault(actual, inner[parameter])
        lists = [
            frozenset(parameter for parameter in parameters if self.chance(0.4)) for _ in range(3)
        ]
        name = self.random.choice("PQ")
        return Mu(Definition(name, parameters, lists[0], lists[1], lists[2], body), actuals)

    def recursive(
        self, term: Term | None, scope: Scope, arities: tuple[int, ...], fuel: int
    ) -> Pattern:
        arity = arities[0]
        if self.chance(0.15) or term is None or not term.children:
            return self.pattern(term, scope, arities, fuel - 1)
        at = self.random.randrange(len(term.children))
        child = term.children[at]
        # Mostly the parameters as they are, so that every level binds the same.
        passed = self.names[:arity] if self.chance(0.8) else self.actuals(arity)
        steps: list[Pattern] = []
        known = dict(scope)
        for index, beside in enumerate(term.children):
            if index == at:
                steps.append(Call(self.call(arities), tuple(passed)))
            elif self.chance(0.7):
                steps.append(Exists("u", Var("u")))
            else:
                steps.append(self.pattern(beside, known, arities, 1))
        end = self.pattern(child if self.chance(0.8) else term, scope, arities, fuel - 2)
        head = self.random.randrange(4)
        step: Pattern = Op(term.operator, tuple(steps))
        if head == 0:
            step = Exists("G", Fun("G", tuple(steps)))
        elif head == 1:
            step = Fun(self.bind(term.operator, scope), tuple(steps))
        elif head == 2 and self.chance(0.5):
            inside = Constrained(Var("u"), Op(term.operator, tuple(steps)), "u")
            step = Exists("u", inside)
        sides = [step, end]
        if self.chance(0.3):
            self.random.shuffle(sides)
        return Alt(sides[0], sides[1])

    def call(self, arities: tuple[int, ...]) -> int:
        same = [i for i, arity in enumerate(arities) if arity == arities[0]]
        return self.random.choice(same) if self.chance(0.2) else 0

    # --- guards and expressions ---

    def likely(self, scope: Scope) -> Guard:
        """A guard that mostly holds where names have these values."""
        name = self.read(scope)
        value = scope.get(name)
        facts: list[Guard] = [Equal(Reference(name), Reference(name))]
        if isinstance(value, Term) and value.attributes:
            said = self.random.choice(sorted(value.attributes))
            attribute, known = Attribute(name, said), Constant(value.attributes[said])
            facts += [Equal(attribute, known), Not(Equal(attribute, Constant(7)))]
            facts += [Holds(Apply(DOMAIN["in"], (attribute, Tuple((Constant(7), known)))))]
        if isinstance(value, Operator):
            facts += [Equal(Attribute(name, "name"), Constant(value.name))]
        fact = self.random.choice(facts)
        match self.random.randrange(6):
            case 0:
                return Or(self.guard(scope, 1), fact)
            case 1:
                return Or(fact, self.guard(scope, 1))
            case 2:
                return And(fact, self.random.choice(facts))
            case 3:
                return Not(Not(fact))
            case _:
                return fact

    def guard(self, scope: Scope, depth: int) -> Guard:
        match self.random.randrange(9 if depth else 5):
            case 0:
                return TRUE
            case 1 | 2:
                return Equal(self.expression(scope, 1), self.expression(scope, 1))
            case 3:
                return Less(self.expression(scope, 1), self.expression(scope, 1))
            case 4:
                return Holds(self.expression(scope, 1))
            case 5:
                return And(self.guard(scope, depth - 1), self.guard(scope, depth - 1))
            case 6:
                return Or(self.guard(scope, depth - 1), self.guard(scope, depth - 1))
            case _:
                return Not(self.guard(scope, depth - 1))

    def expression(self, scope: Scope, depth: int) -> Expression:
        name = self.read(scope)
        match self.random.randrange(11 if depth else 5):
            case 0:
                return Constant(self.random.choice(CONSTANTS))
            case 1 | 2:
                return Reference(name)
            case 3 | 4:
                attribute = (
                    "name" if name in OPERATOR_NAMES else self.random.choice(("v", "v", "w"))
                )
                return Attribute(name, attribute)
            case 5:
                size = self.random.randrange(3)
                return Tuple(tuple(self.expression(scope, depth - 1) for _ in range(size)))
            case 6:
                function = DOMAIN[self.random.choice(UNARY)]
                return Apply(function, (self.expression(scope, depth - 1),))
            case 9:
                fields = self.random.sample(FIELDS, self.random.choice((1, 1, 2)))
                return made({field: self.expression(scope, depth - 1) for field in fields})
            case 10:
                inner = made({"v": self.expression(scope, 0), "w": self.expression(scope, 0)})
                value = inner if self.chance(0.5) else self.expression(scope, 0)
                return selected(value, self.random.choice(FIELDS))
            case 7 if self.chance(0.2):
                parts = [self.expression(scope, depth - 1) for _ in range(3)]
                return Apply(DOMAIN["slice"], tuple(parts))
            case _:
                parts = [self.expression(scope, depth - 1) for _ in range(2)]
                return Apply(DOMAIN[self.random.choice(BINARY)], tuple(parts))
