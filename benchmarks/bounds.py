"""Times of 200 regions beside their bounds on this machine: `python -m benchmarks.bounds`.

Prints each time that is below its bound, and how near the best ones come. `--compiled` times the
regions as `torch.compile` makes them, which takes a quarter of an hour.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.kernels.linear import has_fast_bfloat16, linear_in_float32, linear_pointwise
from pypm.roofline import Bound, Hardware, bound, this_machine
from pypm.timing import shortest

Function = Callable[..., Any]
FLOATS = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Case:
    """A region as a function, with inputs for it."""

    name: str
    function: Function
    inputs: tuple[Tensor, ...]
    is_near: bool = False
    """True for large products and copies, whose bounds must be within 3 times of their times."""
    other: Function | None = None
    """Another way to compute the same, which may be faster."""


Row = tuple[float, Case, float, Bound]
"""Time over bound, the region, its time and its bound."""


def values(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(dtype)


ELEMENTWISE: dict[str, Function] = {
    "copy": torch.clone,
    "add": torch.add,
    "scale": lambda x: x * 2,
    "gelu": F.gelu,
    "gated": lambda x, y: F.silu(x) * y,
    "sum": lambda x: x.sum(-1),
    "softmax": lambda x: torch.softmax(x, -1),
    "rms norm": lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5),
    "half": lambda x: x[: len(x) // 2] + 1,
    "transpose": lambda x: x.t().contiguous(),
}
BINARY = ("add", "gated")


def elementwise() -> Iterator[Case]:
    for (name, function), rows, dtype in product(
        ELEMENTWISE.items(), (16, 256, 2048, 16384), FLOATS
    ):
        inputs = tuple(values(rows, 1024, dtype=dtype) for _ in range(1 + (name in BINARY)))
        yield Case(f"{name} {rows}x1024 {dtype}", function, inputs)
    for rows, dtype in product((256, 2048, 16384, 32768), FLOATS):  # without a fresh result
        inputs = (values(rows, 1024, dtype=dtype), values(rows, 1024, dtype=dtype))
        yield Case(f"copy into {rows}x1024 {dtype}", copied, inputs, rows >= 16384)


def copied(x: Tensor, y: Tensor) -> None:
    x.copy_(y)


def products() -> Iterator[Case]:
    sides = (1, 64, 512, 1024)
    for m, k, dtype in product(sides, (64, 512, 2048), FLOATS):
        x, w, b = (values(*shape, dtype=dtype) for shape in ((m, k), (512, k), (512,)))
        name, is_near = f"linear {m}x{k}x512 {dtype}", m * k >= 512 * 512
        yield Case(name, F.linear, (x, w, b), is_near, fused)
    for m, dtype in product((64, 512), FLOATS):
        x, w, u = (values(m, 512, dtype=dtype), *(values(512, 512, dtype=dtype) for _ in range(2)))
        yield Case(f"two layers {m} {dtype}", lambda x, w, u: F.gelu(x @ w) @ u, (x, w, u))
        yield Case(f"residual {m} {dtype}", lambda x, w, u: x @ w + x @ u, (x, w, u))
    for batch, side, dtype in product((4, 32), (32, 128), FLOATS):
        x, y = (values(batch, side, side, dtype=dtype) for _ in range(2))
        yield Case(f"bmm {batch}x{side} {dtype}", torch.bmm, (x, y))
        yield Case(f"einsum {batch}x{side} {dtype}", einsum, (x, y))
    for side in (128, 512):
        yield Case(f"float64 {side}", torch.mm, (values(side, side).double(),) * 2, side >= 512)


def fused(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    if x.dtype == torch.bfloat16 and not has_fast_bfloat16():
        return linear_in_float32(x, w, b, True)
    return linear_pointwise(x, w, b, None, "none")


def einsum(x: Tensor, y: Tensor) -> Tensor:
    return torch.einsum("bij,bkj->bik", x, y)


def convolutions() -> Iterator[Case]:
    for channels, kernel, stride, dtype in product((16, 128), (1, 3), (1, 2), FLOATS):
        x, w = (
            values(2, channels, 28, 28, dtype=dtype),
            values(channels, channels, kernel, kernel, dtype=dtype),
        )
        yield Case(
            f"convolution {channels} {kernel} stride {stride} {dtype}",
            partial(F.conv2d, stride=stride, padding=kernel // 2),
            (x, w),
        )


def masked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    i = torch.arange(q.shape[-2])
    hidden = (i[:, None] < i) | (i[:, None] - i > 64)
    scores = (q @ k.transpose(-2, -1) * 0.125).masked_fill(hidden, float("-inf"))
    return torch.softmax(scores, -1) @ v


ATTENTION: dict[str, Function] = {
    "attention": F.scaled_dot_product_attention,
    "causal": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "written out": lambda q, k, v: torch.softmax(q @ k.transpose(-2, -1) * 0.125, -1) @ v,
    "window": masked,
}


def attention() -> Iterator[Case]:
    for (name, function), keys, dtype in product(ATTENTION.items(), (16, 128, 512), FLOATS):
        inputs = tuple(values(2, 4, keys, 64, dtype=dtype) for _ in range(3))
        yield Case(f"{name} {keys} {dtype}", function, inputs)
    for keys, dtype in product((128, 4096), FLOATS):
        q = values(1, 16, 1, 64, dtype=dtype)
        k, v = (values(1, 4, keys, 64, dtype=dtype) for _ in range(2))
        yield Case(f"decoding {keys} {dtype}", decoding, (q, k, v))


def decoding(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def movements() -> Iterator[Case]:
    table = values(30000, 256)
    for count in (1, 64, 4096):
        index = torch.randint(30000, (count,))
        yield Case(f"gather {count}", torch.ops.aten.embedding, (table, index))
        yield Case(f"index {count}", lambda x, i: x[i] * 2, (table, index))
        yield Case(f"same index {count}", torch.ops.aten.embedding, (table, index * 0))
    for rows in (64, 4096):
        x = values(rows, 1024)
        yield Case(f"cat {rows}", lambda x: torch.cat([x, x + 1]), (x,))
        yield Case(f"expand {rows}", lambda x: x[:, :1].expand(-1, 1024) + 1, (x,))
        yield Case(f"last {rows}", lambda x: torch.relu(x)[-1:], (x,))
        yield Case(f"update {rows}", update, (x, values(1, 1024)))
        yield Case(f"cast {rows}", lambda x: x.bfloat16(), (x,))


def update(x: Tensor, row: Tensor) -> Tensor:
    return torch.slice_scatter(x, row, 0, 3, 4)


def cases() -> list[Case]:
    return [*elementwise(), *products(), *convolutions(), *attention(), *movements()]


def measured(case: Case, machine: Hardware, options: argparse.Namespace) -> Row:
    def function(*inputs: Tensor) -> Any:
        return case.function(*inputs)

    least = bound(make_fx(function, tracing_mode="fake")(*case.inputs), machine)
    run: Function = function
    if options.compiled:
        torch.compiler.reset()
        run = torch.compile(function, dynamic=False)
    ways = [run, case.other] if case.other else [run]
    seconds = min(shortest(partial(way, *case.inputs), options.seconds) for way in ways)
    return seconds / least.seconds, case, seconds, least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--seconds", type=float, default=0.1, help="for each region")
    parser.add_argument("--only", default="", help="regions whose name has this in it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    machine = this_machine(1)
    found: list[Row] = []
    with torch.inference_mode():
        for case in cases():
            if options.only not in case.name:
                continue
            found.append(measured(case, machine, options))
    found.sort(key=lambda row: row[0])
    print(f"{len(found)} regions on {machine.name}")
    below = [row for row in found if row[0] < 1]
    print(f"below the bound: {len(below)}; least time over bound: {found[0][0]:.2f}")
    for ratio, case, seconds, least in [*below, *found[len(below) :][:10]]:
        print(f"  {ratio:8.2f}  {seconds:.3g} s  {case.name}, limited by {least.limited_by}")
    near = [row for row in found if row[1].is_near]
    print("large products and copies, time over bound:")
    for ratio, case, seconds, least in near:
        print(f"  {ratio:8.2f}  {seconds:.3g} s  {case.name}, limited by {least.limited_by}")


if __name__ == "__main__":
    main()
