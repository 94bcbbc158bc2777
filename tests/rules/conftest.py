"""Fixtures of the tests of rules."""

from __future__ import annotations

import pytest

from pypm.rules.recurrences import loops


@pytest.fixture
def short_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `torch.compile`, loops are rolled up from as few steps on as elsewhere."""
    for name in ("FEW_COMPILED", "FEW_MATRICES"):
        monkeypatch.setattr(loops, name, loops.FEW)
