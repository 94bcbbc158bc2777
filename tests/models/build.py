"""Small HuggingFace models with random weights, built from configurations."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

LAYERS = 2
NAMES = ("bert", "gpt2", "llama")
VOCABULARY = 97

SHARED: Final[dict[str, Any]] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 64, "num_hidden_layers": LAYERS,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GPT: Final[dict[str, Any]] = {
    "vocab_size": VOCABULARY, "n_embd": 32, "n_head": 4, "n_inner": 64, "n_layer": LAYERS,
    "n_positions": 64, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False,
}  # fmt: skip
GROUPED: Final = {**SHARED, "num_key_value_heads": 2, "use_cache": False}
"""Configurations that several models understand."""
DEPTHS: Final = ("num_hidden_layers", "num_layers", "n_layer")


def of_layers(layers: int, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a configuration, with another number of layers."""
    return {key: layers if key in DEPTHS else value for key, value in options.items()}


def build(
    name: str,
    dtype: torch.dtype = torch.float32,
    *,
    train: bool = False,
    dropout: float = 0.0,
    layers: int = LAYERS,
) -> torch.nn.Module:
    """Width 32, four heads (for Llama on two of keys and values), eager attention."""
    import transformers

    torch.manual_seed(0)
    shared: dict[str, Any] = {"vocab_size": VOCABULARY}
    match name:
        case "bert":
            cls: Any = transformers.BertForMaskedLM
            config: Any = transformers.BertConfig(
                hidden_size=32, num_attention_heads=4, intermediate_size=64,
                max_position_embeddings=64, num_hidden_layers=layers,
                hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout, **shared,
            )  # fmt: skip
        case "gpt2":
            cls = transformers.GPT2LMHeadModel
            config = transformers.GPT2Config(
                n_embd=32, n_head=4, n_inner=64, n_layer=layers, n_positions=64, use_cache=False,
                bos_token_id=1, eos_token_id=2, resid_pdrop=dropout, embd_pdrop=dropout,
                attn_pdrop=dropout, **shared,
            )  # fmt: skip
        case _:
            cls = transformers.LlamaForCausalLM
            config = transformers.LlamaConfig(
                hidden_size=32, num_attention_heads=4, num_key_value_heads=2,
                intermediate_size=64, max_position_embeddings=64, num_hidden_layers=layers,
                use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=2, **shared,
            )  # fmt: skip
    model: torch.nn.Module = cls._from_config(config, attn_implementation="eager", dtype=dtype)
    if name == "gpt2":  # else its loss logs a warning, which Dynamo refuses
        model.loss_type = "ForCausalLM"  # type: ignore[assignment]
    for parameter in model.parameters():
        parameter.requires_grad_(train)
    return model.train(train)


def inputs(
    batch: int, length: int = 12, *, padding: str = "none", labels: bool = False
) -> dict[str, Tensor]:
    """Token ids; with padding, a mask leaves out three tokens of the last row.

    On the left they see nothing under a causal mask: rows that are masked everywhere.
    """
    made = torch.Generator().manual_seed(0)
    ids = torch.randint(3, VOCABULARY, (batch, length), generator=made)
    found = {"input_ids": ids}
    if padding != "none":
        found["attention_mask"] = torch.ones_like(ids)
        found["attention_mask"][-1, slice(3) if padding == "left" else slice(-3, None)] = 0
    if labels:
        found["labels"] = ids.clone()
    return found


def attended(given: dict[str, Tensor], logits: Tensor) -> Tensor:
    """The logits of tokens that are no padding."""
    mask = given.get("attention_mask")
    return logits if mask is None else logits[mask.bool()]
