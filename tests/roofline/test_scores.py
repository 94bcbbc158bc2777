"""SOL-ExecBench's score, and its audit flags."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import PyPMError
from pypm.roofline import bound, score


@pytest.mark.parametrize(
    ("time", "value"), [(4.0, 0.5), (1.0, 1.0), (2.5, 1 / 1.5), (7.0, 1 / 3), (2.0, 0.75)]
)
def test_scores(time: float, value: float) -> None:
    found = score(time, 4.0, 1.0)
    assert found.value == pytest.approx(value)
    assert found.flags == ()


def test_a_time_below_the_bound_is_flagged_and_scores_one() -> None:
    found = score(0.5, 4.0, 1.0)
    assert found.value == 1
    assert found.flags == ("the time 0.5 s is below the bound 1 s",)


@pytest.mark.parametrize("baseline", [1.0, 0.5])
def test_a_baseline_at_or_below_the_bound(baseline: float) -> None:
    found = score(2.0, baseline, 1.0)
    assert found.value is None
    assert found.flags == (f"the baseline {baseline:.3g} s is not above the bound 1 s",)
    assert len(score(0.25, baseline, 1.0).flags) == 2


def test_a_bound_as_computed() -> None:
    least = bound(make_fx(torch.relu, tracing_mode="fake")(torch.ones(64)), "H100")
    assert score(2 * least.seconds, 3 * least.seconds, least).value == pytest.approx(2 / 3)


@pytest.mark.parametrize("times", [(0.0, 1, 1), (math.nan, 1, 1), (1, -1.0, 1), (1, 1, math.inf)])
def test_times_that_are_none(times: Any) -> None:
    with pytest.raises(PyPMError):
        score(*times)
