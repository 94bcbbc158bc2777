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
from pypm.tiles.arguments import Descriptor, KernelArgument, Pointer, SizeArgument, StrideArgument
from pypm.tiles.build import KernelHandle, compiled, layout_of
from pypm.tiles.emit import Emitted
from pypm.tiles.program import DTYPES, TileProgram
from pypm.tiles.reference import sizes_of

if TYPE_CHECKING:
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

__all__ = ["ALIGNMENT", "FEWEST", "MULTIPROCESSORS", "launched", "multiprocessors", "refusal"]

CAPABILITY: Final = (9, 0)
"""The compute capability of Hopper."""
MULTIPROCESSORS: Final = 132
"""Those of an H100 SXM and an H200: assumed for a GPU that is described and not there."""
FEWEST: Final = 0.9
"""The least tiles for each multiprocessor; those at the edges count for the part that is filled."""
ALIGNMENT: Final = 16
"""Bytes that divide the address and the strides of what TMA copies."""


# --- where a kernel runs -------------------------------------------------------------------------


def refusal(kernel: Emitted, operands: Mapping[str, Tensor]) -> str | None:
    """Return why a kernel does not compute these operands, its results among them; or None.

    Values of a trace have no addresses: those are looked at when the kernel is launched. Raises
    ValueError if two operands disagree about a size.
    """
    program, first = kernel.source.program, next(iter(operands.values()))
    if any(x.device != first.device for x in operands.values()):
        return "the operands are on several devices"
    reason = off_gpu(first) or _capability(first.device)
    if reason is not None:
        return reason
    for operand in program.operands:
        x, dtype = operands[operand.name], DTYPES[operand.dtype]
        if x.dtype != dtype:
            return f"`{operand.name}` is {x.dtype}, and its kernel for {dtype}"
        if not x.numel():
            return f"`{operand.name}` is empty"
    for name in _copied(kernel):
        if (reason := _alignment(name, operands[name])) is not None:
            return reason
    sizes, available = sizes_of(program, operands), multiprocessors(first.device)
    tiles = prod(sizes[axis.of] / axis.block for axis in program.grid)
    if tiles < FEWEST * available:
        return f"{tiles:.3g} full tiles leave some of {available} multiprocessors without work"
    return None


def multiprocessors(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU; that of an H100 if it is not there."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return MULTIPROCESSORS
    found: int = torch.cuda.get_device_properties(device).multi_processor_count
    return found


def _capability(device: torch.device) -> str | None:
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_capability(device)
    if found == CAPABILITY:
        return None
    return f"the kernel is for compute capability 9.0, and this GPU has {found[0]}.{found[1]}"


def _copied(kernel: Emitted) -> list[str]:
    """Return the operands that TMA copies, each once."""
    return [*dict.fromkeys(a.operand for a in kernel.arguments if isinstance(a, Descriptor))]


def _alignment(name: str, x: Tensor) -> str | None:
    rows, columns = x.stride()
    if columns != 1 and x.shape[1] > 1:
        return f"the elements of a row of `{name}` are not behind one another"
    step = rows * x.element_size()
    if step % ALIGNMENT:
        return f"the rows of `{name}` are {step} bytes apart, and {ALIGNMENT} must divide that"
    if x.storage_offset() * x.element_size() % ALIGNMENT:
        return f"`{name}` begins at an address that {ALIGNMENT} does not divide"
    return None


def _tiles(program: TileProgram, sizes: Mapping[str, int]) -> int:
    return prod(ceil(sizes[axis.of] / axis.block) for axis in program.grid)


# --- launching -----------------------------------------------------------------------------------


def launched(kernel: Emitted, operands: Mapping[str, Tensor]) -> None:
    """Run a kernel on the GPU of its operands, on the current stream.

    `operands` has a matrix for every operand of the program; it computes into those that the
    program stores to. Operands that TMA cannot copy where they lie are copied before. Raises
    ValueError if the kernel does not compute these operands, with the reason.
    """
    results = kernel.source.program.results
    copied = {*_copied(kernel)} - {*results}
    placed = {name: _placed(x, name in copied) for name, x in operands.items()}
    reason = refusal(kernel, placed)
    if reason is not None:
        raise ValueError(f"no kernel of `pypm.tiles` runs: {reason}")
    device = next(iter(placed.values())).device
    sizes = sizes_of(kernel.source.program, placed)
    grid = min(multiprocessors(device), _tiles(kernel.source.program, sizes))
    _handle(kernel, device)[grid, 1, 1](*_values(kernel, placed, sizes))


def _placed(x: Tensor, is_copied: bool) -> Tensor:
    """Return a matrix at an address that kernels take; its strides too, if TMA copies it."""
    is_wrong = x.data_ptr() % ALIGNMENT or (is_copied and _alignment("", x) is not None)
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
        case StrideArgument(_, name, dim):
            return operands[name].stride(dim)
        case SizeArgument(name):
            return sizes[name]


@dataclass(frozen=True, slots=True)
class Address:
    """The place of a matrix in memory, which is not kept by it."""

    at: int
    dtype: torch.dtype

    def data_ptr(self) -> int:
        return self.at


@lru_cache(maxsize=4096)
def _descriptor(
    address: Address, shape: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, int],
    dtype: str,
) -> TensorDescriptor:  # fmt: skip
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    return TensorDescriptor(address, [*shape], [*strides], [*box], layout_of(dtype, box))
