"""Triton, if it is installed, and the types of its kernels."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from pypm.kernels.support.devices import cpus_are_gpus, off_gpu

__all__ = [
    "agree",
    "computes_in",
    "jit",
    "launcher",
    "launches_are_nodes",
    "missing",
    "nothing",
    "precision",
    "tl",
    "triton",
]

try:
    import triton
    import triton.language as tl
except ImportError:  # on macOS: what is decorated is never called there
    triton = tl = None

_TYPES: Final = (torch.float16, torch.bfloat16, torch.float32)


def jit(kernel: Callable[..., object]) -> Any:
    """Return `triton.jit(kernel)`, or the kernel itself without Triton."""
    return kernel if triton is None else triton.jit(kernel)


@jit
def nothing() -> tuple[()]:
    """Return an empty tuple, to which a kernel adds what it loads; of any type to mypy."""
    return ()


K = TypeVar("K")

launches_are_nodes: Final = ContextVar("launches_are_nodes", default=False)
"""True while a launch is traced, as `pypm.kernels.support.inlining` does."""


def launcher(kernel: K) -> K:
    """Return what launches a kernel by `[grid](...)`: at once, or as a node of a graph."""
    if not launches_are_nodes.get():
        return kernel
    wrapped: K = torch.library.wrap_triton(kernel)  # type: ignore[arg-type]
    return wrapped


def computes_in(dtype: torch.dtype) -> bool:
    """Return whether kernels take this type; float64 only within `as_on_a_gpu`."""
    return dtype in _TYPES or (dtype == torch.float64 and cpus_are_gpus.get())


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
