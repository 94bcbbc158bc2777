"""What guards remember of what they test, and that it is no part of what they are."""

from __future__ import annotations

import pytest

from pypm.core.guard_origins import equality, origin_of
from pypm.core.guards import (
    Attribute,
    AttributeTest,
    ClassTest,
    Constant,
    Equal,
    LengthTest,
    Origin,
    Reference,
)
from pypm.core.text import parse_guard

SHAPE = Attribute("x", "shape")


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("x.shape == (2, 3)", AttributeTest(SHAPE, Constant((2, 3)))),
        ("(2, 3) == x.shape", AttributeTest(SHAPE, Constant((2, 3)))),
        ("x.shape == y.shape", AttributeTest(SHAPE, Attribute("y", "shape"))),
        ("s == x.shape", AttributeTest(SHAPE, Reference("s"))),
        ("x.shape[0] == n", AttributeTest(SHAPE, Reference("n"), 0)),
        ("close(x.eps, 1.5)", AttributeTest(Attribute("x", "eps"), Constant(1.5))),
        (
            "same_dims(node#1.dims[1], 2, node#1.dimension_rank)",
            AttributeTest(Attribute("node#1", "dims"), Constant(2), 1, is_argument=True),
        ),
        (
            "literal#2.value == 1",
            AttributeTest(Attribute("literal#2", "value"), Constant(1), is_argument=True),
        ),
        ("len(x.shape) == 2", LengthTest(SHAPE, 2)),
        ("'big' in x.tags", ClassTest("x", "big")),
        ("x.rank + 1 == 2", None),
        ("is_value(x, 2)", None),
        ("x.rank < 2", None),
        ("not x.rank == 2", None),
    ],
)
def test_what_a_guard_tests(text: str, origin: Origin | None) -> None:
    assert origin_of(parse_guard(text)) == origin


def test_an_origin_is_not_compared() -> None:
    """A guard is what it says: that it was made elsewhere makes no other guard of it."""
    made = equality(SHAPE, Constant(1), is_argument=True)
    assert made == Equal(SHAPE, Constant(1))
    assert repr(made) == repr(Equal(SHAPE, Constant(1)))
