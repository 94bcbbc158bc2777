"""The corpus: small models of transformers, timm and diffusers, with random weights."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

__all__ = ["CORPUS", "Entry", "attended", "available", "build", "inputs", "sites_there"]

DEPTHS: Final = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers",
)  # fmt: skip
"""What configurations call the number of layers."""
WITHOUT_SDPA: Final = {"deberta-v2": "num_hidden_layers", "bloom": "n_layer"}
"""Models that have no build with SDPA: one site in each of these layers."""
VOCABULARY: Final = 512


@dataclass(frozen=True)
class Entry:
    """One model of the corpus."""

    name: str
    inputs: str = ""
    config_class: str = ""
    model_class: str = ""
    config: Any = None
    timm: str = ""
    diffusers: str = ""
    processor: str = ""
    """Its attention processor; the one with SDPA has `2_0` behind the name."""
    shapes: Any = None
    """Of the inputs, by name: the type, then the sizes; "batch" is that of the call."""

    @property
    def package(self) -> str:
        return "timm" if self.timm else "diffusers" if self.diffusers else "transformers"

    @property
    def masked(self) -> bool:
        """Whether it takes an attention mask."""
        return self.inputs.startswith("ids")

    def shallow(self, layers: int) -> dict[str, Any]:
        """The configuration with at most so many layers; 0 stands for all."""
        config = dict(self.config)
        if layers and "depths" in config:
            config["depths"] = [min(layers, n) for n in config["depths"]]
        for key in DEPTHS:
            if layers and key in config:
                config[key] = min(layers, config[key])
        return config


CORPUS: Final = tuple(
    Entry(**entry) for entry in json.loads((Path(__file__).parent / "corpus.json").read_text())
)


@cache
def _declare_torchvision() -> None:
    """The operators that torchvision registers fakes for, where its own library does not load."""
    if importlib.util.find_spec("torchvision") is None:
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in (
        "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    ):
        if not hasattr(torch.ops.torchvision, schema.partition("(")[0]):
            library.define(schema)
    _kept.append(library)


_kept: list[torch.library.Library] = []


def available(entry: Entry) -> bool:
    """Whether the package that a model comes from is installed."""
    return importlib.util.find_spec(entry.package) is not None


def build(
    entry: Entry,
    *,
    layers: int = 0,
    attention: str = "eager",
    dtype: torch.dtype = torch.float32,
    train: bool = False,
) -> nn.Module:
    """A model with weights from a fixed seed and no dropout, its attention "eager" or "sdpa"."""
    _declare_torchvision()
    torch.manual_seed(0)
    if entry.timm:
        model = _timm(entry, attention, layers)
    elif entry.diffusers:
        model = _diffusers(entry, attention, layers)
    else:
        model = _transformers(entry, layers, attention)
    for parameter in model.parameters():
        parameter.requires_grad_(train)
    return model.to(dtype).train(train)


def _transformers(entry: Entry, layers: int, attention: str) -> nn.Module:
    import transformers

    config = getattr(transformers, entry.config_class)(**entry.shallow(layers))
    for key, value in config.to_dict().items():
        if "drop" in key and isinstance(value, float):
            setattr(config, key, 0.0)
    cls = _model_class(entry)
    model: nn.Module = cls._from_config(config, attn_implementation=attention)
    return model


def _model_class(entry: Entry) -> Any:
    import transformers

    if hasattr(transformers, entry.model_class):
        return getattr(transformers, entry.model_class)
    name = entry.config_class.removesuffix("Config").lower()
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    return getattr(module, entry.model_class)


def _timm(entry: Entry, attention: str, layers: int) -> nn.Module:
    import timm
    from timm.layers import set_fused_attn

    set_fused_attn(attention == "sdpa")
    options = {"depth": layers} if layers and entry.timm.startswith("vit") else {}
    model: nn.Module = timm.create_model(entry.timm, **options)
    return model


def _diffusers(entry: Entry, attention: str, layers: int) -> nn.Module:
    import diffusers
    from diffusers.models import attention_processor as processors

    model: nn.Module = getattr(diffusers, entry.diffusers)(**entry.shallow(layers))
    name = entry.processor + ("2_0" if attention == "sdpa" else "")
    for module in model.modules():
        if entry.processor and isinstance(module, processors.Attention):
            module.set_processor(getattr(processors, name)())
        if hasattr(module, "dropout_prob"):  # labels that training drops
            module.dropout_prob = 0.0
    return model


def inputs(
    entry: Entry,
    *,
    batch: int = 2,
    length: int = 16,
    mask: bool = False,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """What a model is called with; with a mask, the last row begins with padding.

    Below a causal mask the first rows then see nothing at all.
    """
    made = torch.Generator().manual_seed(0)
    if entry.shapes:
        return {
            name: _drawn(kind, [batch if n == "batch" else n for n in sizes], dtype, made)
            for name, (kind, *sizes) in entry.shapes.items()
        }
    if entry.inputs.startswith("img"):
        size = int(entry.inputs.removeprefix("img"))
        pixels = torch.randn(batch, 3, size, size, generator=made).to(dtype)
        return {"x" if entry.timm else "pixel_values": pixels}
    if entry.inputs == "mel":
        mel = (batch, entry.config["num_mel_bins"], 2 * entry.config["max_source_positions"])
        return {"input_features": torch.randn(mel, generator=made).to(dtype)}
    ids = torch.randint(3, VOCABULARY, (batch, length), generator=made)
    given = {"input_ids": ids}
    if entry.inputs == "ids+dec":
        given["decoder_input_ids"] = torch.randint(3, VOCABULARY, (batch, 12), generator=made)
    if mask:
        given["attention_mask"] = torch.ones_like(ids)
        given["attention_mask"][-1, : length // 4] = 0
    return given


def _drawn(kind: str, sizes: list[int], dtype: torch.dtype, made: torch.Generator) -> Tensor:
    if kind == "int":
        return torch.randint(1, 10, sizes, generator=made)
    return torch.randn(sizes, generator=made).to(dtype)


def attended(given: dict[str, Tensor], output: Any) -> Tensor:
    """The first output, where tokens are no padding."""
    result: Tensor = output if isinstance(output, Tensor) else output[0]
    mask = given.get("attention_mask")
    return result if mask is None or "decoder_input_ids" in given else result[mask.bool()]


class _Calls(TorchFunctionMode):
    count = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += func is F.scaled_dot_product_attention
        return func(*args, **(kwargs or {}))


def sites_there(entry: Entry, layers: int) -> int:
    """How often the build with SDPA calls it; the layers, where there is no such build."""
    if entry.name in WITHOUT_SDPA:
        return int(entry.shallow(layers)[WITHOUT_SDPA[entry.name]])
    model = build(entry, layers=layers, attention="sdpa")
    with torch.no_grad(), _Calls() as calls:
        model(**inputs(entry))
    return calls.count
