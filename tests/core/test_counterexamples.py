"""The near-by statements that are false: C1 to C14 of section 8, each with its counterexample.

C11 is about redirecting users in a graph: what keeps a rewriter from it is tested with `pypm.fx`.
"""

import pytest

from pypm.core.guarded import check_guarded
from pypm.core.guards import holds
from pypm.core.machine import answers
from pypm.core.operators import Operator
from pypm.core.patterns import Pattern
from pypm.core.terms import UNDEFINED, Term, Terms, Value
from pypm.core.text import parse_guard, parse_pattern, parse_rule, parse_term
from pypm.core.traverse import free_names
from pypm.core.wellformed import bound_after_all, check_wellformed, is_wellformed
from pypm.diagnostics import BudgetError
from tests.core.declarative import is_match, matches, universe

TERMS = Terms()


def read(pattern: str, term: str) -> tuple[Pattern, Term]:
    return parse_pattern(pattern), parse_term(term, TERMS)


def declared(pattern: Pattern, term: Term, *more: Value) -> list[dict[str, Value]]:
    """The matches with the values at hand, and a few more."""
    values = [*universe(pattern, term), *more]
    return [dict(theta) for theta in matches(pattern, sorted(free_names(pattern)), term, values)]


@pytest.mark.parametrize(
    "text", ["f(x where y.v == 1, y)", "f(x with y <= z, y)"], ids=["guard", "constraint"]
)
def test_c1_reading_before_binding(text: str) -> None:
    pattern, term = read(text, "f(a, b{v=1})")
    assert answers(pattern, term) == []
    assert declared(pattern, term) != []
    assert "`y` may be unbound" in check_wellformed(pattern)[0].message


def test_c2_local_variable_never_bound() -> None:
    pattern, term = read("exists x. a()", "a")
    assert answers(pattern, term) == []
    assert declared(pattern, term) == [{}]
    assert "`x` may be left unbound" in check_wellformed(pattern)[0].message


def test_c3_bound_on_one_branch() -> None:
    pattern, term = read("(x | b()) where x.v == 2", "b{v=1}")
    other = parse_term("c{v=2}", TERMS)
    assert answers(pattern, term) == []
    assert declared(pattern, term, other) == [{"x": other}]
    assert "`x` may be unbound" in check_wellformed(pattern)[0].message


def test_c4_two_local_variables_of_one_name() -> None:
    pattern, term = read("f(exists x. x, exists x. x)", "f(a, b)")
    assert is_wellformed(pattern)
    assert answers(pattern, term) == [{}]


def test_c5_unfolding_repeats_local_names() -> None:
    pattern, term = read("rec P() { f(exists x. x, P^0()) | c() }()", "f(a, f(b, c))")
    assert is_wellformed(pattern)
    assert answers(pattern, term) == [{}]


def test_c6_no_capture() -> None:
    pattern, term = read("rec P(x) { exists y. f(x, y) }(y)", "f(a, b)")
    assert is_wellformed(pattern)
    assert answers(pattern, term) == [{"y": term.children[0]}]


def test_c6_no_unbinding_at_scope_exit() -> None:
    pattern, term = read("k(rec P(x) { exists y. f(x, y) }(y), y)", "k(f(a, a), b)")
    assert answers(pattern, term) == []
    assert declared(pattern, term) == []


def test_c7_constraint_on_the_whole_term_reenters() -> None:
    text = "exists y. y with y <= rec P(u) { f(exists z. z with u <= P^0(u)) }(y)"
    pattern, term = read(text, "f(a)")
    assert is_wellformed(pattern) is False  # u is read before P binds it, without inputs
    assert "not guarded" in check_guarded(pattern)[0].message
    with pytest.raises(BudgetError):
        answers(pattern, term, budget=5000)


def test_c8_matches_are_the_upward_closure_of_answers() -> None:
    pattern, term = read("x | y", "a")
    other = parse_term("b", TERMS)
    assert answers(pattern, term) == [{"x": term}, {"y": term}]
    assert is_match(pattern, {"x": term, "y": other}, term, [])
    assert not is_match(pattern, {"x": other, "y": other}, term, [])


def test_c9_not_of_unknown_is_unknown() -> None:
    pattern, term = read("f(a() where not x.v == 1, x)", "f(a, b{v=1})")
    assert answers(pattern, term) == []
    assert declared(pattern, term) == []
    guard = parse_guard("not x.v == 1")
    assert holds(guard, lambda name: UNDEFINED) is None
    assert holds(guard, lambda name: term.children[1]) is False


def test_c10_sharing_must_be_maximal() -> None:
    pattern = parse_pattern("f(x, x)")
    a, f = Operator("a"), Operator("f")
    unshared = Term(f, (Term(a, (), {}, {}), Term(a, (), {}, {})), {}, {})
    assert answers(pattern, unshared) == []
    shared = TERMS.make(f, (TERMS.make(a), TERMS.make(a)))
    assert answers(pattern, shared) == [{"x": TERMS.make(a)}]


def test_c10_attributes_belong_to_the_key() -> None:
    one, two = (TERMS.make(Operator("a"), (), {"v": v}) for v in (1, 2))
    assert one is not two
    assert answers(parse_pattern("f(x, x)"), TERMS.make(Operator("f"), (one, two))) == []


def test_c12_a_replacement_needs_definitely_bound_names() -> None:
    rule = parse_rule("rule r(x, y): x | y => f(x, y)")
    assert bound_after_all(rule.roots) == frozenset()
    term = parse_term("a", TERMS)
    assert all(len(answer) == 1 for answer in answers(rule.roots[0], term))


def test_c13_helpers_must_report_sizes() -> None:
    helper = "rec W(y; out: y; small: y) { h(W^0(y)) | y }(y)"
    text = f"rec P(x; out: x) {{ (exists y. ({helper}) with y <= f(P^0(x))) | x }}(x)"
    assert check_guarded(parse_pattern(text)) == []
    without, term = read(text.replace("; small: y", ""), "h(f(h(f(a))))")
    assert check_guarded(without) != []
    assert answers(without, term) == answers(parse_pattern(text), term)
    assert len(answers(without, term)) == 3


def test_c14_no_alternate_is_committed_to() -> None:
    pattern, term = read("f(x | g(x), x)", "f(g(a), a)")
    assert answers(pattern, term) == [{"x": term.children[1]}]
