"""Tests over several axes, as forms and ways: quick ones change one value at a time."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import pytest


def axes(**values: Iterable[object]) -> pytest.MarkDecorator:
    """Each value of a parameter with the first values of the others; `make soak` runs the rest."""
    lists = [list(some) for some in values.values()]
    firsts = [some[0] for some in lists]
    return pytest.mark.parametrize(
        tuple(values),
        [
            pytest.param(*each, marks=() if _differ(each, firsts) <= 1 else pytest.mark.soak)
            for each in product(*lists)
        ],
    )


def _differ(one: Iterable[object], other: Iterable[object]) -> int:
    return sum(x is not y for x, y in zip(one, other, strict=True))
