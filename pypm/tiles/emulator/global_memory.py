"""Global memory of the emulated machine: tensors that copies access."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["EmulatedDescriptor"]


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
