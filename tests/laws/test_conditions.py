"""What conditions say: of rows that are hidden, of values that have to be numbers, of constants."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pypm import Rule, pattern, predicate, rule, var
from pypm.fx import aten
from pypm.laws.numbers import form_of
from pypm.laws.sizes import World
from pypm.laws.verdicts import Proved
from pypm.tools import prove


@predicate(limit=-math.inf)
def is_deep(value: float) -> bool:
    return value < -1e9


@pattern
def ToValues(x: Any, b: Any, g: Any, c: Any) -> Any:
    assert is_deep(c.value) and b.shape == x.shape
    return aten.bmm(aten.transpose(aten.softmax(aten.masked_fill(x, b, c), -1), 1, 2), g)


def with_rows(hidden: Callable[[Any], Any]) -> Rule:
    """Attention in which rows of scores are zeros where all keys are hidden, or where not."""

    def body(x: Any, b: Any, g: Any) -> Any:
        mask = torch.zeros_like(x).masked_fill(b, -torch.inf)
        scores = x.masked_fill(hidden(mask.amax(-1, keepdim=True)), 0) + mask
        return torch.softmax(scores, -1).mT @ g

    return rule(ToValues)(body)


def test_rows_that_are_hidden_everywhere_may_be_anything() -> None:
    law = prove(with_rows(lambda largest: largest <= -1e6)).verdicts[0]
    assert isinstance(law, Proved), law
    assert not isinstance(prove(with_rows(lambda largest: largest > -1e6)).verdicts[0], Proved)


@pattern
def Exponential(x: Any) -> Any:
    return aten.exp(x)


def divided(more: int) -> Rule:
    """The same over a number that is 1 where its logarithm is zero, and 1 elsewhere."""

    def body(x: Any) -> Any:
        assert x.rank > 0
        n = (x == x.amax(-1, keepdim=True)).sum(-1, keepdim=True)
        return x.exp() / torch.where(n.log() == 0, n + more, 1.0)

    return rule(Exponential)(body)


@pytest.mark.parametrize("more", [0, 1])
def test_a_number_is_what_a_condition_says(more: int) -> None:
    assert isinstance(prove(divided(more)).verdicts[0], Proved) is (more == 0)


@pattern(means=lambda x, dim: x.sum(dim))
def Summed(x: Any, dim: Any) -> Any:
    assert 0 <= dim <= 1 and x.rank == 3
    return aten.sum(x, [dim], False)


@pattern
def SummedOverOne(x: Any) -> Any:
    d = var()
    assert d == 1
    return Summed(x, d)


@rule(SummedOverOne)
def summed_over_one(x: Any) -> Any:
    return x.sum(1)


def test_constants_decide_sides_of_guards() -> None:
    law = prove(summed_over_one).verdicts[0]
    assert isinstance(law, Proved), law


def test_numbers_and_sizes_are_divided_as_python_does() -> None:
    world = World()
    n = world.size()
    pairs = (world.sized(3), 2), (2 * n + 3, 2), (n - 1, n), (-3 * n - 1, 3), (world.sized(4), 2)
    for size, by in pairs:
        whole, rest = size // by, size % by
        assert (whole.sample, rest.sample) == divmod(size.sample, int(by))
        assert whole.form * form_of(by) + rest.form == size.form


def test_a_rest_below_the_divisor_is_a_condition() -> None:
    world = World()
    n = world.size()
    with world.observing(watched=True, divides=False):
        assert ((n + 3) // n).form == 1 and ((n - 2) // n).form == 0
    assert [*world.conditions] == ["n1 > 3", "n1 >= 2"]
