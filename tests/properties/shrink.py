"""Makes a case on which engines disagree as small as it goes while they still do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from pypm.core.guards import (
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
    True_,
    Tuple,
)
from pypm.core.patterns import (
    Alt,
    Call,
    Constrained,
    Exists,
    Fun,
    Guarded,
    Let,
    Mu,
    Op,
    Pattern,
    Var,
)
from pypm.core.terms import Term, Terms
from tests.properties.generate import Case

_T = TypeVar("_T")


def shrink(case: Case, fails: Callable[[Case], bool], tries: int = 2000) -> Case:
    """The smallest case found that still fails."""
    found = True
    while found and tries > 0:
        found = False
        for smaller in smaller_cases(case):
            tries -= 1
            if fails(smaller):
                case, found = smaller, True
                break
            if tries <= 0:
                break
    return case


def smaller_cases(case: Case) -> Iterator[Case]:
    terms = Terms()
    for at in range(len(case.patterns) if len(case.patterns) > 1 else 0):
        yield Case((case.patterns[at],), (case.terms[at],))
    for at, (pattern, term) in enumerate(zip(case.patterns, case.terms, strict=True)):
        for p, t in _together(pattern, term):
            yield _with(case, at, p, _made(t, terms))
        for p in smaller_patterns(pattern):
            yield _with(case, at, p, term)
        for t in smaller_terms(term, terms):
            yield _with(case, at, pattern, t)


def _with(case: Case, at: int, pattern: Pattern, term: Term) -> Case:
    patterns, subjects = list(case.patterns), list(case.terms)
    patterns[at], subjects[at] = pattern, term
    terms = Terms()  # maximally shared again
    return Case(tuple(patterns), tuple(_made(subject, terms) for subject in subjects))


def _made(term: Term, terms: Terms) -> Term:
    children = [_made(child, terms) for child in term.children]
    return terms.make(term.operator, children, term.attributes)


def _together(pattern: Pattern, term: Term) -> Iterator[tuple[Pattern, Term]]:
    """A part of the pattern with the part of the term that it stands for."""
    if isinstance(pattern, Op | Fun) and len(pattern.arguments) == len(term.children):
        yield from zip(pattern.arguments, term.children, strict=True)


def smaller_terms(term: Term, terms: Terms) -> Iterator[Term]:
    yield from term.children
    if term.attributes:
        yield terms.make(term.operator, term.children)
    for children in _one_smaller(term.children, lambda child: smaller_terms(child, terms)):
        yield terms.make(term.operator, children, term.attributes)


def _one_smaller(
    items: Sequence[_T], smaller: Callable[[_T], Iterator[_T]]
) -> Iterator[tuple[_T, ...]]:
    for at, item in enumerate(items):
        for less in smaller(item):
            yield (*items[:at], less, *items[at + 1 :])


def smaller_patterns(pattern: Pattern) -> Iterator[Pattern]:
    match pattern:
        case Var():
            return
        case Call():
            yield Var("x")
        case Op(_, parts) | Fun(_, parts):
            yield from parts
            for arguments in _one_smaller(parts, smaller_patterns):
                yield replace(pattern, arguments=arguments)
        case Alt(left, right):
            yield from (left, right)
            yield from (Alt(*sides) for sides in _one_smaller((left, right), smaller_patterns))
        case Exists(name, body):
            yield body
            yield from (Exists(name, inner) for inner in smaller_patterns(body))
        case Guarded(body, guard):
            yield body
            yield from (Guarded(body, test) for test in smaller_guards(guard))
            yield from (Guarded(inner, guard) for inner in smaller_patterns(body))
        case Let(body, name, expression):
            yield body
            yield from (Let(body, name, value) for value in smaller_expressions(expression))
            yield from (Let(inner, name, expression) for inner in smaller_patterns(body))
        case Constrained(body, constraint, name):
            yield from (body, constraint)
            sides = _one_smaller((body, constraint), smaller_patterns)
            yield from (Constrained(*both, name) for both in sides)
        case Mu(definition, actuals):
            yield definition.body
            for lists in ("inputs", "outputs", "bounded"):
                if getattr(definition, lists):
                    without = replace(definition, **{lists: frozenset()})
                    yield Mu(without, actuals)
            for body in smaller_patterns(definition.body):
                yield Mu(replace(definition, body=body), actuals)


def smaller_guards(guard: Guard) -> Iterator[Guard]:
    if not isinstance(guard, True_):
        yield TRUE
    match guard:
        case And(left, right) | Or(left, right):
            yield from (left, right)
            yield from (type(guard)(*both) for both in _one_smaller((left, right), smaller_guards))
        case Not(inner):
            yield inner
            yield from map(Not, smaller_guards(inner))
        case Equal(left, right) | Less(left, right):
            sides = _one_smaller((left, right), smaller_expressions)
            yield from (type(guard)(*both) for both in sides)
        case Holds(expression):
            yield from map(Holds, smaller_expressions(expression))


def smaller_expressions(expression: Expression) -> Iterator[Expression]:
    match expression:
        case Constant() | Reference() | Attribute():
            return
        case Apply(function, parts):
            yield from parts
            for arguments in _one_smaller(parts, smaller_expressions):
                yield Apply(function, arguments)
        case Tuple(parts):
            yield from parts
            yield from map(Tuple, _one_smaller(parts, smaller_expressions))
