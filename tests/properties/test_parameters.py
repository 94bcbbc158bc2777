"""Patterns that take patterns mean what `Instantiation.v` says: instances find the same answers."""

from __future__ import annotations

import pytest

from tests.properties.parameters import compare


@pytest.mark.parametrize("pairs", [1_000, pytest.param(5_000, marks=pytest.mark.soak)])
def test_random_programs(pairs: int) -> None:
    compared = compare("parameters", pairs)
    if compared.problem:
        pytest.fail(compared.problem, pytrace=False)
    print(compared)
    shares = {name: count / pairs for name, count in compared.shares.items()}
    floors = {"matching": 0.4, "several answers": 0.1, "with records": 0.01, "recursive": 0.2}
    assert {name: share for name, share in floors.items() if shares[name] < share} == {}
