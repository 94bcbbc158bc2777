"""Gemma 2's attention: a sliding window is a mask and is fused; soft-capped scores are neither."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pypm.fx import Report
from pypm.rules import attention
from tests.rules.capture import compile_to_graphs

torch.set_num_threads(1)

LENGTH = 12


def gemma(*, window: int, cap: float | None) -> Any:
    """Two layers, the first with a sliding window; random weights, the same each time."""
    import transformers

    config = transformers.Gemma2Config(
        vocab_size=97, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        intermediate_size=64, num_hidden_layers=2, max_position_embeddings=64,
        sliding_window=window, attn_logit_softcapping=cap, use_cache=False,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    cls: Any = transformers.Gemma2ForCausalLM
    return cls._from_config(config, attn_implementation="eager", dtype=torch.float64).eval()


@torch.no_grad()
def rewritten(model: Any, stage: str) -> Report:
    """What the rules do, the logits being those of eager."""
    ids = torch.arange(3, 3 + LENGTH)[None]
    compiled, passed = compile_to_graphs(model, attention.RULES, stage)
    torch.testing.assert_close(compiled(ids).logits, model(ids).logits, atol=1e-6, rtol=1e-6)
    return passed.reports[-1]


@pytest.mark.parametrize("stage", ["pre_grad", "joint"])
def test_sliding_windows_are_masks(stage: str) -> None:
    assert rewritten(gemma(window=4, cap=None), stage).count("sdpa") == 2


@torch.no_grad()
def test_the_window_shows() -> None:
    """Else a rule that forgot it would pass."""
    ids = torch.arange(3, 3 + LENGTH)[None]
    narrow, wide = (gemma(window=n, cap=None)(ids).logits for n in (4, LENGTH))
    assert (narrow - wide).abs().max() > 1e-3


@pytest.mark.parametrize("stage", ["pre_grad", "joint"])
def test_soft_capped_scores_are_left_alone(stage: str) -> None:
    """`cap * tanh(scores / cap)` is no scale: torch's fused kernels cannot compute it."""
    assert rewritten(gemma(window=4, cap=0.05), stage).count("sdpa") == 0
