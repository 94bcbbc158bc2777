"""Activations and rotary embeddings of real models: every site is found."""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch
from torch import Tensor

from pypm.integrations import export
from pypm.rules import activation, rotary
from tests.models.build import GPT, GROUPED, LAYERS, SHARED
from tests.rules.capture import compile_to_graphs

transformers: Any = pytest.importorskip("transformers")
torch.set_num_threads(1)
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("gpu")]

TYPES: Final = {
    "export": (torch.float32, 1e-5),
    "pre_grad": (torch.float32, 1e-5),
    "joint": (torch.bfloat16, 3e-2),  # decomposed with its casts
}
STAGES: Final = tuple(TYPES)

MODELS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "llama": ("LlamaForCausalLM", GROUPED),
    "qwen2": ("Qwen2ForCausalLM", GROUPED),
    "gemma": ("GemmaForCausalLM", {**GROUPED, "head_dim": 8}),
    "phi3": ("Phi3ForCausalLM", GROUPED),
    "gpt_neox": ("GPTNeoXForCausalLM", {**SHARED, "use_cache": False}),
    "gptj": ("GPTJForCausalLM", {**GPT, "rotary_dim": 4}),
    "gpt2": ("GPT2LMHeadModel", GPT),
    "bert": ("BertForMaskedLM", SHARED),
}


def build(name: str, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """Two layers with eager attention and random weights, the same each time."""
    cls = getattr(transformers, MODELS[name][0])
    torch.manual_seed(0)
    config = cls.config_class(**MODELS[name][1])
    model: torch.nn.Module = cls._from_config(config, attn_implementation="eager", dtype=dtype)
    return model.eval().requires_grad_(False)


def rewritten(model: torch.nn.Module, rules: Any, stage: str) -> tuple[list[str], Tensor, Tensor]:
    """Which rules fired, and the logits with them and without."""
    given = {"input_ids": torch.arange(3, 15)[None].repeat(2, 1)}
    with torch.no_grad():
        eager = model(**given).logits
        if stage == "export":
            program = torch.export.export(model, (), given, strict=False)
            report = export.rewrite(program, rules)
            result = program.module()(**given).logits
        else:
            compiled, passed = compile_to_graphs(model, rules, stage)
            result = compiled(**given).logits
            report = passed.reports[-1]
    assert report.unchecked == 0
    return [record.rule for record in report.rewrites], result, eager


GATED: Final = ("llama", "qwen2", "gemma", "phi3")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", GATED)
def test_gates(name: str, stage: str) -> None:
    dtype, tolerance = TYPES[stage]
    fired, result, eager = rewritten(build(name, dtype), activation.RULES, stage)
    assert fired == LAYERS * ["gated"]
    torch.testing.assert_close(result, eager, atol=tolerance, rtol=tolerance)


WHOLE: Final = {"gpt2": LAYERS, "gptj": LAYERS}
"""These write GELU out; BERT and GPT-NeoX call the operator."""


@pytest.mark.parametrize("stage", ["export", "pre_grad"])
@pytest.mark.parametrize("name", ["gpt2", "gptj", "bert", "gpt_neox"])
def test_activations(name: str, stage: str) -> None:
    fired, result, eager = rewritten(build(name), activation.RULES, stage)
    assert fired == WHOLE.get(name, 0) * ["whole"]
    torch.testing.assert_close(result, eager, atol=1e-5, rtol=1e-5)


ROTARY: Final = (*GATED, "gpt_neox", "gptj")
"""GPT-J computes the angles of query and key apart; they are equal."""


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", ROTARY)
def test_rotary_embeddings(name: str, stage: str) -> None:
    dtype, tolerance = TYPES[stage]
    fired, result, eager = rewritten(build(name, dtype), rotary.RULES, stage)
    assert fired == LAYERS * ["rotary_of_both"]
    torch.testing.assert_close(result, eager, atol=tolerance, rtol=tolerance)
