"""Layers that packs find in models, beside those that hooks count."""

from __future__ import annotations

import pytest
import torch

from benchmarks.coverage import packs
from benchmarks.coverage.layers import layers_there
from benchmarks.coverage.models import CORPUS, build, inputs

pytest.importorskip("transformers")
torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")

ENTRIES = {entry.name: entry for entry in CORPUS}


def test_layers_are_counted() -> None:
    """Two layers of Llama, and one encoder with activations called as functions."""
    expected = {
        "llama": {"norm": 5, "activation": 2},
        "whisper-enc": {"norm": 5, "activation": 4},
    }
    for name, there in expected.items():
        found = layers_there(build(ENTRIES[name], layers=2), inputs(ENTRIES[name]))
        assert {family: count for family, count in found.items() if count} == there


def test_what_is_found_in_a_model() -> None:
    found, reports = packs.measure(ENTRIES["llama"], 1, ["norm", "activation"])
    assert [str(layers) for layers in found] == ["3 of 3", "0 + 1 of 1"]
    assert all(layers.error < 1e-12 for layers in found)
    assert [len(report) for report in reports] == [3, 0]


def test_what_is_one_operator_already_is_told_apart() -> None:
    found, _ = packs.measure(ENTRIES["gpt2"], 1, ["norm", "activation"])
    assert [str(layers) for layers in found] == ["0 + 3 of 3", "1 of 1"]
