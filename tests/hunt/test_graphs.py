"""The hunt draws each kind of graph, and rewrites those that it is about."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.hunt.graphs import WAYS, Case, drawn, tried
from tests.hunt.outcomes import MODES


def test_all_is_drawn() -> None:
    cases = [drawn(seed) for seed in range(2_000)]
    assert {case.way for case in cases} == {*WAYS}
    assert {case.mode for case in cases} == {*MODES}
    assert {case.derivative for case in cases} == {"", "parameters", "second", "tangents"}


@pytest.mark.parametrize("mode", ["no_grad", "inference"])
def test_rules_of_two_outputs_apply_where_no_gradient_is_taken(mode: str) -> None:
    """Here one of two weights needs one, so that the rule is refused where gradients are taken."""
    case = Case(
        0, "one_product", (), "at pre_grad", "alone", tracked=True, special=False, mode=mode
    )
    found, with_gradients = tried(case), tried(replace(case, mode=""))
    assert found.counts
    assert found.fired
    assert with_gradients.counts
    assert not with_gradients.fired
    assert not found.problem
