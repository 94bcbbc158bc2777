"""Patterns that take patterns: instances, recursion through them, and calls from Python."""

from __future__ import annotations

import pytest

from pypm import Pattern, RuleSet, let, pattern, record, rule, var
from pypm.core.printing import print_pattern
from tests.lang.subjects import EXP, RELU, a, assert_answers, b, bindings, make


def relu(x):
    return make(RELU, x)


def exp(x):
    return make(EXP, x)


@pattern
def Relu(x):
    return RELU(x)


@pattern
def Exp(x):
    return EXP(x)


@pattern
def Twice(P: Pattern, x):
    return P(P(x))


@pattern
def ReluTwice(x):
    return Twice(Relu, x)


@pattern
def ByHand(x):
    return Relu(Relu(x))


def test_a_call_gives_the_pattern() -> None:
    assert_answers(ReluTwice, (relu(relu(a)),), [{"x": a}])
    assert_answers(ReluTwice, (relu(exp(a)),), [])


@pattern
def Both(P: Pattern, Q: Pattern, x, y):
    return P(x) + Q(y)


@pattern
def Named(x, y):
    return Both(x=x, y=y, Q=Exp, P=Relu)


def test_patterns_are_given_by_name_as_well() -> None:
    assert_answers(Named, (relu(a) + exp(b),), [{"x": a, "y": b}])
    assert_answers(Named, (relu(a) + relu(b),), [])


@pattern
def Unrolled(P: Pattern, x, n):
    inner, before = var(), var()
    y = P(inner)
    inner <= Unrolled(P, x, before)
    let(n=before + 1)
    return y


@pattern
def Unrolled(P: Pattern, x, n):
    let(n=1)
    return P(x)


@pattern
def Relus(x, n):
    return Unrolled(Relu, x, n)


@pattern
def Pairs(x, n):
    return Unrolled(Twice(Relu), x, n)


def test_recursion_passes_the_pattern_on() -> None:
    y = relu(relu(relu(exp(a))))
    assert bindings(Relus, y)[0] == {"x": exp(a).term, "n": 3}
    four = relu(relu(relu(relu(exp(a)))))
    assert [found["n"] for found in bindings(Pairs, four)] == [2, 1]
    assert "rec Unrolled" in print_pattern(Pairs.core[0])


@pattern
def Even(P: Pattern, x):
    return P(Odd(P, x)) | x


@pattern
def Odd(P: Pattern, x):
    return P(Even(P, x))


@pattern
def Mixed(x, y):
    return Even(Relu, x) + Even(Exp, y)


def test_mutual_recursion_of_two_instances() -> None:
    assert {"x": a.term, "y": b.term} in bindings(Mixed, relu(relu(a)) + exp(exp(b)))
    assert {"x": a.term, "y": b.term} not in bindings(Mixed, relu(relu(a)) + exp(relu(b)))


@pattern
def Alternating(P: Pattern, Q: Pattern, x):
    return P(Alternating(Q, P, x)) | P(x)


@pattern
def ReluExp(x):
    return Alternating(Relu, Exp, x)


def test_patterns_may_change_places_in_a_recursion() -> None:
    assert {"x": a.term} in bindings(ReluExp, relu(exp(relu(a))))
    assert {"x": a.term} not in bindings(ReluExp, relu(relu(a)))


@pattern
def Kept(P: Pattern, x, step):
    inner = var()
    y = P(x, inner)
    let(step=record(of=inner, depth=inner.depth + 1))
    return y


@pattern
def Leaf(x, step):
    let(step=record(depth=0))
    return RELU(x)


@pattern
def Deep(x, step):
    y = Kept(Kept(Leaf), x, step)
    assert step.of.of.depth == 0
    return y


def test_records_of_the_given_pattern_are_known() -> None:
    leaf = record(depth=0)
    step = record(depth=2, of=record(depth=1, of=leaf))
    assert_answers(Deep, (relu(a),), [{"x": a, "step": step}])


def test_python_gives_patterns_too() -> None:
    found = Unrolled(Relu)
    assert found is Unrolled(P=Relu) and found.parameters == ("x", "n")
    assert print_pattern(found.core[0]) == print_pattern(Relus.core[0])
    assert bindings(found, relu(a)) == [{"x": a.term, "n": 1}]

    @rule(found)
    def shortened(x, n):
        return x

    assert len(RuleSet((shortened,))) == 1
    for wrong in ((), (Relu, Exp), (3,), (Twice,)):
        with pytest.raises(TypeError, match="takes the patterns P here"):
            Unrolled(*wrong)
    with pytest.raises(TypeError, match="is read, not run"):
        found(Relu)


def test_an_instance_has_the_alternates_that_are_added() -> None:
    @pattern
    def Once(P: Pattern, x):
        return P(x)

    before = Once(Relu)
    assert bindings(before, exp(relu(a))) == []

    @Once.alternate
    def below(P: Pattern, x):
        return EXP(P(x))

    assert Once(Relu) is not before
    assert bindings(Once(Relu), exp(relu(a))) == [{"x": a.term}]


def test_equal_instances_print_as_what_is_written_by_hand() -> None:
    assert print_pattern(ByHand.core[0]) in print_pattern(Twice(Relu).core[0])
