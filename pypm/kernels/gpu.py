"""Triton where it is installed, and what its kernels ask of a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor

__all__ = [
    "DEVICES",
    "LONGEST_ROW",
    "WIDEST",
    "as_on_a_gpu",
    "blocks",
    "jit",
    "missing",
    "off_gpu",
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
DEVICES: tuple[str, ...] = ("cuda",)
"""Where kernels run; elsewhere operators run as their references."""
WIDEST: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16, torch.float32)
"""What kernels compute with."""


def jit(kernel: Callable[..., Any]) -> Any:
    """`triton.jit`, where there is Triton."""
    return kernel if triton is None else triton.jit(kernel)


def off_gpu(value: Any, dialect: object = None) -> str | None:
    """Why no kernel makes this value, which is not on a GPU; or None. For `rule(unless=...)`."""
    device = getattr(value, "device", None)
    return None if device is None or device.type in DEVICES else "the kernel is for GPUs"


def missing(*operands: Tensor | None) -> str | None:
    """Why no kernel takes these tensors, whatever their sizes; or None."""
    for x in operands:
        if x is not None and x.dtype not in WIDEST:
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

    To see what a GPU would get, and to hold it against eager without one.
    """
    global DEVICES, WIDEST
    before = DEVICES, WIDEST
    DEVICES, WIDEST = (*DEVICES, "cpu"), (*WIDEST, torch.float64)
    try:
        yield
    finally:
        DEVICES, WIDEST = before


def blocks(columns: int) -> dict[str, int]:
    """How a row is held: the size of its block, and how many warps share it."""
    block = triton.next_power_of_2(columns)
    return {"block": block, "num_warps": min(max(block // 512, 1), 16)}
