"""Global memory of the emulated machine: tensors that copies, loads and stores access."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pypm.tiles.emulator.memory import Fault

__all__ = ["EmulatedDescriptor", "EmulatedPointer", "load_global", "store_global"]


@dataclass(frozen=True, slots=True)
class EmulatedDescriptor:
    """A tensor in global memory, and the shape of the boxes that copies move.

    Copies read zeros beyond the end of the tensor, and write nothing there.
    """

    tensor: Tensor
    box: tuple[int, ...]
    layout: str = "shared"

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    @property
    def size(self) -> int:
        """Bytes of a box; also what a copy at the end of the matrix counts for."""
        return math.prod(self.box) * self.dtype.itemsize

    def part(self, at: Sequence[int]) -> Tensor:
        return self.tensor[tuple(slice(n, n + size) for n, size in zip(at, self.box, strict=True))]

    def read(self, at: Sequence[int]) -> Tensor:
        found, part = torch.zeros(self.box, dtype=self.dtype), self.part(at)
        found[tuple(map(slice, part.shape))] = part
        return found

    def write(self, at: Sequence[int], tile: Tensor) -> None:
        part = self.part(at)
        part.copy_(tile[tuple(map(slice, part.shape))])


@dataclass(frozen=True, slots=True)
class EmulatedPointer:
    """Addresses in a tensor: offsets, in elements, from its first."""

    tensor: Tensor
    offset: Tensor | int = 0

    def __add__(self, other: Tensor | int) -> EmulatedPointer:
        return EmulatedPointer(self.tensor, self.offset + other)


def load_global(at: EmulatedPointer, mask: Tensor | None = None, other: float = 0) -> Tensor:
    """Return elements. Raises Fault if one that is not masked lies outside of the tensor."""
    flat, offset, kept = _accessed(at, mask, "load")
    if not flat.numel():
        return torch.full(offset.shape, other, dtype=at.tensor.dtype)
    found = flat[torch.where(kept, offset, 0)]
    return torch.where(kept, found, torch.full((), other, dtype=at.tensor.dtype))


def store_global(at: EmulatedPointer, value: Tensor, mask: Tensor | None = None) -> None:
    """Write elements.

    Raises Fault if one that is not masked lies outside of the tensor, or they have another type.
    """
    flat, offset, kept = _accessed(at, mask, "store")
    if value.dtype != flat.dtype:
        raise Fault(f"a store of {value.dtype} into {flat.dtype}")
    flat[offset[kept]] = value.expand(offset.shape)[kept]


def _accessed(at: EmulatedPointer, mask: Tensor | None, what: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return all elements of a tensor in the order of memory, offsets there, and what is kept."""
    flat = torch.as_strided(at.tensor, (_extent(at.tensor),), (1,))
    offset = torch.as_tensor(at.offset)
    kept = torch.ones_like(offset, dtype=torch.bool)
    kept = kept if mask is None else kept & mask
    offset = offset.expand(kept.shape)
    if bool((kept & ((offset < 0) | (offset >= flat.numel()))).any()):
        raise Fault(f"a {what} beyond the end of its tensor")
    return flat, offset, kept


def _extent(tensor: Tensor) -> int:
    if not tensor.numel():
        return 0
    ends = ((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return 1 + sum(ends)
