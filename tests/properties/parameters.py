"""Random programs of patterns that take patterns, and what they mean, interpreted directly.

A program is kept as data, as in `Instantiation.v`: definitions with parameters for patterns and for
values, whose calls give both. `answers` follows that meaning: nothing is instantiated, and patterns
are passed as values. The same program as source goes through elaboration to the engines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final, TypeAlias

import pypm
from pypm.core import machine
from pypm.core.operators import Operator
from pypm.core.records import Record, as_tuple
from pypm.core.terms import Term, Terms, Value, same
from pypm.diagnostics import PatternError
from pypm.lang.pattern_function import PatternFunction
from pypm.match.lint.term_subjects import Trees
from pypm.match.matcher import Matcher
from tests.golden_files import readable
from tests.properties.oracle import shown_value

VALUES: Final = ("x", "y")
OPERATORS: Final = {
    0: (pypm.operator("a", []), pypm.operator("b", [])),
    1: (pypm.operator("g", ["p"]), pypm.operator("h", ["p"])),
    2: (pypm.operator("f", ["p", "q"]),),
}


# --- programs -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Param:
    """The pattern that a parameter stands for."""

    number: int


@dataclass(frozen=True)
class Given:
    """A definition that is given patterns."""

    number: int
    patterns: tuple[Named, ...]


Named: TypeAlias = Param | Given


@dataclass(frozen=True)
class Instance:
    """A definition with what its pattern parameters stand for."""

    number: int
    patterns: tuple[Instance, ...]


@dataclass(frozen=True)
class Var:
    name: str


@dataclass(frozen=True)
class Anything:
    pass


@dataclass(frozen=True)
class Apply:
    operator: Operator
    parts: tuple[Expr, ...]


@dataclass(frozen=True)
class Or:
    left: Expr
    right: Expr


@dataclass(frozen=True)
class Call:
    called: Named
    actuals: tuple[str, ...]


Expr: TypeAlias = Var | Anything | Apply | Or | Call


@dataclass(frozen=True)
class Alternate:
    """A body, a guard on the rank of a name if there is one, and a let of a record to `y`."""

    body: Expr
    ranked: tuple[str, int] | None
    has_record: bool


@dataclass(frozen=True)
class Definition:
    patterns: int
    alternates: tuple[Alternate, ...]


@dataclass(frozen=True)
class Program:
    """Definitions; the last one takes no patterns, and is matched."""

    definitions: tuple[Definition, ...]


def program(random: Random) -> Program:
    """Return a random program of two to four definitions."""
    taken = [random.randrange(3) for _ in range(random.randrange(1, 4))] + [0]
    maker = _Maker(random, taken)
    return Program(tuple(maker.definition(number) for number in range(len(taken))))


@dataclass
class _Maker:
    random: Random
    taken: list[int]
    here: int = 0

    def definition(self, number: int) -> Definition:
        self.here = number
        count = self.random.choice((1, 1, 2))
        return Definition(self.taken[number], tuple(self.alternate() for _ in range(count)))

    def alternate(self) -> Alternate:
        ranked = (self.random.choice(VALUES), self.random.randrange(3))
        return Alternate(
            self.expr(3, 0),
            ranked if self.random.random() < 0.2 else None,
            self.random.random() < 0.15,
        )

    def expr(self, fuel: int, below: int) -> Expr:
        forms = ["var", "var", "any"] if below else ["var"]
        if fuel:
            forms += ["op"] * 4 + ["or"] * 2 + ["call"] * 3
        match self.random.choice(forms):
            case "var":
                return Var(self.random.choice(VALUES))
            case "any":
                return Anything()
            case "op":
                arity = self.random.choice((0, 1, 1, 1, 2))
                parts = tuple(self.expr(fuel - 1, below + 1) for _ in range(arity))
                return Apply(self.random.choice(OPERATORS[arity]), parts)
            case "or":
                return Or(self.expr(fuel - 1, below), self.expr(fuel - 1, below))
            case _:
                actuals = (
                    VALUES
                    if self.random.random() < 0.6
                    else tuple(self.random.choices(VALUES, k=2))
                )
                return Call(self.named(2, below > 0), actuals)

    def named(self, fuel: int, any_definition: bool) -> Named:
        if self.taken[self.here] and self.random.random() < 0.6:
            return Param(self.random.randrange(self.taken[self.here]))
        fits = [n for n, count in enumerate(self.taken) if fuel or not count]
        if not any_definition:  # outside of an operator, mostly an earlier one
            fits = [n for n in fits if n < self.here] or fits
        number = self.random.choice(fits)
        inner = tuple(self.named(fuel - 1, True) for _ in range(self.taken[number]))
        return Given(number, inner)


# --- as source ------------------------------------------------------------------------------------


def source(made: Program) -> str:
    """Return a program in Python."""
    lines: list[str] = []
    for number, definition in enumerate(made.definitions):
        taken = [f"P{i}: Pattern" for i in range(definition.patterns)]
        for alternate in definition.alternates:
            lines += ["@pattern", f"def D{number}({', '.join([*taken, *VALUES])}):"]
            lines += [f"    root = {_source(alternate.body)}"]
            if alternate.ranked is not None:
                name, rank = alternate.ranked
                lines += [f"    assert {name}.rank == {rank}"]
            if alternate.has_record:
                lines += ["    let(y=record(of=x, in_=record(of=x)))"]
            lines += ["    return root", "", ""]
    return "\n".join(lines)


def _source(part: Expr) -> str:
    match part:
        case Var(name):
            return name
        case Anything():
            return "_"
        case Apply(operator, parts):
            return f"{operator.name}({', '.join(map(_source, parts))})"
        case Or(left, right):
            return f"({_source(left)} | {_source(right)})"
        case Call(Param(number), actuals):
            return f"P{number}({', '.join(actuals)})"
        case Call(Given(number, patterns), actuals):
            return f"D{number}({', '.join([*map(_name, patterns), *actuals])})"


def _name(called: Named) -> str:
    match called:
        case Param(number):
            return f"P{number}"
        case Given(number, ()):
            return f"D{number}"
        case Given(number, patterns):
            return f"D{number}({', '.join(map(_name, patterns))})"


def elaborated(made: Program) -> PatternFunction:
    """Return the last definition as a pattern. Raises PatternError."""
    scope: dict[str, object] = {name: getattr(pypm, name) for name in pypm.__all__}
    scope |= {operator.name: operator for some in OPERATORS.values() for operator in some}
    with readable(source(made), "program.py") as code:
        exec(code, scope)
        found = scope[f"D{len(made.definitions) - 1}"]
        assert isinstance(found, PatternFunction)
        found.core
    return found


# --- the meaning ----------------------------------------------------------------------------------

Scope: TypeAlias = Mapping[str, str]
"""Names, each with the location that it stands for."""
Store: TypeAlias = dict[str, Value]


def resolve(patterns: tuple[Instance, ...], called: Named) -> Instance:
    match called:
        case Param(number):
            return patterns[number]
        case Given(number, inner):
            return Instance(number, tuple(resolve(patterns, each) for each in inner))


@dataclass
class Interpreter:
    """An interpreter of one program, which gives up after some steps."""

    made: Program
    steps: int = 3_000

    def answers(self, term: Term) -> list[Store]:
        """Return what the last definition binds, in order. Raises TimeoutError."""
        called = Given(len(self.made.definitions) - 1, ())
        scope = {name: name for name in VALUES}
        return [*self._match((), scope, Call(called, VALUES), term, {})]

    def _match(
        self, patterns: tuple[Instance, ...], scope: Scope, part: Expr, term: Term, store: Store
    ) -> Iterator[Store]:
        self.steps -= 1
        if self.steps < 0:
            raise TimeoutError
        match part:
            case Var(name):
                yield from _bound(store, scope[name], term)
            case Anything():
                yield store
            case Apply(operator, parts):
                if term.operator == operator:
                    pairs = [*zip(parts, term.children, strict=True)]
                    yield from self._all(patterns, scope, pairs, store)
            case Or(left, right):
                yield from self._match(patterns, scope, left, term, store)
                yield from self._match(patterns, scope, right, term, store)
            case Call(called, actuals):
                given = resolve(patterns, called)
                inner = {v: scope[actual] for v, actual in zip(VALUES, actuals, strict=True)}
                for alternate in self.made.definitions[given.number].alternates:
                    for found in self._match(given.patterns, inner, alternate.body, term, store):
                        yield from _conditioned(alternate, inner, found)

    def _all(
        self,
        patterns: tuple[Instance, ...],
        scope: Scope,
        pairs: list[tuple[Expr, Term]],
        store: Store,
    ) -> Iterator[Store]:
        if not pairs:
            yield store
            return
        (part, term), *rest = pairs
        for found in self._match(patterns, scope, part, term, store):
            yield from self._all(patterns, scope, rest, found)


def _bound(store: Store, location: str, value: Value) -> Iterator[Store]:
    if location not in store:
        yield {**store, location: value}
    elif same(store[location], value):
        yield store


def _conditioned(alternate: Alternate, scope: Scope, store: Store) -> Iterator[Store]:
    if alternate.ranked is not None:
        name, rank = alternate.ranked
        value = store.get(scope[name])
        if not (isinstance(value, Term) and value.attribute("rank") == rank):
            return
    if not alternate.has_record:
        yield store
    elif scope["x"] in store:
        x = store[scope["x"]]
        yield from _bound(store, scope["y"], pypm.record(of=x, in_=pypm.record(of=x)))


# --- terms ----------------------------------------------------------------------------------------


@dataclass
class Sampler:
    """Terms along a program, most of which it matches."""

    random: Random
    made: Program
    terms: Terms = field(default_factory=Terms)

    def term(self) -> Term:
        if self.random.random() < 0.2:
            return self._any(4)
        root = Call(Given(len(self.made.definitions) - 1, ()), VALUES)
        return self._sample((), {v: v for v in VALUES}, root, {}, 25)

    def _any(self, depth: int) -> Term:
        arity = self.random.choice((0, 1, 1, 2)) if depth else 0
        return self._made(arity, [self._any(depth - 1) for _ in range(arity)])

    def _made(self, arity: int, parts: list[Term], operator: Operator | None = None) -> Term:
        operator = operator or self.random.choice(OPERATORS[arity])
        return self.terms.make(operator, parts, {}, {"rank": len(repr(parts)) % 3})

    def _sample(
        self,
        patterns: tuple[Instance, ...],
        scope: Scope,
        part: Expr,
        store: dict[str, Term],
        fuel: int,
    ) -> Term:
        match part:
            case Var(name):
                return store.setdefault(scope[name], self._any(1))
            case Apply(operator, parts) if fuel > 0:
                inner = [self._sample(patterns, scope, p, store, fuel - 2) for p in parts]
                return self._made(len(parts), inner, operator)
            case Or(left, right) if fuel > 0:
                side = self.random.choice((left, right))
                return self._sample(patterns, scope, side, store, fuel - 1)
            case Call(called, actuals) if fuel > 0:
                given = resolve(patterns, called)
                inside = {v: scope[actual] for v, actual in zip(VALUES, actuals, strict=True)}
                chosen = self.random.choice(self.made.definitions[given.number].alternates)
                return self._sample(given.patterns, inside, chosen.body, store, fuel - 1)
        return self._any(1)


# --- together -------------------------------------------------------------------------------------


@dataclass
class Compared:
    """How many programs and pairs there were, how many are no patterns, and the first problem."""

    shares: Counter[str] = field(default_factory=Counter)
    problem: str = ""

    def __str__(self) -> str:
        return ", ".join(f"{count:,} {name}" for name, count in sorted(self.shares.items()))


def shown(store: Mapping[str, Value]) -> str:
    return str(sorted((n, _text(store[n])) for n in VALUES if n in store))


def _text(value: Value) -> str:
    if isinstance(value, Record):
        names, *values = as_tuple(value)
        return f"record{names}({', '.join(map(_text, values))})"
    return shown_value(value)


def compare(seed: str, pairs: int, terms: int = 6) -> Compared:
    """Compare programs until there were so many pairs, or a problem."""
    random, compared = Random(seed), Compared()
    while compared.shares["pairs"] < pairs and not compared.problem:
        made = program(random)
        compared.shares["programs"] += 1
        try:
            form = elaborated(made)
        except PatternError:
            compared.shares["refused"] += 1
            continue
        matcher = Matcher(form.core)
        trees, sampler = Trees(matcher.index), Sampler(random, made)
        for _ in range(terms):
            term = sampler.term()
            problem = _problem(made, form, matcher, trees, term, compared.shares)
            if problem:
                compared.problem = f"{source(made)}\n{term}: {problem}"
                break
    return compared


def _problem(
    made: Program,
    form: PatternFunction,
    matcher: Matcher,
    trees: Trees,
    term: Term,
    shares: Counter[str],
) -> str:
    try:
        expected = [shown(store) for store in Interpreter(made).answers(term)]
    except TimeoutError:
        shares["unfinished"] += 1
        return ""
    shares["pairs"] += 1
    shares["matching"] += bool(expected)
    shares["several answers"] += len(expected) > 1
    shares["with records"] += any("record" in each for each in expected)
    shares["recursive"] += "^" in str(form.core[0]) or "Call(" in repr(form.core[0])
    found = [shown(theta) for theta in machine.answers(form.core, [term])]
    if found != expected:
        return f"the machine finds {found}, not {expected}"
    fast = [shown(answer.bindings) for answer in matcher.answers(trees.tree(term))]
    if [*dict.fromkeys(fast)] != [*dict.fromkeys(expected)]:
        return f"the matcher finds {fast}, not {expected}"
    return ""
