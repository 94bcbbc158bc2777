"""Laws of patterns that bind lists of steps: each alternate adds one, and the meaning takes all."""

import math

import torch

from pypm import decline, let, pattern, predicate, rule, var
from pypm.fx import aten
from pypm.laws.prove import prove
from pypm.laws.verdicts import Proved, extent
from pypm.rules.vocabulary.products import Scaled, scaled


@rule(Scaled)
def applied(x, steps):
    return scaled(x, steps) * 1.0


@rule(Scaled)
def forgotten(x, steps):
    return x * 1.0


def test_a_body_that_takes_all_steps_is_proved_and_one_that_forgets_them_is_not():
    law = prove(applied).verdicts[0]
    assert isinstance(law, Proved)
    assert law.scope.parts == 1 and "lists of at most 1 part;" in f"{extent(law.scope)};"
    assert not isinstance(prove(forgotten).verdicts[0], Proved)


@predicate(limit=-math.inf)
def is_deep(value):
    return value < -1e9


@pattern
def Hidden(x, b):
    c = var()
    assert is_deep(c.value)
    return aten.masked_fill(x, b, c)


@rule(Hidden)
def hidden(x, b):
    return torch.where(b, -math.inf, x)


def test_a_verdict_names_the_predicates_whose_numbers_are_their_limit():
    law = prove(hidden).verdicts[0]
    assert isinstance(law, Proved), law
    assert law.scope.limits == ("is_deep",)
    assert "the limit for numbers of is_deep" in extent(law.scope)


def covered(x, steps):
    for _, _, b in steps:
        x = x.masked_fill(b, 0.0)
    return x


@pattern(means=lambda x, steps: covered(-x, steps))
def Covered(x, steps=()):
    r, b = var(), var()
    y = Covered(x, r)
    let(steps=(*r, ("fill", y.shape, b)))
    assert b.shape == y.shape
    return aten.masked_fill(y, b, 0.0)


@pattern
def Covered(x, steps=()):
    return aten.neg(x)


@pattern
def CoveredTwice(x, y, one, two):
    assert x.shape == y.shape
    return Covered(x, one) + Covered(y, two)


def are_the_same(one, two):
    return [id(b) for *_, b in one] == [id(b) for *_, b in two]


@rule(CoveredTwice)
def covered_once(x, y, one, two):
    return covered(-x - y, one) if are_the_same(one, two) else decline("other places")


@rule(CoveredTwice)
def covered_by_none(x, y, one, two):
    return -x - y if are_the_same(one, two) else decline("other places")


def test_the_same_tensor_may_be_in_two_lists():
    law = prove(covered_once).verdicts[0]
    assert isinstance(law, Proved), law
    assert law.scope.parts == 1
    assert not isinstance(prove(covered_by_none).verdicts[0], Proved)


@pattern(means=lambda x: x.exp())
def Exponential(x, halves):
    let(halves=False)
    return aten.exp(x)


@pattern
def Exponential(x, halves):
    let(halves=True)
    return aten.exp(x / 2) * aten.exp(x / 2)


@pattern
def Root(x, halves):
    return aten.sqrt(Exponential(x, halves))


@rule(Root)
def root(x):
    return torch.exp(x / 2)


@rule(Root)
def no_root(x):
    return torch.exp(x)


def test_a_meaning_may_read_fewer_names_than_the_pattern_has():
    law = prove(root).verdicts[0]
    assert isinstance(law, Proved), law
    assert law.scope.lemmas == law.scope.cases  # and no more for the names that are not read
    assert not isinstance(prove(no_root).verdicts[0], Proved)
