"""Turns by a quarter, which rotary embeddings are made of: in every spelling, and turned back."""

from __future__ import annotations

from typing import Any

from pypm import rule
from pypm.kernels.rotary import quarter
from pypm.laws.verdicts import Proved, Refuted
from pypm.rules.rotary import Quarter
from pypm.tools import prove


@rule(Quarter)
def turned(x: Any, interleaved: bool) -> Any:
    return quarter(x, interleaved)


@rule(Quarter)
def turned_back(x: Any, interleaved: bool) -> Any:
    return -quarter(x, interleaved)


def test_turns_by_a_quarter() -> None:
    verdicts = prove([turned, turned_back]).verdicts
    assert [type(verdict) for verdict in verdicts] == [Proved, Refuted]
