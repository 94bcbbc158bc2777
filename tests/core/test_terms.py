"""Terms, operators, rules: sharing, what tells terms apart, hashes."""

import subprocess
import sys

import pytest

from pypm import Parameter, RuleSet, operator
from pypm.core.operators import CONS, NIL, Operator, Signature
from pypm.core.patterns import Var
from pypm.core.rules import Rule, as_rule_set
from pypm.core.terms import UNDEFINED, VALUE, Terms, Value, argument_name
from pypm.core.text import parse_pattern, parse_rules
from pypm.core.traverse import free_names
from pypm.fx import LITERAL

A, F = Operator("a"), Operator("f")


def test_equal_terms_are_one() -> None:
    terms = Terms()
    one = terms.make(F, [terms.make(A), terms.make(A)], {"x": 1, "y": (2,)})
    other = terms.make(Operator("f"), (terms.make(A), terms.make(A)), {"y": (2,), "x": 1})
    assert one is other
    assert one.children[0] is one.children[1]
    assert one.term is one


@pytest.mark.parametrize(
    ("one", "other"),
    [(1, 1.0), (1, True), (0.0, -0.0), (0, False), ((1,), (1.0,)), ((), None), ("1", 1)],
)
def test_values_are_told_apart_by_type_and_sign(one: Value, other: Value) -> None:
    terms = Terms()
    assert terms.literal(one) is not terms.literal(other)
    assert terms.literal(one) is terms.literal(one)


def test_terms_differ_by_each_part() -> None:
    terms = Terms()
    a, b = terms.make(A), terms.make(Operator("b"))
    different = [
        terms.make(F, (a, b)),
        terms.make(F, (b, a)),
        terms.make(F, (a,)),
        terms.make(F, (a, b), {"v": 1}),
        terms.make(F, (a, b), {"w": 1}),
        terms.make(Operator("g"), (a, b)),
    ]
    assert len(set(map(id, different))) == len(different)


def test_derived_attributes_are_no_part_of_the_key() -> None:
    terms = Terms()
    term = terms.make(A, (), {"v": 1}, {"shape": (2,), "v": 9})
    assert terms.make(A, (), {"v": 1}) is term
    assert [term.attribute(name) for name in ("v", "shape", "w")] == [1, (2,), UNDEFINED]


def test_a_value_is_what_literals_alone_have() -> None:
    terms = Terms()
    padded = terms.make(F, (terms.make(A),), {"value": 1})
    wanted = (VALUE, argument_name(VALUE))
    assert [padded.attribute(name) for name in wanted] == [UNDEFINED, 1]
    assert [terms.literal(None).attribute(name) for name in wanted] == [None, None]
    assert [terms.literal(0.5).attribute(VALUE), padded.derived] == [0.5, {}]


def test_lists_and_literals() -> None:
    terms = Terms()
    a = terms.make(A)
    two = terms.list([a, terms.literal(1)])
    assert repr(two) == "cons(a(), cons(literal(value=1), nil()))"
    assert (two.operator, two.children[1].children[1].operator) == (CONS, NIL)
    assert terms.list([]) is terms.make(NIL)
    assert two.children[1].children[0].operator == LITERAL


def test_operators_are_their_names() -> None:
    assert operator("f", ["x"], tags=["pointwise"]) == Operator("f")
    assert operator("f") != operator("g")
    assert operator("f", commutative=True).commutes == ()
    assert operator("f").commutes is None


def test_attribute_defaults_of_all_overloads() -> None:
    first = Signature((Parameter("x"), Parameter("dim", "attribute", default=0)))
    second = Signature((Parameter("x"), Parameter("keep", "attribute")))
    assert Operator("f", (first, second)).attribute_defaults == {"dim": 0, "keep": None}
    assert [p.name for p in first.children] == ["x"]
    assert [p.name for p in first.attributes] == ["dim"]


@pytest.mark.parametrize(
    ("text", "free"),
    [
        ("f(x, $F(y))", "F x y"),
        ("exists x. f(x, y) | z", "y z"),
        ("x where y == z.v let u = w", "u w x y z"),
        ("x with y <= z", "x y z"),
        ("rec P(x) { f(x, q) }(y)", "y"),
    ],
)
def test_free_names(text: str, free: str) -> None:
    assert free_names(parse_pattern(text)) == frozenset(free.split())


def test_rule_sets_are_flat() -> None:
    one, two, three = (Rule(name, (), (Var("x"),), Var("x")) for name in "abc")
    both = as_rule_set([one, RuleSet((two,)), [three]])
    assert [str(rule) for rule in both] == ["a", "b", "c"]
    assert [str(rule) for rule in as_rule_set(one) + two] == ["a", "b"]
    assert len(both) == 3
    for wrong in (3, "abc", [one, "a"]):
        with pytest.raises(TypeError, match="expected a rule"):
            as_rule_set(wrong)  # type: ignore[arg-type]


RULES = """rules r {
  rule one(x, y) fingerprint '1':
    rec P(x, y; in: x; out: x, y) { f(x, y) where x.v in {'a', 'b', 'c'} }(x, y) => x
}"""


def test_content_hash_tells_rules_apart() -> None:
    hashes = {
        parse_rules(RULES.replace(*change)).content_hash()
        for change in [
            ("", ""),
            ("'1'", "'2'"),
            ("=> x", "=> y"),
            ("f(x", "g(x"),
            ("in: x", "in: y"),
        ]
    }
    assert len(hashes) == 5


def test_content_hash_is_equal_across_processes() -> None:
    code = f"from pypm.core.text import parse_rules; print(parse_rules({RULES!r}).content_hash())"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2", "3")
    }
    assert found == {parse_rules(RULES).content_hash()}
