"""Sizes from which kernels in C++ gain: `python -m benchmarks.limits [POINT ...]`.

Rules decline smaller ones without timing them. Each point is compiled by Inductor as it is, and
with the rule wherever it is legal; both are called `CALLS` times in turn. Times are those of the
thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, TypeAlias
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor.compile_fx import compile_fx
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks.choice import uncached
from benchmarks.results import Results, option
from benchmarks.timing import interleave
from pypm.integrations.inductor import Pass
from pypm.rules import epilogue, quantization, rotary

Function: TypeAlias = Callable[..., Any]

TYPES: Final = (torch.float32, torch.bfloat16)
WIDTHS, TOKENS, ROWS = (64, 128, 256, 512), (4, 8, 16, 32, 64, 128), (16, 64, 128, 256, 512)
CALLS: Final = 20
HEADS, SIZE, COLUMNS = 16, 64, 2048
BYTES: Final = 2**25
"""Of all weights of a product, so that none stays in a near cache."""


def products(x: Tensor, *weights: Tensor) -> list[Tensor]:
    return [F.linear(x, weight) for weight in weights]


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def both_turned(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return turned(q, cos, sin), turned(k, cos, sin)


def quantized(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    total = x + y
    n = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6) * weight
    scale = n.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127.0
    return (n / scale).clamp(-128.0, 127.0).round().to(torch.int8), scale, total


def points() -> Iterator[tuple[str, int, Any, Function, list[Tensor]]]:
    """Yield kind and type, elements, the module of the rule, a function and its inputs."""
    for dtype in TYPES:
        for width in WIDTHS:
            count = min(32, BYTES // (width * width * dtype.itemsize))
            made = [torch.randn(1, width), *(torch.randn(width, width) for _ in range(count))]
            inputs = [x.to(dtype) for x in made]
            yield f"product, {str(dtype)[6:]}", width**2, epilogue, products, inputs
        for tokens in TOKENS:
            made = [torch.randn(1, HEADS, tokens, SIZE), torch.randn(1, HEADS, tokens, SIZE)]
            made += [torch.randn(tokens, SIZE), torch.randn(tokens, SIZE)]
            inputs = [x.to(dtype) for x in made]
            size = inputs[0].numel()
            yield f"rotary, {str(dtype)[6:]}", size, rotary, both_turned, inputs
    for rows in ROWS:
        inputs = [torch.randn(rows, COLUMNS), torch.randn(rows, COLUMNS), torch.randn(COLUMNS)]
        yield "norm in int8, float32", rows * COLUMNS, quantization, quantized, inputs


def repeated(call: Callable[[], object]) -> None:
    for _ in range(CALLS):
        call()


def gain(module: Any, function: Function, inputs: list[Tensor], seconds: float) -> list[float]:
    """Return microseconds without and with the rule of a module, and their ratio."""
    hook = Pass(module.RULES, choose=lambda candidate: 1.0)
    graph, calls = make_fx(function)(*inputs), {}
    with mock.patch.object(module, "FEW", 0):
        for name, patches in (("alone", {}), ("rule", hook.options())):
            inner: Any = compile_fx(graph, inputs, config_patches=patches)
            calls[name] = partial(repeated, partial(inner, *inputs))
            calls[name]()
    assert hook.report().rewrites
    contenders = {name: partial(lambda call: call, call) for name, call in calls.items()}
    times = interleave(contenders, seconds=seconds, rounds=20_000, check=lambda *_: None)
    alone, ours = (1e6 * times[name].median / CALLS for name in calls)
    return [alone, ours, alone / ours]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("points", nargs="*", help="parts of the names of points; all, if left out")
    parser.add_argument("--seconds", type=float, default=1.0, help="for the rounds of one point")
    option(parser)
    given = parser.parse_args()
    with uncached():
        results = Results(given.output)
        results.table("kernel", "elements", "alone, us", "with the rule, us", "gain", name="limits")
        for kind, elements, module, function, inputs in points():
            if not given.points or any(part in kind for part in given.points):
                found = gain(module, function, inputs, given.seconds)
                results.row(kind, elements, *found)


if __name__ == "__main__":
    main()
