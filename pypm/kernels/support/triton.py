"""Triton where it is installed, and what its kernels ask of a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

import torch
from torch import Tensor

__all__ = [
    "LONGEST_ROW",
    "as_on_a_gpu",
    "blocks",
    "computes_in",
    "jit",
    "missing",
    "off_gpu",
    "on_cpu",
    "tl",
    "triton",
    "unsupported",
]

try:
    import triton
    import triton.language as tl
except ImportError:  # on macOS: what is decorated is never called there
    triton = tl = None

LONGEST_ROW: Final = 32768
"""Elements of a row that one program keeps in registers."""
_TYPES: Final = (torch.float16, torch.bfloat16, torch.float32)
_cpus_are_gpus = ContextVar("cpus_are_gpus", default=False)


def jit(kernel: Callable[..., Any]) -> Any:
    """`triton.jit`, where there is Triton."""
    return kernel if triton is None else triton.jit(kernel)


def off_gpu(value: Any, dialect: object = None) -> str | None:
    """Why no kernel makes this value, which is not on a GPU; or None. For `rule(unless=...)`."""
    return None if _kind(value) in (None, "cuda") else "the kernel is for GPUs"


def on_cpu(value: Any) -> bool:
    """Return whether this value is on a CPU, and CPUs are not taken for GPUs (`as_on_a_gpu`)."""
    return _kind(value) == "cpu"


def _kind(value: Any) -> str | None:
    device = getattr(value, "device", None)
    if device is None:
        return None
    return "cuda" if device.type == "cpu" and _cpus_are_gpus.get() else str(device.type)


def computes_in(dtype: torch.dtype) -> bool:
    """Return whether kernels take this type; float64 too, but only within `as_on_a_gpu`."""
    return dtype in _TYPES or (dtype == torch.float64 and _cpus_are_gpus.get())


def missing(*operands: Tensor | None) -> str | None:
    """Why no kernel takes these tensors, whatever their sizes; or None."""
    for x in operands:
        if x is not None and not computes_in(x.dtype):
            return f"the kernel computes in float32, not in {x.dtype}"
        if x is not None and (reason := off_gpu(x)) is not None:
            return reason
    return "Triton is not installed" if triton is None else None


def unsupported(x: Tensor, *others: Tensor | None) -> str | None:
    """Why no kernel takes the rows of `x`, with what else it reads; or None.

    The length of a row must be known.
    """
    if not 0 < x.shape[-1] <= LONGEST_ROW:
        return f"the kernel takes rows of up to {LONGEST_ROW} elements"
    return missing(x, *others)


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Rules for GPUs apply on CPUs and to float64, too: operators run as their references there.

    To see what a GPU would get, and to hold it against eager without one. Rules for CPUs go on
    applying there. What asks for a device or a type at a call asks `off_gpu`, `on_cpu`,
    `computes_in`; nothing else knows of this.
    """
    before = _cpus_are_gpus.set(True)
    try:
        yield
    finally:
        _cpus_are_gpus.reset(before)


def blocks(columns: int) -> dict[str, int]:
    """How a row is held: the size of its block, and how many warps share it."""
    block = triton.next_power_of_2(columns)
    return {"block": block, "num_warps": min(max(block // 512, 1), 16)}
