"""The matcher against the reference machine: the same distinct answers, visits and order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings

from pypm.core.machine import Configuration, MatchAction, expand, init, theta
from pypm.core.operators import Operator
from pypm.core.patterns import Fun, Op, Pattern
from pypm.core.terms import Term, Terms, Unmade, Value, exact
from pypm.core.text import parse_pattern, parse_term
from pypm.core.traverse import free_names
from pypm.diagnostics import BudgetError, Diagnostic
from pypm.match.index import State
from pypm.match.lint.term_subjects import Trees
from pypm.match.matcher import Answer, Matcher
from pypm.match.search_state import Subject
from tests.core.declarative import is_match, subterms
from tests.core.strategies import TERMS, cases
from tests.core.table import TABLE, Case

STEPS = 3_000
"""More steps than most terminating searches of small random cases take."""

Found = tuple[dict[str, Value], list[tuple[Term, bool]]]
"""An answer's bindings, and the operators it walked over with their `keep` marks."""


@dataclass(frozen=True, eq=False)
class Spot:
    """An occurrence of a term, told from others of the same term by the way to it."""

    term: Term
    path: tuple[int, ...] = ()
    trees: list[Trees] = field(default_factory=list)
    """What gives the state, once it is known which patterns are matched."""

    @cached_property
    def children(self) -> list[Spot]:
        terms = enumerate(self.term.children)
        return [Spot(child, (*self.path, i), self.trees) for i, child in terms]

    @property
    def operator(self) -> Operator:
        return self.term.operator

    @property
    def state(self) -> State:
        return self.trees[0].tree(self.term).state


class Unread(Unmade):
    """A spot whose term counts as made once it was read."""

    is_made = False

    def __init__(self, spot: Spot) -> None:
        self.spot = spot

    @cached_property
    def children(self) -> list[Unread]:
        return [Unread(child) for child in self.spot.children]

    @property
    def term(self) -> Term:
        self.is_made = True
        return self.spot.term

    @property
    def operator(self) -> Operator:
        return self.spot.operator

    @property
    def state(self) -> State:
        return self.spot.state

    def attribute(self, name: str) -> Value:
        return self.spot.term.attribute(name)


def reference(
    patterns: Sequence[Pattern], terms: Sequence[Term], budget: int = STEPS
) -> Iterator[Found]:
    """The machine's successes in order, each with the operators expanded on the way to it."""
    stack: list[tuple[Configuration, list[tuple[Term, bool]]]] = [(init(patterns, terms)[0], [])]
    while stack:
        configuration, visits = stack.pop()
        if not configuration.actions:
            yield theta(configuration.store), visits
            continue
        budget -= 1
        if budget < 0:
            raise BudgetError(Diagnostic("the reference did not end"))
        successors = expand(configuration)
        match configuration.actions[0]:
            case MatchAction(pattern=Op(keep=keep) | Fun(keep=keep), term=term):
                visits = [*visits, (term, keep)]
        stack += [(successor, visits) for successor in reversed(successors)]


def matched(
    patterns: Sequence[Pattern], terms: Sequence[Term | Spot | Unread], budget: int = 10 * STEPS
) -> Iterator[Answer]:
    """The matcher's answers for several roots, each root extending the answers for the last."""
    matcher = Matcher(tuple(patterns))
    trees = Trees(matcher.index)
    subjects = [subject_of(term, trees) for term in terms]

    def extend(root: int, given: Answer | None) -> Iterator[Answer]:
        for answer in matcher.answers(subjects[root], root=root, given=given, budget=budget):
            if root + 1 < len(patterns):
                yield from extend(root + 1, answer)
            else:
                yield answer

    return extend(0, None)


def subject_of(term: Term | Spot | Unread, trees: Trees) -> Subject:
    if isinstance(term, Term):
        return trees.tree(term)
    (term.spot if isinstance(term, Unread) else term).trees[:] = [trees]
    return term


def found(answers: Iterator[Answer]) -> list[Found]:
    return [
        (dict(a.bindings), [(visit.subject.term, visit.keep) for visit in a.visits])
        for a in answers
    ]


def distinct(answers: Iterable[Found]) -> list[object]:
    """The different bindings in order of their first answers, and what these walked over."""
    first: dict[object, object] = {}
    for bindings, visits in answers:
        key = tuple(sorted((name, exact(value)) for name, value in bindings.items()))
        first.setdefault(key, (bindings, set(visits)))
    return list(first.values())


@pytest.mark.parametrize("case", TABLE, ids=str)
def test_table(case: Case) -> None:
    patterns, subjects, expected = case.read()
    answers = found(matched(patterns, subjects))
    assert distinct(answers) == distinct(reference(patterns, subjects))
    assert [b for b, _ in answers] == expected or len(answers) < len(expected)


POOL = [
    parse_term(text, TERMS)
    for text in ["a", "b{v=1}", "g(a)", "h(g(b))", "f(a, a)", "f(a, g(a))", "k(f(a, b{v=1}), g(a))"]
]
"""Subjects for every random pattern, beside the term that it was made after."""

random_cases = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))


def assert_agrees(pattern: Pattern, subjects: list[Term], budget: int = STEPS) -> None:
    for term in subjects:
        try:
            expected = list(reference([pattern], [term], budget))
        except BudgetError:
            continue
        assert distinct(found(matched([pattern], [term], 10 * budget))) == distinct(expected)


@random_cases
@given(cases())
def test_agrees_with_the_machine(case: tuple[Pattern, Term]) -> None:
    pattern, term = case
    assert_agrees(pattern, [*subterms(term), *POOL])


@random_cases
@given(cases(fuel=7, max_leaves=6))
def test_agrees_with_the_machine_on_larger_cases(case: tuple[Pattern, Term]) -> None:
    pattern, term = case
    assert_agrees(pattern, [*subterms(term), *POOL], 500)


@random_cases
@given(cases(fuel=3), cases(max_leaves=3, fuel=3))
def test_several_roots(one: tuple[Pattern, Term], other: tuple[Pattern, Term]) -> None:
    patterns = [one[0], other[0]]
    for terms in product([*subterms(one[1]), *POOL[:3]], [*subterms(other[1]), *POOL[:3]]):
        try:
            expected = list(reference(patterns, terms, 500))
        except BudgetError:
            continue
        assert distinct(found(matched(patterns, terms))) == distinct(expected)


@random_cases
@given(cases())
def test_places(case: tuple[Pattern, Term]) -> None:
    """Every term that is bound has been met somewhere under the root, and only there."""
    pattern, term = case
    for subject in [term, *POOL]:
        root = Spot(subject)
        try:
            answers = list(matched([pattern], [root], STEPS))
        except BudgetError:
            continue
        for answer in answers:
            assert_places(answer, root)


def assert_places(answer: Answer, root: Spot) -> None:
    bound = {value for value in answer.bindings.values() if isinstance(value, Term)}
    assert bound <= set(answer.places)
    for value, spots in answer.places.items():
        assert spots
        assert len(set(spots)) == len(spots)
        assert all(at(root, spot.path) is spot and spot.term is value for spot in spots)
    assert all(at(root, visit.subject.path) is visit.subject for visit in answer.visits)


def at(root: Spot, path: tuple[int, ...]) -> Spot:
    for index in path:
        root = root.children[index]
    return root


def paths(answer: Answer, text: str, terms: Terms) -> list[tuple[int, ...]]:
    return [spot.path for spot in answer.places[parse_term(text, terms)]]


def test_places_come_in_the_order_met() -> None:
    terms = Terms()
    root = Spot(parse_term("f(a, f(g(a), a))", terms))
    [answer] = matched([parse_pattern("f(x, f(g(y), x))")], [root])
    assert paths(answer, "a", terms) == [(0,), (1, 1), (1, 0, 0)]


def test_places_met_on_a_way_that_failed_are_forgotten() -> None:
    terms = Terms()
    root = Spot(parse_term("f(a, k(a, c))", terms))
    [answer] = matched([parse_pattern("f(x, k(x, exists z. (z where z.v == x.v)) | y)")], [root])
    assert paths(answer, "a", terms) == [(0,)]


def test_places_of_earlier_roots_are_kept() -> None:
    terms = Terms()
    roots = [Spot(parse_term("g(a)", terms)), Spot(parse_term("h(a)", terms))]
    [answer] = matched([parse_pattern("g(x)"), parse_pattern("h(x)")], roots)
    assert answer.places[parse_term("a", terms)] == (roots[0].children[0], roots[1].children[0])
    assert [visit.subject for visit in answer.visits] == roots
    roots = [Spot(parse_term("f(a, b)", terms)), Spot(parse_term("h(a)", terms))]
    [answer] = matched([parse_pattern("f(x, y)"), parse_pattern("h(x)")], roots)
    assert answer.places[parse_term("b", terms)] == (roots[0].children[1],)


@pytest.mark.parametrize(
    "pattern",
    [
        "f(x, y) let z = y with z <= g(u)",
        "f(x, y) let z = [x, y][1] with z <= g(u)",
        "f(x, y) let z = [x, y] let w = z[1] with w <= g(u)",
        "f(x, y) let z = record(v=x, w=y) let w = z.w with w <= g(u)",
        "f(x, y) let z = record(v=record(w=y)) let w = z.v.w with w <= g(u)",
        "f(x, y) let z = [x, record(v=y)][1] let w = z.v with w <= g(u)",
    ],
)
def test_constraint_on_a_computed_term_is_matched_where_it_was_met(pattern: str) -> None:
    terms = Terms()
    root = Spot(parse_term("f(a, g(b))", terms))
    [answer] = matched([parse_pattern(pattern)], [root])
    assert [visit.subject.path for visit in answer.visits] == [(), (1,)]


HELD = (
    "let z = record(v=x, w=y)",
    "let z = record(v=x, w=record(u=y)) where z.w.u.v == 1",
    "let z = record(v=x) let s = record(v=z.v, z=z, n=[y.v, 2]) where s.z.v.v == s.n[1] - 1",
    "let z = record(v=x, w=y) let s = z.w where s.v == 1",
)


@pytest.mark.parametrize("lets", HELD)
def test_a_record_is_made_without_the_terms_in_it(lets: str) -> None:
    term, pattern = parse_term("f(g(a){v=1}, b{v=1})", Terms()), parse_pattern(f"f(x, y) {lets}")
    root = Unread(Spot(term))
    [answer] = matched([pattern], [root])
    assert not any(child.is_made for child in root.children)
    assert [answer.bindings] == [bindings for bindings, _ in reference([pattern], [term])]


@pytest.mark.parametrize(
    ("lets", "found"),
    [
        ("let z = record(v=x) let w = record(v=y) where z == w", 1),
        ("let z = record(v=x) let w = record(u=z) where w.u == record(v=y)", 1),
        ("let z = record(v=x) let z = record(v=y)", 1),
        ("let z = record(v=x) where z.v == y", 1),
        ("let z = [record(v=x)] let w = [record(v=y)] where z == w", 1),
        ("let z = record(v=x) let w = z.v let w = y", 1),
        ("let z = record(v=x) let w = record(u=y) where z == w", 0),
        ("let z = record(v=x) where z == x", 0),
    ],
)
def test_what_a_record_holds_is_compared_by_its_terms(lets: str, found: int) -> None:
    pattern = parse_pattern(f"f(x, y) {lets}")
    for text, expected in (("f(g(a), g(a))", found), ("f(g(a), g(b))", 0)):
        term = parse_term(text, Terms())
        answers = [answer.bindings for answer in matched([pattern], [Unread(Spot(term))])]
        assert answers == [bindings for bindings, _ in reference([pattern], [term])]
        assert len(answers) == expected


@pytest.mark.parametrize("lets", ["let w = z.w", "let s = record(w=z.w) let w = s.w"])
def test_constraint_on_a_field_is_matched_at_the_occurrence_that_it_holds(lets: str) -> None:
    root = Unread(Spot(parse_term("f(g(a), g(a))", Terms())))
    pattern = parse_pattern(f"f(x, y) let z = record(v=x, w=y) {lets} with w <= g(u)")
    [answer] = matched([pattern], [root])
    assert [visit.subject for visit in answer.visits] == [root, root.children[1]]


def test_constraint_on_a_term_computed_from_an_earlier_root() -> None:
    terms = Terms()
    roots = [Spot(parse_term("f(a, g(b))", terms)), Spot(parse_term("h(a)", terms))]
    patterns = [parse_pattern("f(x, y)"), parse_pattern("h(x) let z = [x, y][1] with z <= g(u)")]
    [answer] = matched(patterns, roots)
    assert answer.visits[-1].subject is roots[0].children[1]


def test_a_computed_term_is_met_where_those_that_it_is_computed_of_were() -> None:
    """Not where it was met last in the search: what is elsewhere in the match plays no part."""
    root = Spot(parse_term("f(g(a), h(g(a)))", Terms()))
    pattern = "f(x, h(y)) let z = [x, x][0] with z <= g(u)"
    [answer] = matched([parse_pattern(pattern)], [root])
    assert [visit.subject.path for visit in answer.visits] == [(), (1,), (0,)]


@pytest.mark.parametrize(
    "pattern",
    [
        "f(x, y) let z = [x, y] with z <= g(u)",
        "f(x, y) let z = [x, y] with x <= z",
        "f(x, y) let z = record(v=x, w=y) with z <= g(u)",
        "f(x, y) let z = record(v=x, w=y) with x <= z",
        "f(x, y) let z = [record(v=x)] with z <= g(u)",
    ],
)
def test_a_tuple_is_not_the_term_that_it_holds(pattern: str) -> None:
    patterns, term = [parse_pattern(pattern)], parse_term("f(g(a), b)", Terms())
    assert not list(reference(patterns, [term]))
    assert not list(matched(patterns, [Spot(term)]))


def test_a_term_that_a_tuple_does_not_hold_is_not_met_there() -> None:
    """The tuple is computed of both names."""
    root = Spot(parse_term("f(g(a), k(g(b), g(a)))", Terms()))
    pattern = "f(x, k(y, v)) let z = [[x, y], y][1] with z <= g(u)"
    [answer] = matched([parse_pattern(pattern)], [root])
    assert answer.visits[-1].subject.path == (1, 0)


@pytest.mark.parametrize(
    ("given", "asked"),
    [("x", ""), ("[x, b]", "[0]"), ("[b, [x, x]]", "[1][1]"), ("record(v=b, w=x)", ".w")],
)
def test_a_call_fails_for_an_occurrence_and_not_for_its_term(given: str, asked: str) -> None:
    """A search may admit one occurrence of a term and not the other."""
    body = f"exists w. (c() let w = z{asked} with w <= (exists v. g(v)))"
    pair = f"(k(x, y) | k(y, x)) where x == y let b = 1 let z = {given}"
    matcher = Matcher((parse_pattern(f"f({pair}, rec P(z) {{ h(P^0(z)) | {body} }}(z))"),))
    root = Spot(parse_term("f(k(g(a), g(a)), h(c))", Terms()), trees=[Trees(matcher.index)])

    def paths_without(path: tuple[int, ...]) -> list[tuple[int, ...]]:
        answers = matcher.answers(root, admits=lambda spot: spot.path != path)
        return [answer.visits[-1].subject.path for answer in answers]

    assert paths_without((0, 0)) == [(0, 1)]
    assert paths_without((0, 1)) == [(0, 0)]
    assert paths_without(()) == []


def test_visits_carry_keep() -> None:
    root = parse_term("g(h(a))", Terms())
    [answer] = matched([parse_pattern("g(keep h(x))")], [root])
    assert [visit.keep for visit in answer.visits] == [False, True]


def test_an_operator_is_visited_only_where_it_is_admitted() -> None:
    matcher = Matcher((parse_pattern("g(h(x) | $F(y) | z)"),))
    root = subject_of(parse_term("g(h(a))", Terms()), Trees(matcher.index))

    def admits(subject: Subject) -> bool:
        return str(subject.operator) != "h"

    assert [[*a.bindings] for a in matcher.answers(root)] == [["x"], ["F", "y"], ["z"]]
    assert [[*a.bindings] for a in matcher.answers(root, admits=admits)] == [["z"]]


ALL = {"a", "g", "h", "f", "k"}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("x", ALL),
        ("g(x)", {"g"}),
        ("$F(x)", {"g", "h"}),
        ("g(x) | h(x)", {"g", "h"}),
        ("g(x) | x", ALL),
        ("exists n. n where n.v == 1 with n <= f(x, y)", {"f"}),
        ("exists n. n with n <= (g(x) | h(x)) with n <= (h(y) | f(y, z))", {"h"}),
        ("exists n. n with n <= (exists n. n)", ALL),
        ("n with m <= g(x)", ALL),
        ("(exists n. n) with n <= g(x)", ALL),
        ("(rec P(m) { m }(n)) with n <= g(x)", {"g"}),
        ("(rec P(m, n) { n }(n, k)) with n <= g(x)", ALL),
        ("(rec P(m, m) { m }(n, k)) with k <= g(x)", ALL),
        ("(rec P(m, m) { m }(n, k)) with n <= g(x)", {"g"}),
        ("(rec P(n) { exists n. n }(n)) with n <= g(x)", ALL),
        ("exists y. (rec T(y) { y | h(T^0(y)) }(y)) with y <= g(x)", {"g"}),
        ("exists y. (rec T(y) { y | h(T^0(y)) }(y)) with y <= a()", {"a", "h"}),
        ("rec P(x) { g(P^0(x)) | h(x) }(x)", {"h"}),
        ("rec P(x) { g(P^0(x)) | a() }(x)", {"g", "a"}),
        ("rec P(x) { P^0(x) | h(x) }(x)", {"h"}),
        ("g(h(x))", set()),
        ("g(g(x)) | g(a())", {"g"}),
    ],
)
def test_what_the_index_lets_through(pattern: str, expected: set[str]) -> None:
    matcher = Matcher((parse_pattern(pattern),))
    terms = Terms()
    trees = Trees(matcher.index)
    subjects = [parse_term(text, terms) for text in ["a", "g(a)", "h(a)", "f(a, a)", "k(a, a, a)"]]
    let_through = {t.operator.name for t in subjects if matcher.may_match(trees.tree(t))}
    assert let_through == expected


@pytest.mark.parametrize(
    "pattern",
    [
        "f(n, (exists n. n) with n <= g(x))",
        "f(n, (rec P(n) { exists n. n }(n)) with n <= g(x))",
        "f(n, (rec P(m, n) { n }(n, k)) with n <= g(x))",
        "f(n, (rec P(m, n) { n | exists m. n | m }(n, k)) with n <= g(x))",
    ],
)
def test_what_a_constraint_accepts_is_asked_of_its_own_name_alone(pattern: str) -> None:
    term = parse_term("f(g(a), b)", Terms())
    expected = list(reference([parse_pattern(pattern)], [term]))
    assert expected
    assert found(matched([parse_pattern(pattern)], [term])) == expected


CHAIN = "rec P(x; out: x) { g(P^0(x)) | (exists F. $F(P^0(x))) | x }(x)"


def test_a_chain_of_20_000_operators() -> None:
    terms = Terms()
    g = Operator("g")
    bottom = term = terms.make(Operator("a"))
    for _ in range(20_000):
        term = terms.make(g, (term,))
    answer = next(matched([parse_pattern(CHAIN)], [term], 200_000))
    assert answer.bindings == {"x": bottom}
    assert len(answer.visits) == 20_000
    linear = parse_pattern("rec P(x; out: x) { g(P^0(x)) | a() let x = 1 }(x)")
    assert [a.bindings for a in matched([linear], [term], 200_000)] == [{"x": 1}]


def test_budget() -> None:
    terms = Terms()
    subject = parse_term("g(g(g(g(a))))", terms)
    pattern = parse_pattern(CHAIN)
    everything = found(matched([pattern], [subject]))
    assert len(everything) == 2**5 - 1
    lengths = []
    for budget in range(700):
        some: list[Found] = []
        with suppress(BudgetError):
            for answer in matched([pattern], [subject], budget):
                some += found(iter([answer]))
        assert some == everything[: len(some)]
        lengths.append(len(some))
    assert lengths == sorted(lengths)
    assert set(lengths) == set(range(2**5))


def test_budget_stops_endless_recursion() -> None:
    pattern = parse_pattern("rec P() { P^0() | a() }()")
    with pytest.raises(BudgetError, match="did not end"):
        next(matched([pattern], [parse_term("a", Terms())], 10_000))


def test_answers_leave_no_trace() -> None:
    """Two searches at once, and one begun anew, do not disturb one another."""
    terms = Terms()
    pattern = parse_pattern("f(x | y, exists F. $F(x | y))")
    matcher = Matcher((pattern,))
    subject = Trees(matcher.index).tree(parse_term("f(a, g(a))", terms))
    expected = found(matcher.answers(subject))
    one, other = matcher.answers(subject), matcher.answers(subject)
    pairs = [found(iter(pair)) for pair in zip(one, other, strict=True)]
    assert pairs == [[answer, answer] for answer in expected]
    assert found(matcher.answers(subject)) == expected
    assert free_names(pattern) == {"x", "y"}


WALKED = """f(x, rec P(x) {
    k(P^0(x), exists z. z where z.v == 1) | k(P^0(x), exists z. z) | g(P^0(x)) | x }(x))"""


def test_what_a_call_walked_is_walked_again_after_backtracking() -> None:
    """The first alternate fails at `z`; the second calls `P` at the same term once more."""
    term = parse_term("f(a, k(g(g(a)), b))", Terms())
    [(_, visits)] = found(matched([parse_pattern(WALKED)], [term]))
    assert {str(visited) for visited, _ in visits} == {
        str(below) for below in subterms(term) if below.children
    }


def test_other_ways_to_succeed_are_tried_after_an_answer() -> None:
    """They may be legal where the first is not: what is kept may have users outside."""
    pattern = parse_pattern("f(x, rec P(x) { g(P^0(x)) | keep g(P^0(x)) | x }(x))")
    term = parse_term("f(a, g(a))", Terms())
    answers = found(matched([pattern], [term]))
    assert [keep for _, visits in answers for _, keep in visits[1:]] == [False, True]


VALUES: list[Value] = [1, 1.0, True, 0.0, -0.0, float("nan"), -float("nan"), "1", None]
VALUES += [(1, 0.0), (1.0, 0.0), (1, -0.0), (float("nan"),), ()]
VALUES += [complex(-1.0, 0.0), complex(-1.0, -0.0), complex(0.0, float("nan"))]


@pytest.mark.parametrize("one", range(len(VALUES)))
def test_a_name_is_bound_twice_to_constants_that_are_exactly_the_same(one: int) -> None:
    terms = Terms()
    pattern = parse_pattern("f(x, z) let y = x.v let y = z.v")
    f, a = Operator("f"), Operator("a")
    for other in range(len(VALUES)):
        # NaN is one constant even where two objects stand for it
        values = VALUES[one], float("nan") if other == 5 else VALUES[other]
        leaves = [terms.make(a, (), {"v": value}) for value in values]
        root = terms.make(f, leaves)
        expected = 1 if leaves[0] is leaves[1] else 0
        assert len(list(reference([pattern], [root]))) == expected
        assert len(found(matched([pattern], [root]))) == expected
        theta = {"x": leaves[0], "z": leaves[1], "y": values[0]}
        assert is_match(pattern, theta, root, values) == bool(expected)
