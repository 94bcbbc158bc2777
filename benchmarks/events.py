"""A step of decoding as one persistent kernel: `python -m benchmarks.events [WIDTH ...]`.

The layers of a model like Llama decode one position over static caches that are partly filled:
compiled by `torch.compile` alone, with its wrapper in C++, and with `pypm.rules.events`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaModel, StaticCache

from benchmarks.results import Results, option
from pypm.fx import every
from pypm.integrations import inductor
from pypm.rules import events
from pypm.timing import interleave

WIDTHS: Final = (64, 256, 512, 1024)
LAYERS: Final = (2, 4)
BATCHES: Final = (1, 4)
CAPACITY, FILLED = 1024, 300
ALONE, WRAPPED, EVENTS = "torch.compile", "cpp_wrapper", "events"


def step_of(
    model: LlamaModel, cache: StaticCache, options: dict[str, Any]
) -> Callable[..., Tensor]:
    """Return a step as it is compiled with some options: from rows to rows, at a position."""

    def step(x: Tensor, position: Tensor) -> Tensor:
        found = model(inputs_embeds=x, past_key_values=cache, position_ids=position)
        rows: Tensor = found.last_hidden_state
        return rows

    return torch.compile(step, options=options, dynamic=False)


def times_of(width: int, layers: int, batch: int, seconds: float) -> list[float]:
    """Return the microseconds of `torch.compile` alone, and the gains over it of the wrapper in C++
    and of the kernel.
    """
    torch._dynamo.reset()
    torch.manual_seed(0)
    heads = max(2, width // 64)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=width * 11 // 4 // 32 * 32,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        vocab_size=32,
    )
    model = LlamaModel(config).eval().requires_grad_(False)
    hook = inductor.Pass(events.RULES, choose=every)
    ways = {ALONE: {}, WRAPPED: {"cpp_wrapper": True}, EVENTS: hook.options()}
    prompt = torch.randn(batch, FILLED, width)
    x, position = torch.randn(batch, 1, width), torch.tensor([[FILLED]]).expand(batch, 1)
    calls, results, counters = {}, [], list[Any]()
    for name, options in ways.items():
        cache = StaticCache(config=config, max_cache_len=CAPACITY)
        places = torch.arange(FILLED).expand(batch, FILLED)
        model(inputs_embeds=prompt, past_key_values=cache, position_ids=places)
        step = step_of(model, cache, options)
        calls[name] = partial(step, x, position)
        results.append(calls[name]())
        counters += [layer.cumulative_length for layer in cache.layers]

    def stepped_back() -> None:
        for counter in counters:
            counter.fill_(FILLED)

    assert all(torch.allclose(each, results[0], atol=1e-4) for each in results)
    assert len(hook.report()) == 1
    times = interleave(calls, seconds=seconds, rounds=2000, prepare=stepped_back)
    return [1e6 * times.median(ALONE), *(times.speedup(ALONE, each) for each in (WRAPPED, EVENTS))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("widths", nargs="*", type=int, default=WIDTHS)
    parser.add_argument("--seconds", type=float, default=2.0, help="for the rounds of one point")
    parser.add_argument("--threads", type=int, default=1)
    option(parser)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch._inductor.config.fx_graph_cache = False  # where code is found, the pass is not called
    torch._functorch.config.enable_autograd_cache = False
    results = Results(given.output)
    results.table("width", "layers", "batch", f"{ALONE}, us", WRAPPED, EVENTS)
    environment = {"TORCHINDUCTOR_CACHE_DIR": tempfile.mkdtemp()}
    with torch.no_grad(), mock.patch.dict("os.environ", environment):
        for width, layers, batch in product(given.widths, LAYERS, BATCHES):
            results.row(width, layers, batch, *times_of(width, layers, batch, given.seconds))


if __name__ == "__main__":
    main()
