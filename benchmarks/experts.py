"""Mixtures of experts with gathered weights: `python -m benchmarks.experts [MODEL ...]`.

The blocks are those of transformers with `experts_implementation="batched_mm"`, and have random
weights. `torch.compile` makes each alone, and with `pypm.rules.inference` and the default choice.
One thread, float32; the gain is the median of the ratios of interleaved rounds.
"""

from __future__ import annotations

import argparse
import importlib
from typing import Any, Final

import torch

from benchmarks.choice import uncached
from benchmarks.modules import COLUMNS, compare
from benchmarks.results import Results, option

BLOCKS: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    "mixtral": ("MixtralSparseMoeBlock", "num_local_experts", {}),
    "qwen3_moe": ("Qwen3MoeSparseMoeBlock", "num_experts", {}),
    "deepseek_v3": ("DeepseekV3MoE", "n_routed_experts", {"n_group": 4, "topk_group": 2}),
    "gpt_oss": ("GptOssMLP", "num_local_experts", {}),
    "olmoe": ("OlmoeSparseMoeBlock", "num_experts", {}),
}
"""By the model: the class, the name of the number of experts, and other options."""


def block(name: str, width: int, experts: int, chosen: int) -> torch.nn.Module:
    """Return the block of a model, with `chosen` of the experts for each token."""
    cls, counted, others = BLOCKS[name]
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    config = getattr(module, name.title().replace("_", "") + "Config")
    options = {
        "hidden_size": width, "intermediate_size": width, "moe_intermediate_size": width,
        "num_experts_per_tok": chosen, counted: experts, **others,
    }  # fmt: skip
    made: torch.nn.Module = getattr(module, cls)(
        config(**options, experts_implementation="batched_mm")
    )
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return made.eval().requires_grad_(False)


def main() -> None:
    """Print the table of the models that are asked for."""
    parser = argparse.ArgumentParser(description="Mixtures of experts with gathered weights.")
    parser.add_argument("models", nargs="*", default=list(BLOCKS), help="models, of the five")
    parser.add_argument("--tokens", type=int, default=384)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--chosen", type=int, default=2, help="experts for each token")
    parser.add_argument("--width", type=int, default=1024, help="of tokens and experts")
    parser.add_argument("--seconds", type=float, default=10.0, help="to time each model for")
    option(parser)
    given = parser.parse_args()
    with uncached():
        results = Results(given.output)
        results.table(*COLUMNS)
        for name in given.models:
            torch.manual_seed(0)
            made = block(name, given.width, given.experts, given.chosen)
            x = torch.randn(1, given.tokens, given.width)
            compare(results, name, made, [x], {}, given.seconds)


if __name__ == "__main__":
    main()
