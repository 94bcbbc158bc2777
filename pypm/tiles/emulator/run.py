"""The run of a kernel's text: its functions become generators that yield their operations."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Final, cast

from torch import Tensor

from pypm.emulation.generators import Yielding, dotted
from pypm.emulation.pointers import EmulatedPointer
from pypm.emulation.requests import Body
from pypm.tiles.arguments import (
    Descriptor,
    KernelArgument,
    Pointer,
    SizeArgument,
    StrideArgument,
    misplaced,
)
from pypm.tiles.emit import Emitted
from pypm.tiles.emulator.global_memory import EmulatedDescriptor
from pypm.tiles.emulator.language import scope_of
from pypm.tiles.emulator.machine import Event, Machine
from pypm.tiles.emulator.memory import Agent
from pypm.tiles.reference import sizes_of

__all__ = ["Emulation", "emulate"]


@dataclass(frozen=True, slots=True)
class Emulation:
    """A run without a fault."""

    digest: str
    """The SHA-256 of the text that was executed."""
    log: tuple[tuple[Event, ...], ...]
    """The operations of each program, in the order of the run."""


def emulate(
    kernel: Emitted, operands: Mapping[str, Tensor], *, programs: int = 1, seed: int = 0,
    lateness: float = 0.7, text: str | None = None,
    machines: Callable[[int, float], Machine] = Machine,
) -> Emulation:  # fmt: skip
    """Execute a kernel, which computes into the operands that it stores to.

    Arguments:
        kernel: the kernel.
        operands: a tensor for each operand of its program.
        programs: the number of programs, which share the tiles; they run one after another.
        seed: draws the order in which partitions run and jobs complete.
        lateness: the chance, from 0 to 1, that jobs are left alone while a partition can go on.
        text: the text to execute instead of the kernel's own.
        machines: makes the machine of each program from a seed and the lateness.

    Raises Fault for a deadlock, a race, a misuse of a barrier, or an error in the text; and
    ValueError if two operands disagree about a size, or one has strides that the kernel does not
    take.
    """
    text = kernel.text if text is None else text
    sizes = sizes_of(kernel.source.program, operands)
    given = [_value(argument, operands, sizes) for argument in kernel.arguments]
    logs = []
    for program in range(programs):
        machine = machines(seed * 1009 + program, lateness)
        scope = scope_of(machine, program, programs)
        exec(_code(text), scope)
        made = cast("Callable[..., Body[Agent]]", scope["kernel"])
        machine.run(made(*given))
        logs.append(tuple(machine.log))
    return Emulation(hashlib.sha256(text.encode()).hexdigest(), tuple(logs))


def _value(
    argument: KernelArgument, operands: Mapping[str, Tensor], sizes: Mapping[str, int]
) -> EmulatedDescriptor | EmulatedPointer | int:
    if isinstance(argument, SizeArgument):
        return sizes[argument.name]
    x = operands[argument.operand]
    match argument:
        case Descriptor():
            return EmulatedDescriptor(x, argument.box)
        case Pointer() | StrideArgument():
            reason = misplaced(argument, x)
            if reason is not None:
                raise ValueError(reason)
            return EmulatedPointer(x) if isinstance(argument, Pointer) else argument.of(x)


# --- from functions to generators ----------------------------------------------------------------

OPERATIONS: Final = frozenset(
    {
        *("mbarrier.wait", "mbarrier.arrive", "mbarrier.expect", "tma.store_wait"),
        *("tma_load", "tma_store", "fence_async_shared", "sync", "gl.shared_store", "gl.store"),
        *("warpgroup_mma", "warpgroup_mma_wait", "gl.warp_specialize"),
    }
)
"""Functions that return a request."""


@lru_cache(maxsize=256)
def _code(text: str) -> CodeType:
    tree = Yielding(OPERATIONS).visit(_Gluon().visit(ast.parse(text)))
    return compile(tree, "<emulated kernel>", "exec")


class _Gluon(ast.NodeTransformer):
    """Names what is allocated, and calls a function for the method of a tile."""

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        match node:
            case ast.Assign([ast.Name(name)], ast.Call(function) as call) if (
                dotted(function) == "gl.allocate_shared_memory"
            ):
                label = ast.copy_location(ast.Constant(name), call)
                call.keywords.append(ast.copy_location(ast.keyword("label", label), call))
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node.func:
            case ast.Attribute(tile, "store") if dotted(node.func) != "gl.store":
                gl = ast.copy_location(ast.Name("gl", ast.Load()), node)
                function = ast.copy_location(ast.Attribute(gl, "shared_store", ast.Load()), node)
                call = ast.Call(function, [tile, *node.args], node.keywords)
                node = ast.copy_location(call, node)
        return node
