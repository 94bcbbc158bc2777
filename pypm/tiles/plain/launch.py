"""Plain kernels of tile programs: built for Hopper on any machine, and launched."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import ceil, prod
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import Tensor

from pypm.kernels.support.hopper import KernelHandle, function_of
from pypm.tiles.arguments import (
    Descriptor,
    KernelArgument,
    Pointer,
    SizeArgument,
    StrideArgument,
    misplaced,
)
from pypm.tiles.build import INSTRUCTIONS, Built, aligned, check, described
from pypm.tiles.plain.kernel import PlainKernel
from pypm.tiles.reference import sizes_of

if TYPE_CHECKING:
    from triton.tools.tensor_descriptor import TensorDescriptor

__all__ = ["plain_built", "plain_launched"]

STAGES: Final = 3
"""Turns of a loop whose copies are in flight at once."""
_PIPELINED: Final = ("wgmma", "TMA")
"""Instructions of every kernel with products."""


def plain_built(kernel: PlainKernel, stages: int = STAGES) -> Built:
    """Return a kernel, compiled for compute capability 9.0 by the Triton that is installed.

    Raises TileError if Triton dropped the specialization that it was asked for, or the kernel needs
    more shared memory than Hopper has; and whatever the compiler raises.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {a.name: _type(kernel, a) for a in kernel.arguments}
    source = ASTSource(
        fn=function_of(kernel.text), signature=signature, constexprs={},
        attrs=aligned(kernel.arguments),
    )  # fmt: skip
    options = {"num_warps": kernel.warps, "num_stages": stages}
    target = GPUTarget("cuda", 90, 32)
    found = cast("KernelHandle", triton.compile(source, target=target, options=options))
    needed: Mapping[str, str] = {}
    if kernel.source.arefs:
        names = INSTRUCTIONS if kernel.by_triton else _PIPELINED
        needed = {name: INSTRUCTIONS[name] for name in names}
    check(found.asm["ptx"], found.metadata.shared, needed)
    return described(kernel.digest, found)


def _type(kernel: PlainKernel, argument: KernelArgument) -> str:
    match argument:
        case Descriptor(_, operand, box):
            return f"tensordesc<{kernel.source.program.operand(operand).dtype}{[*box]}>"
        case Pointer(_, operand):
            return f"*{kernel.source.program.operand(operand).dtype}"
        case StrideArgument() | SizeArgument():
            return "i32"


def plain_launched(
    kernel: PlainKernel, operands: Mapping[str, Tensor], *, programs: int | None = None,
    stages: int = STAGES,
) -> None:  # fmt: skip
    """Run a kernel on the device of its operands, or in Triton's interpreter.

    Arguments:
        kernel: the kernel, which computes into the operands that the program stores to.
        operands: a tensor for every operand of the program.
        programs: the most programs, which share the tiles; None for one each.
        stages: turns of the loop whose copies are in flight at once.

    Raises ValueError if operands disagree about a size, or the kernel does not read or write one
    where it lies; and what Triton raises.
    """
    program = kernel.source.program
    sizes = sizes_of(program, operands)
    for each in kernel.arguments:
        if not isinstance(each, SizeArgument):
            reason = misplaced(each, operands[each.operand])
            if reason is not None:
                raise ValueError(reason)
    values = [_value(each, operands, sizes) for each in kernel.arguments]
    tiles = prod(ceil(sizes[axis.of] / axis.block) for axis in program.grid)
    grid = min(tiles, programs or tiles), 1, 1
    if kernel.by_triton:
        _with_room_for_descriptors(next(iter(operands.values())).device)
    launch: Any = _function(kernel.text)
    launch[grid](*values, num_warps=kernel.warps, num_stages=stages)


_function: Final = lru_cache(maxsize=256)(function_of)
"""A kernel is compiled once for its function."""


def _with_room_for_descriptors(device: torch.device) -> None:
    """Let Triton allocate the memory in which kernels make descriptors."""
    import triton

    def room(size: int, alignment: int, stream: int | None) -> Tensor:
        return torch.empty(size, dtype=torch.int8, device=device)

    triton.set_allocator(room)


def _value(
    argument: KernelArgument, operands: Mapping[str, Tensor], sizes: Mapping[str, int]
) -> Tensor | TensorDescriptor | int:
    from triton.tools.tensor_descriptor import TensorDescriptor

    match argument:
        case Descriptor(_, name, box):
            return TensorDescriptor.from_tensor(operands[name], [*box])
        case Pointer(_, name):
            return operands[name]
        case StrideArgument(_, name):
            return argument.of(operands[name])
        case SizeArgument(name):
            return sizes[name]
