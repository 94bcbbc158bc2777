"""Layouts of tensors, by name: each function gives a tensor of the same shape and type in one.

`empty` alone changes the shape. Elements that share memory have one value; all others keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor

__all__ = ["DISTINCT", "LAYOUTS", "OVERLAPPING"]


def contiguous(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def transposed(x: Tensor) -> Tensor:
    """Return columns first: the dimensions lie in memory in the opposite order."""
    order = [*reversed(range(x.dim()))]
    return contiguous(x.permute(order)).permute(order)


def offset(x: Tensor) -> Tensor:
    """Return a part of a longer tensor, which begins one element after its storage."""
    memory = x.new_zeros(x.numel() + 2)
    return memory[1:-1].view(x.shape).copy_(x)


def with_gaps(x: Tensor) -> Tensor:
    """Return rows with space between them: a slice of wider rows."""
    shape = (*x.shape[:-1], x.shape[-1] + 3) if x.dim() else (3,)
    memory = x.new_zeros(shape)
    return (memory[..., : x.shape[-1]] if x.dim() else memory[0]).copy_(x)


def stepped(x: Tensor) -> Tensor:
    """Return every second element of rows that are twice as wide, from the second one on."""
    memory = x.new_zeros((*x.shape, 2)).flatten(-2) if x.dim() else x.new_zeros(2)
    return (memory[..., 1::2] if x.dim() else memory[1]).copy_(x)


def channels_last(x: Tensor) -> Tensor:
    """Return the second dimension innermost, as torch's channels last; of any dimension above 1."""
    return contiguous(x.movedim(1, -1)).movedim(-1, 1) if x.dim() > 1 else contiguous(x)


def expanded(x: Tensor) -> Tensor:
    """Return the first row for all rows: its stride is 0."""
    return contiguous(x[:1]).expand(x.shape) if x.dim() and x.shape[0] else contiguous(x)


def overlapping(x: Tensor) -> Tensor:
    """Return windows that overlap, as by `unfold`: each row is the one before, moved by one."""
    if not x.dim() or not x.numel():
        return contiguous(x)
    rows = x.numel() // x.shape[-1]
    memory = contiguous(x.flatten()[: rows + x.shape[-1] - 1])
    return memory.unfold(0, x.shape[-1], 1).unflatten(0, x.shape[:-1] or (1,)).view(x.shape)


def empty(x: Tensor) -> Tensor:
    """Return no rows."""
    return contiguous(x[:0]) if x.dim() else x.new_zeros(0)


Layout = Callable[[Tensor], Tensor]
DISTINCT: Final[Mapping[str, Layout]] = {
    layout.__name__: layout
    for layout in (contiguous, transposed, offset, with_gaps, stepped, channels_last)
}
"""Layouts in which each element has memory of its own, so that they keep all values."""
OVERLAPPING: Final[Mapping[str, Layout]] = {
    layout.__name__: layout for layout in (expanded, overlapping)
}
"""Layouts in which elements share memory."""
LAYOUTS: Final[Mapping[str, Layout]] = {**DISTINCT, **OVERLAPPING, "empty": empty}
"""All of them."""
