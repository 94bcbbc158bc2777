"""Tensors in the layouts that kernels take."""

from __future__ import annotations

import operator

import torch
from torch import Tensor

from pypm.fx import is_scalar, known_to_hold, same_size

__all__ = ["apart", "empty_rows", "packed"]


def packed(x: Tensor) -> Tensor:
    """Return x, a tensor or proxy [..., n], with the elements of a row side by side.

    A copy where the last stride is not known to be 1.
    """
    last = x.stride(-1)
    is_packed = is_scalar(last) and same_size(last, 1)
    return x if is_packed else x.contiguous()


def apart(x: Tensor) -> Tensor:
    """Return `packed(x)`, with other rows, if there are several, more than one element further on.

    Torch's fused attention on CPUs puts its result in the order of the strides of the queries, and
    takes its last dimension for the innermost: where rows are windows moved by one element, it
    leaves most of the result uninitialized.
    """
    x = packed(x)
    others = [*zip(x.shape, x.stride(), strict=True)][:-1] if is_scalar(x.stride(-1)) else []
    is_apart = all(
        same_size(n, 1) or same_size(step, 0) or known_to_hold(operator.gt, step, 1)
        for n, step in others
    )
    return x if is_apart else x.contiguous()


def empty_rows(x: Tensor) -> Tensor:
    """Return an uninitialized tensor of the shape and type of x, with the elements of a row side by
    side and the rows in the order of those of x, as `empty_like` has it.

    It is dense and does not overlap, whatever the strides of x are: `empty_like` itself puts rows
    first whose strides are those of their elements.
    """
    size = x.shape[-1]
    if same_size(size, 0):
        return x.new_empty(x.shape)
    outer = torch.empty_strided(x.shape[:-1], x.stride()[:-1], device="meta")  # has no memory
    steps = [size * step for step in torch.empty_like(outer).stride()]
    return x.new_empty_strided(x.shape, (*steps, 1))
