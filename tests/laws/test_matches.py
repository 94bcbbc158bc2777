"""Bodies that read their match: its region, computed again, and sizes that a reading writes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pypm import Rule, op_var, pattern, rule
from pypm.fx import Match, Reading, aten, metadata
from pypm.laws.verdicts import Proved
from pypm.rules import epilogue, tiles
from pypm.tools import prove

# --- the match itself ----------------------------------------------------------------------------


@pattern
def Any_(x, y):  # an operator of which nothing is known
    f = op_var(tag="pointwise")
    return f(x, y)


@rule(Any_)
def again(x, y, match):
    return match.region.module(*match.inputs)


@rule(Any_)
def of_others(x, y, match):
    return match.region.module(y, x)


@rule(Any_)
def and_more(x, y, match):
    return match.region.module(x, y) + 1


def test_a_match_that_is_computed_again() -> None:
    law = prove(again).verdicts[0]
    assert isinstance(law, Proved) and law.scope.assumed == ("its match",)
    for one in prove([of_others, and_more]).verdicts:
        assert not isinstance(one, Proved)


@pytest.mark.parametrize("name", ["product_in_float32", "batched_product_in_float32"])
def test_regions_in_another_type(name: str) -> None:
    found = next(each for each in epilogue.RULES if each.name == name)
    assert isinstance(prove(found).verdicts[0], Proved)


@pytest.mark.parametrize("name", ["gated_products", "product_and_epilogue"])
def test_programs_that_are_compiled_from_a_match(name: str) -> None:
    found = next(each for each in tiles.RULES if each.name == name)
    law = prove(found).verdicts[0]
    assert isinstance(law, Proved) and law.scope.assumed == ("its match", "pypm.tile_region")


# --- sizes in a text -----------------------------------------------------------------------------


@pattern
def Mean(x):
    return aten.mean(x, [-1], False)


def read(match: Match) -> Reading:
    node: Any = match.bindings["x"]
    x: Any = metadata(node)
    return Reading(f"over {x.shape[-1]} of {x.dtype}")


def divided(change: int, text: str = "") -> Rule:
    def body(x: Any, match: Any) -> Any:
        assert x.rank > 0
        words = (text or match.reading.value).split()
        return x.sum(-1) / (float(words[1]) + change)

    return rule(Mean, reads=read)(body)


def test_sizes_that_are_written_and_read() -> None:
    assert isinstance(prove(divided(0)).verdicts[0], Proved)
    assert not isinstance(prove(divided(1)).verdicts[0], Proved)


@pytest.mark.parametrize("sample", [1031, 1033, 1039, 1511, 1523])
def test_a_number_is_no_size(sample: int) -> None:
    assert not isinstance(prove(divided(0, f"over {sample}")).verdicts[0], Proved)


def test_bits_of_a_size_are_conditions() -> None:
    @rule(Mean)
    def padded(x: Any) -> Any:
        assert x.rank > 0
        block = 1 << (x.shape[-1] - 1).bit_length()
        return torch.nn.functional.pad(x, (0, block - x.shape[-1])).sum(-1) / x.shape[-1]

    law = prove(padded).verdicts[0]
    assert isinstance(law, Proved)
    assert any(">= 1024" in condition for condition in law.scope.conditions)


def test_a_reading_that_declines_excuses_nothing() -> None:
    def refuses(match: Match) -> Reading:
        return Reading("", declined="not here")

    @rule(Mean, reads=refuses)
    def wrong(x: Any, match: Any) -> Any:
        assert x.rank > 0
        return x.sum(-1)

    assert not isinstance(prove(wrong).verdicts[0], Proved)
