"""Mixtures of experts of today's models: every product with gathered weights is found."""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch
from torch import Tensor

from pypm.integrations import export
from pypm.rules import experts
from tests.axes import axes
from tests.models.build import GROUPED, LAYERS, VOCABULARY, of_layers
from tests.rules.capture import compile_to_graphs

transformers: Any = pytest.importorskip("transformers")
torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")

CHOSEN: Final[dict[str, Any]] = {
    **GROUPED, "num_experts_per_tok": 2, "experts_implementation": "batched_mm",
}  # fmt: skip
MODELS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "mixtral": ("MixtralForCausalLM", {**CHOSEN, "num_local_experts": 4}),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        {
            **CHOSEN, "head_dim": 8, "num_experts": 4, "moe_intermediate_size": 16,
            "norm_topk_prob": True,
        },
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        {
            **CHOSEN, "num_key_value_heads": 4, "n_routed_experts": 4, "n_group": 2,
            "topk_group": 1, "moe_intermediate_size": 16, "first_k_dense_replace": 0,
            "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
            "v_head_dim": 8,
        },
    ),
    "gpt_oss": ("GptOssForCausalLM", {**CHOSEN, "head_dim": 8, "num_local_experts": 4}),
    "olmoe": ("OlmoeForCausalLM", {**CHOSEN, "num_experts": 4}),
}  # fmt: skip
"""Routing by softmax, sigmoid, groups; renormalised; gated activations, also clamped; biases."""

ROUNDED: Final = 1e-6
"""Below autograd, decomposed norms in float32 round otherwise, also without the rule."""


def build(name: str, layers: int = 1) -> torch.nn.Module:
    """Return the model in float64, with random weights large enough that experts matter."""
    cls, options = getattr(transformers, MODELS[name][0]), MODELS[name][1]
    config = cls.config_class(**of_layers(layers, options))
    made: torch.nn.Module = cls._from_config(
        config, attn_implementation="eager", dtype=torch.float64
    )
    torch.manual_seed(0)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return made.eval()


def inputs() -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(0)
    return {"input_ids": torch.randint(3, VOCABULARY, (2, 9), generator=made)}


@axes(["qwen3_moe", "olmoe"], name=MODELS, is_dynamic=[False, True], layers=[1, LAYERS])
def test_exported(name: str, is_dynamic: bool, layers: int) -> None:
    model, given = build(name, layers), inputs()
    length = torch.export.Dim("length", min=2, max=60)
    shapes = {"input_ids": {1: length}} if is_dynamic else None
    program = torch.export.export(model, (), given, dynamic_shapes=shapes, strict=False)
    report = export.rewrite(program, experts.RULES)
    assert (report.count("grouped_experts"), len(report)) == (2 * layers,) * 2, report
    found, expected = program.module()(**given).logits, model(**given).logits
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)


@axes(MODELS.keys() - {"mixtral"}, name=MODELS)
def test_below_autograd(name: str) -> None:
    """Others gather weights as Mixtral does, or are trained below."""
    model, given = build(name), inputs()
    compiled, hook = compile_to_graphs(model, experts.RULES, "joint")
    with torch.no_grad():
        found, expected = compiled(**given).logits, model(**given).logits
    assert hook.report().count("grouped_experts") == 2
    torch.testing.assert_close(found, expected, atol=ROUNDED, rtol=ROUNDED)


@pytest.mark.parametrize("name", ["deepseek_v3", "gpt_oss"])
def test_training(name: str) -> None:
    model, given = build(name), inputs()
    compiled, hook = compile_to_graphs(model, experts.RULES, "pre_grad")
    parameters = list(model.parameters())
    ours, theirs = (
        torch.autograd.grad(call(**given).logits.cos().sum(), parameters, allow_unused=True)
        for call in (compiled, model)
    )
    assert hook.report().count("grouped_experts") == 2
    torch.testing.assert_close(ours, theirs, atol=ROUNDED, rtol=ROUNDED)
