"""Norms of real models: the sites that are found, of those there are."""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch
from torch import Tensor

from pypm.integrations import export
from pypm.rules import norm
from tests.models.build import GPT, GROUPED, LAYERS, SHARED, VOCABULARY
from tests.rules.capture import compile_to_graphs

transformers: Any = pytest.importorskip("transformers")
torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")

STAGES: Final = ("export", "pre_grad", "joint")
TOLERANCES: Final = {torch.float32: 1e-5, torch.bfloat16: 3e-2}

T5: Final[dict[str, Any]] = {
    "vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": LAYERS,
    "num_heads": 4, "use_cache": False, "decoder_start_token_id": 0,
}  # fmt: skip
VIT: Final[dict[str, Any]] = {
    "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64,
    "num_hidden_layers": LAYERS, "image_size": 16, "patch_size": 8,
}  # fmt: skip

MODELS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "llama": ("LlamaForCausalLM", GROUPED),
    "qwen2": ("Qwen2ForCausalLM", GROUPED),
    "qwen3": ("Qwen3ForCausalLM", {**GROUPED, "head_dim": 8}),
    "gemma": ("GemmaForCausalLM", {**GROUPED, "head_dim": 8}),
    "t5": ("T5ForConditionalGeneration", T5),
    "bert": ("BertForMaskedLM", SHARED),
    "gpt2": ("GPT2LMHeadModel", GPT),
    "vit": ("ViTForImageClassification", VIT),
}
WHOLE: Final = {"bert": 2, "gpt2": 1, "vit": 1}
"""Norms of no sum that are one operator before decomposition: there is nothing to do there."""


def build(name: str, dtype: torch.dtype) -> torch.nn.Module:
    cls = getattr(transformers, MODELS[name][0])
    torch.manual_seed(0)
    config = cls.config_class(**MODELS[name][1])
    model: torch.nn.Module = cls._from_config(config, attn_implementation="eager", dtype=dtype)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval().requires_grad_(False)


def inputs(name: str, dtype: torch.dtype) -> dict[str, Tensor]:
    if name == "vit":
        return {"pixel_values": torch.linspace(-1, 1, 1536, dtype=dtype).reshape(2, 3, 16, 16)}
    ids = torch.arange(3, 15)[None].repeat(2, 1)
    return {"input_ids": ids, **({"decoder_input_ids": ids} if name == "t5" else {})}


def norms_of(model: torch.nn.Module) -> int:
    return sum(
        type(module).__name__.endswith(("RMSNorm", "LayerNorm")) for module in model.modules()
    )


def rewritten(
    model: torch.nn.Module, given: dict[str, Tensor], stage: str, *, dynamic: bool = False
) -> tuple[list[str], Tensor]:
    """Which rules fired, and the logits."""
    if stage == "export":
        program = torch.export.export(model, (), given, strict=False)
        report = export.rewrite(program, norm.RULES)
        result = program.module()(**given).logits
    else:
        compiled, passed = compile_to_graphs(model, norm.RULES, stage, dynamic=dynamic)
        result = compiled(**given).logits
        report = passed.reports[-1]
    assert report.unchecked == 0
    return [record.rule for record in report.rewrites], result


def check(name: str, dtype: torch.dtype, stage: str, sites: int, **options: Any) -> list[str]:
    model, given = build(name, dtype), inputs(name, dtype)
    with torch.no_grad():
        fired, ours = rewritten(model, given, stage, **options)
        eager = model(**given).logits
    scale = eager.abs().max()
    close = {"atol": TOLERANCES[dtype], "rtol": TOLERANCES[dtype]}
    torch.testing.assert_close(ours / scale, eager / scale, **close)
    assert len(fired) == norms_of(model) - sites
    return fired


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", MODELS)
def test_every_site(name: str, stage: str) -> None:
    dtype = torch.bfloat16 if stage == "joint" else torch.float32
    fired = check(name, dtype, stage, 0 if stage == "joint" else WHOLE.get(name, 0))
    assert sum(rule.startswith("add_") for rule in fired) >= 2 * LAYERS - 1


@pytest.mark.usefixtures("gpu")
def test_sizes_that_are_not_known() -> None:
    """With `dynamic=True`, Dynamo makes eps an input as well, unless it is told not to."""
    with torch._dynamo.config.patch(specialize_float=True):
        check("llama", torch.float32, "joint", 0, dynamic=True)


@pytest.mark.parametrize("name", ["llama", "gemma", "t5"])
def test_exported_for_cpus(name: str) -> None:
    assert set(check(name, torch.float32, "export", 0)) == {"rms_norm"}


@pytest.mark.usefixtures("gpu")
def test_training() -> None:
    """Before autograd; gradients pass through the operators."""
    model = build("llama", torch.float64).requires_grad_(True)
    given = inputs("llama", torch.float64)
    compiled, passed = compile_to_graphs(model, norm.RULES, "pre_grad")

    def step(call: Any) -> list[Tensor]:
        loss = call(**given).logits.square().mean()
        return list(torch.autograd.grad(loss, list(model.parameters())))

    for ours, theirs in zip(step(compiled), step(model), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    assert len(passed.reports[-1]) == norms_of(model)
