"""What is read off a pattern: what a match visits and compares, and where it is written."""

from __future__ import annotations

import pytest

from pypm.core.guards import And, Constant, Equal, Guard, Or
from pypm.core.operators import Operator
from pypm.core.patterns import Alt, Closed, Definition, Exists, Mu, Op, Pattern, Var
from pypm.core.printing import print_pattern
from pypm.core.terms import Terms
from pypm.core.text import parse_pattern, parse_term
from pypm.core.traverse import guard_span, pattern_span
from pypm.diagnostics import Span
from pypm.match.compile.extent import bound_below, compares_terms, extent
from tests.match.test_matcher import found, matched, reference
from tests.properties.generate import cases
from tests.properties.oracle import ask, require_oracle

NOTHING: frozenset[str] = frozenset()
ONE, OTHER = Span("one.py", 1, 0, 1, 4), Span("other.py", 2, 0, 2, 4)


def test_a_match_visits_only_what_its_pattern_names() -> None:
    seen = extent([parse_pattern("g(h(x))")])
    assert [seen.admits(name, NOTHING) for name in ("g", "h", "f")] == [True, True, False]
    everything = extent([parse_pattern("exists F. $F(x)")])
    for either in (seen | everything, everything | seen):
        assert either.admits("f", NOTHING)


@pytest.mark.parametrize("text", ["g(x) | f(x, x)", "f(x, x) | g(x)", "f(x, g(x))"])
def test_terms_are_compared_if_one_alternate_compares_them(text: str) -> None:
    assert compares_terms(parse_pattern(text))
    assert not compares_terms(parse_pattern("g(x) | f(x, y)"))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("f(x, g(y))", "x y"),
        ("f(x, y) | g(y)", "y"),
        ("g(x) let y = x", "x"),
        ("g(x) with y <= h(z)", "x"),
        ("f(x, y) with y <= h(z)", "x y z"),
        ("f(exists x. x, y)", "y"),
        ("rec P(x, y; in: y; out: x, y) { g(P^0(x, y)) | x where y.v == 1 }(u, w)", "u"),
        ("rec P(x, y) { f(P^0(x, y), y) | h(x) }(u, w)", "u"),
    ],
)
def test_names_that_are_bound_below_a_root(text: str, names: str) -> None:
    assert bound_below(parse_pattern(text)) == frozenset(names.split())


def test_a_local_that_a_definition_wants_bound_is_checked() -> None:
    """Nothing binds it where the definition is entered, whatever its list of outputs says."""
    y = frozenset({"y"})
    definition = Definition("P", ("y",), y, y, NOTHING, Op(Operator("a"), ()), closed=Closed())
    pattern = Exists("y", Mu(definition, ("y",)))
    term = parse_term("a", Terms())
    assert list(reference([pattern], [term])) == found(matched([pattern], [term])) == []


@pytest.mark.parametrize("form", [And, Or])
def test_a_guard_is_written_where_its_first_part_is(form: type[And | Or]) -> None:
    one, other = (Equal(Constant(1), Constant(1), span) for span in (ONE, OTHER))
    nowhere: Guard = Equal(Constant(1), Constant(1))
    assert guard_span(form(one, other)) == ONE
    assert guard_span(form(nowhere, other)) == OTHER


def test_alternates_are_written_where_the_first_is() -> None:
    one, other = Var("x", ONE), Var("y", OTHER)
    nowhere: Pattern = Var("z")
    assert pattern_span(Alt(one, other)) == ONE
    assert pattern_span(Alt(nowhere, other)) == OTHER


def test_names_bound_below_and_operators_visited_are_those_of_coq() -> None:
    """`T9_shared_below` is about these two."""
    require_oracle()
    asked: dict[str, str] = {}
    for pattern in [pattern for case in cases("below", 500) for pattern in case.patterns]:
        text = print_pattern(pattern)
        visited = extent([pattern])
        asked[f"below\t{text}"] = " ".join(sorted(bound_below(pattern)))
        asked[f"extent\t{text}"] = (
            "any" if visited.is_everything else " ".join(sorted(visited.names))
        )
    for (query, expected), reply in zip(asked.items(), ask([*asked]), strict=True):
        assert reply == expected, query
    assert len(set(asked.values())) > 50
