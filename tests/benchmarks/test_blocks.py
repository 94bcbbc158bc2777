"""Loops, experts and latent attention of models: what is counted, and what is found."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.coverage import blocks
from benchmarks.coverage.sites import Variant, run

pytest.importorskip("transformers")
torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")

BY_NAME = {(each.name, each.kind): each for each in blocks.BLOCKS}


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [("rwkv", "loops", 2), ("mixtral", "experts", 4), ("deepseek_v3", "latent attention", 2)],
)
def test_sites_are_counted(name: str, kind: str, expected: int) -> None:
    block = BY_NAME[name, kind]
    with blocks.sites(block) as calls:
        run(blocks.build(block), blocks.inputs(*blocks.SIZES[0]), Variant())
    assert len(calls) == expected


def test_a_model() -> None:
    block = BY_NAME["mamba", "loops"]
    found = blocks.measure(replace(block, config={**block.config, "num_hidden_layers": 1}))
    assert found.there == 1
    assert found.ways == {"export": 1, "joint": 1, "training": 1, "dynamic": 1}
    assert found.error < 1e-9 and not found.reasons
