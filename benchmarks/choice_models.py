"""Whole models under the default choice: `python -m benchmarks.choice_models [POINT ...]`.

Models of two layers at real width, with attention written out: one call of 128 and of 512 tokens,
and one token over a static cache, as `torch.compile` makes them alone and with the shipped rules. A
point that comes out slower than torch.compile alone is timed once more.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import geometric_mean
from typing import Any

import torch
from transformers import StaticCache

from benchmarks.choice import COMPILED, DEFAULT, Measured, careful, uncached
from benchmarks.models.wide import Point
from benchmarks.results import Results, option
from pypm.integrations import inductor
from pypm.rules import inference
from pypm.tools import interleave

MODELS = ("bert", "electra", "gpt2", "opt", "llama", "llama-gqa", "qwen2", "gemma")
DECODERS = frozenset(MODELS[2:])
LENGTHS = (128, 512)
CACHE, FILLED = 1024, 512
SLOWER = 0.98


@dataclass(frozen=True)
class Use:
    """A model, and how it is called."""

    point: Point
    decodes: bool

    def __str__(self) -> str:
        what = f"1 over {FILLED} of {CACHE}" if self.decodes else f"1x{self.point.length}"
        return f"{self.point.model} {self.point.dtype} {what}"

    def arguments(self, model: Any) -> tuple[dict[str, Any], Callable[[], None]]:
        """What the model is called with, and a function that has to be called before each call."""
        if not self.decodes:
            return self.point.inputs(), lambda: None
        config = model.config
        cache = StaticCache(config, max_cache_len=CACHE)
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        dtype = getattr(torch, self.point.dtype)
        cache.early_initialization(1, heads, size, dtype, torch.device("cpu"))
        for layer in cache.layers:
            layer.keys.normal_()
            layer.values.normal_()

        def rewind() -> None:
            for layer in cache.layers:
                layer.cumulative_length.fill_(FILLED)

        token = torch.tensor([[7]])
        return {"input_ids": token, "past_key_values": cache, "use_cache": True}, rewind

    def compiled(self, attention: str, hook: inductor.Pass | None) -> Callable[[], Any]:
        """The call of a new model with the rules of a pass, or without; it was called once."""
        torch.manual_seed(0)
        model = self.point.build(attention)
        given, prepare = self.arguments(model)
        options = None if hook is None else hook.options()
        run = torch.compile(model, options=options, dynamic=False)

        def call() -> Any:
            prepare()
            return run(**given)

        call()
        return call


def uses(wanted: list[str]) -> Iterator[Use]:
    for dtype in ("float32", "bfloat16"):
        for model in MODELS:
            found = [Use(Point(model, dtype, 1, length), False) for length in LENGTHS]
            if model in DECODERS:
                found.append(Use(Point(model, dtype, 1, CACHE), True))
            yield from (use for use in found if not wanted or any(w in str(use) for w in wanted))


def times_of(use: Use, seconds: float) -> Measured:
    hook = inductor.Pass(inference.RULES)
    torch._dynamo.reset()
    calls = {
        name: use.compiled("eager", given) for name, given in ((COMPILED, None), (DEFAULT, hook))
    }
    outputs = {name: call()[0] for name, call in calls.items()}
    one, two = (outputs[name].double() for name in (COMPILED, DEFAULT))
    assert torch.allclose(one, two, atol=0.05 * float(one.abs().max())), f"{use} differs"
    rules = dict.fromkeys(record.rule for record in hook.report().rewrites)
    return interleave(calls, seconds=seconds, rounds=400), [*rules]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("points", nargs="*", help="parts of the names of points; all, if left out")
    parser.add_argument("--seconds", type=float, default=2.0, help="for the rounds of one point")
    option(parser)
    given = parser.parse_args()
    gains, slower = [], []
    began = time.monotonic()
    with uncached():
        results = Results(given.output)
        results.table("model", f"{COMPILED}, ms", "gain", "rules", name="points")
        for use in uses(given.points):
            times, rules = careful(partial(times_of, use), given.seconds, SLOWER)
            gain = times.speedup(COMPILED, DEFAULT)
            gains.append(gain)
            slower += [str(use)] * (gain < SLOWER)
            results.row(str(use), 1e3 * times.median(COMPILED), gain, ", ".join(rules) or "-")
    results.figure("least", min(gains))
    results.figure("largest", max(gains))
    results.figure("geometric mean", geometric_mean(gains))
    seconds = time.monotonic() - began
    print(f"{len(gains)} points in {seconds:.0f} s; below {SLOWER}: {', '.join(slower) or 'none'}")
    return bool(slower)


if __name__ == "__main__":
    sys.exit(main())
