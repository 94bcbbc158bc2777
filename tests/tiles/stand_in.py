"""A stand-in for a kernel that was compiled for Hopper: it reads memory by what a launch passes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pypm.tiles.arguments import Descriptor, Pointer, SizeArgument, StrideArgument
from pypm.tiles.emit import Emitted
from pypm.tiles.emulator import emulate
from pypm.tiles.program import DTYPES

__all__ = ["StandInKernel"]


@dataclass
class StandInKernel:
    """A handle as `pypm.tiles.build.compiled` returns it, whose launches are emulated.

    Operands are made anew from addresses, shapes and strides.
    """

    kernel: Emitted
    launches: list[tuple[int, tuple[Any, ...]]] = field(default_factory=list)
    """The programs of each launch, and its arguments."""

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
        return lambda *given: self.launch(grid[0], given)

    def launch(self, programs: int, given: tuple[Any, ...]) -> None:
        program = self.kernel.source.program
        self.launches.append((programs, given))
        named = dict(zip(self.kernel.arguments, given, strict=True))
        operands, sizes = {}, {}
        for argument, value in named.items():
            match argument:
                case Descriptor(_, operand, box):
                    assert tuple(value.block_shape) == box
                    dtype = DTYPES[program.operand(operand).dtype]
                    operands[operand] = at_address(value, dtype)
                case Pointer(_, operand):
                    assert value.data_ptr() % 16 == 0
                    operands[operand] = value
                case SizeArgument(name):
                    sizes[name] = value
        for argument, value in named.items():
            if isinstance(argument, StrideArgument):
                assert value * argument.unit == operands[argument.operand].stride(argument.dim)
        for operand in program.operands:
            for name, size in zip(operand.sizes, operands[operand.name].shape, strict=True):
                assert sizes.get(name, size) == size
        emulate(self.kernel, operands, programs=programs)


def at_address(descriptor: Any, dtype: torch.dtype) -> Tensor:
    """The tensor that a TMA descriptor describes, in the memory where it is."""
    shape, strides = descriptor.shape, descriptor.strides
    assert strides[-1] == 1
    count = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(descriptor.base.data_ptr())
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides)
