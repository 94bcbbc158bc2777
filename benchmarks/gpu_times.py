"""Times on a GPU: medians of interleaved calls, and the bytes that calls move."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch

ROUNDS: Final = 50


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
