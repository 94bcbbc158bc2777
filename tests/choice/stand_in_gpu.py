"""A stand-in for `torch.cuda`, whose host and device advance a clock: no GPU is needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses import fake_tensor

from pypm import timing
from pypm.choice import gpu_times

HERTZ = 1e9
LAUNCH = 10e-6
"""The host's seconds to launch a graph."""
QUEUE = 1000
"""The kernels in a queue for which no host waits."""


class StandInGPU:
    """One queue: the host enqueues at `now`, and the device is idle from `free` on.

    It has what PyPM calls of `torch.cuda`, and is installed in its place by `install`.
    """

    def __init__(self) -> None:
        self.now = self.free = 100.0
        self.mode: int | str = 0
        self.captured: list[float] | None = None
        self.waits_in_captures = self.waits_are_seen = True
        self.graphs: list[Any] = []
        self.ends: list[float] = []
        self.CUDAGraph = lambda: _Graph(self)
        self.Event = lambda enable_timing: _Event(self)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Time by this GPU, and let all compiled graphs be called in no time."""
        clock = SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr(gpu_times, "cuda", self)
        monkeypatch.setattr(gpu_times, "cuda_sleep", lambda cycles: self.enqueue(cycles / HERTZ))
        monkeypatch.setattr(gpu_times, "perf_counter", clock.perf_counter)
        monkeypatch.setattr(gpu_times, "entry", lambda device: 0.0)
        monkeypatch.setattr(timing, "time", clock)
        monkeypatch.setattr(fake_tensor, "init_gpu_context", lambda device: None)
        for name in ("is_available", "device_count", "get_device_name"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))

    # --- kernels ---------------------------------------------------------------------------------

    def kernel(self, device: float, host: float) -> None:
        """Call a kernel: the host is busy for some seconds, and the device later."""
        self.now += host
        if self.captured is None:
            self.enqueue(device)
        else:
            self.captured.append(device)

    def enqueue(self, seconds: float) -> None:
        self.ends = [end for end in self.ends if end > self.now]
        if len(self.ends) >= QUEUE:
            self.now = self.ends[-QUEUE]
        self.free = max(self.now, self.free) + seconds
        self.ends.append(self.free)

    def wait(self) -> None:
        """Wait for the device, as reading a value does."""
        if self.mode == "error" and self.waits_are_seen:
            raise RuntimeError("called a synchronizing CUDA operation")
        if self.captured is not None:
            self.captured.append(float("nan"))
            raise RuntimeError("operation not permitted when stream is capturing")
        self.synchronize()

    # --- `torch.cuda` ----------------------------------------------------------------------------

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def get_device_name(self, device: object = None) -> str:
        return "GPU of a test"

    def get_device_properties(self, device: object) -> SimpleNamespace:
        return SimpleNamespace(L2_cache_size=2**22)

    def device(self, device: object) -> nullcontext[None]:
        return nullcontext()

    def stream(self, stream: object) -> nullcontext[None]:
        return nullcontext()

    def Stream(self) -> SimpleNamespace:
        return SimpleNamespace(wait_stream=lambda other: None)

    def current_stream(self) -> None:
        return None

    def synchronize(self) -> None:
        self.now = max(self.now, self.free)

    def get_sync_debug_mode(self) -> int | str:
        return self.mode

    def set_sync_debug_mode(self, debug_mode: int | str) -> None:
        self.mode = debug_mode

    @contextmanager
    def graph(self, cuda_graph: Any, *, stream: object, capture_error_mode: str) -> Iterator[None]:
        self.synchronize()
        self.captured = cuda_graph.kernels
        try:
            yield
        finally:
            self.captured = None
            if any(seconds != seconds for seconds in cuda_graph.kernels):
                raise RuntimeError("operation failed due to a previous error during capture")
        self.graphs.append(cuda_graph)


class _Graph:
    def __init__(self, gpu: StandInGPU) -> None:
        self.kernels: list[float] = []
        self._gpu = gpu

    def replay(self) -> None:
        self._gpu.now += LAUNCH
        self._gpu.enqueue(sum(self.kernels))


class _Event:
    def __init__(self, gpu: StandInGPU) -> None:
        self._gpu = gpu
        self.at = float("nan")

    def record(self) -> None:
        self._gpu.enqueue(0.0)
        self.at = self._gpu.free

    def query(self) -> bool:
        return self.at <= self._gpu.now

    def synchronize(self) -> None:
        self._gpu.now = max(self._gpu.now, self.at)

    def elapsed_time(self, end: _Event) -> float:
        assert self.query()
        assert end.query()
        return 1e3 * (end.at - self.at)
