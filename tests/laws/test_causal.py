"""Masks of keys after the query: a body may count queries and keys, and not read the mask."""

import pytest
import torch

from pypm import pattern, rule
from pypm.fx import aten
from pypm.laws.prove import prove
from pypm.laws.verdicts import Proved
from pypm.rules.attention.patterns import After, UpTo


@pattern
def Filled(x, b):
    assert x.rank == 2 and b.shape == x.shape
    return aten.masked_fill(x, After(b), 0.0)


@pattern
def Kept(x, b):
    assert x.rank == 2 and b.shape == x.shape
    return aten.masked_fill(x, aten.logical_not(UpTo(b)), 0.0)


def places(x):
    return torch.arange(x.shape[0]).unsqueeze(-1), torch.arange(x.shape[1])


def seen(x, b):
    i, j = places(x)
    return torch.where(j <= i, x, 0.0)


def seen_otherwise(x, b):
    i, j = places(x)
    return torch.where(j - i > 0, 0.0, x)


def earlier(x, b):
    i, j = places(x)
    return torch.where(j < i, x, 0.0)


def swapped(x, b):
    i, j = places(x)
    return torch.where(i <= j, x, 0.0)


@pytest.mark.parametrize("masked", [Filled, Kept])
@pytest.mark.parametrize(
    ("body", "is_right"),
    [(seen, True), (seen_otherwise, True), (earlier, False), (swapped, False)],
)
def test_a_body_that_counts_keys_and_queries(masked, body, is_right):
    law = prove(rule(masked)(body)).verdicts[0]
    assert isinstance(law, Proved) is is_right, law
