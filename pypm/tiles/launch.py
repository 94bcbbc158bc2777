"""Launches of emitted kernels on Hopper GPUs, and the reasons for which there is none.

A kernel is compiled once for each device. Its grid has a program for each multiprocessor, and these
share the tiles of the result. A TMA descriptor is an argument of a kernel, passed by value: a CUDA
graph that captures the launch holds it. It depends on address, shape and strides alone, and is kept
by these without keeping the memory: what lies there later, in the same shape, has the same one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from pypm.kernels.support.devices import off_gpu
from pypm.kernels.support.hopper import KernelHandle, no_hopper
from pypm.tiles.arguments import (
    ALIGNMENT,
    Descriptor,
    KernelArgument,
    Pointer,
    SizeArgument,
    StrideArgument,
    misplaced,
)
from pypm.tiles.build import compiled, layout_of
from pypm.tiles.emit import Emitted
from pypm.tiles.program import DTYPES, TileProgram
from pypm.tiles.reference import sizes_of

if TYPE_CHECKING:
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

__all__ = ["FEWEST", "MULTIPROCESSORS", "launched", "multiprocessors", "placed", "refusal"]

MULTIPROCESSORS: Final = 132
"""Those of an H100 SXM and an H200: assumed for a GPU that is described and not there."""
FEWEST: Final = 0.9
"""The least tiles for each multiprocessor; those at the edges count for the part that is filled."""


# --- where a kernel runs -------------------------------------------------------------------------


def refusal(kernel: Emitted, operands: Mapping[str, Tensor]) -> str | None:
    """Return why a kernel does not compute these operands, its results among them; or None.

    Values of a trace have no addresses: those are looked at when the kernel is launched. Raises
    ValueError if two operands disagree about a size.
    """
    program, first = kernel.source.program, next(iter(operands.values()))
    if any(x.device != first.device for x in operands.values()):
        return "the operands are on several devices"
    reason = off_gpu(first) or no_hopper(first.device)
    if reason is not None:
        return reason
    for operand in program.operands:
        x, dtype = operands[operand.name], DTYPES[operand.dtype]
        if x.dtype != dtype:
            return f"`{operand.name}` is {x.dtype}, and its kernel for {dtype}"
        if not x.numel():
            return f"`{operand.name}` is empty"
    for operand in program.operands:
        if (reason := _misplaced(kernel, operand.name, operands[operand.name])) is not None:
            return reason
    sizes, available = sizes_of(program, operands), multiprocessors(first.device)
    tiles = prod(sizes[axis.of] / axis.block for axis in program.grid if not axis.is_whole)
    if tiles < FEWEST * available:
        return f"{tiles:.3g} full tiles leave some of {available} multiprocessors without work"
    return None


def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU; that of an H100 if it is not there."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return MULTIPROCESSORS
    found: int = torch.cuda.get_device_properties(device).multi_processor_count
    return found


def _misplaced(kernel: Emitted, name: str, x: Tensor) -> str | None:
    found = (a for a in kernel.arguments if not isinstance(a, SizeArgument) and a.operand == name)
    return next((reason for a in found if (reason := misplaced(a, x)) is not None), None)


def _tiles(program: TileProgram, sizes: Mapping[str, int]) -> int:
    """Return the number of tiles; at most, if each segment of rows may end with a part of one."""
    counts = {axis.name: ceil(sizes[axis.of] / axis.block) for axis in program.grid}
    if program.segments is not None:
        counts[program.segments.rows] += sizes[program.segments.axis.of]
    return prod(counts.values())


# --- launching -----------------------------------------------------------------------------------


def launched(kernel: Emitted, operands: Mapping[str, Tensor]) -> None:
    """Run a kernel on the GPU of its operands, on the current stream.

    `operands` has a tensor for every operand of the program; it computes into those that the
    program stores to. Operands that TMA cannot copy where they lie are copied before. Raises
    ValueError if the kernel does not compute these operands, with the reason.
    """
    given = placed(kernel, operands)
    reason = refusal(kernel, given)
    if reason is not None:
        raise ValueError(f"no kernel of `pypm.tiles` runs: {reason}")
    device = next(iter(given.values())).device
    sizes = sizes_of(kernel.source.program, given)
    grid = min(multiprocessors(device), _tiles(kernel.source.program, sizes))
    _handle(kernel, device)[grid, 1, 1](*_values(kernel, given, sizes))


def placed(kernel: Emitted, operands: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return operands that lie as a kernel takes them: copies of those that do not.

    Results are returned as they are.
    """
    results = kernel.source.program.results
    return {n: x if n in results else _placed(kernel, n, x) for n, x in operands.items()}


def _placed(kernel: Emitted, name: str, x: Tensor) -> Tensor:
    is_wrong = x.data_ptr() % ALIGNMENT or _misplaced(kernel, name, x) is not None
    return x.clone(memory_format=torch.contiguous_format) if is_wrong else x


_HANDLES: Final[dict[tuple[str, torch.device], KernelHandle]] = {}
"""Compiled kernels by text; a handle is loaded on the device on which it first runs."""


def _handle(kernel: Emitted, device: torch.device) -> KernelHandle:
    key = kernel.text, device
    if key not in _HANDLES:
        _HANDLES[key] = compiled(kernel)
    return _HANDLES[key]


def _values(
    kernel: Emitted, operands: Mapping[str, Tensor], sizes: Mapping[str, int]
) -> Iterator[Tensor | TensorDescriptor | int]:
    program = kernel.source.program
    for argument in kernel.arguments:
        yield _value(program, argument, operands, sizes)


def _value(
    program: TileProgram, argument: KernelArgument, operands: Mapping[str, Tensor],
    sizes: Mapping[str, int],
) -> Tensor | TensorDescriptor | int:  # fmt: skip
    match argument:
        case Descriptor(_, name, box):
            x = operands[name]
            address = Address(x.data_ptr(), x.dtype)
            return _descriptor(address, x.shape, x.stride(), box, program.operand(name).dtype)
        case Pointer(_, name):
            return operands[name]
        case StrideArgument(_, name):
            return argument.of(operands[name])
        case SizeArgument(name):
            return sizes[name]


@dataclass(frozen=True, slots=True)
class Address:
    """The place of a tensor in memory, which is not kept by it."""

    at: int
    dtype: torch.dtype

    def data_ptr(self) -> int:
        return self.at


@lru_cache(maxsize=4096)
def _descriptor(
    address: Address, shape: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...],
    dtype: str,
) -> TensorDescriptor:  # fmt: skip
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    return TensorDescriptor(address, [*shape], [*strides], [*box], layout_of(dtype, box))
