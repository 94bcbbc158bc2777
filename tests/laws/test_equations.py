"""Equal functions have one normal form; others have not, and differ in finite fields."""

from __future__ import annotations

import pytest

from pypm.laws.equations import compared
from pypm.laws.refutation.refuting import difference
from tests.laws.pairs import FALSE, TRUE
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
