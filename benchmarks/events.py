"""A step of decoding as one persistent kernel: `python -m benchmarks.events [WIDTH ...]`.

The layers of a model like Llama decode one position over static caches that are partly filled:
compiled by `torch.compile` alone, with its wrapper in C++, with the default choice among
`pypm.rules.events.WITH_ROWS`, and with each of its candidates: products of a few rows alone, and
the kernel by barriers, queues and tickets. On one thread all schedules are tickets. A second table
times the schedules of a mixture of experts, `benchmarks.event_skew`.

Each model is compiled once for all numbers of threads, with code that takes as many as torch has
(`cpp.dynamic_threads`), but for the default choice, which is made for each; the wrapper in C++ is
for the smallest batch alone, where calls count most. No model begins after `--minutes`; with
`--resume`, another run goes on with what is missing in the file of `--output`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaModel, StaticCache

from benchmarks.event_skew import skews
from benchmarks.results import Cell, Results, load, option, setting
from pypm import RuleSet
from pypm.fx import every
from pypm.integrations import inductor
from pypm.rules.epilogue import linear_of_few_rows
from pypm.rules.events import WITH_ROWS
from pypm.rules.events.rules import (
    decoder_step,
    decoder_step_by_barriers,
    decoder_step_by_queues,
)
from pypm.timing import interleave, on_threads

WIDTHS: Final = (64, 256, 1024, 2048)
LAYERS: Final = (2, 4)
BATCHES: Final = (1, 4, 8)
THREADS: Final = (1, 2)
CAPACITY, FILLED = 1024, 300
ALONE, WRAPPED, DEFAULT = "torch.compile", "cpp_wrapper", "default"
RULES: Final = {
    "rows": linear_of_few_rows,
    "barriers": decoder_step_by_barriers,
    "queues": decoder_step_by_queues,
    "tickets": decoder_step,
}
"""The candidates of the default choice, by the names of columns."""
COLUMNS: Final = (WRAPPED, DEFAULT, *RULES)
SCHEDULED: Final = ("barriers", "queues")
"""Columns that are empty on one thread, where all schedules are tickets."""
ROUNDS: Final = 5
"""The least number of rounds."""


class Model:
    """A model at one batch, compiled in several ways."""

    def __init__(self, width: int, layers: int, batch: int) -> None:
        torch._dynamo.reset()
        torch.manual_seed(0)
        heads = max(2, width // 64)
        self.config = LlamaConfig(
            hidden_size=width,
            intermediate_size=width * 11 // 4 // 32 * 32,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads // 2,
            vocab_size=32,
        )
        self.model = LlamaModel(self.config).eval().requires_grad_(False)
        self.x = torch.randn(batch, 1, width)
        self.caches: list[StaticCache] = []
        self.results: list[Tensor] = []
        self.calls: dict[str, Callable[[], Tensor]] = {}

    def cache(self) -> StaticCache:
        """Return a new cache with the same keys and values as all others."""
        made = StaticCache(config=self.config, max_cache_len=CAPACITY)
        self.model(inputs_embeds=self.x, past_key_values=made)
        if not self.caches:
            for layer in made.layers:
                layer.keys.normal_()
                layer.values.normal_()
        else:
            for layer, other in zip(made.layers, self.caches[0].layers, strict=True):
                layer.keys.copy_(other.keys)
                layer.values.copy_(other.values)
        self.caches.append(made)
        return made

    def compile(self, name: str, options: dict[str, Any]) -> None:
        """Add a way, and check its result."""
        cache = self.cache()

        def step(x: Tensor, position: Tensor) -> Tensor:
            found = self.model(inputs_embeds=x, past_key_values=cache, position_ids=position)
            rows: Tensor = found.last_hidden_state
            return rows

        # dynamo would look through what it made of one code for other ways, at each call
        step.__code__ = step.__code__.replace()
        compiled = torch.compile(step, options=options, dynamic=False)
        position = torch.tensor([[FILLED]]).expand(len(self.x), 1)
        self.calls[name] = partial(compiled, self.x, position)
        self.step_back()
        self.results.append(self.calls[name]())
        assert torch.allclose(self.results[-1], self.results[0], atol=1e-4)

    def step_back(self) -> None:
        for cache in self.caches:
            for layer in cache.layers:
                layer.cumulative_length.fill_(FILLED)

    def times(self, names: Sequence[str], threads: int, seconds: float) -> dict[str, float]:
        """Return the microseconds of `torch.compile` alone, and the speed of each way over it."""
        calls = {name: self.calls[name] for name in names}
        with on_threads(threads):
            started = time.perf_counter()
            for call in calls.values():
                self.step_back()
                call()
            least = ROUNDS * (time.perf_counter() - started)
        times = interleave(
            calls,
            seconds=max(seconds, least),
            rounds=2000,
            threads=threads,
            prepare=self.step_back,
        )
        speeds = {name: times.speedup(ALONE, name) for name in names}
        return {**speeds, ALONE: 1e6 * times.median(ALONE)}


def rows_of(
    width: int, layers: int, batch: int, threads: Sequence[int], seconds: float, *, wrapped: bool
) -> Iterator[list[Cell]]:
    """Yield a row for each number of threads: what names it, the microseconds of `torch.compile`
    alone, speeds over it by the columns, and the rules that the default choice applied.

    `wrapped` says whether there is a way with the wrapper in C++.
    """
    model = Model(width, layers, batch)
    with on_threads(max(threads)):
        model.compile(ALONE, {"cpp.dynamic_threads": True})
        if wrapped:
            model.compile(WRAPPED, {"cpp.dynamic_threads": True, "cpp_wrapper": True})
        for name, rule in RULES.items():
            hook = inductor.Pass(RuleSet((rule,)), choose=every)
            if max(threads) > 1 or name not in SCHEDULED:
                model.compile(name, {"cpp.dynamic_threads": True, **hook.options()})
                assert name == "rows" or len(hook.report()) == 1
    for count in threads:
        passed = (DEFAULT, *(SCHEDULED if count == 1 else ()))
        names = [name for name in model.calls if name not in passed]
        with on_threads(count):
            hook = inductor.Pass(WITH_ROWS)
            model.compile(DEFAULT, {"cpp.dynamic_threads": True, **hook.options()})
        applied = sorted({rewrite.rule for rewrite in hook.report().rewrites})
        found: dict[str, float | None] = {**model.times([*names, DEFAULT], count, seconds)}
        speeds = (found.get(name) for name in COLUMNS)
        yield [width, layers, batch, count, found[ALONE], *speeds, ", ".join(applied) or "-"]


def known_rows(given: argparse.Namespace) -> dict[tuple[Cell, ...], list[Cell]]:
    """Return the rows that a run before has measured, by width, layers, batch and threads."""
    if not given.resume or given.output is None or not given.output.exists():
        return {}
    document, here = load(given.output), setting()
    commits = [str(each["commit"]).removesuffix("+changes") for each in (document, here)]
    same = all(document[key] == here[key] for key in ("machine", "versions"))
    if not same or commits[0] != commits[1]:
        raise SystemExit(f"{given.output} is of another machine, commit or version")
    return {tuple(row[:4]): row for row in document["tables"]["table"]["rows"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("widths", nargs="*", type=int, default=WIDTHS)
    parser.add_argument("--layers", nargs="+", type=int, default=LAYERS)
    parser.add_argument("--batches", nargs="+", type=int, default=BATCHES)
    parser.add_argument("--threads", nargs="+", type=int, default=THREADS)
    parser.add_argument("--seconds", type=float, default=1.0, help="for the rounds of one row")
    parser.add_argument("--minutes", type=float, default=11.0, help="after which no model begins")
    parser.add_argument("--resume", action="store_true", help="keep the rows of the output")
    option(parser)
    given = parser.parse_args()
    torch.set_num_threads(max(given.threads))
    torch._inductor.config.fx_graph_cache = False  # where code is found, the pass is not called
    torch._functorch.config.enable_autograd_cache = False
    known, end = known_rows(given), time.monotonic() + 60 * given.minutes
    results = Results(given.output)
    names = ("width", "layers", "batch", "threads")
    results.table(*names, f"{ALONE}, us", *COLUMNS, "chosen")
    environment = {"TORCHINDUCTOR_CACHE_DIR": tempfile.mkdtemp()}
    with torch.no_grad(), mock.patch.dict("os.environ", environment):
        for layers, width, batch in product(given.layers, given.widths, given.batches):
            model = (width, layers, batch)
            missing = [count for count in given.threads if (*model, count) not in known]
            for count in given.threads:
                if (*model, count) in known:
                    results.row(*known[*model, count])
            if missing and time.monotonic() < end:
                wrapped = batch == min(given.batches)
                for row in rows_of(*model, missing, given.seconds, wrapped=wrapped):
                    results.row(*row)
        skews(results, max(given.threads), given.seconds)


if __name__ == "__main__":
    main()
