"""Tests over several axes, as forms and ways: quick ones change one value at a time."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import product

import pytest


def axes(soak: Collection[object] = (), **values: Iterable[object]) -> pytest.MarkDecorator:
    """Each value of a parameter with the first values of the others; `make soak` runs the rest,
    and all that has one of the values `soak`: those that repeat what other values find.
    """
    lists = [list(some) for some in values.values()]
    firsts = [some[0] for some in lists]
    return pytest.mark.parametrize(
        tuple(values),
        [
            pytest.param(*each, marks=() if _is_quick(each, firsts, soak) else pytest.mark.soak)
            for each in product(*lists)
        ],
    )


def _is_quick(one: Iterable[object], firsts: Iterable[object], soak: Collection[object]) -> bool:
    pairs = list(zip(one, firsts, strict=True))
    return sum(x is not y for x, y in pairs) <= 1 and not any(x in soak for x, _ in pairs)
