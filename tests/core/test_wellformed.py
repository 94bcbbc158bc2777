"""Definitely bound names: the table of section 5, its diagnostics, and inference."""

from dataclasses import replace

import pytest
from hypothesis import given, settings

from pypm.core.guarded import check_guarded, is_guarded
from pypm.core.guards import TRUE, And, Attribute, Constant, Equal
from pypm.core.inference import infer
from pypm.core.operators import Operator
from pypm.core.patterns import Alt, Definition, Exists, Guarded, Mu, Op, Pattern, Var
from pypm.core.printing import print_pattern
from pypm.core.text import parse_guard, parse_pattern
from pypm.core.traverse import guard_span, pattern_span
from pypm.core.wellformed import bound_after, bound_after_all, check_wellformed, is_wellformed
from tests.core.strategies import shapes, without_lists

REC = "rec P(x, y; in: x; out: y) { g(y) where x.v == 1 }(a, b)"


@pytest.mark.parametrize(
    ("pattern", "before", "after"),
    [
        ("x", "", "x"),
        ("f(x, y)", "z", "x y z"),
        ("$F(x)", "", "F x"),
        ("f(x, y) | g(x)", "", "x"),
        ("x | y", "x", "x"),
        ("exists x. f(x, y)", "", "y"),
        ("exists x. g(y)", "x", "x y"),
        ("x where y == 1", "", "x"),
        ("x let y = 1", "", "x y"),
        ("x with x <= g(y)", "", "x y"),
        (REC, "", "b"),
        ("rec P(x, x; out: x) { x }(a, b)", "", "a"),
        ("rec P(x, y; out: x, y) { f(x, y) }(a)", "", "a"),
        ("^0(x)", "y", "y"),
    ],
)
def test_bound_after(pattern: str, before: str, after: str) -> None:
    found = bound_after(parse_pattern(pattern), frozenset(before.split()))
    assert found == frozenset(after.split())


def test_bound_after_a_call_reads_the_context() -> None:
    pattern = parse_pattern(REC)
    assert isinstance(pattern, Mu)
    inner = parse_pattern("rec Q(z; out: z) { z }(c)")
    assert isinstance(inner, Mu)
    context = (inner.definition, pattern.definition)
    body = parse_pattern("f(^0(u), ^1(v, w))")
    assert bound_after(body, frozenset(), context) == {"u", "w"}
    found = check_wellformed(body, frozenset(), context)
    assert [d.message for d in found] == ["variable `v` may be unbound when `P` is entered"]
    assert check_wellformed(body, frozenset({"v"}), context) == []


def test_bound_after_roots() -> None:
    roots = [parse_pattern("g(x)"), parse_pattern("x | y")]
    assert bound_after_all(roots) == {"x"}
    assert check_wellformed(parse_pattern("y where x == y"), bound_after_all(roots)) == []


WELLFORMED = [
    "x where x.v == 1",
    "f(x, y where x.v == 1)",
    "exists x. x",
    "exists F. $F()",
    "exists x. a() let x = 1",
    "(f(x, y) | f(y, x)) where x == y",
    "x let y = x.v let z = y",
    "x with x <= g(y) where y == y",
    "f(x, exists x. x)",
    "rec P(x; out: x) { g(P^0(x)) | x }(y) where y == y",
    "f(x, rec P(y; in: y) { g(z) where y.v == 1 }(x))",
    "rec P(x, y; out: x, y) { g(P^0(y, x)) | f(x, y) }(x, y)",
    "rec P(x, y; out: x) { f(x, P^0(y, x)) | x }(u, u)",
    "^3(x)",
]
LABELLED = {
    "g(x where y.v == 1)": "variable `y` may be unbound when the guard reads it @ y.v == 1",
    "x where x.v == 1 or not x < y": "variable `y` may be unbound when the guard reads it @ x < y",
    "f(x where y.v == 1, y)": "variable `y` may be unbound when the guard reads it @ y.v == 1",
    "(x | a()) where x.v == 1": "variable `x` may be unbound when the guard reads it @ x.v == 1",
    "x where `y#3` == x": "variable `y` may be unbound when the guard reads it @ `y#3` == x",
    "exists x. a()": "local variable `x` may be left unbound @ a()",
    "f(x, exists x. (x | b()))": "local variable `x` may be left unbound @ x",
    "x let y = z": "variable `z` may be unbound when the value of `y` is computed @ x let y = z",
    "g(x with y <= a())": (
        "variable `y` may be unbound when it is to match a further pattern @ x with y <= a()"
    ),
    "rec P(x; in: x) { x }(y)": (
        "variable `y` may be unbound when `P` is entered @ rec P(x; in: x) { x }(y)"
    ),
    "f(x, rec P(x, y; in: y) { x where y == y }(x))": (
        "`P` is called without its parameter `y`, which it reads"
        " @ rec P(x, y; in: y) { x where y == y }(x)"
    ),
    "rec P(x; out: x) { g(x) | a() }(y)": (
        "`P` may leave its parameter `x` unbound @ rec P(x; out: x) { g(x) | a() }"
    ),
    "rec P(x; out: x) { rec Q(y; in: y; out: y) { y }(x) }(x)": (
        "variable `x` may be unbound when `Q` is entered @ rec Q(y; in: y; out: y) { y }(x)"
    ),
    "rec P(x) { x where y == y }(x)": (
        "variable `y` may be unbound when the guard reads it @ y == y"
    ),
    "exists x. g(y) where x == y with x <= z": None,
}


@pytest.mark.parametrize("text", WELLFORMED)
def test_wellformed(text: str) -> None:
    assert check_wellformed(parse_pattern(text)) == []
    assert is_wellformed(parse_pattern(text))


@pytest.mark.parametrize("text", [text for text, label in LABELLED.items() if label])
def test_not_wellformed(text: str) -> None:
    """Each is one problem, at the part of the text that has it, with help."""
    (found,) = check_wellformed(parse_pattern(text))
    assert found.span is not None
    assert found.span.line == 1
    place = text[found.span.column : found.span.end_column]
    assert f"{found.message} @ {place}" == LABELLED[text]
    assert found.label
    assert found.help
    assert not is_wellformed(parse_pattern(text))


def test_every_problem_is_found() -> None:
    pattern = parse_pattern("exists x. g(y) where x == y with x <= z")
    assert [d.message for d in check_wellformed(pattern)] == [
        "variable `x` may be unbound when the guard reads it",
        "variable `x` may be unbound when it is to match a further pattern",
        "local variable `x` may be left unbound",
    ]


def test_diagnostic_renders() -> None:
    (found,) = check_wellformed(parse_pattern("g(x\n  where y.v == 1)", file="rules.txt"))
    assert found.render().splitlines() == [
        "error: variable `y` may be unbound when the guard reads it",
        " --> rules.txt:2:9",
        "  |",
        "2 |   where y.v == 1)",
        "  |         ^^^^^^^^ `y` is read here",
        "  = help: bind `y` before the guard, in every alternate",
    ]


def test_span_falls_back_to_the_nearest_around() -> None:
    outer = parse_pattern("g(x)")
    assert isinstance(outer, Op)
    guard = Equal(Attribute("y", "v"), Constant(1))
    spanless = Guarded(Alt(Var("x"), Var("z")), guard)
    pattern = Op(Operator("g"), (spanless,), span=outer.span)
    (found,) = check_wellformed(pattern)
    assert found.span == outer.span
    (found,) = check_wellformed(Guarded(outer, guard, span=outer.span))
    assert found.span == outer.span
    assert check_wellformed(spanless)[0].span is None


@pytest.mark.parametrize(
    ("text", "lists"),
    [
        ("rec P(x) { g(P^0(x)) | x }(x)", "out: x; small: x"),
        ("rec P(x, F) { $F(P^0(x, F)) | $F(x) }(x, F)", "out: F, x; small: x"),
        ("rec P(x, y) { g(P^0(x, y)) where y.v == 1 | x }(x, y)", "in: y; out: x, y; small: x"),
        ("rec P(x, y) { f(x, P^0(x, y)) | g(y) }(x, y)", "out: y; small: y"),
        ("rec P(x, y) { g(P^0(y, x)) | f(x, y) }(x, y)", "out: x, y; small: x, y"),
        ("rec P(x, y) { g(P^0(y, x)) | x }(x, y)", ""),
        ("rec P(s) { g(x) let s = 1 | P^0(s) }(s)", "out: s"),
        ("rec P(x) { a() with x <= b() }(x)", "in: x; out: x"),
        ("rec P(x, y) { g(P^0(y, x)) where x == x | a() }(x, y)", "in: x, y; out: x, y"),
        ("rec P(x) { exists x. g(y) where x == x }(x)", ""),
    ],
)
def test_infer(text: str, lists: str) -> None:
    found = infer(parse_pattern(text))
    assert isinstance(found, Mu)
    head = print_pattern(found).split(" { ")[0]
    assert head.partition("; ")[2].removesuffix(")") == lists


def test_infer_nested() -> None:
    text = "rec P(x, y) { rec Q(z) { g(P^1(z, z)) | h(Q^0(z)) where z == z | z }(x) | x }(u, v)"
    assert print_pattern(infer(parse_pattern(text))) == (
        "rec P(x, y; out: x; small: x) { rec Q(z; out: z; small: z) "
        "{ g(P^1(z, z)) | h(Q^0(z)) where z == z | z }(x) | x }(u, v)"
    )


def test_infer_asks_outwards_for_inputs() -> None:
    text = "rec P(x) { rec Q(z) { g(a()) where z.v == 1 }(x) }(u)"
    pattern = infer(parse_pattern(text))
    assert isinstance(pattern, Mu)
    inner = pattern.definition.body
    assert isinstance(inner, Mu)
    assert pattern.definition.inputs == {"x"}
    assert inner.definition.inputs == {"z"}
    assert [d.message for d in check_wellformed(pattern)] == [
        "variable `u` may be unbound when `P` is entered"
    ]


def test_infer_keeps_names_of_other_bodies_apart() -> None:
    pattern = infer(parse_pattern("rec P(x) { rec Q(z) { g(z) where x == x }(x) }(u)"))
    assert isinstance(pattern, Mu)
    assert pattern.definition.inputs == frozenset()


def test_infer_reaches_every_position() -> None:
    one = "rec P(x) { x }(x)"
    done = "rec P(x; out: x; small: x) { x }(x)"
    shape = (
        "exists x. f({0}, $F({0}) | {0}) where x == x let y = x with x <= ({0}) with x <= g({0})"
    )
    pattern = infer(parse_pattern(shape.format(one)))
    assert pattern == parse_pattern(shape.format(done))


def test_deep_patterns() -> None:
    pattern: Pattern = parse_pattern("rec P(x) { g(P^0(x)) | x }(x)")
    for _ in range(400):
        pattern = Alt(Exists("y", Op(Operator("g"), (Var("y"),))), pattern)
    pattern = infer(pattern)
    assert check_wellformed(pattern) == []
    assert check_guarded(pattern) == []
    assert bound_after(pattern) == frozenset()


def definitions(pattern: Pattern) -> list[Definition]:
    match pattern:
        case Mu(definition):
            return [definition, *definitions(definition.body)]
        case Alt(left, right):
            return definitions(left) + definitions(right)
        case _:
            return []


@settings(max_examples=200, deadline=None)
@given(shapes())
def test_infer_passes_the_checks(pattern: Pattern) -> None:
    """What inference promises, the checks confirm; and it promises all that random lists do."""
    found = infer(pattern)
    assert infer(found) == found
    messages = [d.message for d in check_wellformed(found)]
    assert not [m for m in messages if "leave its parameter" in m]
    assert not [d for d in check_guarded(found) if "bound to a larger term" in d.message]
    if is_wellformed(pattern):
        assert is_wellformed(found)
    if is_guarded(pattern):
        assert is_guarded(found)
    assert without_lists(infer(without_lists(pattern))) == without_lists(found)


@settings(max_examples=200, deadline=None)
@given(shapes())
def test_bound_after_is_extensive(pattern: Pattern) -> None:
    """D is a part of db(D), and db is monotone."""
    some, more = frozenset({"x"}), frozenset({"x", "y"})
    assert some <= bound_after(pattern, some) <= bound_after(pattern, more)


def test_inference_keeps_the_order_of_alternates() -> None:
    pattern = parse_pattern("g(x) | rec P(x) { h(P^0(x)) | x }(x) | h(x)")
    assert print_pattern(infer(pattern)).replace("; out: x; small: x", "") == print_pattern(pattern)


def test_the_span_is_that_of_the_first_part_that_has_one() -> None:
    guard = parse_guard("a.n == 1 and (b.n < 2 or not a.m < 3)")
    assert isinstance(guard, And) and isinstance(guard.left, Equal)
    unplaced = replace(guard, left=replace(guard.left, span=None))
    found = [guard_span(guard), guard_span(guard, "b"), guard_span(unplaced), guard_span(TRUE)]
    assert [span and span.column for span in found] == [0, 14, 14, None]
    assert [span and span.end_column for span in found] == [8, 21, 21, None]
    left, right = Var("x"), parse_pattern("f(x) | g(x)")
    assert isinstance(right, Alt)
    assert pattern_span(right) == pattern_span(right.left) != pattern_span(right.right)
    assert pattern_span(Alt(left, right)) == pattern_span(right)
    assert pattern_span(left) is None
