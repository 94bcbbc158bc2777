"""Times of calls on a GPU: of the device, which computes, and of the host, which enqueues kernels.

The device's time is that of calls in a CUDA graph, which no host delays; where no graph can be made
of them, that of calls in a queue, which the device begins once all of them are in it. The host's is
that of calls whose results nobody awaits. Clocks of the device are taken as they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import cycle, islice
from math import ceil
from operator import call, itemgetter
from time import perf_counter
from typing import Final

import torch
from torch import cuda, fx

from pypm.choice.execution import Compiled, Input, compiled, concrete, copies
from pypm.choice.kept_times import figures
from pypm.timing import Call, Times, interleave, shortest
from pypm.torch_internals import cuda_sleep, inductor_config

__all__ = ["HOST_FIGURES", "cache_of", "compared", "entry", "in_one", "sides", "timed", "whole"]

HOST_FIGURES: Final = ("host_before", "host_ratio", "host_upper")
"""Numbers of an answer for a GPU, beside those of the device: the seconds that the host takes for a
call of the region, and the middle and upper quartile of the ratios of the replacement's to them."""
SHARE: Final = 0.05
"""The part of the time for which calls are timed on a CPU that each of device and host is given."""
SPAN: Final = 1e-3
"""The seconds for which the device computes between two events, whose clock is coarse."""
CALLS: Final = 50
"""The most calls in one CUDA graph, unless there are more copies of inputs."""
QUEUED: Final = 10
"""The most calls in a queue: it holds a thousand kernels, and then the host waits."""
ROUNDS: Final = 5, 100
"""The fewest and the most rounds of one measurement."""
SPIN: Final = 2**17, 2**27
"""The cycles for which the device spins while its queue is filled: at first, and at most."""
LEAST: Final = 1e-6
"""The least seconds that the host takes for a call, beside `entry`."""

_BROKEN: Final[list[cuda.CUDAGraph]] = []
"""Graphs whose capture failed: torch's allocator goes on asking them which streams are theirs."""


def cache_of(device: torch.device) -> int:
    """Return the bytes of a GPU's L2 cache; 64 MiB if torch does not know them."""
    return int(getattr(cuda.get_device_properties(device), "L2_cache_size", 0)) or 2**26


# --- measuring -----------------------------------------------------------------------------------


def timed(
    versions: Mapping[str, tuple[Compiled, Sequence[Input]]], device: torch.device, seconds: float
) -> tuple[Times, Times]:
    """Return the seconds that versions of a computation take: of the device, and of the host.

    Arguments:
        versions: by name, a graph that is `compiled`, whose calls do not wait, and its inputs.
        device: the GPU.
        seconds: the time for which calls are timed on a CPU. A GPU is given a tenth of it, and at
            least five rounds of about a millisecond for each version.

    The versions are timed in turn. Raises what a call raises.
    """
    with _on_a_stream(device) as stream:
        made = {}
        for name, (run, inputs) in versions.items():
            calls = [partial(run, each) for each in copies(inputs, cache_of(device))]
            made[name] = _Version(calls, stream)
        of_device = _in_rounds({name: each.device for name, each in made.items()}, seconds)
        of_host = _in_rounds({name: each.host for name, each in made.items()}, seconds)
    return of_device, of_host


@contextmanager
def _on_a_stream(device: torch.device) -> Iterator[cuda.Stream]:
    with cuda.device(device), torch.no_grad():
        stream = cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(cuda.current_stream())
        with cuda.stream(stream):
            yield stream
            cuda.synchronize()


def _in_rounds(calls: Mapping[str, Callable[[], float]], seconds: float) -> Times:
    """Time versions in turn, by calls that return the seconds of a version."""
    began = perf_counter()
    for each in calls.values():  # each once, so that no first round is cold
        each()
    least, most = ROUNDS
    seconds = max(SHARE * seconds, least * (perf_counter() - began))
    threads = torch.get_num_threads()
    return interleave(calls, seconds=seconds, rounds=most, threads=threads, spent=call)


class _Version:
    """Calls of one version on a stream, for the device in a CUDA graph if they can be captured."""

    def __init__(self, calls: Sequence[Call], stream: cuda.Stream) -> None:
        self._turns = cycle(calls)
        for each in calls:  # here, since libraries have handles for each thread and stream
            each()
        cuda.synchronize()
        began = perf_counter()
        calls[0]()
        cuda.synchronize()
        many = max(1, int(SPAN / (perf_counter() - began)))
        self._cycles, self._repeats = SPIN[0], 1
        self._batch = self._count = min(many, QUEUED)
        count = max(len(calls), min(many, CALLS))
        self._graph = _captured([*islice(self._turns, count)], stream)
        if self._graph is not None:
            self._count = count
            self._repeats = ceil(SPAN / max(LEAST, self.device() * count))

    def device(self) -> float:
        """Return the seconds that the device takes for a call.

        It spins while calls are enqueued, so that it need not wait for one of them.
        """
        enqueue = self._call if self._graph is None else self._graph.replay
        while True:
            start = cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end = cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            cuda_sleep(self._cycles)  # type: ignore[no-untyped-call]
            start.record()
            for _ in range(self._repeats):
                enqueue()
            end.record()
            is_filled = not start.query()  # type: ignore[no-untyped-call]
            end.synchronize()
            # calls that wait for the device by themselves fill no queue
            if is_filled or self._cycles >= SPIN[1]:
                milliseconds: float = start.elapsed_time(end)
                return milliseconds / 1e3 / (self._count * self._repeats)
            self._cycles *= 2

    def host(self) -> float:
        """Return the seconds that the host takes for a call."""
        cuda.synchronize()
        began = perf_counter()
        self._call()
        seconds = (perf_counter() - began) / self._batch
        cuda.synchronize()
        return seconds

    def _call(self) -> None:
        for each in islice(self._turns, self._batch):
            each()


def _captured(calls: Sequence[Call], stream: cuda.Stream) -> cuda.CUDAGraph | None:
    """Return calls as one CUDA graph; None if they cannot be captured."""
    graph = cuda.CUDAGraph()
    try:
        with _no_waiting():
            calls[0]()
        with cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            for each in calls:
                each()
    except Exception:
        _BROKEN.append(graph)
        return None
    return graph


@contextmanager
def _no_waiting() -> Iterator[None]:
    """Let calls that wait for the device raise an error inside of the block.

    Where they break a capture instead, torch's generators and allocator are left in disorder.
    """
    before = cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it does not see all of them
        cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        cuda.set_sync_debug_mode(before)


def whole(
    versions: Mapping[str, tuple[Compiled, Sequence[Input]]], device: torch.device, seconds: float
) -> Times:
    """Return the seconds of versions of a whole graph, one call after the other: the larger one of
    those of device and host, or that of the device if graphs are captured.

    The arguments are those of `timed`.
    """
    of_device, of_host = timed(versions, device, seconds)
    if inductor_config.triton.cudagraphs:
        return of_device
    pairs = {n: zip(of_device.seconds[n], of_host.seconds[n], strict=False) for n in versions}
    return Times({name: [*map(max, each)] for name, each in pairs.items()})


def compared(
    region: Compiled,
    replacement: Compiled,
    inputs: Sequence[Input],
    device: torch.device,
    seconds: float,
) -> dict[str, float]:
    """Return the answer for a region and its replacement: `figures` of the device and of the host.

    The arguments are those of `timed`.
    """
    versions = {"before": (region, inputs), "after": (replacement, inputs)}
    of_device, of_host = timed(versions, device, seconds)
    beside = figures(beside_entry(of_host, device))
    return figures(of_device) | {f: beside[f.removeprefix("host_")] for f in HOST_FIGURES}


def beside_entry(host: Times, device: torch.device) -> Times:
    """Return times of the host for compiled graphs without those that each of them takes.

    A region that is timed alone pays for being called, and a model once for all of its regions.
    """
    least = entry(device)
    return Times({n: [max(t - least, LEAST) for t in times] for n, times in host.seconds.items()})


@cache
def entry(device: torch.device) -> float:
    """Return the seconds that the host takes to call a compiled graph without kernels."""
    inputs = [torch.zeros(1, device=device)]
    empty = concrete(fx.symbolic_trace(lambda x: x.new_empty(0)), inputs)
    run = compiled(empty, inputs)
    with _on_a_stream(device):
        return shortest(partial(run, inputs), SPAN)


# --- deciding ------------------------------------------------------------------------------------


def sides(found: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Return the seconds of region and replacement by "device" and "host"; none on a CPU."""
    if not found.keys() >= {*HOST_FIGURES}:
        return {}
    names = {"device": "", "host": "host_"}
    times = {side: (found[f"{p}before"], found[f"{p}ratio"]) for side, p in names.items()}
    return {side: (before, before * ratio) for side, (before, ratio) in times.items()}


def in_one(found: Mapping[str, float]) -> Mapping[str, float]:
    """Return an answer with one time where one for a GPU has two: of the device and of the host.

    The host enqueues calls while the device computes earlier ones, so that a graph takes at least
    the larger of the sums of both, and at most both together. Its other calls decide which it is
    nearer to, so the time is that one of these two by which the replacement gains less. Captured
    graphs need no host: then it is that of the device.
    """
    if not sides(found) or inductor_config.triton.cudagraphs:
        return found
    return max((_joined(found, join) for join in (max, sum)), key=itemgetter("ratio"))


def _joined(
    found: Mapping[str, float], join: Callable[[Iterable[float]], float]
) -> dict[str, float]:
    device, host = found["before"], found["host_before"]
    before = join((device, host))
    ratio, upper = (
        join((device * found[name], host * found[f"host_{name}"])) / before
        for name in ("ratio", "upper")
    )
    return {**found, "before": before, "ratio": ratio, "upper": upper}
