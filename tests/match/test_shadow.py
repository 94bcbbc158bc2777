"""Rules that can never fire are found, and no others."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest

from pypm import RuleSet
from pypm.core.rules import Decline, Rule
from pypm.core.text import parse_pattern
from pypm.fx import program_of
from pypm.fx.matching.program import RuleProgram
from pypm.match.lint.shadowed import shadowed


def rule(text: str, replacement: object = None) -> Rule:
    pattern = parse_pattern(text)
    return Rule(text, ("x",), (pattern,), replacement or (lambda x: x))  # type: ignore[arg-type]


def found(*rules: Rule) -> list[str]:
    program = RuleProgram(rules)
    numbers = range(len(rules))
    matchers = [target.matcher for target in program.targets]
    return [d.message.split("`")[1] for d in shadowed(rules, matchers, numbers)]


DIM_1 = "exists n. n where n.dim == 1 with n <= g(x)"
DIM_1_BELOW = "exists m. m where m.dim == 1 with m <= g(h(x))"
DIM_2 = "exists n. n where n.dim == 2 with n <= g(x)"


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("g(x)", "g(x)"),
        ("g(x)", "g(h(x))"),
        ("g(x) | h(x)", "h(g(x))"),
        ("f(x, y)", "f(x, x)"),
        ("f(x, y) | f(y, x)", "f(g(x), y)"),
        ("$F(x)", "g(x)"),
        ("$F(x)", "$G($H(x))"),
        ("g(x)", "g(x) where x.rank == 2"),
        (
            "exists n. n where n.dim == 1 with n <= g(x)",
            "exists m. m where m.dim == 1 with m <= g(h(x))",
        ),
        ("g(x) where x.rank == 2", "g(x) where x.rank == 2 and x.dtype == 1"),
        ("g(x) | h(x)", "exists n. (n with n <= (g(x) | h(x)))"),
        ("rec P(x; out: x) { g(P^0(x)) | g(x) }(x)", "g(g(x))"),
        ("g(x)", "rec P(y; out: y) { g(h(y)) }(x)"),
        ("rec P(y; out: y) { g(y) }(x)", "rec P(x; out: x) { g(h(x)) }(y)"),
    ],
)
def test_shadowed(earlier: str, later: str) -> None:
    assert found(rule(earlier), rule(later)) == [later]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("g(h(x))", "g(x)"),
        ("g(x)", "h(x)"),
        ("g(x)", "g(x) | h(x)"),
        ("f(x, x)", "f(x, y)"),
        ("g(x) where x.rank == 2", "g(x)"),
        ("g(x) where x.rank == 2", "g(x) where x.rank == 3"),
        ("f(x, y) where not x == y", "f(x, y)"),
        ("f(x, y) where not x.rank == 2", "f(x, y)"),
        ("g(x)", "rec P(x; out: x) { g(P^0(x)) | g(x) }(x)"),
        ("g(h(x))", "rec P(y; out: y) { g(y) }(x)"),
        (DIM_1, "g(x)"),
        (
            "exists n. n where n.dim == 1 with n <= g(x)",
            "exists n. n where n.dim == 2 with n <= g(x)",
        ),
    ],
)
def test_not_shadowed(earlier: str, later: str) -> None:
    assert found(rule(earlier), rule(later)) == []


def test_a_rule_that_may_decline_shadows_nothing() -> None:
    def body(x: object) -> object:
        return Decline("sometimes")

    assert found(rule("g(x)", body), rule("g(h(x))")) == []


def test_a_rule_that_may_not_draw_leaves_those_that_may_what_is_random() -> None:
    first, drawing = rule("g(x)"), replace(rule("g(x)"), redraws=True)
    assert found(first, drawing) == []
    assert found(drawing, first) == found(drawing, drawing) == ["g(x)"]


def test_the_warning_comes_once_for_a_rule_set() -> None:
    rules = RuleSet((rule("g(x)"), rule("g(h(x))")))
    with pytest.warns(RuntimeWarning, match="rule `g\\(h\\(x\\)\\)` never fires") as caught:
        program_of(rules)
    assert len(caught) == 1
    with warnings.catch_warnings(record=True) as again:
        program_of(rules)
    assert not again
    assert "put `g(h(x))` before `g(x)`" in str(caught[0].message)
