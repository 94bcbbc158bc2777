"""Persistent kernels of Triton on a Hopper GPU: `python -m benchmarks.gpu.events`.

Layers like Llama's decode one position over filled caches, in bfloat16. Four tables. First, results
beside those in float64, for batches of 1 to 16 by one text. Then 20,000 launches, of which each has
to give the same bits. Then a grid of more programs than can be resident, which has to be refused.
Last, microseconds of a step: of `torch.compile`, of its CUDA graphs, of the kernel's own tiles with
a launch for each grid, and of the one kernel; writes of the caches are part of each.

A kernel may hang: a line that takes too long ends the process, as in `benchmarks.gpu.tiles`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.choice import uncached
from benchmarks.gpu.lines import OK, Lines, Row, run
from benchmarks.gpu.tiles import line
from benchmarks.gpu.times import both, gpu
from pypm.events.decoder import (
    DecoderLayer,
    DecoderStep,
    MatrixOperand,
    NormOperands,
    decoder_graph,
)
from pypm.events.finer import finer
from pypm.events.triton.by_grids import by_grids
from pypm.events.triton.launch import launched, resident
from pypm.events.triton.tables import BoundStep, bound
from pypm.events.triton.text import emitted

SIZES: Final = ((512, 8), (2048, 8))
"""Width and layers of the steps that are timed."""
BATCHES: Final = (1, 4, 16)
CAPACITY, FILLED = 1024, 700
COLUMNS: Final = 32
"""The most columns of a tile."""
LAUNCHES: Final = 20_000
SMALL: Final = (256, 2)
TOLERANCE: Final = 3e-2
EPSILON: Final = 1e-5
HEAD: Final = 64


@dataclass(frozen=True)
class Layers:
    """Layers with random weights, and their operands in order; operand 0 is x."""

    step: DecoderStep
    operands: list[Tensor]

    def stepped(self, operands: Sequence[Tensor]) -> Tensor:
        """Compute a step by torch's operators, in the operands' type, and write the caches."""
        x, mask, position, cos, sin = operands[:5]
        step, batch = self.step, x.shape[0]

        def linear(x: Tensor, matrix: MatrixOperand) -> Tensor:
            return F.linear(x, operands[matrix.matrix])

        def norm(x: Tensor, given: NormOperands) -> Tensor:
            assert given.weight is not None
            return F.rms_norm(x, (step.width,), operands[given.weight], given.eps)

        def turned(x: Tensor) -> Tensor:
            a, b = x.chunk(2, -1)
            return x * cos + torch.cat((-b, a), -1) * sin

        for each in step.layers:
            y = norm(x, each.before)
            q, k, v = (linear(y, m).view(batch, -1, 1, step.size) for m in (each.q, each.k, each.v))
            keys, values = operands[each.keys], operands[each.values]
            keys.index_copy_(2, position, turned(k))
            values.index_copy_(2, position, v)
            found = F.scaled_dot_product_attention(
                turned(q), keys, values, mask.to(x.dtype), scale=each.scale, enable_gqa=True
            )
            x = x + linear(found.reshape(batch, -1), each.out)
            y = norm(x, each.after)
            assert each.gate is not None
            x = x + linear(F.silu(linear(y, each.gate)) * linear(y, each.up), each.down)
        return x

    def write(self, step: BoundStep) -> None:
        """Write the new keys and values of a step into the caches."""
        for each, key, value in zip(self.step.layers, *step.news(), strict=True):
            for place, new in ((each.keys, key), (each.values, value)):
                cache = self.operands[place]
                shape = cache.shape[0], self.step.groups, 1, self.step.size
                cache.index_copy_(2, self.operands[2], new.view(shape))


def drawn(width: int, layers: int, batch: int) -> Layers:
    """Return layers with four heads of queries for each group, over caches that are filled."""
    torch.manual_seed(batch)
    groups, heads = max(1, width // HEAD // 4), 4
    inner, hidden = groups * heads * HEAD, width * 4
    angles = torch.rand(1, 1, 1, HEAD) * 6
    keys = torch.arange(CAPACITY)
    mask = torch.where(keys <= FILLED, 0.0, -torch.inf).expand(batch, 1, 1, CAPACITY).contiguous()
    given = [torch.randn(batch, width), mask, torch.tensor([FILLED]), angles.cos(), angles.sin()]

    def add(*shape: int) -> int:
        given.append(torch.randn(shape) * (shape[-1] ** -0.5 if len(shape) == 2 else 1.0))
        return len(given) - 1

    def matrix(rows: int, columns: int) -> MatrixOperand:
        return MatrixOperand(add(columns, rows), None, True, rows, columns)

    def norm() -> NormOperands:
        return NormOperands("rms", add(width), None, EPSILON, 0.0)

    def layer() -> DecoderLayer:
        return DecoderLayer(
            before=norm(), q=matrix(width, inner), k=matrix(width, groups * HEAD),
            v=matrix(width, groups * HEAD), angles=(3, 4),
            keys=add(batch, groups, CAPACITY, HEAD), values=add(batch, groups, CAPACITY, HEAD),
            mask=1, position=2, scale=HEAD**-0.5, out=matrix(inner, width), after=norm(),
            gate=matrix(width, hidden), up=matrix(width, hidden), activation="silu",
            down=matrix(hidden, width),
        )  # fmt: skip

    step = DecoderStep(width, groups, heads, HEAD, tuple(layer() for _ in range(layers)))
    types = [torch.bfloat16, torch.float32, torch.int64, *[torch.bfloat16] * (len(given) - 3)]
    return Layers(step, [x.to(gpu(), t) for x, t in zip(given, types, strict=True)])


def kernel_of(layers: Layers, programs: int | None = None) -> BoundStep:
    """Return the kernel of layers, with a program for each multiprocessor if none are given."""
    kernel = emitted(finer(decoder_graph(layers.step), COLUMNS), torch.bfloat16)
    count = resident(gpu()) if programs is None else programs
    return bound(kernel, layers.operands, count)


# --- results -------------------------------------------------------------------------------------


def agreement(batch: int) -> Row:
    """Compare a step with float64: the largest error, of the result and of what is cached."""
    layers = drawn(*SMALL, batch)
    wide = [x.double() if x.is_floating_point() else x for x in layers.operands]
    exact = layers.stepped(wide)
    step = kernel_of(layers)
    launched(step)
    layers.write(step)
    caches = [n for each in layers.step.layers for n in (each.keys, each.values)]
    pairs = [(step.out, exact), *((layers.operands[n], wide[n]) for n in caches)]
    errors = [float(((a.double() - b).abs() / (1 + b.abs())).max()) for a, b in pairs]
    is_right = all(error <= TOLERANCE for error in errors)  # NaN is wrong, too
    return [max(errors), OK if is_right else "another result"]


def repeated() -> Row:
    """Launch a kernel many times, and count the launches with other bits than the first."""
    step = kernel_of(drawn(*SMALL, 4))
    launched(step)
    first = step.out.clone()
    different = torch.zeros((), dtype=torch.int64, device=gpu())
    for _ in range(LAUNCHES - 1):
        step.out.fill_(torch.nan)
        launched(step)
        different += (step.out != first).any()
    count = int(different)
    return [LAUNCHES, count, OK if not count else "other bits"]


def refused() -> Row:
    """Launch a grid of more programs than a GPU can hold."""
    programs = 64 * resident(gpu())
    try:
        launched(kernel_of(drawn(*SMALL, 1), programs))
    except RuntimeError as error:
        is_right = "cooperative" in str(error)
        return [programs, str(error)[:80], OK if is_right else "refused for another reason"]
    return [programs, None, "it was launched"]


# --- times ---------------------------------------------------------------------------------------


def timed(width: int, count: int, batch: int) -> Row:
    layers = drawn(width, count, batch)
    rest = layers.operands[1:]
    torch._dynamo.reset()

    def step(x: Tensor) -> Tensor:
        return layers.stepped([x, *rest])

    compiled: Any = torch.compile(step, dynamic=False)
    reduced: Any = torch.compile(step, dynamic=False, mode="reduce-overhead")
    kernel = kernel_of(layers)
    parts = by_grids(kernel)

    def ours(launches: Sequence[BoundStep]) -> Callable[[Tensor], Tensor]:
        def call(x: Tensor) -> Tensor:
            layers.operands[0].copy_(x)
            for each in launches:
                launched(each)
            layers.write(kernel)
            return kernel.out

        return call

    x = layers.operands[0].clone()
    exact = step(x)
    versions = {
        "compiled": compiled,
        "reduced": reduced,
        "parts": ours(parts),
        "one": ours([kernel]),
    }
    for each in versions.values():
        torch.testing.assert_close(each(x), exact, atol=5e-2, rtol=5e-2)
    found = both({name: (each, (x,)) for name, each in versions.items()})
    device = {name: 1e3 * each.device for name, each in found.items()}
    called = [1e3 * found[name].larger for name in ("compiled", "reduced")]
    gains = [device[name] / device["one"] for name in ("compiled", "parts")]
    return [*called, *device.values(), *gains, OK]


def events(lines: Lines) -> None:
    lines.begin("batch", "largest error", name="results")
    for batch in range(1, 17):
        line(lines, str(batch), partial(agreement, batch))
    lines.figure("batches that disagree", sum(row[-1] != OK for row in lines.rows()))
    lines.begin("kernel", "launches", "with other bits", name="repeated")
    line(lines, "a program for each multiprocessor", repeated)
    lines.figure("kernels that repeat wrongly", sum(row[-1] != OK for row in lines.rows()))
    lines.begin("grid", "programs", "error", name="resident")
    line(lines, "more than can be resident", refused)
    lines.figure("grids that are refused", sum(row[-1] == OK for row in lines.rows()))
    with uncached():
        columns = (
            *("torch.compile, us", "reduce-overhead", "torch.compile in a graph"),
            *("reduce-overhead, device", "tiles in a graph", "one kernel"),
            *("over torch.compile in a graph", "over tiles in a graph"),
        )
        lines.begin("width, layers, batch", *columns, name="steps")
        for width, layers in SIZES:
            for batch in BATCHES:
                name = f"{width}, {layers}, {batch}"
                line(lines, name, partial(timed, width, layers, batch))


if __name__ == "__main__":
    run(events, __doc__ or "")
