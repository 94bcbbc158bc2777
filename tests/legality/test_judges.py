"""PyPM's judge of legality beside the one that is extracted from Coq, and beside execution."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from torch import fx

from pypm.fx.legality import aliasing, judge
from pypm.fx.operators.effects import is_sure_view
from pypm.fx.subject.memory import allocations
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


def in_parts(seeds: int) -> Iterator[Counts]:
    return (judged(range(first, first + 25)) for first in range(0, seeds, 25))


def test_judges_agree_on_random_graphs(counts: Counts) -> None:
    assert not counts.unproved
    assert not counts.wrong
    assert not counts.disproved
    assert counts.refused.total() <= 0.08 * counts.legal  # 2.3 % of 5,000; of 250, at most 6.5 %


def test_random_graphs_are_of_all_kinds(counts: Counts) -> None:
    assert min(counts.rewritten, counts.legal, counts.differing) > SEEDS / 10
    assert len(counts.conditions) == 6


def test_an_equation_without_strides_is_none_of_the_theorem() -> None:
    """The replacement has other strides, and `contiguous` behind it becomes a view."""
    counts = judged([24_000_026_194])
    assert (counts.legal, counts.restrided, counts.rewritten) == (0, 1, 0)


def test_a_wrong_signature_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coq's judge is told that nothing writes: it accepts what changes the outcome."""
    for target, signature in SIGNATURES.items():
        monkeypatch.setitem(SIGNATURES, target, signature.replace(";w0", ""))
    assert any(counts.disproved for counts in in_parts(SEEDS))


@pytest.mark.parametrize(
    ("module", "check", "answer"),
    [
        (aliasing, "must_copy", False),
        (aliasing, "must_part", False),
        (aliasing, "must_share", False),
        (judge, "_effects", None),
    ],
)
def test_a_check_that_is_left_out_is_noticed(
    module: Any, check: str, answer: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, check, lambda *_: answer)
    assert any(counts.unproved or counts.wrong for counts in in_parts(100))


def test_an_item_that_counts_as_no_memory_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_items(*given: fx.Node, **copies: Any) -> Iterable[fx.Node]:
        return (node for node in allocations(*given, **copies) if not is_sure_view(node))

    monkeypatch.setattr(aliasing, "allocations", without_items)
    assert judged([3273]).wrong
