"""Kernels on a GPU: PyPM's beside torch.compile alone, and the bound of memory.

    python -m benchmarks.kernels [COLUMNS ...]

Prints a row for each shape, or says that there is no GPU. Times are medians of interleaved rounds.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from pypm.fx import first
from pypm.integrations import inductor
from pypm.rules import norm, quantization

ROWS: Final = 8192
COLUMNS: Final = (2048, 4096, 8192, 16384)
ROUNDS: Final = 50


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    h = x.float()
    return weight * (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


def add_rms_norm(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    total = x + y
    return rms_norm(total, weight), total


def add_rms_norm_quantized(x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    total = x + y
    n = rms_norm(total, weight).float()
    scale = n.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 448
    return (n / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale, total


def inputs(function: Callable[..., Any], columns: int) -> list[Tensor]:
    count = function.__code__.co_argcount
    shapes = [*((ROWS, columns) for _ in range(count - 1)), (columns,)]
    return [torch.randn(*s, device="cuda", dtype=torch.bfloat16) for s in shapes]


def milliseconds(calls: Sequence[Callable[[], Any]]) -> list[float]:
    """Medians, one call of each in turn."""
    times: list[list[float]] = [[] for _ in calls]
    for call in calls * 3:
        call()
    for _ in range(ROUNDS):
        for call, found in zip(calls, times, strict=True):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            found.append(start.elapsed_time(end))
    return [statistics.median(found) for found in times]


def graphed(call: Callable[..., Any], *args: Any) -> float:
    """Median milliseconds of a call from a CUDA graph, without the time of launches."""
    from triton.testing import do_bench_cudagraph

    return float(do_bench_cudagraph(partial(call, *args), return_mode="median"))


def moved(tensors: Any) -> int:
    """Bytes of one tensor or several."""
    several = tensors if isinstance(tensors, (list, tuple)) else [tensors]
    return sum(x.numel() * x.element_size() for x in several)


def rows(columns: Sequence[int]) -> Iterator[str]:
    rules = [quantization.RULES, norm.RULES]
    for function in (rms_norm, add_rms_norm, add_rms_norm_quantized):
        for n in columns:
            args = inputs(function, n)
            torch._dynamo.reset()
            alone = torch.compile(function)
            rewritten = inductor.Pass(rules, choose=first)
            ours = torch.compile(function, options=rewritten.options())
            size = moved(args) + moved(ours(*args))
            assert len(rewritten.report()) == 1, str(rewritten.report())
            source, copy = (torch.empty(size // 2, dtype=torch.int8, device="cuda") for _ in "ab")
            bound, theirs, mine = milliseconds(
                [partial(copy.copy_, source), partial(alone, *args), partial(ours, *args)]
            )
            yield f"{function.__name__:24}{n:7}{bound:10.3f}{theirs:10.3f}{mine:10.3f}"


def main() -> None:
    if not torch.cuda.is_available():
        print("there is no GPU here, and nothing to time")
        return
    print(f"{torch.cuda.get_device_name()}, {ROWS} rows of bfloat16, milliseconds")
    print(f"{'':24}{'columns':>7}{'a copy':>10}{'compiled':>10}{'PyPM':>10}")
    with torch.no_grad():
        for row in rows([int(n) for n in sys.argv[1:]] or COLUMNS):
            print(row)


if __name__ == "__main__":
    main()
