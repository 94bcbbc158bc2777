"""Tensors in the layouts that kernels take."""

from __future__ import annotations

from torch import Tensor

from pypm.fx import is_scalar, same_size

__all__ = ["packed", "rows"]


def packed(x: Tensor) -> Tensor:
    """Return x, a tensor or proxy [..., n], with the elements of a row side by side.

    A copy where the last stride is not known to be 1.
    """
    last = x.stride(-1)
    is_packed = is_scalar(last) and same_size(last, 1)
    return x if is_packed else x.contiguous()


def rows(x: Tensor) -> Tensor:
    """Return x [..., columns] as packed [rows, columns]; a copy only where strides need one."""
    return packed(x.reshape(-1, x.shape[-1]))
