"""What a watched search tells of an attempt that fails; on terms, without graphs."""

from __future__ import annotations

from typing import Any

import pytest

from pypm.core.terms import Terms, exact
from pypm.core.text import parse_pattern, parse_term
from pypm.diagnostics import BudgetError
from pypm.match.explain.causes import (
    BoundOtherwise,
    Cause,
    GuardFails,
    GuardUnknown,
    OtherArity,
    OtherClass,
    OtherOperator,
    OtherValue,
    Unbound,
    in_words,
)
from pypm.match.explain.watch import Failure, Watch
from pypm.match.index import Index
from pypm.match.lint.term_subjects import Trees
from pypm.match.matcher import Matcher
from tests.properties.generate import cases

STEPS = 2_000


def show(subject: Any) -> str:
    return str(subject.operator)


def furthest(pattern: str, term: str) -> Failure:
    watch = Watch(Index(), show)
    matcher = watch.matcher([parse_pattern(pattern)])
    subject = Trees(watch.index).tree(parse_term(term, Terms()))
    assert not list(matcher.answers(subject))
    assert watch.furthest is not None
    return watch.furthest


@pytest.mark.parametrize(
    ("pattern", "term", "cause"),
    [
        ("f(x)", "g()", OtherOperator(("f",), "g")),
        ("f(a()) | f(b())", "f(c())", OtherOperator(("a", "b"), "c")),
        ("f(x, y)", "f(a())", OtherArity("f", 2, 1)),
        ("exists F. $F(x, y)", "f(a())", OtherArity("f", 2, 1)),
        ("f(x, x)", "f(a(), b())", BoundOtherwise("x", "a", "b")),
        ("exists F. $F($F(x))", "f(g(a()))", BoundOtherwise("F", "f", "g")),
        ("x where x.dim == 1", "a(){dim=2}", GuardFails("x.dim == 1", (("x.dim", "2"),))),
        ("x where x.dim == 1", "a()", GuardUnknown("x.dim == 1", (("x.dim", "not known"),))),
        ("x let y = x.dim", "a()", GuardUnknown("y = dim", ())),
        ("x let y = 1 let y = 2", "a()", BoundOtherwise("y", "1", "2")),
        ("exists y. x", "a()", Unbound("y")),
        ("x where 'big' in x.tags", "a()", OtherClass("big", "a")),
        (
            "exists node#1. node#1 where node#1.dim == 1 with node#1 <= f(x)",
            "f(a()){dim=2}",
            OtherValue("dim", "1", "2"),
        ),
    ],
)
def test_causes(pattern: str, term: str, cause: Cause) -> None:
    found = furthest(pattern, term).cause
    assert found == cause
    assert in_words(found)


def test_the_furthest_attempt_is_told_whatever_the_order() -> None:
    for pattern in ("f(g(a())) | h(x)", "h(x) | f(g(a()))"):
        assert furthest(pattern, "f(g(b()))").cause == OtherOperator(("a",), "b")


def test_a_watch_that_saw_no_failure_has_no_ends() -> None:
    assert Watch(Index(), show).ends == []


def test_what_a_failure_is_about_and_what_it_is_met_below() -> None:
    failure = furthest("f(g(a()))", "f(g(b()))")
    assert [*map(show, failure.subjects)] == ["b", "g", "f", "g"]


def test_a_failure_of_a_guard_is_about_the_first_that_it_names() -> None:
    failure = furthest("f(g(x, y) where x.dim == y.dim)", "f(g(a(){dim=1}, b(){dim=2}))")
    assert [*map(show, failure.subjects)] == ["a", "g", "f", "g"]


def test_an_attempt_through_views_does_not_come_further() -> None:
    watch = Watch(Index(), show, lambda subject: show(subject) != "view")
    pattern = "f(view(view(x where x.dim == 1)), g(y)) | f(z, g(h(y)))"
    matcher = watch.matcher([parse_pattern(pattern)])
    subject = Trees(watch.index).tree(parse_term("f(view(view(a(){dim=2})), g(k()))", Terms()))
    assert not list(matcher.answers(subject))
    assert watch.ends[0].cause == OtherOperator(("h",), "k")


def test_the_operator_is_told_before_its_arguments() -> None:
    call = "exists node#1. node#1 where node#1.dim == 1 with node#1 <= f(x)"
    assert furthest(call, "g(a())").cause == OtherOperator(("f",), "g")
    bound = "exists node#1. node#1 let d = node#1.dim with node#1 <= f(x)"
    assert furthest(bound, "g(a())").cause == OtherOperator(("f",), "g")


def test_children_are_told_before_the_arguments_of_their_operator() -> None:
    call = "exists node#1. node#1 where node#1.dim == 1 with node#1 <= f(b())"
    assert furthest(call, "f(a()){dim=2}").cause == OtherOperator(("b",), "a")


def test_the_part_of_a_conjunction_that_fails() -> None:
    found = furthest("x where x.dim == 1 and x.size == 2", "a(){dim=1, size=3}").cause
    assert found == GuardFails("x.size == 2", (("x.size", "3"),))


def test_a_guard_is_lifted_with_all_its_uses() -> None:
    watch = Watch(Index(), show)
    matcher = watch.matcher([parse_pattern("f(x where x.dim == 1)")])
    subject = Trees(watch.index).tree(parse_term("f(a(){dim=2})", Terms()))
    assert not list(matcher.answers(subject))
    assert watch.furthest is not None and watch.furthest.is_guard
    watch.lift(watch.furthest)
    assert len(list(matcher.answers(subject))) == 1
    watch.forget()
    assert not list(matcher.answers(subject))


def answers(matcher: Matcher, subject: Any) -> list[object]:
    found = matcher.answers(subject, budget=STEPS)
    return [{n: exact(v) for n, v in answer.bindings.items()} for answer in found]


def test_watching_changes_no_answer() -> None:
    """And where there is none, there is a cause; with late guards no answer is lost."""
    matched = failed = 0
    for case in cases(11, 2000):
        if len(case.patterns) > 1:
            continue
        (term,) = case.terms
        plain = Matcher(case.patterns)
        watch, late = Watch(Index(), show), Watch(Index(), show)
        exactly = watch.matcher(case.patterns, late=False)
        loosely = late.matcher(case.patterns)
        try:
            expected = answers(plain, Trees(plain.index).tree(term))
            assert answers(exactly, Trees(watch.index).tree(term)) == expected
            if expected:
                assert answers(loosely, Trees(late.index).tree(term))
        except BudgetError:
            continue
        matched += bool(expected)
        failed += not expected
        if not expected:
            assert watch.furthest is not None
            assert in_words(watch.furthest.cause)
    assert matched > 300
    assert failed > 300
