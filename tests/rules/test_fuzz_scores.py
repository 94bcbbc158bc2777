"""Random scores of attention, a few; `make fuzz` tries many."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from pypm.kernels.attention.expressions import Expression
from pypm.rules.attention.scores import program
from tests.rules.fuzz_scores import batch

torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("seed", "count"),
    [(1, 15), *(pytest.param(*more, marks=pytest.mark.soak) for more in ((16, 500), (2001, 15)))],
)
def test_random_scores(seed: int, count: int) -> None:
    counted, wrong = batch(seed, count)
    assert wrong == []
    assert counted["a program"] >= 0.4 * count


def test_a_defect_is_found() -> None:
    def kept(x: Expression) -> Expression:
        return x

    with mock.patch.object(program, "negated", kept):
        _, wrong = batch(1, 12)
    assert wrong
