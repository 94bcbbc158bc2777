"""Seconds until a step of decoding has run at several batch sizes, cold: `python -m
benchmarks.event_warmup [BATCH ...]`.

Each way runs in a process of its own, with empty caches on disk: `torch.compile` with a graph for
each size, with `dynamic=True`, and with `dynamic=True` and `pypm.rules.events`, whose kernel is
compiled once. The time is that of the calls, without imports and the making of the model.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any, Final

import torch
from transformers import LlamaConfig, LlamaModel, StaticCache

from benchmarks.results import Results, option
from pypm.fx import every
from pypm.integrations import inductor
from pypm.rules import events

BATCHES: Final = (1, 2, 3, 4, 6, 8, 11, 16, 17)
WAYS: Final = ("static", "dynamic", "events")
CAPACITY: Final = 64


@torch.no_grad()
def warm_up(way: str, batches: list[int], width: int) -> dict[str, float]:
    """Return the seconds of the first calls at all batch sizes, and the graphs that were made."""
    torch.manual_seed(0)
    heads = max(2, width // 64)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=width * 11 // 4 // 32 * 32,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        vocab_size=32,
    )
    model = LlamaModel(config).eval().requires_grad_(False)
    hook = inductor.Pass(events.RULES, choose=every)
    options: dict[str, Any] = hook.options() if way == "events" else {}
    compiled = torch.compile(model, options=options, dynamic=way != "static")
    torch._dynamo.config.recompile_limit = 2 * len(batches)
    seconds = 0.0
    for batch in batches:
        cache = StaticCache(config=config, max_cache_len=CAPACITY)
        prompt = torch.randn(batch, 5, width)
        model(inputs_embeds=prompt, past_key_values=cache)
        x, position = torch.randn(batch, 1, width), torch.tensor([[5]]).expand(batch, 1)
        start = time.perf_counter()
        compiled(inputs_embeds=x, past_key_values=cache, position_ids=position)
        seconds += time.perf_counter() - start
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    applied = sum(map(len, hook.reports))
    assert applied == (graphs if way == "events" else 0), (applied, graphs)
    return {"seconds": seconds, "graphs": graphs}


def apart(way: str, batches: list[int], width: int) -> dict[str, float]:
    """Return what `warm_up` does in a new process, without caches."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.event_warmup", "--way", way]
        command += ["--width", str(width), *map(str, batches)]
        env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": folder}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("batches", nargs="*", type=int, default=BATCHES)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    option(parser)
    given = parser.parse_args()
    batches = [*given.batches]
    if given.way:
        print(json.dumps(warm_up(given.way, batches, given.width)))
        return
    results = Results(given.output)
    results.table("way", "sizes", "graphs", "seconds")
    for way in WAYS:
        found = apart(way, batches, given.width)
        results.row(way, len(batches), int(found["graphs"]), found["seconds"])


if __name__ == "__main__":
    main()
