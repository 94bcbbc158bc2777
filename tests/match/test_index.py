"""The index: it rules out only what cannot match, for all patterns of a program at once."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest

from pypm.core import machine
from pypm.core.guarded import is_guarded
from pypm.core.operators import Operator
from pypm.core.patterns import (
    Alt,
    Call,
    Closed,
    Constrained,
    Definition,
    Exists,
    Mu,
    Op,
    Pattern,
    Var,
)
from pypm.core.printing import print_pattern, print_term
from pypm.core.terms import Term, Terms, exact
from pypm.core.text import parse_pattern, parse_term
from pypm.diagnostics import BudgetError
from pypm.match.compile.lower import VERSIONS, Compiler
from pypm.match.index import Index
from pypm.match.lint.term_subjects import Trees
from pypm.match.matcher import Matcher
from tests.core.declarative import subterms
from tests.properties.engines import search
from tests.properties.generate import Case, cases
from tests.properties.oracle import ask, require_oracle


def program(patterns: list[Pattern]) -> tuple[Trees, list[Matcher]]:
    compiler = Compiler(Index())
    matchers = [Matcher((pattern,), compiler) for pattern in patterns]
    for number, matcher in enumerate(matchers):
        compiler.index.root(matcher.items[0], number, 0)
    return Trees(compiler.index), matchers


def test_patterns_of_one_program_find_what_each_finds_alone() -> None:
    ruled_out = 0
    some = [case for case in cases("index", 1500) if len(case.patterns) == 1]
    for start in range(0, len(some), 10):
        group = some[start : start + 10]
        trees, matchers = program([case.patterns[0] for case in group])
        for matcher, case in zip(matchers, group, strict=True):
            for term in islice(subterms(case.terms[0]), 6):
                reference = search(Case(case.patterns, (term,)), compared=0)
                if not reference.ended:
                    continue
                subject = trees.tree(term)
                expected = distinct(map(machine.theta, reference.stores))
                answers = matcher.answers(subject, budget=20 * (reference.steps + 10))
                assert distinct(answer.bindings for answer in answers) == expected
                number = matchers.index(matcher)
                assert (number in subject.state.starts) or not expected
                ruled_out += number not in subject.state.starts
    assert ruled_out > 500


def distinct(answers: object) -> list[object]:
    found = [tuple(sorted((n, exact(v)) for n, v in a.items())) for a in answers]  # type: ignore[attr-defined]
    return list(dict.fromkeys(found))


def test_equal_sub_patterns_are_one_item() -> None:
    index = Index()
    alone = Compiler(index)
    Matcher((parse_pattern("f(g(h(x)), y)"),), alone)
    size = len(index)
    Matcher((parse_pattern("f(g(h(z)), u)"),), alone)
    assert len(index) == size
    Matcher((parse_pattern("k(g(h(x)))"),), alone)
    assert len(index) == size + 1


def test_states_of_a_thousand_patterns_are_looked_up() -> None:
    """The number of transitions follows from the subjects, not from the patterns."""
    names = [f"u{i}" for i in range(10)]
    patterns = [f"{a}({b}({c}(x)))" for a in names for b in names for c in names]
    trees, _ = program([parse_pattern(text) for text in patterns])
    terms = Terms()
    term = terms.make(Operator("a"))
    for i in range(2000):
        term = terms.make(Operator(f"u{i * i % 7}"), (term,))
    state = trees.tree(term).state
    assert len(state.starts) == 1
    assert len(trees.index._transitions) < 400


SILU = "rec E() { mul(E^0(), sigmoid(E^0())) | a() }()"
ANYWHERE = "rec E() { f(E^0(), exists y. y) | f(exists y. y, E^0()) | c() }()"
MISSED = """exists z. ((rec E() { f(E^0(), exists y. y) | f(exists y. y, E^0()) | exists y. y }())
    let z = 1 where z == 2)"""


@pytest.mark.parametrize(
    ("pattern", "operator", "leaf", "count"),
    [
        (SILU, "silu", "a()", 1),  # the second E at an operand is the first again
        (SILU, "silu", "b()", 0),
        (ANYWHERE, "f", "b()", 0),  # what has failed is not tried again
        (MISSED, "f", "b()", 0),  # the guard does not depend on how E matched
    ],
)
def test_recursion_over_shared_operands(pattern: str, operator: str, leaf: str, count: int) -> None:
    terms = Terms()
    term = parse_term(leaf, terms)
    for _ in range(20):
        if operator == "f":
            term = terms.make(Operator("f"), (term, term))
        else:
            term = terms.make(Operator("mul"), (term, terms.make(Operator("sigmoid"), (term,))))
    matcher = Matcher((parse_pattern(pattern),))
    subject = Trees(matcher.index).tree(term)
    answers = list(matcher.answers(subject, budget=5_000))
    assert len(answers) == count
    if count:
        assert len({visit.subject.term for visit in answers[0].visits}) == 41


def test_an_exponential_pattern_ends_with_its_budget() -> None:
    text = """exists s. (rec E(s; out: s) {
        (exists r. g(E^0(r)) let s = [1, r]) | (exists r. g(E^0(r)) let s = [2, r]) | a() let s = 0
    }(s)) where s == 5"""
    terms = Terms()
    term = parse_term("a", terms)
    for _ in range(30):
        term = terms.make(Operator("g"), (term,))
    matcher = Matcher((parse_pattern(text),))
    with pytest.raises(BudgetError, match="the search at `g` did not end"):
        list(matcher.answers(Trees(matcher.index).tree(term), budget=100_000))


EXPECTATIONS = [
    ("f(exists x. x, x) with x <= g(y)", "f(a, g(a))", True),
    ("f(exists x. x, x) with x <= g(y)", "f(a, a)", False),
    ("(x where x.dtype == 1) with x <= g(y)", "a{v=1}", False),
    ("(x where x.dtype == 1) with x <= g(y)", "g(a){v=1}", True),
    ("(x where x.dtype == 1) with x <= g(y)", "g(a){v=2}", False),
    ("rec P(x, x) { x }(y, z) with z <= g(u)", "a", True),
    ("rec P(x, x) { x }(y, z) with y <= g(u)", "a", False),
    ("rec P(x) { h(P^0(x)) | x }(y) with y <= g(u)", "h(h(a))", False),
    ("rec P(x) { h(P^0(x)) | x }(y) with y <= g(u)", "h(h(g(a)))", True),
]
"""Patterns, terms, and whether these satisfy what later guards and constraints expect."""


def test_the_index_admits_exactly_what_satisfies_an_item_in_coq() -> None:
    """So it excludes nothing that could match: `T9_items`."""
    require_oracle()
    asked: dict[str, bool] = {}
    for case in cases("items", 500):
        if len(case.patterns) > 1 or not is_guarded(case.patterns[0]):
            continue
        # The index reads guards on a dtype, so that attribute takes the place of the drawn one.
        text = print_pattern(case.patterns[0]).replace(".v", ".dtype")
        if re.search(r"\[[^a-z]*\]", text):  # to Coq, `[1]` is the constant `(1,)`; the index reads
            continue  # constants alone
        matcher = Matcher((parse_pattern(text),))
        trees, terms = Trees(matcher.index), Terms()
        for subject in islice(subterms(case.terms[0]), 6):
            query = f"admits\t40\t{text}\t{print_term(subject).replace('v=', 'dtype=')}"
            asked[query] = matcher.may_match(trees.tree(typed(subject, terms)))
    for text, shown, value in EXPECTATIONS:
        matcher, terms = Matcher((parse_pattern(text),)), Terms()
        subject = Trees(matcher.index).tree(typed(parse_term(shown, Terms()), terms))
        asked[f"admits\t40\t{text}\t{shown.replace('v=', 'dtype=')}"] = value
        assert matcher.may_match(subject) is value, text
    replies = ask([*asked])
    for (query, admitted), reply in zip(asked.items(), replies, strict=True):
        assert reply == ("yes" if admitted else "no"), query
    assert min(Counter(replies).values()) > 200


def typed(term: Term, terms: Terms) -> Term:
    """The term with its attribute `v` as its dtype."""
    children = [typed(child, terms) for child in term.children]
    derived = dict(zip(("dtype",), term.attributes.values(), strict=False))
    return terms.make(term.operator, children, term.attributes, derived)


def closed(name: str, body: Pattern) -> Mu:
    """Return a call of a definition of one parameter, x, that calls nothing outside of it."""
    none = frozenset[str]()
    definition = Definition(name, ("x",), none, none, none, body, closed=Closed())
    return Mu(definition, ("x",))


def test_contexts_share_the_bodies_of_a_closed_definition() -> None:
    """A definition that calls no enclosing one is compiled once, whatever calls it."""
    inner = closed("inner", parse_pattern("neg(x) | x"))
    compiler = Compiler(Index())
    one, other = (
        compiler.family(closed(name, Op(Operator(name, 1), (inner,))).definition, ())
        for name in ("exp", "relu")
    )
    assert compiler.family(inner.definition, (one,)) is compiler.family(inner.definition, (other,))
    is_open = replace(inner.definition, closed=None)
    assert compiler.family(is_open, (one,)) is not compiler.family(is_open, (other,))


def test_calls_from_outside_are_specialized() -> None:
    """However many calls there are, each expects of its argument what a constraint demands."""
    wrapped = closed("wrapped", parse_pattern("relu(x) | neg(x)"))
    count = 3 * VERSIONS
    patterns: list[Pattern] = [
        Constrained(wrapped, parse_pattern(f"f{number}(y)"), "x") for number in range(count)
    ]
    trees, matchers = program(patterns)
    terms = Terms()
    for number in (0, VERSIONS, count - 1):
        subject = trees.tree(parse_term(f"relu(f{number}(a))", terms))
        assert subject.state.starts == (number,)
        assert len([*matchers[number].answers(subject)]) == 1


def test_expectations_that_grow_from_call_to_call_end() -> None:
    """Each call inside of the recursive body expects one `s` more of x than the call around it."""
    inner = Op(Operator("g", 1), (Call(0, ("y",)),))
    below = Constrained(inner, parse_pattern("s(x)"), "y")
    grown = closed("grown", Alt(Var("x"), Exists("y", below)))
    trees, (matcher,) = program([grown])
    terms = Terms()
    for depth in (1, VERSIONS, 3 * VERSIONS):
        for missing in (0, 1):
            text = "g(" * depth + "s(" * (depth - missing) + "a" + ")" * (2 * depth - missing)
            term = parse_term(text, terms)
            found = [answer.bindings["x"] for answer in matcher.answers(trees.tree(term))]
            assert found == [term, parse_term("a", terms)][: 2 - missing]
