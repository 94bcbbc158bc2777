"""Compiled guards and expressions agree with `pypm.core.guards`."""

from hypothesis import given, settings
from hypothesis import strategies as st

from pypm.core.guards import Expression, Guard, evaluate, holds
from pypm.core.operators import Operator
from pypm.core.terms import UNDEFINED, Value
from pypm.core.traverse import expression_names, names
from pypm.match.compile.conditions import holds_in, value_in
from pypm.match.search_state import Cell
from tests.core.strategies import NAMES, expressions, guards, terms

VALUES = st.one_of(
    terms(),
    st.integers(0, 3),
    st.booleans(),
    st.none(),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.just(Operator("g")),
)
BOUND = st.dictionaries(st.sampled_from(NAMES), VALUES)


def scope_of(mentioned: frozenset[str]) -> dict[str, int]:
    """A slot for each name but the last, which is out of scope."""
    return {name: slot for slot, name in enumerate(sorted(mentioned | {"x", "y"})) if name != "z"}


@settings(max_examples=150, deadline=None)
@given(guards(), BOUND)
def test_guards(guard: Guard, bound: dict[str, Value]) -> None:
    scope = scope_of(names(guard))
    frame = [Cell(bound.get(name, UNDEFINED)) for name in scope]
    seen = {name: bound[name] for name in scope if name in bound}
    expected = holds(guard, lambda name: seen.get(name, UNDEFINED)) is True
    assert holds_in(guard, scope)(frame) is expected


@settings(max_examples=150, deadline=None)
@given(expressions(), BOUND)
def test_expressions(expression: Expression, bound: dict[str, Value]) -> None:
    scope = scope_of(expression_names(expression))
    frame = [Cell(bound.get(name, UNDEFINED)) for name in scope]
    seen = {name: bound[name] for name in scope if name in bound}
    expected = evaluate(expression, lambda name: seen.get(name, UNDEFINED))
    found = value_in(expression, scope)(frame)
    assert type(found) is type(expected)
    assert found == expected
