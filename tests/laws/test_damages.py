"""Damaged rules: none is proved unless nothing is wrong with it, and counterexamples differ."""

from __future__ import annotations

import pytest

from pypm.laws.contracts import Contracts
from tests.laws.damages import every_damage, judged

EVERY = every_damage()


def check(number: int) -> None:
    found = judged(*EVERY[number], Contracts())
    assert (found.word, found.torch) not in (("refuted", "agrees"), ("proved", "wrong")), found


@pytest.mark.parametrize("number", range(11, 400, 37))
def test_some_damages(number: int) -> None:
    check(number)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(len(EVERY)))
def test_all_damages(number: int) -> None:
    check(number)
