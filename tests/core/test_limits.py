"""What guards may cost: limits that hold when a rule is read, and when a guard is evaluated."""

from __future__ import annotations

import pytest

from pypm.core.guards import FUNCTIONS, evaluate, holds
from pypm.core.parsing.limits import growing
from pypm.core.terms import UNDEFINED, Value
from pypm.core.text import parse_expression, parse_guard, parse_rule
from pypm.diagnostics import BudgetError, SyntaxDiagnostic

BOUND: dict[str, Value] = {"n": 3, "big": 10**18, "s": "%1000000000d", "t": (1, 2)}


def lookup(name: str) -> Value:
    return BOUND.get(name, UNDEFINED)


COSTLY = {
    "2 ** 10 ** 9": "this computes a number of more than 4,096 bits",
    "-3 ** 5000": "this computes a number of more than 4,096 bits",
    "7 // 2 ** 100000": "this computes a number of more than 4,096 bits",
    "x.n + 10 ** 400 * 10 ** 1200": "this computes a number of more than 4,096 bits",
    "len('a' * 3000000000)": "strings and tuples are no numbers",
    "(1, 2) * 300000000": "strings and tuples are no numbers",
    "300000000 * [x.n, 2]": "strings and tuples are no numbers",
    "'%1000000000d' % 1": "strings and tuples are no numbers",
    "x.n ** 100": "the exponent is not a number up to 16",
    "2 ** x.n": "the exponent is not a number up to 16",
    "x.n ** inf": "the exponent is not a number up to 16",
    "((x.n ** 16) ** 16) ** 16 ** 1": "the exponent is not a number",
    "((((x.n ** 16) ** 16) ** 16) ** 16) ** 16": "its value may be too large",
}


@pytest.mark.parametrize("expression", COSTLY)
@pytest.mark.parametrize(
    "rule",
    [
        "rule r(x): f(x) if 1 < {} => x",
        "rule r(x): f(x) if not (x.v == 1 or true and {} in (1, 2)) => x",
        "rule r(x): f(x where [{}] == 2) => x",
        "rule r(x): exists y. f(x) let y = ({}) => x",
        "rule r(x): rec P(x) {{ g(x) where ({}) == 0 }}(x) => x",
    ],
)
def test_costly_guards_are_refused_when_a_rule_is_read(expression: str, rule: str) -> None:
    text = rule.format(expression)
    with pytest.raises(SyntaxDiagnostic, match="a guard of rule `r` may cost too much") as caught:
        parse_rule(text)
    found = caught.value.diagnostic
    if "16 ** 1" not in expression:
        assert COSTLY[expression] in found.label
    assert found.help
    assert found.span is not None


def chain(step: str, count: int) -> str:
    """Values of `let`, each made of the one before."""
    return "f(a0)" + "".join(f" let a{n + 1} = {step.format(f'a{n}')}" for n in range(count))


@pytest.mark.parametrize("step", ["{0} * {0}", "[{0}, {0}]", "{0} + {0}", "[{0}, {0}][0] ** 2"])
def test_values_that_double_from_let_to_let_are_refused(step: str) -> None:
    parse_rule(f"rule r(a0): {chain(step, 4)} => a0")
    with pytest.raises(SyntaxDiagnostic, match="may cost too much"):
        parse_rule(f"rule r(a0): {chain(step, 60)} => a0")


@pytest.mark.parametrize("step", ["{} + 1", "[{}, 1]", "max({}, 3)", "-{}"])
def test_values_that_grow_by_a_step_are_read(step: str) -> None:
    parse_rule(f"rule r(a0): {chain(step, 60)} => a0")


@pytest.mark.parametrize("below", [1, -1])
def test_thousands_of_values_may_be_made_one_of_the_other(below: int) -> None:
    count = 2_000
    lets = (f"g(x) let a{n} = a{(n + below) % count} + 1" for n in range(count))
    parse_rule(f"rule r(x): f({', '.join(lets)}) => x")


def test_constants_have_so_many_items() -> None:
    """A set of numbers with one hash takes quadratic time."""
    numbers = [str(n * (2**61 - 1)) for n in range(5_000)]
    for opening, closing in ("{}", "()"):
        text = f"x.v in {opening}{', '.join(numbers)}{closing}"
        with pytest.raises(SyntaxDiagnostic, match="more than 4,096 items"):
            parse_guard(text)
        parse_guard(text.replace(f", {', '.join(numbers[4_096:])}", ""))


@pytest.mark.parametrize(
    ("expression", "grows"),
    [
        ("[n, n]", True),
        ("n * n", True),
        ("n + n", True),
        ("n ** 2", True),
        ("[n, 1]", False),
        ("n + 1", False),
        ("n + x.k", False),
        ("x.k * x.k", False),
    ],
)
def test_values_that_double_in_a_recursion(expression: str, grows: bool) -> None:
    rule = parse_rule(
        "rule r(x, m): rec P(x, m; out: x, m) "
        f"{{ (exists n. g(P^0(x, n)) let m = {expression}) | f(x) let m = 1 }}(x, m) => x"
    )
    assert bool([*growing(rule)]) is grows


@pytest.mark.parametrize(
    "guard",
    [
        "x.n ** 2 == 4 and x.n ** 0.5 < 3 and x.n ** -1 < 2",
        "2 ** 31 < x.n and x.n * 2 ** 10 == 1",
        "x.n % 8 == 0 and product(x.shape) * 4 < 10 ** 9",
        "x.t + (1,) == [1, 2] and 'a' + 'b' == x.s",
        "x.n == -9223372036854775808",
    ],
)
def test_usual_guards_are_read(guard: str) -> None:
    assert parse_rule(f"rule r(x): f(x) if {guard} => x").guard == parse_guard(guard)


@pytest.mark.parametrize("text", ["big ** 100", "big ** big", "big ** 60 * big ** 60 * big ** 60"])
def test_numbers_that_are_too_large_are_not_computed(text: str) -> None:
    with pytest.raises(BudgetError, match="more than 4,096 bits"):
        evaluate(parse_expression(text), lookup)


@pytest.mark.parametrize("text", ["s * big", "big * t", "s % 1", "s % t", "t ** 2"])
def test_sequences_are_no_numbers(text: str) -> None:
    assert evaluate(parse_expression(text), lookup) is UNDEFINED
    assert holds(parse_guard(f"({text}) == 1"), lookup) is None


def test_long_sequences_are_not_joined() -> None:
    half = (0,) * 40_000
    assert FUNCTIONS["add"](half, (1,))[-1] == 1
    with pytest.raises(BudgetError, match="more than 65,536 items"):
        FUNCTIONS["add"](half, half)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1 ** big", 1), ("(-1) ** big", 1), ("0 ** big", 0), ("n ** 5", 243), ("2 ** -1", 0.5)],
)
def test_small_powers_are_computed(text: str, value: float) -> None:
    assert evaluate(parse_expression(text), lookup) == value
