"""Laws of patterns that bind lists of steps: each alternate adds one, and the meaning takes all."""

import math

import torch

from pypm import pattern, predicate, rule, var
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
