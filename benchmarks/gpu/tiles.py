"""Kernels of tile programs on a Hopper GPU: `python -m benchmarks.gpu.tiles`.

Four tables. First, results beside those in float32: five sizes for each of twelve kernels. Then
launches that are repeated, of which each has to give the same bits, for every depth of the ring and
number of products in flight. Then microseconds of the device for products alone, and with a bias
and GELU: of cuBLAS with the operators one by one, of `torch.compile`, and of the kernel. Last, the
same product by other rings and groups, and by Triton templates of Inductor, which specialize
nothing.

A kernel may hang. A line that takes too long is written as one that hung, and ends the process; the
next run goes on behind it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from threading import Timer
from typing import Any, Final, TypeAlias
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.choice import uncached
from benchmarks.gpu.lines import OK, Lines, Row, run
from benchmarks.gpu.times import both, gpu, in_one
from pypm.tiles import launch
from pypm.tiles.operator import inputs_of, tile_kernel
from pypm.tiles.program import DTYPES, TileProgram
from pypm.tiles.reading import parsed
from pypm.tiles.reference import whole

PRODUCT: Final = """\
x: bf16[M, K]
w: bf16[N, K]
out: bf16[M, N]
tile i: 128 of M, j: 256 of N
acc = 0.0[i, j]
for k: 64 of K
  a = x[i, k]
  b = w[j, k]
  acc = dot(a, b.T, acc)
out[i, j] = acc
"""
GELU: Final = """\
x: bf16[M, K]
w: bf16[N, K]
bias: bf16[1, N]
out: bf16[M, N]
tile i: 128 of M, j: 256 of N
acc = 0.0[i, j]
for k: 64 of K
  a = x[i, k]
  b = w[j, k]
  acc = dot(a, b.T, acc)
s = bias[1, j]
y = map "add(acc,s0);gelu(v0)" acc, s
out[i, j] = y
"""
GATED: Final = """\
x: bf16[M, K]
gate: bf16[K, N]
up: bf16[N, K]
rest: bf16[M, N]
out: bf16[M, N]
tile i: 128 of M, j: 128 of N
g = 0.0[i, j]
u = 0.0[i, j]
for k: 64 of K
  a = x[i, k]
  b = gate[k, j]
  c = up[j, k]
  g = dot(a, b, g)
  u = dot(a, c.T, u)
r = rest[i, j]
y = map "silu(acc);mul(v0,s0);add(v1,s1)" g, u, r
out[i, j] = y
"""
Rings: TypeAlias = tuple[int, int, int, int]
"""Slots, products in flight, groups, pieces."""
USUAL: Final[Rings] = (4, 1, 2, 4)
CASES: Final[dict[str, tuple[str, Rings]]] = {
    f"{name}, {dtype}, rings {rings}": (text.replace("bf16", dtype), rings)
    for name, text in (("product", PRODUCT), ("bias and GELU", GELU), ("gated, residual", GATED))
    for dtype in ("bf16", "fp16")
    for rings in (USUAL, (2, 0, 2, 4))
}
SIZES: Final = ((128, 256, 64), (1, 8, 8), (200, 520, 1000), (4096, 2048, 512), (777, 4096, 4096))
"""Rows, columns and inner size."""
TOLERANCES: Final = {"bf16": 2e-2, "fp16": 2e-3}
DEPTHS: Final = ((1, 0), (2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (4, 1), (4, 3))
"""Slots and products in flight, with one group and tiles of 64 columns."""
REPEATED: Final = (1024, 1024, 1000)
LAUNCHES: Final = 3000
PATIENCE: Final = 60.0
"""The seconds after which a line is taken to have hung."""
LAYERS: Final = ((4096, 4096, 4096), (8192, 14336, 4096))
RINGS: Final[tuple[Rings, ...]] = (
    USUAL, (4, 0, 2, 4), (4, 2, 2, 4), (3, 1, 2, 4), (2, 1, 2, 4), (2, 0, 2, 4), (1, 0, 2, 4),
)  # fmt: skip


@contextmanager
def watched(lines: Lines, name: str) -> Iterator[None]:
    """End the process if the block takes too long, with a line that says so."""

    def stop() -> None:
        lines.row(name, *[None] * (lines.width() - 2), f"hung: no end after {PATIENCE:.0f} s")
        os._exit(1)

    timer = Timer(PATIENCE, stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def line(lines: Lines, name: str, measure: Callable[[], Row]) -> None:
    with watched(lines, name):
        lines.line(name, measure)


def drawn(program: TileProgram, m: int, n: int, k: int) -> list[Tensor]:
    """Return random operands; weights are such that results are of size one."""
    sizes = {"1": 1, "M": m, "N": n, "K": k}
    found = []
    for operand in inputs_of(program):
        shape = [sizes[name] for name in operand.sizes]
        scale = k**-0.5 if "K" in operand.sizes and "M" not in operand.sizes else 1.0
        found.append((torch.randn(shape, device=gpu()) * scale).to(DTYPES[operand.dtype]))
    return found


# --- results -------------------------------------------------------------------------------------


def agreement(text: str, rings: Rings) -> Row:
    """Compare five sizes with float32; the largest errors, and how many sizes disagree."""
    program = parsed(text)
    tolerance, errors = TOLERANCES[program.operand("out").dtype], []
    for sizes in SIZES:
        operands = drawn(program, *sizes)
        names = [operand.name for operand in inputs_of(program)]
        exact = whole(program, dict(zip(names, operands, strict=True)), torch.float32)["out"]
        ours = called(operands, text, rings).float()
        errors.append(float(((ours - exact).abs() / (1 + exact.abs())).max()))
    wrong = sum(not error <= tolerance for error in errors)  # NaN is wrong, too
    return [max(errors), wrong, OK if not wrong else "another result"]


def called(operands: list[Tensor], text: str, rings: Rings) -> Tensor:
    """Return a kernel's result, also of sizes that the operator refuses for want of tiles."""
    with mock.patch.object(launch, "FEWEST", 0):
        return tile_kernel(operands, text, [*rings])[0]


def repeated(depth: int, in_flight: int) -> Row:
    """Launch a kernel many times, and count the launches with other bits than the first."""
    text = GELU.replace("128 of M, j: 256 of N", "64 of M, j: 64 of N")
    rings = (depth, in_flight, 1, 1)
    operands = drawn(parsed(text), *REPEATED)
    first = called(operands, text, rings)
    different = torch.zeros((), dtype=torch.int64, device=gpu())
    for _ in range(LAUNCHES - 1):
        different += (called(operands, text, rings) != first).any()
    count = int(different)
    return [LAUNCHES, count, OK if not count else "other bits"]


# --- times ---------------------------------------------------------------------------------------


def product(x: Tensor, w: Tensor) -> Tensor:
    return F.linear(x, w)


def gelu(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, bias[0]))


FUNCTIONS: Final[Mapping[str, tuple[Callable[..., Tensor], str]]] = {
    "product": (product, PRODUCT),
    "bias and GELU": (gelu, GELU),
}


def layer(name: str, sizes: tuple[int, int, int]) -> Row:
    function, text = FUNCTIONS[name]
    args = drawn(parsed(text), *sizes)
    torch._dynamo.reset()
    alone: Any = torch.compile(function, dynamic=False)

    def ours(*args: Tensor) -> Tensor:
        return tile_kernel([*args], text, [*USUAL])[0]

    torch.testing.assert_close(ours(*args), function(*args), atol=5e-2, rtol=5e-2)
    times = both({n: (f, args) for n, f in {"eager": function, "alone": alone, "": ours}.items()})
    eager, compiled, mine = (1e3 * each.device for each in times.values())
    m, n, k = sizes
    verdict = OK if mine <= compiled else "slower than torch.compile"
    rate = 2e-6 * m * n * k / mine
    return [eager, compiled, mine, rate, eager / mine, compiled / mine, verdict]


def by_rings(rings: Rings) -> Row:
    args = drawn(parsed(PRODUCT), *LAYERS[0])
    micros = 1e3 * in_one(lambda *args: tile_kernel([*args], PRODUCT, [*rings])[0], *args).device
    m, n, k = LAYERS[0]
    return [micros, 2e-6 * m * n * k / micros, OK]


def unspecialized() -> Row:
    args = drawn(parsed(PRODUCT), *LAYERS[0])
    torch._dynamo.reset()
    options = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "TRITON"}
    call: Any = torch.compile(product, dynamic=False, options=options)
    micros = 1e3 * in_one(call, *args).device
    m, n, k = LAYERS[0]
    return [micros, 2e-6 * m * n * k / micros, OK]


def tiles(lines: Lines) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    lines.begin("kernel", "largest error", "wrong of five", name="results")
    for name, (text, rings) in CASES.items():
        line(lines, name, partial(agreement, text, rings))
    lines.figure("kernels that disagree", sum(row[-1] != OK for row in lines.rows()))
    lines.begin("slots, in flight", "launches", "with other bits", name="repeated")
    for depth, in_flight in DEPTHS:
        line(lines, f"{depth}, {in_flight}", partial(repeated, depth, in_flight))
    lines.figure("rings that repeat wrongly", sum(row[-1] != OK for row in lines.rows()))
    with uncached():
        columns = ("eager, us", "compiled", "PyPM", "TFLOP/s", "over eager", "over compiled")
        lines.begin("layer", *columns, name="layers")
        for name in FUNCTIONS:
            for sizes in LAYERS:
                called_as = f"{name}, {' x '.join(map(str, sizes))}"
                line(lines, called_as, partial(layer, name, sizes))
            for at, other in ((5, "eager"), (6, "compiled")):
                gains = [row[at] for row in lines.rows() if str(row[0]).startswith(name)]
                if found := [gain for gain in gains if isinstance(gain, float)]:
                    lines.figure(f"gain over {other}, {name}, least", min(found))
        lines.begin("slots, in flight, groups, pieces", "us", "TFLOP/s", name="rings")
        for rings in RINGS:
            line(lines, ", ".join(map(str, rings)), partial(by_rings, rings))
        line(lines, "Triton templates of Inductor", unspecialized)


if __name__ == "__main__":
    run(tiles, __doc__ or "")
