"""The example trains as the whole model does."""

from __future__ import annotations

import pytest

from examples.pipeline.training import Options, train, whole
from pypm.pipeline import launch


def test_losses_are_those_of_the_whole_model() -> None:
    options = Options(width=64, layers=2, words=97, length=8, steps=3)
    found = launch(train, options, 2, ranks=2, timeout=100, start_method="forkserver")
    assert found[0] == []
    assert found[1] == pytest.approx(whole(options), rel=1e-5)
    assert found[1][-1] < found[1][0]
