"""Guards and `if`s mean what Python means by them, where everything is known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pypm import Parameter, op_var, operator, pattern
from pypm.core.guard_origins import origin_of
from pypm.core.guards import AttributeTest, Guard
from pypm.core.operators import Operator
from pypm.core.patterns import Guarded
from pypm.core.printing import print_pattern
from pypm.core.terms import Unresolved
from pypm.core.text import parse_pattern
from pypm.core.traverse import parts
from pypm.lang.pattern_function import PatternFunction
from pypm.match.explain.causes import GuardFails, guard_cause
from tests.golden_files import readable
from tests.lang.subjects import RELU, TERMS, Subject, bindings, leaf, make

BOTH = operator("both", ["x", "y"])
OUTCOMES = [operator(f"outcome{i}", ["x", "y"]) for i in range(4)]

numbers = st.sampled_from(
    ["x.rank", "y.rank", "x.shape[0]", "x.shape[-1]", "len(y.shape)", "0", "2"]
)
sums = st.tuples(numbers, st.sampled_from(["+", "-", "*"]), numbers).map(" ".join)
values = numbers | sums | sums.map("max({}, 1)".format) | sums.map("-({})".format)
comparisons = st.lists(
    st.tuples(st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), values), min_size=1, max_size=3
)
tests = (
    st.tuples(values, comparisons).map(lambda t: " ".join([t[0], *(f"{o} {v}" for o, v in t[1])]))
    | st.tuples(values, st.sampled_from(["in", "not in"]), values, values).map(
        lambda t: f"{t[0]} {t[1]} ({t[2]}, {t[3]})"
    )
    | st.sampled_from(["x.flag", "not y.flag", "x.dtype == y.dtype", "x.shape == y.shape", "True"])
)
conditions = st.recursive(
    tests,
    lambda inner: (
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map("({0[0]} {0[1]} {0[2]})".format)
        | inner.map("not ({})".format)
    ),
    max_leaves=5,
)


def blocks(depth: int) -> st.SearchStrategy[list[str]]:
    """Statements that end in a `return` on every path."""
    returned = st.integers(0, 3).map(lambda i: [f"return outcome{i}(x, y)"])
    if depth == 0:
        return returned
    inner = blocks(depth - 1)

    def indented(lines: list[str]) -> list[str]:
        return ["    " + line for line in lines]

    with_else = st.tuples(conditions, inner, inner).map(
        lambda t: [f"if {t[0]}:", *indented(t[1]), "else:", *indented(t[2])]
    )
    without = st.tuples(conditions, inner, inner).map(
        lambda t: [f"if {t[0]}:", *indented(t[1]), *t[2]]
    )
    falling = st.tuples(conditions, conditions, inner).map(
        lambda t: [f"if {t[0]}:", f"    assert {t[1]}", *t[2]]
    )
    return returned | with_else | without | falling


def defined(lines: list[str]) -> tuple[PatternFunction, Any]:
    """A definition as a pattern, and as the Python function that it looks like."""
    source = "\n".join(["def P(x, y):", *["    " + line for line in lines], ""])
    file = f"<guards {hash(source)}>"
    names: dict[str, Any] = {op.name: op for op in (BOTH, *OUTCOMES)}
    run: dict[str, Any] = {op.name: returns(op) for op in (BOTH, *OUTCOMES)}
    with readable(source, file) as code:
        exec(code, names)
        exec(code, run)
        form = pattern(names["P"])
        form.core
    return form, run["P"]


def returns(called: Operator) -> Any:
    return lambda x, y: called


TENSORS = [
    {"rank": len(shape), "shape": shape, "dtype": dtype, "is_constant": flag}
    for shape, dtype, flag in [
        ((1, 2), "float32", True),
        ((2, 2), "float32", False),
        ((3,), "int8", True),
        ((0, 1, 2), "int8", False),
    ]
]
LEAVES = [leaf(f"leaf{i}", **values) for i, values in enumerate(TENSORS)]
OBJECTS = [SimpleNamespace(**values) for values in TENSORS]


def assert_means_python(lines: list[str]) -> None:
    lines = [line.replace(".flag", ".is_constant") for line in lines]
    form, function = defined(lines)
    for x, one in zip(LEAVES, OBJECTS, strict=True):
        for y, other in zip(LEAVES, OBJECTS, strict=True):
            try:
                expected = function(one, other)
            except AssertionError:
                expected = None
            for outcome in (BOTH, *OUTCOMES):
                answers = bindings(form, make(outcome, x, y))
                assert bool(answers) == (outcome == expected), (lines, one, other)
                assert len(answers) <= 1


@settings(max_examples=60, deadline=None)
@given(conditions)
@example("x.rank <= 2 < y.rank + 1 != 3")
@example("not (x.rank == 2 and y.flag) or x.shape[0] not in (2, y.rank)")
def test_asserts_mean_what_python_means(condition: str) -> None:
    assert_means_python([f"assert {condition}", "return both(x, y)"])


@settings(max_examples=40, deadline=None)
@given(blocks(2))
@example(["if x.flag:", "    if y.flag:", "        return outcome0(x, y)", "return outcome1(x, y)"])
def test_ifs_mean_what_python_means(lines: list[str]) -> None:
    assert_means_python(lines)


class Unsure(Unresolved):
    """A size of which nothing is known."""

    def equals(self, other: object) -> None:
        return None

    def less(self, other: object) -> None:
        return None

    def greater(self, other: object) -> None:
        return None


UNKNOWN = leaf("unknown", rank=2, shape=(Unsure(), 4))


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("x.shape[0] == 1", False),
        ("not x.shape[0] == 1", False),
        ("x.shape[0] < 1 or not x.shape[0] < 1", False),
        ("x.shape[0] == 1 or x.rank == 2", True),
        ("x.rank == 2 or x.shape[0] == 1", True),
        ("not (x.shape[0] == 1 and x.rank == 3)", True),
        ("x.shape[0] in (1, 2)", False),
        ("x.shape[0] not in (1, 2)", False),
        ("x.shape[1] in (x.shape[0], 4)", True),
        ("x.device == 'cpu'", False),
        ("x.device != 'cpu'", False),
        ("not x.is_constant", False),
        ("x.shape[7] == 1 or x.rank == 2", True),
        ("not x.shape[7] == 1", False),
        ("x.shape[1] // 0 == 1 or True", True),
    ],
)
def test_unknown_is_not_true(condition: str, holds: bool) -> None:
    form, _ = defined([f"assert {condition}", "return both(x, y)"])
    assert bool(bindings(form, make(BOTH, UNKNOWN, Subject(UNKNOWN.term)))) is holds


def test_neither_branch_of_an_unknown_if() -> None:
    form, _ = defined(["if x.shape[0] == 1:", "    return outcome0(x, y)", "return outcome1(x, y)"])
    for outcome in OUTCOMES:
        assert bindings(form, make(outcome, UNKNOWN, UNKNOWN)) == []


def test_a_guard_on_a_variable_that_is_called_node_is_no_argument() -> None:
    """The elaborator calls so what a call of an operator matches; users may as well."""

    @pattern
    def P(x):
        node = RELU(x)
        assert node.rank == 2
        return BOTH(node, x)

    (guard,) = guards(P)
    wide = TERMS.make(RELU, (), {}, {"rank": 3})
    cause = guard_cause(guard, lambda _: wide)
    assert cause == GuardFails("node.rank == 2", (("node.rank", "3"),))


def test_printed_guards_remember_what_they_test() -> None:
    reduce = operator(
        "my.reduce", ["x", Parameter("dims", "attribute"), Parameter("eps", "attribute", 1e-6)]
    )

    @pattern
    def P(x, n):
        f = op_var(tag="pointwise")
        assert x.device == "cpu" and len(x.shape) == 2
        return f(BOTH(reduce(x, [1, n]), 2))

    printed = parse_pattern(print_pattern(P.core[0]))
    origins = [origin_of(guard) for guard in guards(P)]
    assert origins == [origin_of(p.guard) for p in parts(printed) if isinstance(p, Guarded)]
    arguments = [o for o in origins if isinstance(o, AttributeTest) and o.is_argument]
    assert len(arguments) == 3
    assert len(origins) == 7


def guards(form: PatternFunction) -> list[Guard]:
    return [part.guard for part in parts(form.core[0]) if isinstance(part, Guarded)]
