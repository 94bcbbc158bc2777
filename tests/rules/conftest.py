"""Fixtures of the tests of rules."""

from __future__ import annotations

import pytest

from pypm.rules.loops import gru, lstm, recurrences, rnn, wkv
from tests.rules.loops import FEW


@pytest.fixture
def short_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops of `FEW` steps are rolled up, also under `torch.compile`."""
    for module in (gru, lstm, recurrences, rnn, wkv):
        for name in ("FEW", "FEW_COMPILED", "FEW_MATRICES"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, FEW)
