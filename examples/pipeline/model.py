"""A GPT-2 with random weights, and the text that it learns."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel


def build(width: int, layers: int, words: int) -> GPT2LMHeadModel:
    """Return a model for training, the same each time; dropout is off, so that runs compare."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=words, n_embd=width, n_layer=layers, n_head=max(1, width // 64), use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).train()


def export(model: GPT2LMHeadModel, rows: int, length: int) -> ExportedProgram:
    """Export a model for microbatches of some rows."""
    example = torch.zeros(rows, length, dtype=torch.int64)
    return torch.export.export(model, (example,), strict=False)


def batch(step: int, rows: int, length: int, words: int) -> tuple[Tensor, Tensor]:
    """Return tokens that count upwards from random ones, and the tokens that follow them."""
    made = torch.Generator().manual_seed(step)
    starts = torch.randint(words, (rows, 1), generator=made)
    tokens = (starts + torch.arange(length + 1)) % words
    return tokens[:, :-1], tokens[:, 1:]


def loss(logits: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross entropy over the tokens of a microbatch."""
    return functional.cross_entropy(logits.flatten(0, -2), target.flatten())
