"""Attention of today's models: every site is found, at export and below autograd."""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import product
from typing import Any, Final

import pytest
import torch
from _pytest.mark import ParameterSet
from torch import Tensor

from pypm import RuleSet
from pypm.fx import Choice, Report, every, first
from pypm.integrations import export
from pypm.rules import attention
from pypm.rules.attention import sdpa_of_two_widths
from tests.models.build import GROUPED, LAYERS, SHARED, VOCABULARY, of_layers
from tests.models.test_sites import T5
from tests.rules.capture import compile_to_graphs
from tests.rules.test_block_attention import AsReference

transformers: Any = pytest.importorskip("transformers")
torch.set_num_threads(1)
pytestmark = pytest.mark.filterwarnings("ignore")

WINDOW: Final = 8
WINDOWED: Final[dict[str, Any]] = {**GROUPED, "head_dim": 8, "sliding_window": WINDOW}
MIXED: Final = {"layer_types": ["sliding_attention", "full_attention"]}
FALCON: Final[dict[str, Any]] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": LAYERS,
    "num_attention_heads": 4, "use_cache": False, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MODELS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "mistral": ("MistralForCausalLM", WINDOWED),
    "phi3": ("Phi3ForCausalLM", {**GROUPED, "sliding_window": WINDOW}),
    "gemma3": ("Gemma3ForCausalLM", {**WINDOWED, **MIXED}),
    "gpt_oss": (
        "GptOssForCausalLM",
        {
            **WINDOWED, **MIXED, "num_local_experts": 4, "num_experts_per_tok": 2,
            "experts_implementation": "batched_mm",
        },
    ),
    "llama4": (
        "Llama4ForCausalLM",
        {
            **GROUPED, "head_dim": 8, "attention_chunk_size": WINDOW, "num_local_experts": 2,
            "intermediate_size_mlp": 64, "layer_types": ["chunked_attention", "full_attention"],
        },
    ),
    "bloom": (
        "BloomForCausalLM",
        {
            "vocab_size": VOCABULARY, "hidden_size": 32, "n_head": 4, "n_layer": LAYERS,
            "use_cache": False,
        },
    ),
    "t5": ("T5ForConditionalGeneration", T5),
    "modernbert": (
        "ModernBertForMaskedLM",
        {
            **SHARED, "local_attention": WINDOW, "global_attn_every_n_layers": 2,
            "cls_token_id": 1, "sep_token_id": 2,
        },
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        {
            **GROUPED, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16,
            "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 4,
            "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16,
            "first_k_dense_replace": LAYERS,
        },
    ),
    "diffllama": ("DiffLlamaForCausalLM", {**GROUPED, "head_dim": 8}),
    "falcon": ("FalconForCausalLM", {**FALCON, "multi_query": True}),
    "falcon with slopes": ("FalconForCausalLM", {**FALCON, "multi_query": False, "alibi": True}),
    "falcon of one head with slopes": (
        "FalconForCausalLM",
        {**FALCON, "multi_query": True, "alibi": True},
    ),
    "xglm": (
        "XGLMForCausalLM",
        {
            "vocab_size": VOCABULARY, "d_model": 32, "ffn_dim": 48, "num_layers": LAYERS,
            "attention_heads": 4, "max_position_embeddings": 64, "use_cache": False,
        },
    ),
    "squeezebert": ("SqueezeBertForMaskedLM", {**SHARED, "embedding_size": 32}),
    "layoutlmv3": (
        "LayoutLMv3ForTokenClassification",
        {
            **SHARED, "coordinate_size": 5, "shape_size": 6, "visual_embed": False,
            "max_2d_position_embeddings": 16, "has_relative_attention_bias": True,
            "has_spatial_attention_bias": True, "attention_probs_dropout_prob": 0.0,
        },
    ),
}  # fmt: skip
CAPPED: Final = ("Gemma2ForCausalLM", {**WINDOWED, "attn_logit_softcapping": 5.0})
WRITING: Final = ("falcon", "falcon of one head with slopes", "falcon with slopes", "layoutlmv3")
"""These write into their scores: in an exported program, writes have to be taken out first."""
SITES: Final = {"t5": 3, "diffllama": 2}
"""Of models with other numbers than one a layer: a decoder has two, and so has a difference."""
WIDTHS: Final = RuleSet((sdpa_of_two_widths,))
RULES: Final = {
    "gpt_oss": ("sdpa_with_sinks", attention.RULES, first),
    "deepseek_v3": ("sdpa_of_two_widths", WIDTHS, every),
}
"""Of models with other attention than `sdpa` takes: the rule that does, rules, and choice."""
DIFFERENT: Final = ("gemma3", "gpt_oss", "llama4", "modernbert")
"""Layers see a window each, or all."""
TWO: Final = (*DIFFERENT, "bloom", "layoutlmv3", "t5")
"""Of two layers in quick runs: they differ, or share a bias. Of the others one says no less."""
QUICK: Final = (
    *("gpt_oss", "deepseek_v3", "diffllama", "gemma3", "t5", "bloom", "falcon with slopes"),
)
"""Exported with a length that is known: a model for each rule and each kind of mask or bias."""
QUICK_DYNAMIC: Final = ("mistral", "modernbert")
"""Exported with a dynamic length."""
QUICK_BELOW: Final = ("mistral", "gpt_oss")
"""Below autograd. `make soak` tries every model in every way."""
NARROW: Final = {"xglm": torch.float32}
"""Of others than float64, of which XGLM's own mask has no lowest number."""
ROUNDED: Final = {
    "mistral", "phi3", "gemma3", "llama4", "bloom", "modernbert", "deepseek_v3", "diffllama",
}  # fmt: skip
"""These compute the softmax in float32; the others in the type of the scores."""


def build(
    kind: tuple[str, dict[str, Any]], layers: int, dtype: torch.dtype = torch.float64
) -> torch.nn.Module:
    """The model, with random weights large enough that attention matters."""
    cls, options = getattr(transformers, kind[0]), kind[1]
    config = cls.config_class(**of_layers(layers, options))
    made: torch.nn.Module = cls._from_config(config, attn_implementation="eager", dtype=dtype)
    torch.manual_seed(0)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return made.eval().requires_grad_(False)


def inputs(name: str, length: int = 20) -> dict[str, Tensor]:
    ids = torch.randint(3, VOCABULARY, (2, length), generator=torch.Generator().manual_seed(0))
    more = {
        "t5": {"decoder_input_ids": ids},
        "layoutlmv3": {"bbox": torch.stack([ids % 8, ids % 7, ids % 8 + 1, ids % 7 + 3], -1)},
    }
    return {"input_ids": ids, **more.get(name, {})}


def rules_of(name: str) -> tuple[str, RuleSet, Choice]:
    return RULES.get(name, ("sdpa", attention.RULES, first))


def check(name: str, layers: int, report: Report, expected: Tensor, found: Tensor) -> None:
    rule, _, _ = rules_of(name)
    assert (report.count(rule), len(report)) == (layers * SITES.get(name, 1),) * 2, report
    tolerance = 1e-4 if name in NARROW else 1e-5 if name in ROUNDED else 1e-9
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


def cases(static: Container[str], dynamic: Container[str]) -> Iterator[ParameterSet]:
    """Models, whether the length is dynamic, and layers; those that are not named soak."""
    for name, is_dynamic, layers in product(MODELS, (False, True), (1, LAYERS)):
        if layers == 1 and name in DIFFERENT:
            continue
        is_quick = name in (dynamic if is_dynamic else static) and (layers > 1) == (name in TWO)
        marks = () if is_quick else pytest.mark.soak
        yield pytest.param(name, is_dynamic, layers, marks=marks)


@pytest.mark.parametrize(("name", "is_dynamic", "layers"), [*cases(QUICK, QUICK_DYNAMIC)])
def test_exported(name: str, is_dynamic: bool, layers: int) -> None:
    if is_dynamic and name == "llama4":
        pytest.skip("its chunks make torch.export refuse a dynamic length")
    model, given = build(MODELS[name], layers, NARROW.get(name, torch.float64)), inputs(name)
    length = torch.export.Dim("length", min=WINDOW + 1, max=60)
    shapes = {key: {1: length} for key in given} if is_dynamic else None
    program = torch.export.export(model, (), given, dynamic_shapes=shapes, strict=False)
    program = program.run_decompositions({}) if name in WRITING else program
    _, rules, choose = rules_of(name)
    report = export.rewrite(program, rules, choose=choose)
    check(name, layers, report, model(**given).logits, program.module()(**given).logits)


@pytest.mark.parametrize(("name", "is_dynamic", "layers"), [*cases(QUICK_BELOW, ("modernbert",))])
def test_below_autograd(name: str, is_dynamic: bool, layers: int) -> None:
    """Dynamo would start over once it has seen that `eps` is no size, and take twice as long."""
    model, given = build(MODELS[name], layers, NARROW.get(name, torch.float64)), inputs(name)
    _, rules, choose = rules_of(name)
    compiled, hook = compile_to_graphs(model, rules, dynamic=is_dynamic, choose=choose)
    with torch.no_grad(), torch._dynamo.config.patch(specialize_float=True):
        found = compiled(**given).logits
        check(name, layers, hook.report(), model(**given).logits, found)


@pytest.mark.parametrize("has_window", [False, True])
def test_capped_scores_of_gemma2(has_window: bool) -> None:
    """By blocks, which have no float64; a layer without a window is causal.

    Without `no_grad`, a body that runs without gradients lies between the mask and its use.
    """
    kind = "sliding_attention" if has_window else "full_attention"
    name, options = CAPPED
    model = build((name, {**options, "layer_types": [kind]}), 1, torch.float32)
    given = inputs(name, length=140)
    with torch.no_grad():
        program = torch.export.export(model, (), given, strict=False)
    report = export.rewrite(program, attention.RULES, choose=every)
    assert (report.count("attention_by_blocks"), len(report)) == (1, 1), report
    found = AsReference(program.module()).run(*given.values())
    torch.testing.assert_close(found[0], model(**given).logits, atol=1e-4, rtol=1e-4)
