"""Devices for which kernels are, and whether torch.compile compiles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from pypm.torch_internals import TracingContext

if TYPE_CHECKING:
    from pypm.fx import Dialect

__all__ = [
    "as_on_a_gpu", "cpus_are_gpus", "off_cpu", "off_gpu", "on_cpu", "under_torch_compile",
]  # fmt: skip

# A context variable: `off_gpu` and the like are asked in guards and bodies, of a value alone.
cpus_are_gpus: Final = ContextVar("cpus_are_gpus", default=False)
"""True within `as_on_a_gpu`."""


def off_gpu(value: object, dialect: Dialect | None = None) -> str | None:
    """Return why no kernel computes this value, which is not on a GPU; else None.

    For `rule(unless=...)`.
    """
    return None if _kind(value) in (None, "cuda") else "the kernel is for GPUs"


def off_cpu(value: object, dialect: Dialect | None = None) -> str | None:
    """Return why no kernel in C++ computes this value, which is not on a CPU; else None.

    For `rule(unless=...)`.
    """
    return None if _kind(value) in (None, "cpu") else "the kernel is for CPUs"


def on_cpu(value: object) -> bool:
    """Return whether this value is on a CPU, and CPUs are not taken for GPUs (`as_on_a_gpu`)."""
    return _kind(value) == "cpu"


def _kind(value: object) -> str | None:
    device = getattr(value, "device", None)
    if device is None:
        return None
    return "cuda" if device.type == "cpu" and cpus_are_gpus.get() else str(device.type)


def under_torch_compile() -> bool:
    """Return whether `torch.compile` is compiling, which torch itself keeps track of."""
    return TracingContext.try_get() is not None


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Apply rules for GPUs on CPUs and to float64, too: operators run as their references there.

    This shows what a GPU would get, and compares it with eager torch without one. `off_gpu`,
    `off_cpu`, `on_cpu` and `computes_in` answer accordingly; nothing else depends on it.
    """
    before = cpus_are_gpus.set(True)
    try:
        yield
    finally:
        cpus_are_gpus.reset(before)
