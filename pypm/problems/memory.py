"""Memory that the harness shares with one worker: the inputs of calls, or their outputs."""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import torch
from torch import Tensor

__all__ = ["Input", "Memory", "Spec", "bits_equal", "dtype_of", "sizes_of"]

Spec = Mapping[str, object]
"""An input or output: its `name`, its `shape` (None for a number), and the name of its `dtype`."""
Input: TypeAlias = Tensor | int | float
"""An input of a computation."""
_ALIGNMENT: Final = 64


class Memory:
    """Tensors in memory that two processes see."""

    def __init__(self, specs: Sequence[Spec], descriptor: int | None = None) -> None:
        """Make memory for some tensors, or open that of a descriptor.

        Its size is sealed, so that nobody can take pages of it away. Numbers are tensors without
        dimensions.
        """
        starts, end = [], 0
        for spec in specs:
            starts.append(end)
            end += math.prod(sizes_of(spec)) * dtype_of(spec).itemsize
            end += -end % _ALIGNMENT
        if descriptor is None:
            descriptor = os.memfd_create("pypm", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(descriptor, max(end, 1))
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        self.descriptor = descriptor
        shared = mmap.mmap(descriptor, max(end, 1), flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self.tensors = [_tensor(shared, at, each) for at, each in zip(starts, specs, strict=True)]

    def close(self) -> None:
        """Close the descriptor; the tensors stay."""
        os.close(self.descriptor)

    def spoil(self) -> None:
        """Fill the tensors so that leaving one as it is makes a wrong result."""
        for each in self.tensors:
            if each.is_floating_point():
                each.view(torch.uint8).fill_(0xFF) if each.dim() else each.fill_(torch.nan)
            else:
                each.random_(0, 2)


def _tensor(shared: mmap.mmap, start: int, spec: Spec) -> Tensor:
    sizes, dtype = sizes_of(spec), dtype_of(spec)
    count = math.prod(sizes)
    if not count:
        return torch.empty(sizes, dtype=dtype)
    return torch.frombuffer(shared, dtype=dtype, count=count, offset=start).view(sizes)


def sizes_of(spec: Spec) -> tuple[int, ...]:
    """Return the sizes of a tensor; a number has none."""
    shape = spec["shape"]
    if shape is None:
        return ()
    assert isinstance(shape, Sequence)
    return tuple(shape)


def dtype_of(spec: Spec) -> torch.dtype:
    """Return the type of a tensor's elements."""
    found = getattr(torch, str(spec["dtype"]))
    assert isinstance(found, torch.dtype)
    return found


def bits_equal(one: Tensor, other: Tensor) -> bool:
    """Return whether all bits of two tensors of the same shape and type are equal."""
    return torch.equal(*(each.reshape(-1).view(torch.uint8) for each in (one, other)))
