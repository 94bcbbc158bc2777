"""PyPM's judge of legality beside the one that is extracted from Coq, and beside execution."""

from __future__ import annotations

import pytest

from tests.legality.operators import SIGNATURES
from tests.legality.trial import Counts, judged
from tests.properties.oracle import require_oracle

SEEDS = 250


@pytest.fixture(autouse=True, scope="module")
def _oracle() -> None:
    require_oracle()


@pytest.fixture(scope="module")
def counts(_oracle: None) -> Counts:
    return judged(range(SEEDS))


def test_judges_agree_on_random_graphs(counts: Counts) -> None:
    assert not counts.unproved
    assert not counts.wrong
    assert not counts.disproved
    assert counts.refused.total() <= counts.legal / 10


def test_random_graphs_are_of_all_kinds(counts: Counts) -> None:
    assert min(counts.rewritten, counts.legal, counts.differing) > SEEDS / 10
    assert len(counts.conditions) == 6


def test_a_wrong_signature_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coq's judge is told that nothing writes: it accepts what changes the outcome."""
    for target, signature in SIGNATURES.items():
        monkeypatch.setitem(SIGNATURES, target, signature.replace(";w0", ""))
    assert judged(range(SEEDS)).disproved
