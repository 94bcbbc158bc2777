"""A Llama with random weights whose attention reads pages: nothing is downloaded."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

from pypm.kernels.paged import PagedCache, PagedPlan, paged_attention

VOCABULARY = 49152


@dataclass(frozen=True)
class Step:
    """What one step of a server reads and writes: the same for all layers."""

    cache: PagedCache
    pages: Tensor
    """int64 [tokens]: the page of each token."""
    places: Tensor
    """int64 [tokens]: its place in the page."""
    plan: PagedPlan


def attention_over_pages(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    scaling: float,
    *,
    step: Step,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Write the keys and values of new tokens, then attend; all sequences lie in one row.

    query [1, H, tokens, D], key and value [1, G, tokens, D]; the result is [1, tokens, H, D].
    """
    keys, values = step.cache.keys[module.layer_idx], step.cache.values[module.layer_idx]
    keys[step.pages, step.places] = key[0].transpose(0, 1)
    values[step.pages, step.places] = value[0].transpose(0, 1)
    result = paged_attention(query[0].transpose(0, 1), keys, values, step.plan, scaling)
    return result[None], None


AttentionInterface.register("pages", attention_over_pages)


def config(*, layers: int, small: bool = False) -> LlamaConfig:
    """The width of SmolLM2-360M, which is a Llama with 15 heads in 5 groups; or a tiny one."""
    sizes = {
        "vocab_size": 128 if small else VOCABULARY,
        "hidden_size": 96 if small else 960,
        "intermediate_size": 160 if small else 2560,
        "num_attention_heads": 6 if small else 15,
        "num_key_value_heads": 2 if small else 5,
    }
    return LlamaConfig(
        **sizes,
        num_hidden_layers=layers,
        max_position_embeddings=8192,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )


def build(shape: LlamaConfig, attention: str) -> LlamaForCausalLM:
    """The model in evaluation mode, its weights drawn from a fixed seed: the same for each call."""
    torch.manual_seed(0)
    own = copy.deepcopy(shape)  # a model writes the name of its attention into it
    return LlamaForCausalLM._from_config(own, attn_implementation=attention).eval()
