"""Models of diffusion at 64 x 64 latents: `python -m benchmarks.diffusion [MODEL ...]`.

A UNet and an autoencoder of diffusers at the widths of Stable Diffusion 1.5, random weights,
attention written out: the whole model, and each of its attention layers whose inputs differ, as
`torch.compile` makes them alone, and with the shipped rules and the default choice. One thread,
float32, medians of interleaved rounds.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

from benchmarks.choice import uncached
from benchmarks.coverage.models import CORPUS, Entry, build, inputs
from benchmarks.modules import COLUMNS, compare
from benchmarks.results import Results, option

LATENT: Final = 64
WIDE: Final[dict[str, tuple[dict[str, Any], dict[str, Any]]]] = {
    "unet": (
        {
            "sample_size": LATENT, "block_out_channels": [320, 640, 1280, 1280],
            "cross_attention_dim": 768, "norm_num_groups": 32,
            "down_block_types": ["CrossAttnDownBlock2D"] * 3 + ["DownBlock2D"],
            "up_block_types": ["UpBlock2D"] + ["CrossAttnUpBlock2D"] * 3,
        },
        {
            "sample": ["float", "batch", 4, LATENT, LATENT], "timestep": ["int", "batch"],
            "encoder_hidden_states": ["float", "batch", 77, 768],
        },
    ),
    "autoencoder": (
        {
            "sample_size": 8 * LATENT, "block_out_channels": [128, 256, 512, 512],
            "norm_num_groups": 32, "down_block_types": ["DownEncoderBlock2D"] * 4,
            "up_block_types": ["UpDecoderBlock2D"] * 4,
        },
        {"sample": ["float", "batch", 3, 8 * LATENT, 8 * LATENT]},
    ),
}  # fmt: skip
"""By the model: what its configuration has in place of the small widths, and its inputs."""

Layer: TypeAlias = tuple[nn.Module, tuple[Any, Any]]
"""A layer, and what it is called with: arguments by place, and by name."""


def entry_of(name: str, layers: int) -> Entry:
    """Return the model of the corpus, made wide, with so many layers in a block."""
    small = next(entry for entry in CORPUS if entry.name == f"diffusers/{name}")
    wide, shapes = WIDE[name]
    config = {**small.config, **wide, "layers_per_block": layers}
    return replace(small, config=config, shapes=shapes)


def attention_layers(model: nn.Module, given: dict[str, Tensor]) -> dict[str, Layer]:
    """Return the attention layers that differ by the shapes of their inputs, with these inputs."""
    from diffusers.models.attention_processor import Attention

    found: dict[str, Layer] = {}

    def keep(layer: Any, args: Any, kwargs: Any) -> None:
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        sizes = " and ".join("x".join(map(str, x.shape)) for x in tensors)
        found.setdefault(f"{layer.heads} heads, {sizes}", (layer, (args, kwargs)))

    hooks = [
        module.register_forward_pre_hook(keep, with_kwargs=True)
        for module in model.modules()
        if isinstance(module, Attention)
    ]
    model(**given)
    for hook in hooks:
        hook.remove()
    return found


def main() -> None:
    """Print the tables of the models that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(WIDE), help="unet, autoencoder")
    parser.add_argument("--layers", type=int, default=2, help="in a block")
    parser.add_argument("--seconds", type=float, default=3.0, help="a layer; a model 40 times")
    parser.add_argument("--only-layers", action="store_true", help="leave the whole models out")
    option(parser)
    given = parser.parse_args()
    torch.set_num_threads(1)
    results = Results(given.output)
    results.table(*COLUMNS)
    for name in given.models:
        entry = entry_of(name, given.layers)
        model, made = build(entry, attention="eager"), inputs(entry, batch=1)
        with uncached():
            for layer, (module, (args, kwargs)) in attention_layers(model, made).items():
                compare(results, f"{name}: {layer}", module, args, kwargs, given.seconds)
            if not given.only_layers:
                compare(results, name, model, (), made, 40 * given.seconds)


if __name__ == "__main__":
    main()
