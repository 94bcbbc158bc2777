"""Linear layers with what follows them, on a GPU: PyPM's kernel, its peers, and the bound.

Run as `python -m benchmarks.gpu_gemm`; prints a row for each case: microseconds of cuBLAS with each
elementwise operator by itself, of torch.compile, of torch.compile with autotuning, and of PyPM's
rule under torch.compile; PyPM's time over that of torch.compile and over the bound. The bound is
the larger of two times: that of the product's operations at the rate that the largest product of
cuBLAS reaches here, and that of reading the operands and writing the result at the rate of a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.gpu_times import milliseconds, moved
from pypm.integrations import inductor
from pypm.rules import gemm

Call = Callable[..., Tensor]


def bias_gelu(x: Tensor, w: Tensor, b: Tensor, _: Tensor) -> Tensor:
    return F.gelu(F.linear(x, w, b))


def bias_residual(x: Tensor, w: Tensor, b: Tensor, r: Tensor) -> Tensor:
    return F.linear(x, w, b) + r


def gated(x: Tensor, w: Tensor, _: Tensor, r: Tensor) -> Tensor:
    return F.silu(F.linear(x, w)) * r


def scaled_cast(x: Tensor, w: Tensor, b: Tensor, _: Tensor) -> Tensor:
    return F.linear(x, w).float() * b.float()


def cases() -> Iterator[tuple[str, Call, list[Tensor]]]:
    """Widths of Llama's of 8 billion parameters, in bfloat16."""
    options: Any = {"dtype": torch.bfloat16, "device": "cuda"}
    for tokens in (1, 16, 128, 1024, 8192):
        for inner, outer in ((4096, 14336), (14336, 4096)):
            shapes = ((tokens, inner), (outer, inner), (outer,), (tokens, outer))
            args = [torch.randn(*shape, **options) for shape in shapes]
            for function in (bias_gelu, bias_residual, gated, scaled_cast):
                yield f"{function.__name__}, {tokens} x {inner} x {outer}", function, args


def rates() -> tuple[float, float]:
    """Operations and bytes in a millisecond, of a product of cuBLAS and of a copy."""
    n = 8192
    x = torch.randn(n, n, device="cuda", dtype=torch.bfloat16)
    y, out = torch.empty_like(x), torch.empty_like(x)
    product, copy = milliseconds([lambda: torch.mm(x, x, out=out), lambda: y.copy_(x)])
    return 2 * n**3 / product, 2 * moved(x) / copy


def ours(function: Call, args: list[Tensor]) -> Call:
    """Compiled with the rule, which must fire once."""
    passed = inductor.Pass(gemm.RULES)
    compiled = torch.compile(function, options=passed.options())
    torch.testing.assert_close(compiled(*args), function(*args), atol=0.5, rtol=3e-2)
    assert len(passed.report()) == 1, str(passed.report())
    return compiled


def row(function: Call, args: list[Tensor], operations: float, size: float) -> str:
    torch._dynamo.reset()  # or else the sizes become symbols
    tuned = torch.compile(function, mode="max-autotune-no-cudagraphs")
    calls = [function, torch.compile(function), tuned, ours(function, args)]
    times = milliseconds([partial(call, *args) for call in calls])
    names = function.__code__.co_varnames
    touched = [x for x, name in zip(args, names, strict=False) if name != "_"]
    work = 2 * args[0].numel() * args[1].shape[0]
    bound = max(work / operations, moved([*touched, function(*args)]) / size)
    cells = [f"{1e3 * t:9.1f}" for t in (*times, bound)]
    return "".join([*cells, f"{times[3] / times[1]:9.2f}", f"{times[3] / bound:9.2f}"])


def main() -> None:
    if not torch.cuda.is_available():
        raise SystemExit("there is no GPU")
    operations, size = rates()
    print(torch.cuda.get_device_name(), f"{operations / 1e9:.0f} TFLOP/s, {size / 1e9:.2f} TB/s")
    names = ("eager", "compiled", "tuned", "PyPM", "bound", "/comp.", "/bound")
    print(" " * 36 + "".join(f"{name:>9}" for name in names))
    for name, function, args in cases():
        print(f"{name:36}{row(function, args, operations, size)}")


if __name__ == "__main__":
    with torch.no_grad():
        main()
