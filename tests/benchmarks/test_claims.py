"""Claims about GPUs stand on their pages, and parts of `make gpu` decide them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from benchmarks.gpu.claims import CLAIMS, Claim
from benchmarks.gpu.parts import PARTS


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.id)
def test_claims_stand_on_their_pages(claim: Claim) -> None:
    assert claim.stands()
    assert claim.part in {part.name for part in PARTS}
    assert (claim.least, claim.most) != (None, None)


def test_claims_have_names_of_their_own() -> None:
    assert len({claim.id for claim in CLAIMS}) == len(CLAIMS)


@pytest.mark.parametrize(("figures", "expected"), [
    ({}, "open"), ({"gain": 0.5}, "refuted: 0.5, least 1, most 2"),
    ({"gain": 1.25}, "confirmed: 1.25, least 1, most 2"),
    ({"gain": 3.0}, "refuted: 3, least 1, most 2"),
])  # fmt: skip
def test_verdicts(figures: Mapping[str, float], expected: str) -> None:
    claim = Claim("id", "README.md", "no such sentence stands there", "choice", "gain", 1, 2)
    assert claim.verdict(figures) == expected
    assert not claim.stands()
