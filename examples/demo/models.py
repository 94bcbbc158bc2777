"""BERT, GPT-2 and Llama with random weights, built from configs: nothing is downloaded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import transformers
from torch import Tensor, nn

__all__ = ["DEPTH", "Spec", "build", "inputs", "small", "wide"]

DEPTH = {"bert": 12, "gpt2": 12, "llama": 16}
"""Layers of the real models."""


@dataclass(frozen=True)
class Spec:
    """Which model to build, and how wide and deep."""

    name: str
    layers: int
    width: int
    heads: int
    groups: int
    """Key and value heads (of llama, the one with grouped queries)."""
    inner: int
    dtype: torch.dtype = torch.float32
    attention: str = "eager"

    def by_hand(self) -> Spec:
        """The same model with `scaled_dot_product_attention` written by its authors."""
        return replace(self, attention="sdpa")


def small(name: str) -> Spec:
    """A model of real depth and tiny width: for counting."""
    return Spec(name, DEPTH[name], width=64, heads=4, groups=2, inner=128)


def wide(name: str) -> Spec:
    """Two layers of real width, in bfloat16: for timing."""
    return Spec(name, 2, width=768, heads=12, groups=4, inner=3072, dtype=torch.bfloat16)


_VOCABULARY = 512
_POSITIONS = 512


def _config(spec: Spec) -> tuple[Any, Any]:
    match spec.name:
        case "bert":
            return transformers.BertForMaskedLM, transformers.BertConfig(
                vocab_size=_VOCABULARY,
                hidden_size=spec.width,
                num_attention_heads=spec.heads,
                intermediate_size=spec.inner,
                max_position_embeddings=_POSITIONS,
                num_hidden_layers=spec.layers,
            )
        case "gpt2":
            return transformers.GPT2LMHeadModel, transformers.GPT2Config(
                vocab_size=_VOCABULARY,
                n_embd=spec.width,
                n_head=spec.heads,
                n_inner=spec.inner,
                n_layer=spec.layers,
                n_positions=_POSITIONS,
                use_cache=False,
                bos_token_id=1,
                eos_token_id=2,
            )
        case "llama":
            return transformers.LlamaForCausalLM, transformers.LlamaConfig(
                vocab_size=_VOCABULARY,
                hidden_size=spec.width,
                num_attention_heads=spec.heads,
                num_key_value_heads=spec.groups,
                intermediate_size=spec.inner,
                max_position_embeddings=_POSITIONS,
                num_hidden_layers=spec.layers,
                use_cache=False,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
            )
    raise ValueError(f"no model is called {spec.name!r}")


def build(spec: Spec) -> nn.Module:
    """The model in evaluation mode, its weights drawn from a fixed seed."""
    torch.manual_seed(0)
    model_class, config = _config(spec)
    model: nn.Module = model_class._from_config(
        config, attn_implementation=spec.attention, dtype=spec.dtype
    )
    return model.eval()


def inputs(batch: int, length: int, *, mask: bool) -> dict[str, Tensor]:
    """Token ids [batch, length] from a fixed seed; with a mask, the last row ends in padding."""
    generator = torch.Generator().manual_seed(0)
    found = {"input_ids": torch.randint(3, _VOCABULARY, (batch, length), generator=generator)}
    if mask:
        found["attention_mask"] = torch.ones(batch, length, dtype=torch.long)
        found["attention_mask"][-1, -length // 4 :] = 0
    return found
