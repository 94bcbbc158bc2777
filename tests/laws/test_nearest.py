"""Predicates that say for which numbers they hold: these stand for all that guards allow."""

from itertools import product

import pytest
import torch

from pypm import let, pattern, predicate, rule, var
from pypm.fx import aten
from pypm.laws.prove import prove
from pypm.laws.verdicts import Proved
from pypm.rules import quantization
from pypm.rules.tiles import rows

NUMBERS = (-500.0, -128.0, -127.5, -2.0, 0.0, 0.5, 3.0, 127.0, 128.0, 448.0)


@pytest.mark.parametrize(
    ("allows", "count"),
    [
        (quantization.are_in_order, 2),
        (quantization.are_levels, 2),
        (quantization.is_positive, 1),
        (rows.are_limits, 2),
    ],
)
def test_the_nearest_numbers_are_those_for_which_it_holds(allows, count):
    for given in product(NUMBERS, repeat=count):
        found = allows.nearest(*map(torch.tensor, given))
        nearest = tuple(x.item() for x in (found if isinstance(found, tuple) else (found,)))
        assert allows(*nearest) or nearest == (0.0,)  # which no number is divided by
        assert not allows(*given) or nearest == given


@predicate(nearest=torch.round)
def is_whole(n):
    return n == int(n)


@pattern
def Limited(x, most):
    c = var()
    let(most=c.value)
    assert is_whole(most)
    return aten.round(aten.clamp(x, None, c))


@pattern
def LimitedByAny(x, most):
    c = var()
    let(most=c.value)
    return aten.round(aten.clamp(x, None, c))


@rule(Limited)
def rounded_before(x, most):
    return x.round().clamp(max=most)


@rule(LimitedByAny)
def rounded_before_any(x, most):
    return x.round().clamp(max=most)


def test_what_a_guard_allows_is_proved_for_no_other_numbers():
    assert isinstance(prove(rounded_before).verdicts[0], Proved)
    assert not isinstance(prove(rounded_before_any).verdicts[0], Proved)


@pattern
def Scaled(x, s):
    y = x / s
    s <= aten.amax(aten.abs(x), [-1], True)
    return y


@pattern
def WithScale(x):
    s = var()
    return Scaled(x, s), s


@rule(WithScale)
def with_scale(x):
    s = x.abs().amax(-1, True)
    return x / s, s


@rule(WithScale)
def with_another_scale(x):
    s = x.abs().amax(-1, True)
    return x / s, s * 2


def test_a_result_that_a_call_binds_is_what_the_call_says():
    assert isinstance(prove(with_scale).verdicts[0], Proved)
    assert not isinstance(prove(with_another_scale).verdicts[0], Proved)
