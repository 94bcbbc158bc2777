"""Linear layers with what follows them, on a GPU: PyPM's kernel, its peers, and the bound.

Run as `python -m benchmarks.gpu.gemm`; a line for each case: microseconds of the device for cuBLAS
with each elementwise operator by itself, for `torch.compile`, and for PyPM's rule under it, whose
time over that of `torch.compile` and over the bound come last. The bound is the larger of two
times: that of the product's operations at the rate that the largest product of cuBLAS reaches here,
and that of reading the operands and writing the result at the rate of a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.choice import uncached
from benchmarks.gpu.lines import OK, Lines, Row, run
from benchmarks.gpu.times import both, gpu, moved, rates
from pypm.integrations import inductor
from pypm.rules import gemm as pack

Call = Callable[..., Tensor]


def bias_gelu(x: Tensor, w: Tensor, b: Tensor, _: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def bias_residual(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return F.linear(x, w, b) + r


def gated(x: Tensor, w: Tensor, _: Tensor, r: Tensor) -> Tensor:
    return F.silu(F.linear(x, w)) * r


def scaled_cast(x: Tensor, w: Tensor, b: Tensor, _: Tensor) -> Tensor:
    return F.linear(x, w).float() * b.float()


FUNCTIONS: Final = (bias_gelu, gated, bias_residual, scaled_cast)
TOKENS: Final = (1, 1024, 128, 8192, 16)
WIDTHS: Final = ((4096, 14336), (14336, 4096))
"""Inputs and outputs of Llama's layers, of 8 billion parameters."""


def cases() -> Iterator[tuple[str, Call, list[tuple[int, ...]]]]:
    for tokens, (inner, outer), function in product(TOKENS, WIDTHS, FUNCTIONS):
        shapes = [(tokens, inner), (outer, inner), (outer,), (tokens, outer)]
        yield f"{function.__name__}, {tokens} x {inner} x {outer}", function, shapes


def ours(function: Call, args: list[Tensor]) -> Call:
    """Compile with the rule, which must fire once."""
    passed = inductor.Pass(pack.RULES)
    compiled: Any = torch.compile(function, options=passed.options(), dynamic=False)
    torch.testing.assert_close(compiled(*args), function(*args), atol=0.5, rtol=3e-2)
    assert len(passed.report()) == 1, str(passed.report())
    return compiled


def layer(function: Call, shapes: list[tuple[int, ...]], peaks: tuple[float, float]) -> Row:
    """Compare one layer; `peaks` has the operations and bytes of a millisecond."""
    args = [torch.randn(*shape, dtype=torch.bfloat16, device=gpu()) for shape in shapes]
    torch._dynamo.reset()
    alone: Any = torch.compile(function, dynamic=False)
    alone(*args)
    versions = {"eager": function, "alone": alone, "ours": ours(function, args)}
    times = both({name: (call, args) for name, call in versions.items()})
    operations, size = peaks
    names = function.__code__.co_varnames
    touched = [x for x, name in zip(args, names, strict=False) if name != "_"]
    work = 2 * args[0].numel() * args[1].shape[0]
    bound = max(work / operations, moved([*touched, function(*args)]) / size)
    eager, compiled, mine = (each.device for each in times.values())
    verdict = OK if mine <= compiled else "slower than torch.compile"
    found = [eager, compiled, mine, bound]
    return [*(1e3 * each for each in found), mine / compiled, mine / bound, verdict]


def gemm(lines: Lines) -> None:
    peaks = rates()
    with uncached():
        columns = ("eager, us", "compiled", "PyPM", "bound", "over compiled", "over bound")
        lines.begin("layer", *columns)
        for name, function, shapes in cases():
            lines.line(name, partial(layer, function, shapes, peaks))
            lines.least_and_largest(5, "over compiled")


if __name__ == "__main__":
    run(gemm, __doc__ or "")
