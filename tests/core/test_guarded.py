"""The termination check of section 6: what it accepts, what it refuses, and where it points."""

import pytest

from pypm.core.guarded import NO_SIZES, Mode, Sizes, check_guarded, is_guarded, sizes
from pypm.core.machine import answers
from pypm.core.patterns import arg, shown
from pypm.core.terms import Terms
from pypm.core.text import parse_pattern, parse_term
from pypm.diagnostics import BudgetError

WRAP = "rec W(y; out: y; small: y) { h(W^0(y)) | y }(y)"
GUARDED = {
    "chain": "rec P(x, F) { $F(P^0(x, F)) | $F(x) }(x, F)",
    "root as-pattern": "rec P() { exists y. y with y <= f(P^0(), a()) | a() }()",
    "variable bound below": "rec P() { (exists y. g(y) with y <= P^0()) | a() }()",
    "outer call": "rec P() { rec Q() { g(P^1()) | h(Q^0()) | a() }() }()",
    "helper": f"rec P(x) {{ (exists y. ({WRAP}) with y <= g(P^0(x))) | x }}(x)",
    "helper below": f"rec P(x) {{ (exists y. g({WRAP}) with y <= P^0(x)) | x }}(x)",
    "let of a small variable": "rec P() { (exists y z. g(y) let z = y with z <= P^0()) | a() }()",
    "both alternates below": "rec P() { (exists y. (g(y) | h(y)) with y <= P^0()) | a() }()",
    "entered again below": "rec P() { g(rec Q() { P^1() | a() }()) | b() }()",
    "weak variable, entered below": (
        "rec P() { g(rec Q() { (exists y. y with y <= P^1()) | a() }()) | b() }()"
    ),
    "call of nothing, below": "g(^0())",
}
REFUSED = {
    "left recursion": ("rec P() { P^0() | a() }()", "P^0()"),
    "left recursion through another": ("rec P() { rec Q() { P^1() | a() }() }()", "P^1()"),
    "C7": (
        "exists y. y with y <= rec P(u) { g(exists z. z with u <= P^0(u)) }(y)",
        "P^0(u)",
    ),
    "unknown variable": ("rec P(x) { g(y) with x <= P^0(x) }(x)", "P^0(x)"),
    "weak variable": ("rec P() { (exists y. y with y <= P^0()) | a() }()", "P^0()"),
    "weak variable, entered at the same term": (
        "rec P() { rec Q() { (exists y. y with y <= P^1()) | a() }() | b() }()",
        "P^1()",
    ),
    "one alternate below": (
        "rec P() { (exists y. (g(y) | y) with y <= P^0()) | a() }()",
        "P^0()",
    ),
    "helper without B": (
        f"rec P(x) {{ (exists y. ({WRAP}) with y <= g(P^0(x))) | x }}(x)".replace("; small: y", ""),
        "P^0(x)",
    ),
    "local variable hides a small one": (
        "rec P(y) { (g(y) with y <= (exists y. h(z) with y <= P^0(y))) | a() }(y)",
        "P^0(y)",
    ),
    "too large for B": ("rec W(y; small: y) { h(z) }(y)", "rec W(y; small: y) { h(z) }"),
    "call of nothing": ("^0()", "^0()"),
}


@pytest.mark.parametrize("name", GUARDED)
def test_guarded(name: str) -> None:
    pattern = parse_pattern(GUARDED[name])
    assert check_guarded(pattern) == []
    assert is_guarded(pattern)


@pytest.mark.parametrize("name", REFUSED)
def test_not_guarded(name: str) -> None:
    text, place = REFUSED[name]
    (found,) = check_guarded(parse_pattern(text))
    assert found.span is not None
    assert text[found.span.column : found.span.end_column] == place
    assert found.label
    assert found.help
    assert not is_guarded(parse_pattern(text))


@pytest.mark.parametrize("name", ["left recursion", "C7", "weak variable"])
def test_refused_patterns_may_run_forever(name: str) -> None:
    with pytest.raises(BudgetError):
        answers(parse_pattern(REFUSED[name][0]), parse_term("g(a)", Terms()), 5000)


def test_diagnostic_renders() -> None:
    (found,) = check_guarded(parse_pattern("rec `P#2`() { `P#2`^0() | a() }()", file="p.txt"))
    assert found.render().splitlines() == [
        "error: recursion through `P` is not guarded: the call is not strictly below the term `P` "
        "was entered at",
        " --> p.txt:1:15",
        "  |",
        "1 | rec `P#2`() { `P#2`^0() | a() }()",
        "  |               ^^^^^^^^^ this may enter `P` again on a term that is not smaller: the "
        "search might never end",
        "  = help: call `P` inside an operator, as in `f(P(...))`, or on a variable that is bound "
        "to a child",
    ]


@pytest.mark.parametrize(
    ("pattern", "mode", "strict", "weak"),
    [
        ("x", Mode.STRICT, "x", ""),
        ("x", Mode.WEAK, "", "x"),
        ("x", Mode.UNKNOWN, "", ""),
        ("f(x, y)", Mode.WEAK, "x y", ""),
        ("f(x, y)", Mode.UNKNOWN, "", ""),
        ("$F(x)", Mode.WEAK, "x", ""),
        ("f(x, y) | x", Mode.WEAK, "", "x"),
        ("g(x) | h(x)", Mode.WEAK, "x", "x"),
        ("exists x. f(x, y)", Mode.WEAK, "y", ""),
        ("x where x == y", Mode.WEAK, "", "x"),
        ("g(x) let y = x let z = 1", Mode.WEAK, "x y", ""),
        ("x let y = x", Mode.WEAK, "", "x y"),
        ("g(x) with x <= y", Mode.WEAK, "x y", ""),
        ("x with x <= h(y)", Mode.WEAK, "y", "x"),
        ("a() with x <= h(y)", Mode.WEAK, "", ""),
        ("rec P(x, y; small: y) { x }(a, b)", Mode.WEAK, "", "b"),
        ("g(rec P(x, y; small: y) { x }(a, b))", Mode.WEAK, "b", ""),
    ],
)
def test_sizes(pattern: str, mode: Mode, strict: str, weak: str) -> None:
    found = sizes(mode, NO_SIZES, parse_pattern(pattern))
    assert found.strict == frozenset(strict.split())
    assert found.weak - found.strict == frozenset(weak.split()) - found.strict


def test_modes_of_names() -> None:
    known = Sizes(frozenset({"x"}), frozenset({"x", "y"}))
    assert [known.mode(name) for name in "xyz"] == [Mode.STRICT, Mode.WEAK, Mode.UNKNOWN]


def test_arg_takes_the_first_occurrence() -> None:
    assert arg(("x", "x"), ("a", "b"), "x") == "a"
    assert arg(("x", "y"), ("a",), "y") is None
    assert arg(("x",), ("a",), "z") is None


@pytest.mark.parametrize(("name", "told"), [("y#3", "y"), ("y", "y"), ("#4", "#4")])
def test_shown(name: str, told: str) -> None:
    assert shown(name) == told
