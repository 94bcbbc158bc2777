"""Products of a few rows, and steps of decoding: `python -m benchmarks.rows [POINT ...]`.

Each is compiled once by `torch.compile` alone and once with the shipped rules and the default
choice. Products are with so many weights in turn that none stays in a cache, as in a model. A step
is one token through two layers of a decoder, over caches of 1,024 keys, of which 300 are filled.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from math import prod
from statistics import geometric_mean
from typing import Any, Final, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.choice import COMPILED, DEFAULT, Measured, careful, uncached
from benchmarks.decoding import written_out
from benchmarks.results import Results, option
from pypm.integrations import inductor
from pypm.rules import inference
from pypm.tools import interleave

TYPES: Final = (torch.float32, torch.bfloat16)
SHAPES: Final = (
    (1024, 1024), (1024, 4096), (4096, 1024), (2048, 2048), (2048, 5632), (4096, 4096),
)  # fmt: skip
"""Elements of a row, and of a row of the result."""
ROWS: Final = (1, 2, 4)
BYTES: Final = 2**27
"""Of all weights of a point."""
WIDTHS: Final = ((1024, 2816), (2048, 5632))
"""Of the steps: that of a layer, and that inside of its MLP."""
SIZE, CACHE, FILLED, LAYERS = 64, 1024, 300, 2
SLOWER: Final = 0.98

Function: TypeAlias = Callable[..., Any]


def products(x: Tensor, weights: list[Tensor]) -> list[Tensor]:
    return [F.linear(x, weight) for weight in weights]


def step(x: Tensor, position: Tensor, layers: list[list[Tensor]]) -> Tensor:
    """Return a token x [1, width] after the layers, each of seven weights and a cache."""
    for queries, keys, values, mixed, gate, up, down, k, v in layers:
        y = F.rms_norm(x, x.shape[1:])
        q, key, value = (F.linear(y, w).view(1, -1, 1, SIZE) for w in (queries, keys, values))
        x = x + F.linear(written_out(q, k, v, key, value, position).view(x.shape), mixed)
        y = F.rms_norm(x, x.shape[1:])
        x = x + F.linear(F.silu(F.linear(y, gate)) * F.linear(y, up), down)
    return x


def normal(*shape: int, dtype: torch.dtype) -> Tensor:
    return (torch.randn(shape) / shape[-1] ** 0.5).to(dtype)


def of_products(dtype: torch.dtype, rows: int, shape: tuple[int, int]) -> tuple[Function, Any]:
    size, out = shape
    count = max(2, BYTES // (prod(shape) * dtype.itemsize))
    return products, (
        normal(rows, size, dtype=dtype),
        [normal(out, size, dtype=dtype) for _ in range(count)],
    )


def of_step(dtype: torch.dtype, width: int, inner: int) -> tuple[Function, Any]:
    shapes = [(width, width)] * 4 + [(inner, width)] * 2 + [(width, inner)]
    shapes += [(1, width // SIZE, CACHE, SIZE)] * 2
    layers = [[normal(*each, dtype=dtype) for each in shapes] for _ in range(LAYERS)]
    return step, (normal(1, width, dtype=dtype), torch.tensor([FILLED - 1]), layers)


def times_of(made: tuple[Function, Any], seconds: float) -> Measured:
    function, args = made
    hook = inductor.Pass(inference.RULES)
    torch._dynamo.reset()
    calls: dict[str, Callable[[], Any]] = {}
    for name, options in ((COMPILED, None), (DEFAULT, hook.options())):
        calls[name] = partial(torch.compile(function, options=options, dynamic=False), *args)
    for one, other in zip(*(call() for call in calls.values()), strict=True):
        torch.testing.assert_close(one, other, atol=0.03, rtol=0.03)
    rules = dict.fromkeys(record.rule for record in hook.report().rewrites)
    return interleave(calls, seconds=seconds, rounds=400), [*rules]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("points", nargs="*", help="parts of the names of points; all, if left out")
    parser.add_argument("--seconds", type=float, default=2.0, help="for the rounds of one point")
    option(parser)
    given = parser.parse_args()
    gains: dict[str, float] = {}

    def measured(name: str, made: Callable[[], tuple[Function, Any]]) -> tuple[float, list[str]]:
        times, rules = careful(partial(times_of, made()), given.seconds, SLOWER)
        gains[name] = times.speedup(COMPILED, DEFAULT)
        return 1e3 * times.median(COMPILED), rules

    def is_wanted(name: str) -> bool:
        return not given.points or any(point in name for point in given.points)

    with uncached():
        results = Results(given.output)
        results.table("product", *(f"{n} row{'s' * (n > 1)}" for n in ROWS), name="products",
                      caption=f"Speed over that of {COMPILED}.")  # fmt: skip
        for dtype, shape in product(TYPES, SHAPES):
            name = f"product {str(dtype)[6:]} {shape[0]} x {shape[1]}"
            if is_wanted(name):
                names = [f"{name}, {rows} rows" for rows in ROWS]
                for rows, each in zip(ROWS, names, strict=True):
                    measured(each, partial(of_products, dtype, rows, shape))
                results.row(name.removeprefix("product "), *(gains[each] for each in names))
        results.table("step", f"{COMPILED}, ms", "gain", "rules", name="steps")
        for dtype, (width, inner) in product(TYPES, WIDTHS):
            name = f"step {str(dtype)[6:]} {width}"
            if is_wanted(name):
                milliseconds, rules = measured(name, partial(of_step, dtype, width, inner))
                results.row(name, milliseconds, gains[name], ", ".join(rules) or "-")
    for kind in ("product", "step"):
        found = [gain for name, gain in gains.items() if name.startswith(kind)]
        if found:
            results.figure(f"{kind}s, least", min(found))
            results.figure(f"{kind}s, geometric mean", geometric_mean(found))
    slower = [name for name, gain in gains.items() if gain < SLOWER]
    print(f"below {SLOWER}: {'; '.join(slower) or 'none'}")
    return bool(slower)


if __name__ == "__main__":
    sys.exit(main())
