"""Scheduling moves guards to where they can first be answered, and changes no answer."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, event, given, settings

from pypm.core.guarded import check_guarded
from pypm.core.guards import Attribute, Constant, Equal, Reference
from pypm.core.inference import infer
from pypm.core.machine import answers
from pypm.core.patterns import Guarded, Pattern
from pypm.core.printing import print_pattern
from pypm.core.schedule import schedule
from pypm.core.terms import Term
from pypm.core.text import parse_pattern, parse_term
from pypm.core.wellformed import bound_after, is_wellformed
from pypm.diagnostics import BudgetError
from tests.core.declarative import subterms
from tests.core.strategies import TERMS, cases

POOL = [
    parse_term(text, TERMS)
    for text in ["a{v=1}", "g(b{v=1})", "f(a{v=1}, a{v=1})", "f(g(a), b{v=1})", "k(a, g(a))"]
]


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(fuel=6))
def test_the_same_answers_in_the_same_order(case: tuple[Pattern, Term]) -> None:
    pattern, term = infer(case[0]), case[1]
    for name in sorted(bound_after(pattern)):
        # The one holds wherever the name is bound, and the other often does not.
        for guard in (Equal(Reference(name), Reference(name)), Equal(V(name), Constant(1))):
            assert_same_answers(Guarded(pattern, guard), term)
    assert_same_answers(pattern, term)


def V(name: str) -> Attribute:
    return Attribute(name, "v")


def assert_same_answers(pattern: Pattern, term: Term) -> None:
    scheduled = schedule(pattern)
    assert is_wellformed(scheduled) == is_wellformed(pattern)
    assert bound_after(scheduled) == bound_after(pattern)
    assert len(check_guarded(scheduled)) == len(check_guarded(pattern))
    if not is_wellformed(pattern):
        return
    event(f"moves a guard: {scheduled != pattern}")
    for subject in [*subterms(term), *POOL]:
        try:
            expected = answers(pattern, subject, 1_000)
        except BudgetError:
            continue
        assert answers(scheduled, subject, 1_000) == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("f(x, y) where x.v == 1", "f(x where x.v == 1, y)"),
        ("f(x, y) where x.v == y.v", "f(x, y where x.v == y.v)"),
        ("f(g(x), y) where x.v == 1", "f(g(x where x.v == 1), y)"),
        ("$F(x, y) where F.name == 'f'", "$F(x where F.name == 'f', y)"),
        ("$F() where F.name == 'f'", "$F() where F.name == 'f'"),
        ("f(x, y) where true", "f(x where true, y)"),
        ("(f(x, y) | g(x)) where x.v == 1", "f(x where x.v == 1, y) | g(x where x.v == 1)"),
        ("f(g(x) | x, y) where x.v == 1", "f(g(x where x.v == 1) | x where x.v == 1, y)"),
        ("f(x, y) where x.v == 1 and y.v == 1", "f(x where x.v == 1, y where y.v == 1)"),
        ("(exists y. f(x, y)) where x.v == 1", "exists y. f(x where x.v == 1, y)"),
        # A local of the same name is another variable.
        ("(exists x. f(x, x)) where x.v == 1", "(exists x. f(x, x)) where x.v == 1"),
        ("f(x, exists x. x) where x.v == 1", "f(x where x.v == 1, exists x. x)"),
        ("x with x <= f(y, z) where x.v == 1", "x where x.v == 1 with x <= f(y, z)"),
        ("x with x <= f(y, z) where y.v == 1", "x with x <= f(y where y.v == 1, z)"),
        ("f(x) where x.v == 1 where x.w == 2", "f(x where x.v == 1 where x.w == 2)"),
        ("x let y = x.v where x.v == 1", "x where x.v == 1 let y = x.v"),
        ("x let y = x.v where y == 1", "x let y = x.v where y == 1"),
        # Guards pass one another, so that each is as early as it can be.
        (
            "f(x, y) where y.v == 1 where x.v == 1",
            "f(x where x.v == 1, y where y.v == 1)",
        ),
        # What is never surely bound is asked last, as written.
        ("f(x | y, z) where x.v == 1", "f(x | y, z) where x.v == 1"),
        (
            "rec P(x; out: x) { (g(P^0(x)) | x) where x.v == 1 }(x)",
            "rec P(x; out: x) { g(P^0(x) where x.v == 1) | x where x.v == 1 }(x)",
        ),
        (
            "rec P(x; out: x) { f(P^0(x), y) where x.v == 1 | x }(x)",
            "rec P(x; out: x) { f(P^0(x) where x.v == 1, y) | x }(x)",
        ),
    ],
)
def test_where_guards_go(written: str, expected: str) -> None:
    assert print_pattern(schedule(parse_pattern(written))) == expected


def test_names_bound_before_count() -> None:
    pattern = parse_pattern("f(y, z) where x.v == y.v")
    scheduled = schedule(pattern, frozenset({"x"}))
    assert print_pattern(scheduled) == "f(y where x.v == y.v, z)"
