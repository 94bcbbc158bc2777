"""Rates of a GPU, and whether times of calls on it are right: `python -m benchmarks.gpu.device`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Final
from unittest import mock

import torch
from torch import Tensor

from benchmarks.gpu.lines import OK, Lines, Row, run
from benchmarks.gpu.times import both, gpu, in_one, moved
from pypm.choice import gpu_times

COPIES: Final = ((0, 1), (134, 2**25), (537, 2**27), (8590, 2**31))
"""Megabytes that a copy moves, and its numbers of two bytes."""
PRODUCT: Final = 8192
PRODUCTS: Final = "product of 8192 x 8192 matrices"


def copied(count: int) -> Row:
    """Copy so many numbers of two bytes."""
    x = torch.randn(count, device=gpu()).to(torch.bfloat16)
    y = torch.empty_like(x)
    found = in_one(y.copy_, x)
    return [1e3 * found.device, 1e3 * found.host, 2 * moved([x]) / found.device / 1e9, OK]


def multiplied(n: int) -> Row:
    x = torch.randn(n, n, device=gpu(), dtype=torch.bfloat16)
    found = in_one(partial(torch.mm, out=torch.empty_like(x)), x, x)
    return [1e3 * found.device, 1e3 * found.host, 2 * n**3 / found.device / 1e9, OK]


def rates(lines: Lines) -> None:
    lines.begin("call", "device, us", "host, us", "TB/s, TFLOP/s", name="rates")
    for megabytes, count in COPIES:
        lines.line(f"copy that moves {megabytes} MB", partial(copied, count))
    lines.line(PRODUCTS, partial(multiplied, PRODUCT))
    found = {row[0]: row for row in lines.document["tables"]["rates"]["rows"]}
    copy, product = found["copy that moves 134 MB"], found[PRODUCTS]
    for name, cell in (("copy of 134 MB, us", copy[1]), ("TFLOP/s", product[3])):
        if isinstance(cell, float):
            lines.figure(name, cell)


# --- whether times are right ---------------------------------------------------------------------


def operands(n: int = 4096) -> Tensor:
    return torch.randn(n, n, device=gpu(), dtype=torch.bfloat16)


def over_triton() -> float:
    """Our time of the device, over that of Triton's own clock for CUDA graphs."""
    from triton.testing import do_bench_cudagraph

    x = operands()
    return in_one(torch.mm, x, x).device / do_bench_cudagraph(lambda: x @ x, return_mode="median")


def queue_over_graph() -> float:
    x = operands(1024)
    graph = in_one(torch.mm, x, x).device
    with mock.patch.object(gpu_times, "_captured", return_value=None):
        return in_one(torch.mm, x, x).device / graph


def three_over_one() -> float:
    x = operands()
    found = both({"one": (lambda x: x @ x, [x]), "three": (lambda x: x @ x @ x @ x, [x])})
    return found["three"].device / found["one"].device


def host_of_a_long_call() -> float:
    """The host's time, over the device's, of a product that takes a millisecond and more."""
    x = operands(8192)
    found = in_one(torch.mm, x, x)
    return found.host / found.device


def idle_over_device() -> float:
    """Events around one small call on an idle device, over the time of the device."""
    x = operands(1024)
    found = []
    for _ in range(50):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        x + 1
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end))
    return sorted(found)[25] / in_one(lambda x: x + 1, x).device


def captures_that_wait() -> float:
    """Graphs made of calls that wait for the device; torch works as before."""
    x = operands(64)
    with gpu_times._on_a_stream(x.device) as stream:
        graph = gpu_times._captured([lambda: x.sum().item()], stream)
    torch.rand(2, device=gpu()).sum().item()
    return float(graph is not None)


def captures_of_random_numbers() -> float:
    x = operands(64)
    with gpu_times._on_a_stream(x.device) as stream:
        graph = gpu_times._captured([lambda: torch.rand_like(x)], stream)
    torch.rand(2, device=gpu()).sum().item()
    return float(graph is not None)


def broken_captures() -> float:
    """Errors of torch after a capture that broke: none, if a later one works."""
    x = operands(64)
    with gpu_times._on_a_stream(x.device) as stream:
        with mock.patch.object(gpu_times, "_no_waiting"):
            first = gpu_times._captured([lambda: x.sum().item()], stream)
        second = gpu_times._captured([lambda: x + 1], stream)
    torch.rand(2, device=gpu()).sum().item()
    return float(first is not None) + float(second is None)


def seconds_of_a_pair() -> float:
    x = operands(1024)
    both({"one": (torch.mm, [x, x]), "two": (torch.add, [x, x])}, 0.2)
    began = perf_counter()
    both({"one": (torch.mm, [x, x]), "two": (torch.add, [x, x])}, 0.2)
    return perf_counter() - began


def entry() -> float:
    return 1e6 * gpu_times.entry(gpu())


CHECKS: tuple[tuple[str, Callable[[], float], float, float], ...] = (
    ("device's time over Triton's clock", over_triton, 0.9, 1.1),
    ("three products over one", three_over_one, 2.8, 3.2),
    ("in a queue over in a graph", queue_over_graph, 0.8, 1.5),
    ("host over device, a long product", host_of_a_long_call, 0.0, 0.2),
    ("events on an idle device over the device, a small sum", idle_over_device, 1.2, 100),
    ("seconds to time a pair", seconds_of_a_pair, 0.0, 0.1),
    ("us to enter a compiled graph", entry, 1.0, 100.0),
    ("graphs of calls with random numbers", captures_of_random_numbers, 1, 1),
    ("graphs of calls that wait", captures_that_wait, 0, 0),
    ("errors after a capture that broke", broken_captures, 0, 0),
)
"""What is measured, and the least and the most that is right; what may do harm comes last."""


def checked(measure: Callable[[], float], least: float, most: float) -> Row:
    found = measure()
    return [found, f"{least} to {most}", OK if least <= found <= most else "wrong"]


def device(lines: Lines) -> None:
    rates(lines)
    lines.begin("", "found", "right", name="times")
    for name, measure, least, most in CHECKS:
        lines.line(name, partial(checked, measure, least, most))
    for row in lines.document["tables"]["times"]["rows"]:
        if isinstance(row[1], float):
            lines.figure(row[0], row[1])


if __name__ == "__main__":
    run(device, __doc__ or "")
