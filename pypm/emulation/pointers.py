"""Pointers of emulated kernels: elements of tensors that loads and stores access."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from pypm.emulation.clocks import Fault

__all__ = ["EmulatedPointer", "accessed", "extent", "load_global", "store_global"]


@dataclass(frozen=True, slots=True)
class EmulatedPointer:
    """Addresses in a tensor: offsets, in elements, from its first."""

    tensor: Tensor
    offset: Tensor | int = 0

    @property
    def address(self) -> int:
        """Return the address of one element."""
        return self.tensor.data_ptr() + int(self.offset) * self.tensor.element_size()

    def __add__(self, other: Tensor | int) -> EmulatedPointer:
        return EmulatedPointer(self.tensor, self.offset + other)


def load_global(at: EmulatedPointer, mask: Tensor | None = None, other: float = 0) -> Tensor:
    """Return elements. Raises Fault if one that is not masked lies outside of the tensor."""
    flat, offset, kept = accessed(at, mask, "load")
    if not flat.numel():
        return torch.full(offset.shape, other, dtype=at.tensor.dtype)
    found = flat[torch.where(kept, offset, 0)]
    return torch.where(kept, found, torch.full((), other, dtype=at.tensor.dtype))


def store_global(at: EmulatedPointer, value: Tensor, mask: Tensor | None = None) -> None:
    """Write elements.

    Raises Fault if one that is not masked lies outside of the tensor, or they have another type.
    """
    flat, offset, kept = accessed(at, mask, "store")
    if value.dtype != flat.dtype:
        raise Fault(f"a store of {value.dtype} into {flat.dtype}")
    flat[offset[kept]] = value.expand(offset.shape)[kept]


def accessed(at: EmulatedPointer, mask: Tensor | None, what: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return all elements of a tensor in the order of memory, offsets there, and what is kept."""
    flat = torch.as_strided(at.tensor, (extent(at.tensor),), (1,))
    offset = torch.as_tensor(at.offset)
    kept = torch.ones_like(offset, dtype=torch.bool)
    kept = kept if mask is None else kept & mask
    offset = offset.expand(kept.shape)
    if bool((kept & ((offset < 0) | (offset >= flat.numel()))).any()):
        raise Fault(f"a {what} beyond the end of its tensor")
    return flat, offset, kept


def extent(tensor: Tensor) -> int:
    """Return the elements of memory from a tensor's first to its last."""
    if not tensor.numel():
        return 0
    ends = ((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return 1 + sum(ends)
