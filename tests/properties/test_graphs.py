"""The search in a graph is held to the reference machine, where nodes are equal to others."""

from __future__ import annotations

import pytest

from tests.properties.graphs import Compared, compare, site

SITES = 400


def test_random_graphs() -> None:
    compared = Compared()
    for number in range(SITES):
        compared.add(compare(site(f"graphs/{number}")))
        if compared.problem:
            pytest.fail(compared.problem, pytrace=False)
    print(compared)
    floors = {"matching": 0.25, "several roots": 0.7, "equal nodes": 0.6}
    assert {n: s for n, s in floors.items() if compared.shares[n] < s * SITES} == {}
    assert compared.shares["unfinished"] < 0.2 * SITES
