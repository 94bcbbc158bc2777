"""Loops that tracing unrolled, rolled up: `python -m benchmarks.loops [LOOP ...]`.

`torch.compile` makes each alone, and with `pypm.rules.loops` at `pre_grad`. The time to compile is
CPU time of the first call, without caches, the C++ compiler included. Float32, one thread, no
gradients; times of runs are medians of interleaved rounds.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from benchmarks.results import Results, option
from pypm.integrations import inductor
from pypm.rules import loops
from pypm.tools import interleave

EAGER, COMPILED, RULES = "eager", "torch.compile", "with the rules"
WIDTH: Final = 128
HEADS, SIZE = 8, 64
"""Of states that are matrices, [1, HEADS, SIZE, SIZE]."""


def recurrence(x: Tensor, y: Tensor, h: Tensor) -> Tensor:
    states = []
    for t in range(len(x)):
        h = x[t] * h + y[t]
        states.append(h)
    return torch.stack(states)


def selective_scan(a: Tensor, b: Tensor, c: Tensor, h: Tensor) -> Tensor:
    results = []
    for t in range(a.shape[2]):
        h = a[:, :, t] * h + b[:, :, t]
        results.append((h @ c[:, t, :, None])[..., 0])
    return torch.stack(results, -1)


def linear_attention(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, s: Tensor) -> Tensor:
    results = []
    for t in range(q.shape[2]):
        s = g[:, :, t, None, None] * s + k[:, :, t, :, None] * v[:, :, t, None]
        results.append(torch.einsum("bhk,bhkv->bhv", q[:, :, t], s))
    return torch.stack(results, 2)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, s: Tensor) -> Tensor:
    """The gated delta rule as transformers writes it for Qwen3-Next."""
    results = []
    for t in range(q.shape[2]):
        s = s * g[:, :, t].unsqueeze(-1).unsqueeze(-1)
        memory = (s * k[:, :, t].unsqueeze(-1)).sum(dim=-2)
        delta = (v[:, :, t] - memory) * beta[:, :, t].unsqueeze(-1)
        s = s + k[:, :, t].unsqueeze(-1) * delta.unsqueeze(-2)
        results.append((s * q[:, :, t].unsqueeze(-1)).sum(dim=-2))
    return torch.stack(results, 2)


def time_mixing(
    w: Tensor, u: Tensor, k: Tensor, v: Tensor, num: Tensor, den: Tensor, top: Tensor
) -> Tensor:
    """RWKV-4's averages, in the form that does not overflow."""
    results = []
    for t in range(k.shape[1]):
        key, value = k[:, t], v[:, t]
        most = torch.maximum(top, key + u)
        old, new = torch.exp(top - most), torch.exp(key + u - most)
        results.append((old * num + new * value) / (old * den + new))
        most = torch.maximum(top + w, key)
        old, new = torch.exp(top + w - most), torch.exp(key - most)
        num, den, top = old * num + new * value, old * den + new, most
    return torch.stack(results, 1)


def lstm(x: Tensor, w: Tensor, u: Tensor, h: Tensor, c: Tensor) -> Tensor:
    states = []
    for t in range(len(x)):
        i, f, g, o = (x[t] @ w + h @ u).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        states.append(h)
    return torch.stack(states)


def gru(x: Tensor, w: Tensor, u: Tensor, h: Tensor) -> Tensor:
    states = []
    for t in range(len(x)):
        x_r, x_z, x_n = (x[t] @ w).chunk(3, 1)
        h_r, h_z, h_n = (h @ u).chunk(3, 1)
        z = (x_z + h_z).sigmoid()
        h = (1 - z) * (x_n + (x_r + h_r).sigmoid() * h_n).tanh() + z * h
        states.append(h)
    return torch.stack(states)


def rnn(x: Tensor, w: Tensor, u: Tensor, h: Tensor) -> Tensor:
    states = []
    for t in range(len(x)):
        h = (x[t] @ w + h @ u).tanh()
        states.append(h)
    return torch.stack(states)


def vectors(steps: int) -> list[Tensor]:
    heads = 1, HEADS, steps
    q, k, v = (torch.randn(*heads, SIZE) for _ in range(3))
    k = torch.nn.functional.normalize(k, dim=-1)
    return [q, k, v, torch.rand(heads), torch.rand(heads), torch.zeros(1, HEADS, SIZE, SIZE)]


def gates(count: int, states: int) -> Callable[[int], list[Tensor]]:
    """Inputs, weights of `count` gates, and states, [4, WIDTH]."""

    def made(steps: int) -> list[Tensor]:
        weights = [torch.randn(WIDTH, count * WIDTH) / WIDTH**0.5 for _ in range(2)]
        return [torch.randn(steps, 4, WIDTH), *weights, *torch.zeros(states, 4, WIDTH)]

    return made


def recurrent(steps: int) -> list[Tensor]:
    return [torch.rand(steps, 4, 256), torch.randn(steps, 4, 256), torch.zeros(4, 256)]


def scanned(steps: int) -> list[Tensor]:
    rows = 1, 256, steps, 16
    return [torch.rand(rows), torch.randn(rows), torch.randn(1, steps, 16), torch.zeros(1, 256, 16)]


def mixed(steps: int) -> list[Tensor]:
    entries = 1, steps, 768
    w, u, num, den = -torch.rand(768), torch.randn(768), *torch.zeros(2, 1, 768)
    return [w, u, torch.randn(entries), torch.randn(entries), num, den, num - 1e38]


LOOPS: Final[dict[str, tuple[Callable[..., Tensor], Callable[[int], list[Tensor]]]]] = {
    "recurrence": (recurrence, recurrent),
    "selective scan": (selective_scan, scanned),
    "linear attention": (linear_attention, vectors),
    "gated delta rule": (delta_rule, vectors),
    "RWKV-4": (time_mixing, mixed),
    "LSTM": (lstm, gates(4, 2)),
    "GRU": (gru, gates(3, 1)),
    "RNN": (rnn, gates(1, 1)),
}
"""By the name: the loop, and its inputs for a number of steps."""


def spent(call: Callable[[], object]) -> float:
    """Return the CPU seconds of a call, those of the processes that it starts included."""
    before = os.times()
    call()
    return sum(after - start for after, start in zip(os.times()[:4], before[:4], strict=True))


@torch.no_grad()
def compare(results: Results, name: str, steps: int, given: argparse.Namespace) -> None:
    """Time one loop, and add its row."""
    torch.manual_seed(0)
    loop, inputs = LOOPS[name]
    args = inputs(steps)
    hook = inductor.Pass(loops.RULES, stage="pre_grad")
    options: dict[str, Any] = {COMPILED: None, RULES: hook.options()}
    calls: dict[str, Callable[[], Tensor]] = {EAGER: partial(loop, *args)}
    seconds: dict[str, float] = {}
    expected = loop(*args)
    torch._dynamo.reset()
    for version in (COMPILED, RULES)[steps > given.most :]:
        compiled = torch.compile(loop, options=options[version], dynamic=False)
        calls[version] = partial(compiled, *args)
        seconds[version] = spent(calls[version])
        torch.testing.assert_close(calls[version](), expected, atol=1e-3, rtol=1e-3)
    times = interleave(calls, seconds=given.seconds, rounds=30)
    compiling = (seconds.get(version) for version in (COMPILED, RULES))
    running = (1e3 * times.median(n) if n in calls else None for n in (COMPILED, RULES, EAGER))
    rules = ", ".join(dict.fromkeys(record.rule for record in hook.report().rewrites)) or "none"
    results.row(f"{name}, {steps}", *compiling, *running, rules)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of the loops that are asked for."""
    parser = argparse.ArgumentParser(description="Loops that tracing unrolled, rolled up.")
    parser.add_argument("loops", nargs="*", default=list(LOOPS), help=", ".join(LOOPS))
    parser.add_argument("--steps", type=int, nargs="+", default=[128])
    parser.add_argument(
        "--most", type=int, default=128, help="steps above which torch.compile alone is left out"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="to time each loop for")
    option(parser)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch._inductor.config.compile_threads = 1
    torch._inductor.config.force_disable_caches = True
    torch.compile(torch.sin)(torch.ones(2))  # what only the first compilation of a process does
    results = Results(given.output)
    columns = ("compile, alone, s", "with the rules, s", "run, alone, ms", "with the rules, ms")
    results.table("loop, steps", *columns, "eager, ms", "rules")
    for name in given.loops:
        for steps in given.steps:
            compare(results, name, steps, given)


if __name__ == "__main__":
    main()
