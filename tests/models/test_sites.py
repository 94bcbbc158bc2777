"""Norms, activations and rotary embeddings of real models: every site is found.

The rules of all three packs are applied together. Quick runs export and compile one model of each
form; of one layer, but Llama of two, which share sines and cosines.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from pypm import RuleSet
from pypm.integrations import export
from pypm.rules import activation, norm, rotary
from tests.models.build import GPT, GROUPED, LAYERS, SHARED, VOCABULARY, of_layers
from tests.rules.capture import compile_to_graphs

transformers: Any = pytest.importorskip("transformers")
torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")

RULES: Final = RuleSet(
    (*norm.RULES, *activation.RULES, replace(rotary.rotary_of_both, pays="mostly"))
)
"""The first choice would not take the last one, a candidate."""
TYPES: Final = {
    "export": torch.float32,
    "pre_grad": torch.float32,
    "joint": torch.bfloat16,  # decomposed with its casts
}
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
    "phi3": ("Phi3ForCausalLM", GROUPED),
    "gpt_neox": ("GPTNeoXForCausalLM", {**SHARED, "use_cache": False}),
    "gptj": ("GPTJForCausalLM", {**GPT, "rotary_dim": 4}),
    "gpt2": ("GPT2LMHeadModel", GPT),
    "bert": ("BertForMaskedLM", SHARED),
    "t5": ("T5ForConditionalGeneration", T5),
    "vit": ("ViTForImageClassification", VIT),
}
RMS: Final = ("llama", "qwen2", "qwen3", "gemma", "phi3", "t5")
"""These write their norms out; the others call the operator."""
ROTARY: Final = (*RMS[:-1], "gpt_neox", "gptj")
"""GPT-J computes the angles of query and key apart; they are equal."""
WRITTEN_OUT: Final = ("gpt2", "gptj")
"""These write GELU out; the others call the operator."""
EXPORTED: Final = MODELS.keys() - {"qwen2", "vit"}
"""In quick runs; Qwen2 is Llama with a bias, and ViT has none of these sites."""
COMPILED: Final = {"pre_grad": ("llama", "gptj"), "joint": ("llama", "gpt_neox")}
"""Angles of halves, of pairs, and of a part."""


def build(name: str, dtype: torch.dtype, layers: int = 1) -> torch.nn.Module:
    """With eager attention and random weights, the same each time."""
    cls, options = getattr(transformers, MODELS[name][0]), MODELS[name][1]
    torch.manual_seed(0)
    config = cls.config_class(**of_layers(layers, options))
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


def rewritten(name: str, model: torch.nn.Module, stage: str, **options: bool) -> Counter[str]:
    """How often each rule fired; the logits agree with eager's."""
    given = inputs(name, model.dtype)
    with torch.no_grad():
        if stage == "export":
            program = torch.export.export(model, (), given, strict=False)
            report = export.rewrite(program, RULES)
            ours = program.module()(**given).logits
        else:
            compiled, passed = compile_to_graphs(model, RULES, stage, **options)
            ours = compiled(**given).logits
            report = passed.reports[-1]
        eager = model(**given).logits
    scale, tolerance = eager.abs().max(), TOLERANCES[model.dtype]
    torch.testing.assert_close(ours / scale, eager / scale, atol=tolerance, rtol=tolerance)
    assert report.unchecked == 0
    return Counter(record.rule for record in report.rewrites)


def is_quick(name: str, stage: str, layers: int) -> bool:
    some = EXPORTED if stage == "export" else COMPILED[stage]
    return layers == (LAYERS if name == "llama" else 1) and name in some


@pytest.fixture(autouse=True)
def _however_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotary, "FEW", 0)


@pytest.mark.parametrize(
    ("name", "stage", "layers"),
    [
        pytest.param(*each, marks=() if is_quick(*each) else pytest.mark.soak)
        for each in product(MODELS, TYPES, (1, LAYERS))
    ],
)
def test_every_site(name: str, stage: str, layers: int) -> None:
    """Norms are left to `torch.compile` at its hooks, and activations where it decomposes them."""
    model = build(name, TYPES[stage], layers)
    fired = rewritten(name, model, stage)
    assert fired.pop("rotary_of_both", 0) == (layers if name in ROTARY else 0)
    is_written_out = name in WRITTEN_OUT and stage != "joint"
    assert fired.pop("whole", 0) == (layers if is_written_out else 0)
    norms = norms_of(model) if name in RMS and stage == "export" else 0
    assert fired == ({"rms_norm": norms} if norms else {})


def test_sizes_that_are_not_known() -> None:
    """With `dynamic=True`, Dynamo makes eps an input as well, unless it is told not to."""
    with torch._dynamo.config.patch(specialize_float=True):
        fired = rewritten("llama", build("llama", torch.float32), "joint", dynamic=True)
    assert fired == {"rotary_of_both": 1}


def test_training() -> None:
    """Before autograd; gradients pass through the operators."""
    model = build("llama", torch.float64).requires_grad_(True)
    given = inputs("llama", torch.float64)
    compiled, passed = compile_to_graphs(model, RULES, "pre_grad")

    def step(call: Any) -> list[Tensor]:
        loss = call(**given).logits.square().mean()
        return list(torch.autograd.grad(loss, list(model.parameters())))

    for ours, theirs in zip(step(compiled), step(model), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    assert len(passed.reports[-1]) == 1
