"""The serving example: `python -m examples.serving` prints latencies and rates of three servers."""

from __future__ import annotations

import argparse
import itertools
import logging
import statistics
import warnings
from collections.abc import Callable, Sequence

import torch
from rich.console import Console
from rich.table import Table

from examples.serving.baselines import generate
from examples.serving.model import VOCABULARY, build, config
from examples.serving.server import Reply, Request, Server

EAGER, STATIC, PAGES = "generate, eager", "torch.compile, static cache", "pages"


def drawn(count: int, *, longest: int, new: int, seconds: float, seed: int = 0) -> list[Request]:
    """Requests whose prompts are of log-uniform lengths from 16 on, one of them of the longest.

    Each asks for `new` / 2 to `new` tokens; they arrive evenly over so many seconds.
    """
    made = torch.Generator().manual_seed(seed)
    spread = torch.rand(count, generator=made)
    spread[count // 2] = 1
    lengths = (16 * (longest / 16) ** spread).round().long().tolist()
    counts = torch.randint(new // 2, new + 1, (count,), generator=made).tolist()
    return [
        Request(
            torch.randint(1, VOCABULARY, (length,), generator=made),
            wanted,
            seconds * i / count,
        )
        for i, (length, wanted) in enumerate(zip(lengths, counts, strict=True))
    ]


def gaps(replies: Sequence[Reply]) -> list[float]:
    """Seconds between one token of a request and its next."""
    return [b - a for reply in replies for a, b in itertools.pairwise(reply.times)]


def rate(replies: Sequence[Reply]) -> float:
    """Tokens a second, from the start to the last token."""
    return sum(len(r.tokens) for r in replies) / max(r.times[-1] for r in replies)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.serving")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--longest", type=int, default=1024, help="tokens of the longest prompt")
    parser.add_argument("--new", type=int, default=32, help="most tokens that a request asks for")
    parser.add_argument("--seconds", type=float, default=1.0, help="over which requests arrive")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    shape = config(layers=given.layers)
    eager, compiled, paged = (build(shape, name) for name in ("sdpa", "sdpa", "pages"))
    requests = drawn(given.requests, longest=given.longest, new=given.new, seconds=given.seconds)
    capacity = given.longest + given.new
    server = Server(paged, batch=given.batch, pages=given.batch * -(-capacity // 16) + 1)
    servers: dict[str, Callable[[list[Request]], list[Reply]]] = {
        EAGER: lambda some: generate(eager, some, batch=given.batch),
        STATIC: lambda some: generate(compiled, some, batch=given.batch, capacity=capacity),
        PAGES: server.serve,
    }
    console = Console()
    short = [Request(torch.arange(1, 17 + i), 3) for i in range(given.batch)]
    for serve in servers.values():
        serve(short)  # compile
    times: dict[str, list[list[float]]] = {name: [] for name in servers}
    rates: dict[str, list[float]] = {name: [] for name in servers}
    equal: dict[str, int] = {}
    for number in range(given.rounds):
        tokens = {}
        for name, serve in servers.items():
            replies = serve(requests)
            times[name].append(gaps(replies))
            rates[name].append(rate(replies))
            tokens[name] = [reply.tokens for reply in replies]
            console.print(f"[dim]round {number + 1}, {name}: {rates[name][-1]:.1f} tokens/s")
        equal = {name: sum(map(list.__eq__, tokens[EAGER], tokens[name])) for name in servers}
    mean = sum(len(r.prompt) for r in requests) / len(requests)
    table = Table(
        title=f"{given.requests} requests, prompts of 16 to {given.longest} tokens "
        f"(mean {mean:.0f}),\n"
        f"{given.layers} layers of width {shape.hidden_size}, float32, one thread",
        caption="Medians over interleaved rounds; ratios: of each round, to the static cache.",
    )
    for header in ("", "median ms", "mean ms", "ratio", "tokens/s", "ratio", "equal replies"):
        table.add_column(header, justify="right" if header else "left")
    for name in servers:
        medians, means = (
            [1e3 * of(one) for one in times[name]] for of in (statistics.median, statistics.mean)
        )
        faster = [
            statistics.median(a) / statistics.median(b)
            for a, b in zip(times[name], times[STATIC], strict=True)
        ]
        more = [a / b for a, b in zip(rates[name], rates[STATIC], strict=True)]
        table.add_row(
            name,
            *(f"{statistics.median(x):.1f}" for x in (medians, means)),
            f"{statistics.median(faster):.2f}",
            f"{statistics.median(rates[name]):.1f}",
            f"{statistics.median(more):.2f}",
            f"{equal[name]} of {len(requests)}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
