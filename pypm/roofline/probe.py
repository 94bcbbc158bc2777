"""This machine as hardware: its name, and its rates, measured once and kept on disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import torch

from pypm.fields import Plain
from pypm.kept_figures import keep, kept, processor
from pypm.roofline.machines import Hardware, hardware_of
from pypm.timing import on_threads, shortest

__all__ = ["probed_machine", "this_machine"]

_VERSION: Final = 1
"""Changes when the probe does, so that older results are not used."""
_MARGIN: Final = 1.1
"""Factor on measured rates: clocks and neighbours vary, and a bound must hold on the best day."""


def this_machine(threads: int | None = None) -> Hardware:
    """Return this machine's CPU as hardware, for a number of threads; torch's own number if None.

    The rates are the best that matrix products, copies and reads of many sizes reach, and a margin
    of a tenth. The first call takes up to half a minute. It keeps the result in the folder `pypm`
    of Inductor's caches, for each model of CPU, version of torch and number of threads; a damaged
    file is made anew.
    """
    count = torch.get_num_threads() if threads is None else threads
    known = probed_machine(count)
    if known is not None:
        return known
    with on_threads(count), torch.inference_mode(), torch.autocast("cpu", enabled=False):
        measured = _measured(count)
    keep("machines", _key(count), measured)
    return hardware_of(measured, _key(count))


def probed_machine(threads: int) -> Hardware | None:
    """Return this machine for a number of threads if its rates are kept on disk, else None."""
    key = _key(threads)

    def form(value: object) -> Hardware | None:
        return hardware_of(value, key) if isinstance(value, dict) else None

    return kept("machines", key, form)


def _key(threads: int) -> str:
    return "; ".join((f"{_VERSION}", processor(), torch.__version__, f"{threads} threads"))


def _measured(threads: int) -> Plain:
    matrix = {name: _MARGIN * rate for name, rate in _products().items()}
    levels = [(size, _MARGIN * rate) for size, rate in _falling(_moves())]
    return {
        "name": f"{processor()}, {threads} thread{'s' * (threads != 1)}",
        "source": "probe of matrix products, copies and reads by `pypm.roofline.this_machine`",
        "matrix": matrix,
        "vector": matrix["float32"],
        "memory_bandwidth": levels[-1][1],
        "memory": float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        "cache": _cache(levels),
        "levels": levels,
    }


def _cache(levels: list[tuple[int, float]]) -> float:
    """Return the largest size whose rate is nearer to that of half the size than to memory's."""
    last = levels[-1][1]
    return float(max((size for size, rate in levels if rate > 1.5 * last), default=levels[0][0]))


# --- products ------------------------------------------------------------------------------------

_SIDES: Final = ((256, 256, 256), (512, 512, 512), (768, 1024, 768))
_DTYPES: Final = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8)


def _products() -> dict[str, float]:
    """Return the FLOP/s of products for each type."""
    found: dict[str, float] = {}
    for dtype in _DTYPES:
        name = str(dtype).removeprefix("torch.")
        for m, k, n in _SIDES:
            x, weight = torch.ones((m, k), dtype=dtype), torch.ones((n, k), dtype=dtype)
            for call in _ways(x, weight):
                rate = 2 * m * k * n / shortest(call, 0.2)
                found[name] = max(found.get(name, 0.0), rate)
            if found[name] < found["float32"] / 4:
                break  # without instructions of its own
    return found


def _ways(x: torch.Tensor, weight: torch.Tensor) -> list[Callable[[], object]]:
    """Return calls that multiply x [m, k] by weight [n, k] transposed."""
    if x.dtype == torch.int8:
        return [lambda: torch.ops.aten._int_mm(x, weight.t())]
    packed = weight.t().contiguous()
    found: list[Callable[[], object]] = [lambda: torch.mm(x, packed)]
    fused = torch.ops.mkldnn._linear_pointwise

    def linear() -> object:
        return fused(x, weight, None, "none", [], "")

    try:  # oneDNN, which has not every type on every CPU
        linear()
    except RuntimeError:
        return found
    return [*found, linear]


# --- memory --------------------------------------------------------------------------------------

_SIZES: Final = tuple(1 << power for power in range(14, 30))
"""Bytes of working sets, from those of a first cache to several times a large last one."""


def _moves() -> Iterator[tuple[int, float]]:
    """Yield the byte/s of the fastest of reads, writes, copies and sums, for each working set."""
    one = torch.ones(1)
    idle = shortest(one.neg_, 0.01)
    for size in _SIZES:
        half, third = torch.zeros(size // 8), torch.zeros(size // 12)
        other, sums, whole = torch.zeros_like(half), torch.zeros_like(third), torch.zeros(size // 4)
        second = torch.zeros_like(third)
        calls = (
            lambda half=half, other=other: torch.dot(half, other),
            lambda half=half, other=other: half.copy_(other),
            lambda whole=whole: whole.sum(),
            lambda whole=whole: whole.zero_(),
            lambda third=third, second=second, sums=sums: torch.add(third, second, out=sums),
        )
        seconds = min(shortest(call, 0.04) for call in calls)
        yield size, size / max(seconds - idle, seconds / 4)


def _falling(rates: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    """Return rates that never rise with the size: a smaller set is at least as fast."""
    found: list[tuple[int, float]] = []
    for size, rate in reversed(list(rates)):
        found.append((size, max(rate, found[-1][1] if found else 0.0)))
    return found[::-1]
