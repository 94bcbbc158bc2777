"""The corpus at real widths, and the points of it that are timed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor, nn

from benchmarks.coverage import models as corpus
from benchmarks.coverage.models import CORPUS, WITHOUT_SDPA, Entry

__all__ = ["WIDE", "Point", "points"]

_TEXT: Final = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
_LLAMA: Final = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 2048}
_IMAGE: Final = {**_TEXT, "image_size": 224, "patch_size": 16}
_SWIN: Final = {"image_size": 224, "embed_dim": 96, "num_heads": [3, 6, 12, 24], "window_size": 7}

WIDE: Final[Mapping[str, Mapping[str, Any]]] = {
    "bert": _TEXT,
    "distilbert": {"dim": 768, "n_heads": 12, "hidden_dim": 3072},
    "gpt2": {"n_embd": 768, "n_head": 12},
    "opt": {
        "hidden_size": 768, "num_attention_heads": 12, "ffn_dim": 3072, "word_embed_proj_dim": 768,
    },
    "bloom": {"hidden_size": 768, "n_head": 12},
    "llama": {**_LLAMA, "num_key_value_heads": 12},
    "llama-gqa": {**_LLAMA, "num_key_value_heads": 4},
    "mistral": {**_LLAMA, "num_key_value_heads": 4, "sliding_window": 96},
    "qwen2": {
        "hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2,
        "intermediate_size": 4864,
    },
    "gemma": {**_TEXT, "head_dim": 64},
    "t5": {"d_model": 768, "d_kv": 64, "d_ff": 3072, "num_heads": 12},
    "electra": {**_TEXT, "embedding_size": 768},
    "deberta-v2": _TEXT,
    "whisper-enc": {
        "d_model": 768, "encoder_attention_heads": 12, "encoder_ffn_dim": 3072, "num_mel_bins": 80,
    },
    "vit": _IMAGE,
    "deit": _IMAGE,
    "swin": _SWIN,
    "unet": {"sample_size": 32, "block_out_channels": [320, 640], "cross_attention_dim": 768,
             "norm_num_groups": 32},
    "timm/vit_tiny_patch16_224": {"timm": "vit_base_patch16_224"},
    "timm/resnet18": {},
    "timm/resnet50": {},
    "timm/mixer_s32_224": {},
    "timm/mobilenetv3_small_050": {},
}  # fmt: skip
"""What takes the place of the small widths. The vocabulary stays small."""
POSITIONS: Final = ("max_position_embeddings", "n_positions", "max_source_positions")
FEWEST_POSITIONS: Final = 128
SHORT: Final = {"bfloat16": "bf16", "float32": "fp32", "float16": "fp16", "float64": "fp64"}
_SMALL: Final = {entry.name: entry for entry in CORPUS}
ENTRIES: Final = {
    **{name: entry for name, entry in _SMALL.items() if not entry.diffusers},
    "mistral": replace(
        _SMALL["llama-gqa"], config_class="MistralConfig", model_class="MistralForCausalLM"
    ),
    "unet": _SMALL["diffusers/unet"],
}
_SHAPES: Final[Mapping[str, Any]] = {
    "unet": {
        "sample": ["float", "batch", 4, 32, 32], "timestep": ["int", "batch"],
        "encoder_hidden_states": ["float", "batch", 77, 768],
    },
}  # fmt: skip
"""Of the inputs of wide models."""


@dataclass(frozen=True)
class Point:
    """One model, and what it is called with."""

    model: str
    dtype: str
    batch: int
    length: int
    """Tokens; 0 for images."""
    mask: bool = False
    layers: int = 2
    packs: tuple[str, ...] = ("attention", "epilogue")
    """Modules of `pypm.rules` that PyPM rewrites it by."""

    def __str__(self) -> str:
        size = f"{self.batch}x{self.length}" if self.length else f"{self.batch} images"
        mask = ", mask" if self.mask else ""
        packs = "" if self.packs == Point.packs else f", {'+'.join(self.packs)}"
        return f"{self.model} {SHORT.get(self.dtype, self.dtype)} {size}{mask}{packs}"

    @property
    def entry(self) -> Entry:
        small = ENTRIES[self.model]
        wide = dict(WIDE[self.model])
        if small.timm:
            return replace(small, **wide)
        config = {**small.config, **wide}
        for key in POSITIONS:
            if key in config:
                config[key] = max(self.length, FEWEST_POSITIONS)
        if small.inputs == "mel":
            config["max_source_positions"] = self.length
        inputs = f"img{config['image_size']}" if small.inputs.startswith("img") else small.inputs
        return replace(small, config=config, inputs=inputs, shapes=_SHAPES.get(self.model))

    @property
    def size(self) -> int:
        """Tokens or images in all: what points of one model differ in."""
        return self.batch * max(self.length, 1)

    @property
    def by_hand(self) -> bool:
        """Whether the model has a build with SDPA."""
        return self.sites > 0 and self.model not in WITHOUT_SDPA

    @cached_property
    def sites(self) -> int:
        """Attention sites in the build with SDPA."""
        return corpus.sites_there(ENTRIES[self.model], self.layers)

    def build(self, attention: str) -> nn.Module:
        dtype = getattr(torch, self.dtype)
        return corpus.build(self.entry, layers=self.layers, attention=attention, dtype=dtype)

    def inputs(self) -> dict[str, Tensor]:
        given = corpus.inputs(
            self.entry, batch=self.batch, length=self.length, mask=self.mask,
            dtype=getattr(torch, self.dtype),
        )  # fmt: skip
        if "decoder_input_ids" in given:
            given["decoder_input_ids"] = given["input_ids"].flip(1)
        return given


def points(
    models: Sequence[str],
    dtypes: Sequence[str],
    batches: Sequence[int],
    lengths: Sequence[int],
    masks: Sequence[bool],
    layers: int,
) -> Iterator[Point]:
    """Those that the models have; of each model and type from the smallest to the largest."""
    for model in models:
        entry = ENTRIES[model]
        own = [0] if entry.inputs.startswith("img") else lengths
        for dtype in dtypes:
            sizes = sorted(((b, n) for b in batches for n in own), key=lambda s: s[0] * (s[1] or 1))
            for batch, length in sizes:
                for mask in masks if entry.masked else [False]:
                    yield Point(model, dtype, batch, length, mask, layers)
