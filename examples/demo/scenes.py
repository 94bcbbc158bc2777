"""The four scenes of the demo: a model, a call of it, and the rules that it is compiled with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from examples.demo.models import Spec, build, inputs
from pypm import RuleSet
from pypm.rules import attention, loops

__all__ = ["SCENES", "Scene"]

Call = Callable[[], Tensor]


@dataclass(frozen=True)
class Scene:
    """A model, and one call of it that is compiled and timed."""

    title: str
    written: str
    """What the model's authors wrote."""
    spec: Spec
    tokens: int
    """Tokens that the model reads before, or in, the call."""
    start: Callable[[Scene, nn.Module, Callable[..., object]], Call]
    """Function from the scene, a model, and what runs it to a call that returns logits."""
    rules: RuleSet = attention.RULES
    stage: str = "joint"

    def model(self) -> nn.Module:
        return build(self.spec)

    def tiny(self) -> Scene:
        """The same scene so small that compiling it is quick."""
        spec = replace(self.spec, layers=2, width=64, heads=4, groups=2, inner=64, window=32)
        return replace(self, spec=spec, tokens=self.tokens // 4)


def whole(scene: Scene, model: nn.Module, run: Callable[..., object]) -> Call:
    """Run the model on all tokens at once."""
    given = inputs(1, scene.tokens, mask=False)
    return lambda: run(**given).logits  # type: ignore[attr-defined]


def next_token(scene: Scene, model: nn.Module, run: Callable[..., object]) -> Call:
    """Run the model on one more token at each call, over a static cache that is mostly empty."""
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=32 * scene.tokens)
    ids = inputs(1, scene.tokens, mask=False)["input_ids"]
    with torch.no_grad():
        model(input_ids=ids, past_key_values=cache, use_cache=True)
    position = scene.tokens - 1

    def call() -> Tensor:
        nonlocal position
        position += 1
        places = torch.tensor([[position]])
        given = {"past_key_values": cache, "use_cache": True, "position_ids": places}
        return run(input_ids=ids[:, :1], **given).logits  # type: ignore[attr-defined]

    return call


def rows(scene: Scene, model: nn.Module, run: Callable[..., object]) -> Call:
    """Run a model that takes token ids alone on four rows."""
    ids = inputs(4, scene.tokens, mask=False)["input_ids"]
    return lambda: run(ids)  # type: ignore[return-value]


WIDE = Spec("llama", layers=1, width=768, heads=12, groups=4, inner=2048)

SCENES = (
    Scene(
        "A model as it is",
        "Llama: grouped heads, attention as products and a softmax, 512 tokens",
        WIDE,
        512,
        whole,
    ),
    Scene(
        "Long context",
        "Mistral: a mask hides all but the last 128 of 1,024 tokens",
        replace(WIDE, name="mistral", width=512, heads=8, inner=1024, window=128),
        1024,
        whole,
    ),
    Scene(
        "Decoding",
        "Llama: one token over a cache for 8,192, of which 256 are there",
        WIDE,
        256,
        next_token,
    ),
    Scene(
        "A loop over tokens",
        "LSTMs written by hand: tracing unrolls the loop over 64 tokens",
        replace(WIDE, name="lstm", width=256),
        64,
        rows,
        loops.RULES,
        "pre_grad",
    ),
)
