"""Models with random weights, of transformers and one by hand: nothing is downloaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

__all__ = ["VOCABULARY", "Spec", "build", "inputs", "small"]

VOCABULARY = 512
_DEPTH = {"bert": 12, "gpt2": 12, "llama": 16}
"""Layers of the real models."""
_SHORT, _LONG = 512, 8192
"""Positions of models that have a weight for each, and of those that do not."""


@dataclass(frozen=True)
class Spec:
    """Which model to build, and how wide and deep; its attention is written out."""

    name: str
    layers: int
    width: int
    heads: int
    groups: int
    """Key and value heads of models with grouped queries."""
    inner: int
    window: int = _LONG
    """Tokens that a token of Mistral sees."""


def small(name: str) -> Spec:
    """A model of real depth and tiny width."""
    return Spec(name, _DEPTH[name], width=64, heads=4, groups=2, inner=128)


def _config(spec: Spec) -> tuple[Any, Any]:
    common = {"vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2}
    grouped = {
        **common,
        "hidden_size": spec.width,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.groups,
        "intermediate_size": spec.inner,
        "max_position_embeddings": _LONG,
        "num_hidden_layers": spec.layers,
        "pad_token_id": 0,
    }
    match spec.name:
        case "bert":
            return transformers.BertForMaskedLM, transformers.BertConfig(
                vocab_size=VOCABULARY,
                hidden_size=spec.width,
                num_attention_heads=spec.heads,
                intermediate_size=spec.inner,
                max_position_embeddings=_SHORT,
                num_hidden_layers=spec.layers,
            )
        case "gpt2":
            return transformers.GPT2LMHeadModel, transformers.GPT2Config(
                **common,
                n_embd=spec.width,
                n_head=spec.heads,
                n_inner=spec.inner,
                n_layer=spec.layers,
                n_positions=_SHORT,
                use_cache=False,
            )
        case "llama":
            return transformers.LlamaForCausalLM, transformers.LlamaConfig(
                **grouped, use_cache=False
            )
        case "mistral":
            return transformers.MistralForCausalLM, transformers.MistralConfig(
                **grouped, use_cache=False, sliding_window=spec.window
            )
    raise ValueError(f"no model is called {spec.name!r}")


class Lstm(nn.Module):
    """An LSTM of equal width in and out, written by hand: one cell for each token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_input, self.of_state = (nn.Linear(width, 4 * width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], x.shape[2])
        states = []
        for t in range(x.shape[1]):
            i, f, g, o = (self.of_input(x[:, t]) + self.of_state(h)).chunk(4, -1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            states.append(h)
        return torch.stack(states, 1)


def recurrent(spec: Spec) -> nn.Module:
    """A language model of LSTMs: from token ids to logits."""
    layers = [Lstm(spec.width) for _ in range(spec.layers)]
    ends = nn.Embedding(VOCABULARY, spec.width), nn.Linear(spec.width, VOCABULARY)
    return nn.Sequential(ends[0], *layers, ends[1])


def build(spec: Spec) -> nn.Module:
    """The model in evaluation mode, its weights drawn from a fixed seed."""
    torch.manual_seed(0)
    if spec.name == "lstm":
        return recurrent(spec).eval()
    model_class, config = _config(spec)
    model: nn.Module = model_class._from_config(config, attn_implementation="eager")
    return model.eval()


def inputs(batch: int, length: int, *, mask: bool) -> dict[str, Tensor]:
    """Token ids [batch, length] from a fixed seed; with a mask, the last row ends in padding."""
    generator = torch.Generator().manual_seed(0)
    found = {"input_ids": torch.randint(3, VOCABULARY, (batch, length), generator=generator)}
    if mask:
        found["attention_mask"] = torch.ones(batch, length, dtype=torch.long)
        found["attention_mask"][-1, -length // 4 :] = 0
    return found
