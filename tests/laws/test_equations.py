"""Equal functions have one normal form; others have not, and differ in finite fields."""

from __future__ import annotations

import pytest

from pypm.laws.equations import compared
from pypm.laws.refutation.refuting import difference
from tests.laws.pairs import FALSE, TRUE, t
from tests.laws.sides import between


@pytest.mark.parametrize("name", TRUE)
def test_equal(name: str) -> None:
    equation = between(*TRUE[name])
    assert compared(equation) is None
    assert difference(equation) is None


@pytest.mark.parametrize("name", FALSE)
def test_different(name: str) -> None:
    equation = between(*FALSE[name])
    assert compared(equation) is not None
    assert difference(equation) is not None


@pytest.mark.parametrize("dims", [(0, 0), (0, 1), (1, 0)])
def test_calls_of_the_same_kind_have_their_own_sizes(dims: tuple[int, int]) -> None:
    def spread(x):
        n, m = (x.shape[d] for d in dims)
        return x.sum().expand(n, m).sum()

    equation = between(spread, lambda x: x.sum() * x.shape[dims[0]] * x.shape[dims[1]], (t(5, 7),))
    assert compared(equation) is None
