"""Triton, if it is installed, the limits of its kernels, and whether torch.compile compiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import torch
from torch import Tensor

from pypm.torch_internals import TracingContext

__all__ = [
    "agree",
    "as_on_a_gpu",
    "computes_in",
    "jit",
    "missing",
    "nothing",
    "off_cpu",
    "off_gpu",
    "on_cpu",
    "precision",
    "tl",
    "triton",
    "under_torch_compile",
]

try:
    import triton
    import triton.language as tl
except ImportError:  # on macOS: what is decorated is never called there
    triton = tl = None

_TYPES: Final = (torch.float16, torch.bfloat16, torch.float32)
# A context variable: `off_gpu` and the like are asked in guards and bodies, of a value alone.
_cpus_are_gpus = ContextVar("cpus_are_gpus", default=False)


def jit(kernel: Callable[..., object]) -> Any:
    """Return `triton.jit(kernel)`, or the kernel itself without Triton."""
    return kernel if triton is None else triton.jit(kernel)


@jit
def nothing() -> tuple[()]:
    """Return an empty tuple, to which a kernel adds what it loads; of any type to mypy."""
    return ()


def off_gpu(value: object, dialect: object = None) -> str | None:
    """Return why no kernel computes this value, which is not on a GPU; else None.

    For `rule(unless=...)`.
    """
    return None if _kind(value) in (None, "cuda") else "the kernel is for GPUs"


def off_cpu(value: object, dialect: object = None) -> str | None:
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
    return "cuda" if device.type == "cpu" and _cpus_are_gpus.get() else str(device.type)


def under_torch_compile() -> bool:
    """Return whether `torch.compile` is compiling, which torch itself keeps track of."""
    return TracingContext.try_get() is not None


def computes_in(dtype: torch.dtype) -> bool:
    """Return whether kernels take this type; float64 only within `as_on_a_gpu`."""
    return dtype in _TYPES or (dtype == torch.float64 and _cpus_are_gpus.get())


def agree(*operands: Tensor | None) -> bool:
    """Return whether kernels take these tensors of a GPU: of one type, which they compute in."""
    given = {x.dtype for x in operands if x is not None}
    return triton is not None and len(given) == 1 and all(map(computes_in, given))


def missing(*operands: Tensor | None, dtype: torch.dtype | None = None) -> str | None:
    """Return why no kernel takes these tensors, of whatever size; or None.

    `dtype` is the type that they are cast to before, None for their own.
    """
    for x in operands:
        if x is not None and not computes_in(dtype or x.dtype):
            return f"the kernel computes in float32, not in {dtype or x.dtype}"
        if x is not None and (reason := off_gpu(x)) is not None:
            return reason
    return "Triton is not installed" if triton is None else None


def precision() -> str:
    """Return the precision in which kernels multiply float32: TF32 only where torch allows it."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Apply rules for GPUs on CPUs and to float64, too: operators run as their references there.

    This shows what a GPU would get, and compares it with eager torch without one. `off_gpu`,
    `off_cpu`, `on_cpu` and `computes_in` answer accordingly; nothing else depends on it.
    """
    before = _cpus_are_gpus.set(True)
    try:
        yield
    finally:
        _cpus_are_gpus.reset(before)
