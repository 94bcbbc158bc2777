"""Partial expressions and three-valued guards, and that both are monotone."""

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pypm.core.guards import (
    FUNCTIONS,
    TRUE,
    And,
    Apply,
    Attribute,
    Constant,
    Expression,
    Function,
    Guard,
    Holds,
    Not,
    Or,
    Reference,
    conjunction,
    equal,
    evaluate,
    holds,
    less,
)
from pypm.core.operators import Operator
from pypm.core.terms import UNDEFINED, Terms, Unresolved, Value
from pypm.core.text import parse_expression, parse_guard
from pypm.core.traverse import expression_names, names
from tests.core.strategies import NAMES, expressions, guards

TERMS = Terms()
RELU = Operator("relu", tags=frozenset({"pointwise", "core"}))
TERM = TERMS.make(RELU, (), {"dim": 1}, {"shape": (2, 3), "dim": 7})
KNOWN: dict[str, Value] = {
    "t": TERM,
    "F": RELU,
    "n": 3,
    "s": (4, 5, 6),
    "one": TERMS.literal(1),
    "none": TERMS.literal(None),
}


class Size(Unresolved):
    """A size of which nothing is known but that it is at least 2."""

    def equals(self, other: object) -> bool | None:
        return False if isinstance(other, int) and other < 2 else None

    def less(self, other: object) -> bool | None:
        return False if isinstance(other, int) and other <= 2 else None

    def greater(self, other: object) -> bool | None:
        return True if isinstance(other, int) and other < 2 else None


KNOWN["k"] = Size()


def lookup(name: str) -> Value:
    return KNOWN.get(name, UNDEFINED)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("n", 3),
        ("unbound", UNDEFINED),
        ("t.dim", 1),
        ("t.shape", (2, 3)),
        ("t.shape[1]", 3),
        ("t.shape[2]", UNDEFINED),
        ("t.rank", UNDEFINED),
        ("F.name", "relu"),
        ("F.tags", ("core", "pointwise")),
        ("F.shape", UNDEFINED),
        ("n.shape", UNDEFINED),
        ("unbound.shape", UNDEFINED),
        ("[n, 1]", (3, 1)),
        ("[n, unbound]", UNDEFINED),
        ("n + 1", 4),
        ("n - 1", 2),
        ("n * 2", 6),
        ("n / 2", 1.5),
        ("n // 2", 1),
        ("n % 2", 1),
        ("n ** 2", 9),
        ("-n", -3),
        ("n / 0", UNDEFINED),
        ("n + 'a'", UNDEFINED),
        ("n + unbound", UNDEFINED),
        ("s[0]", 4),
        ("s[1:None]", (5, 6)),
        ("len(s)", 3),
        ("5 in s", True),
        ("7 in s", False),
        ("5 in n", UNDEFINED),
        ("k in (0, 1)", False),
        ("k in (0, 7)", UNDEFINED),
        ("True in (0, 1)", False),
        ("close(0.1 + 0.2, 0.3)", True),
        ("close(1, 1.1)", False),
        ("close(True, 1.0)", False),
        ("close(k, 1.0)", UNDEFINED),
        ("is_none(none)", True),
        ("is_none(None)", True),
        ("is_none(one)", False),
        ("is_value(one, 1)", True),
        ("is_value(one, 2)", False),
        ("is_value(one, 1.0)", True),
        ("is_value(1, 1)", True),
        ("is_value(t, 1)", False),
        ("is_value(k, 7)", UNDEFINED),
        ("same_dims(-1, 2, 3)", True),
        ("same_dims(-1, 1, 3)", False),
        ("same_dims((0, -1), (0, 2), 3)", True),
        ("same_dims((0, 1), (0,), 3)", False),
        ("same_dims(0, 0, None)", True),
        ("same_dims(-1, 2, None)", UNDEFINED),
        ("same_dims((0, -1), (0, 2), None)", UNDEFINED),
        ("same_dims((1, -1), (0, 2), None)", False),
        ("same_dims(3, 0, 3)", False),
        ("product(s)", 120),
        ("product(())", 1),
        ("min(s)", 4),
        ("max(1, n)", 3),
        ("abs(-2)", 2),
    ],
)
def test_evaluate(text: str, value: Value) -> None:
    found = evaluate(parse_expression(text), lookup)
    assert found == value
    assert type(found) is type(value)


KLEENE = {True: TRUE, False: Not(TRUE), None: Holds(Reference("unbound"))}


@pytest.mark.parametrize(("one", "other"), [*product(KLEENE, KLEENE)])
def test_kleene_tables(one: bool | None, other: bool | None) -> None:
    both = {True: {True: True, False: False, None: None}, False: dict.fromkeys(KLEENE, False)}
    both[None] = {True: None, False: False, None: None}
    assert holds(And(KLEENE[one], KLEENE[other]), lookup) is both[one][other]
    either = {None: None, True: False, False: True}
    expected = either[both[either[one]][either[other]]]
    assert holds(Or(KLEENE[one], KLEENE[other]), lookup) is expected
    assert holds(Not(KLEENE[one]), lookup) is either[one]


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("n == 3", True),
        ("n == 4", False),
        ("n == unbound", None),
        ("n != unbound", None),
        ("t == t", True),
        ("n == t", False),
        ("n == 3.0", True),
        ("nan == nan", False),
        ("-0.0 == 0", True),
        ("nan < 1", False),
        ("(nan, 1) < (nan, 2)", None),
        ("(1, nan) < (2, 0)", None),
        ("True == 1", False),
        ("True == True", True),
        ("s == (4, 5, 6)", True),
        ("s == (4, 5)", False),
        ("k == 1", False),
        ("1 == k", False),
        ("k == 7", None),
        ("[k, 1] == [7, 2]", False),
        ("[k, 1] == [7, 1]", None),
        ("n < 4", True),
        ("n < 3", False),
        ("n < 'a'", None),
        ("k < 2", False),
        ("1 < k", True),
        ("k < 7", None),
        ("unbound < 1", None),
        ("n", None),
        ("n in (1, 3)", True),
        ("n in (1, 2)", False),
    ],
)
def test_holds(text: str, verdict: bool | None) -> None:
    assert holds(parse_guard(text), lookup) is verdict


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (TERM, TERM),
        (RELU, RELU),
        (TERM, RELU),
        (TERM, 1),
        (1, RELU),
        ((TERM,), (TERM,)),
        ((1, TERM), (2, TERM)),
        ((RELU, 1), (RELU, 2)),
        ((1, (RELU, 2)), (1, (RELU, 3))),
        ((1, 2), (1, TERM)),
        ((), (TERM,)),
    ],
)
def test_terms_and_operators_have_no_order(left: Value, right: Value) -> None:
    assert less(left, right) is None
    assert less(right, left) is None


def test_equal_and_less_on_undefined() -> None:
    assert equal(UNDEFINED, UNDEFINED) is None
    assert less(UNDEFINED, 1) is None


@pytest.mark.parametrize("error", [ZeroDivisionError, IndexError, KeyError, TypeError, ValueError])
def test_a_partial_function_is_undefined_where_it_raises(error: type[Exception]) -> None:
    def partial(value: Value) -> Value:
        raise error(value)

    assert evaluate(Apply(Function("partial", partial), (Constant(1),)), lookup) is UNDEFINED
    assert evaluate(Apply(FUNCTIONS["item"], (Constant(1), Constant(0))), lookup) is UNDEFINED


@pytest.mark.parametrize("error", [NameError, MemoryError, RecursionError, TimeoutError])
def test_other_exceptions_of_functions_come_through(error: type[Exception]) -> None:
    def broken(value: Value) -> Value:
        raise error(value)

    with pytest.raises(error):
        evaluate(Apply(Function("broken", broken), (Constant(1),)), lookup)


def test_functions_are_their_names() -> None:
    assert Function("f", min) == Function("f", max)
    assert FUNCTIONS["add"] != FUNCTIONS["sub"]


def test_conjunction() -> None:
    one, two = parse_guard("x"), parse_guard("y")
    assert conjunction([]) == TRUE
    assert conjunction([one, two]) == And(one, two)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("true", ""),
        ("x", "x"),
        ("x == y.v", "x y"),
        ("not f.v < 1 and [x, len(y)] == z or w", "f w x y z"),
    ],
)
def test_names(text: str, expected: str) -> None:
    assert names(parse_guard(text)) == frozenset(expected.split())


bindings = st.dictionaries(
    st.sampled_from(NAMES),
    st.sampled_from([0, 1, (0, 1), TERM, TERMS.make(Operator("a"), (), {"v": 1})]),
)


@settings(max_examples=150, deadline=None)
@given(guards(), bindings, bindings)
def test_guards_are_monotone(guard: Guard, some: dict[str, Value], more: dict[str, Value]) -> None:
    """C9: what is known stays so when more names are bound."""
    early = holds(guard, lambda name: some.get(name, UNDEFINED))
    late = holds(guard, lambda name: {**more, **some}.get(name, UNDEFINED))
    assert early is None or late is early


@settings(max_examples=150, deadline=None)
@given(expressions(), bindings)
def test_expressions_read_their_names_only(expression: Expression, bound: dict[str, Value]) -> None:
    read = expression_names(expression)
    without = {name: value for name, value in bound.items() if name in read}
    one = evaluate(expression, lambda name: bound.get(name, UNDEFINED))
    assert one == evaluate(expression, lambda name: without.get(name, UNDEFINED))
    assert not (isinstance(one, float) and math.isnan(one))


def test_attribute_names_the_variable() -> None:
    assert expression_names(Attribute("x", "shape")) == {"x"}
