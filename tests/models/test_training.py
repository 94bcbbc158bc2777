"""BERT, GPT-2 and Llama in training: every layer's attention is fused, gradients are eager's."""

from __future__ import annotations

import pytest
import torch

from pypm.rules import training
from tests.axes import axes
from tests.models.build import build, inputs
from tests.models.test_models import step
from tests.rules.capture import compile_to_graphs

pytest.importorskip("transformers")
torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")


@axes(["none"], name=["llama", "bert", "gpt2"], padding=["left", "none"], layers=[1, 2])
def test_training(name: str, padding: str, layers: int) -> None:
    """With padding on the left, GPT-2 and Llama have rows that are masked everywhere."""
    model = build(name, train=True, layers=layers)
    given = inputs(2, padding=padding, labels=True)
    compiled, rewritten = compile_to_graphs(model, training.RULES)
    ours, theirs = step(compiled, model, given), step(model, model, given)
    assert [len(report) for report in rewritten.reports] == [layers], str(rewritten.report())
    assert rewritten.report().unchecked == 0
    assert len(ours) == len(theirs) > 10
    for mine, eager in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, eager, atol=2e-6, rtol=1e-5)


@axes(["bert"], name=["gpt2", "bert"])
def test_dropout_in_training(name: str) -> None:
    model, given = build(name, train=True, dropout=0.2, layers=1), inputs(2, labels=True)
    compiled, rewritten = compile_to_graphs(model, training.RULES)
    assert all(part.isfinite().all() for part in step(compiled, model, given))
    assert len(rewritten.report()) == 0, str(rewritten.report())


@pytest.mark.parametrize("layers", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_a_position_bias_that_is_trained(layers: int) -> None:
    """T5's: of encoder, decoder and across, attention across alone has no trained bias."""
    import transformers

    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=97, d_model=32, d_kv=8, d_ff=64, num_layers=layers, num_heads=4,
        dropout_rate=0.0, decoder_start_token_id=0, use_cache=False,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration._from_config(
        config, attn_implementation="eager"
    ).train()
    given = inputs(2, labels=True)
    compiled, rewritten = compile_to_graphs(model, training.RULES)
    ours, theirs = step(compiled, model, given), step(model, model, given)
    assert [len(report) for report in rewritten.reports] == [layers], str(rewritten.report())
    for mine, eager in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, eager, atol=1e-5, rtol=1e-4)
