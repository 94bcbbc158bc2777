"""Random terms, patterns of every form, and pairs of them that often match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from hypothesis import strategies as st

from pypm.core.guards import (
    FUNCTIONS,
    TRUE,
    And,
    Apply,
    Attribute,
    Constant,
    Equal,
    Expression,
    Guard,
    Holds,
    Less,
    Not,
    Or,
    Reference,
    Tuple,
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
from pypm.core.terms import Term, Terms
from pypm.core.wellformed import bound_after

TERMS = Terms()
"""The store of all terms made here."""
OPERATORS = {0: [Operator("a"), Operator("b")], 1: [Operator("g"), Operator("h")]}
OPERATORS |= {2: [Operator("f"), Operator("k")]}
NAMES = ("x", "y", "z")
OPERATOR_NAMES = ("F", "G", "x")
Arities: TypeAlias = tuple[int, ...]
"""The numbers of parameters of the recursive patterns around, innermost first."""


def _term(operator: Operator, children: Sequence[Term], v: int | None) -> Term:
    return TERMS.make(operator, children, {} if v is None else {"v": v})


def terms(max_leaves: int = 5) -> st.SearchStrategy[Term]:
    """Terms over a, b, g(.), h(.), f(., .), k(., .), some of them with an attribute `v`."""
    v = st.sampled_from([None, None, 0, 1])
    leaves = st.builds(_term, st.sampled_from(OPERATORS[0]), st.just(()), v)

    def grow(inner: st.SearchStrategy[Term]) -> st.SearchStrategy[Term]:
        unary = st.builds(_term, st.sampled_from(OPERATORS[1]), st.tuples(inner), v)
        binary = st.builds(_term, st.sampled_from(OPERATORS[2]), st.tuples(inner, inner), v)
        return unary | binary

    return st.recursive(leaves, grow, max_leaves=max_leaves)


@st.composite
def expressions(draw: st.DrawFn, names: Sequence[str] = NAMES, depth: int = 1) -> Expression:
    form = draw(st.integers(0, 9 if depth else 3))
    name = draw(st.sampled_from(names))
    match form:
        case 0:
            return Constant(draw(st.integers(0, 2)))
        case 1:
            return Reference(name)
        case 2 | 3:
            return Attribute(name, "v")
        case 4:
            return Tuple(tuple(draw(st.lists(expressions(names, depth - 1), max_size=2))))
        case 8:
            fields = st.sampled_from("vw")
            return made(draw(st.dictionaries(fields, expressions(names, depth - 1), min_size=1)))
        case 9:
            return selected(draw(expressions(names, depth - 1)), "v")
        case _:
            function = FUNCTIONS[draw(st.sampled_from(["add", "sub", "in", "item"]))]
            one, other = draw(expressions(names, depth - 1)), draw(expressions(names, depth - 1))
            return Apply(function, (one, other))


@st.composite
def guards(draw: st.DrawFn, names: Sequence[str] = NAMES, depth: int = 2) -> Guard:
    form = draw(st.integers(0, 9 if depth else 5))
    match form:
        case 0:
            return TRUE
        case 1 | 2:
            return Equal(Attribute(draw(st.sampled_from(names)), "v"), Constant(1))
        case 3:
            return Equal(draw(expressions(names)), draw(expressions(names)))
        case 4:
            return Less(draw(expressions(names)), draw(expressions(names)))
        case 5:
            collection = Tuple((Constant(0), draw(expressions(names))))
            return Holds(Apply(FUNCTIONS["in"], (draw(expressions(names)), collection)))
        case 6:
            return And(draw(guards(names, depth - 1)), draw(guards(names, depth - 1)))
        case 7:
            return Or(draw(guards(names, depth - 1)), draw(guards(names, depth - 1)))
        case _:
            return Not(draw(guards(names, depth - 1)))


def likely_guards(names: Sequence[str]) -> st.SearchStrategy[Guard]:
    """Guards that mostly hold where the names are bound."""
    read = st.sampled_from(names)
    known = read.map(lambda name: Equal(Reference(name), Reference(name)))
    other = read.map(lambda name: Not(Equal(Reference(name), Constant(3))))
    kleene = st.builds(Or, guards(names, 1), st.just(TRUE)) | st.builds(And, known, other)
    return st.one_of(known, other, kleene)


@st.composite
def shapes(
    draw: st.DrawFn,
    term: Term | None = None,
    names: Sequence[str] = NAMES,
    arities: Arities = (),
    fuel: int = 4,
) -> Pattern:
    """Patterns, made after the shape of a term where one is given.

    The lists I, O and B of recursive patterns are random.
    """
    forms = ["var"]
    if fuel > 0:
        forms += ["op", "op", "op", "fun", "alt", "exists", "guarded", "let", "constrained", "mu"]
    if arities:
        forms += ["call"]
    part = {"names": names, "arities": arities, "fuel": fuel - 1}
    match draw(st.sampled_from(forms)):
        case "var":
            return Var(draw(st.sampled_from(names)))
        case "op" | "fun" as form:
            count = len(term.children) if term is not None else draw(st.integers(0, 2))
            children = term.children if term is not None else [None] * count
            parts = tuple([draw(shapes(child, **part)) for child in children])
            keep = draw(st.booleans())
            if form == "fun":
                return Fun(draw(st.sampled_from(OPERATOR_NAMES)), parts, keep)
            exact = term is not None and draw(st.integers(0, 9)) > 0
            operator = term.operator if exact else draw(st.sampled_from(OPERATORS[count]))
            return Op(operator, parts, keep)
        case "alt":
            other = draw(st.sampled_from([term, None]))
            sides = [draw(shapes(term, **part)), draw(shapes(other, **part))]
            return Alt(*draw(st.permutations(sides)))
        case "exists":
            name = draw(st.sampled_from(names))
            body = draw(shapes(term, **part))
            bind = draw(st.integers(0, 3)) > 0
            return Exists(name, Constrained(Var(name), body, name) if bind else body)
        case "guarded":
            body = draw(shapes(term, **part))
            read = draw(_readable(body, names))
            return Guarded(body, draw(st.one_of(likely_guards(read), guards(read))))
        case "let":
            body = draw(shapes(term, **part))
            value = draw(expressions(draw(_readable(body, names))))
            return Let(body, draw(st.sampled_from(names)), value)
        case "constrained":
            body = draw(shapes(term, **part))
            name = draw(st.sampled_from(draw(_readable(body, names))))
            shape = term if body == Var(name) else None
            return Constrained(body, draw(shapes(shape, **part)), name)
        case "call":
            return draw(_calls(names, arities))
        case _:
            return draw(_mus(term, names, arities, fuel))


def _readable(body: Pattern, names: Sequence[str]) -> st.SearchStrategy[Sequence[str]]:
    """Mostly names that the pattern binds, so that reading them is well-formed."""
    bound = sorted(bound_after(body) & set(names)) or list(names)
    return st.sampled_from([bound, bound, bound, list(names)])


def _actuals(names: Sequence[str], arity: int) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(names), min_size=arity, max_size=arity).map(tuple)


@st.composite
def _calls(draw: st.DrawFn, names: Sequence[str], arities: Arities) -> Call:
    index = draw(st.integers(0, len(arities) - 1))
    return Call(index, draw(_actuals(names, arities[index])))


@st.composite
def _mus(
    draw: st.DrawFn, term: Term | None, names: Sequence[str], arities: Arities, fuel: int
) -> Mu:
    """Mostly a step under an operator, or a base case after the shape of the term."""
    arity = draw(st.integers(1, 2))
    parameters = draw(_actuals((*NAMES, "F"), arity))
    inside = (arity, *arities)
    subset = st.frozensets(st.sampled_from(parameters))
    base = draw(shapes(term, parameters, inside, fuel - 2))
    body: Pattern = base
    if draw(st.integers(0, 4)):
        width = len(term.children) if term is not None else 1
        steps: list[Pattern] = [Var(draw(st.sampled_from(parameters))) for _ in range(width)]
        if steps:
            steps[draw(st.integers(0, width - 1))] = draw(_calls(parameters, inside))
        operators = [term.operator] if term is not None else OPERATORS[1]
        step: Pattern = Op(draw(st.sampled_from(operators)), tuple(steps))
        if draw(st.booleans()):
            step = Fun(draw(st.sampled_from(parameters)), tuple(steps))
        body = Alt(*draw(st.permutations([step, base])))
    lists = (draw(subset), draw(subset), draw(subset))
    name = draw(st.sampled_from(["P", "Q"]))
    return Mu(Definition(name, parameters, *lists, body), draw(_actuals(names, arity)))


@st.composite
def patterns(draw: st.DrawFn, term: Term | None = None, fuel: int = 4) -> Pattern:
    """Patterns of every form, mostly with inferred lists, and then often well-formed."""
    pattern = draw(shapes(term, fuel=fuel))
    return infer(pattern) if draw(st.integers(0, 4)) else pattern


@st.composite
def cases(draw: st.DrawFn, max_leaves: int = 4, fuel: int = 4) -> tuple[Pattern, Term]:
    """A pattern and a term: mostly the pattern has the shape of the term."""
    term = draw(terms(max_leaves))
    model = term if draw(st.integers(0, 9)) else None
    return draw(patterns(model, fuel)), term


def without_lists(pattern: Pattern) -> Pattern:
    """A recursive pattern with I, O and B empty, as they are before inference."""
    if not isinstance(pattern, Mu):
        return pattern
    none: frozenset[str] = frozenset()
    empty = replace(pattern.definition, inputs=none, outputs=none, bounded=none)
    return replace(pattern, definition=empty)
