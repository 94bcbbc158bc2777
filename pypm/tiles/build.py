"""Kernels built for Hopper on any machine, down to the binary, and checks of what was built."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from pypm.diagnostics import Diagnostic
from pypm.kernels.support.hopper import KernelHandle, assembled, function_of
from pypm.tiles.arguments import Descriptor, KernelArgument, Pointer, SizeArgument, StrideArgument
from pypm.tiles.emit import CONSUMER_REGISTERS, Emitted
from pypm.tiles.partition import SHARED_MEMORY
from pypm.tiles.program import TileError, TileProgram

if TYPE_CHECKING:
    from triton.experimental.gluon.language import NVMMASharedLayout

__all__ = [
    "INSTRUCTIONS",
    "Built",
    "aligned",
    "built",
    "check",
    "compiled",
    "described",
    "layout_of",
]

INSTRUCTIONS: Final[Mapping[str, str]] = {
    "wgmma": "wgmma.mma_async",
    "TMA": "cp.async.bulk.tensor",
    "mbarrier": "mbarrier.try_wait",
    "setmaxnreg": "setmaxnreg",
}
"""Instructions of a warp-specialized kernel, by the names that diagnostics use. A program without
products has none of them."""


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel for compute capability 9.0, and the figures of its assembler."""

    digest: str
    """The SHA-256 of the text that was compiled."""
    ptx: str
    registers: int
    spilled: int
    """Bytes of registers that did not fit and are stored."""
    shared: int
    """Bytes of shared memory."""
    is_serialized: bool
    """True if products wait for one another, because registers of those in flight did not fit."""

    def __str__(self) -> str:
        counts = ", ".join(f"{self.ptx.count(op)} {name}" for name, op in INSTRUCTIONS.items())
        return (
            f"{self.registers} registers, {self.spilled} bytes spilled,"
            f" {self.shared:,} bytes shared; {counts}{'; serialized' if self.is_serialized else ''}"
        )


def built(kernel: Emitted) -> Built:
    """Return a kernel, compiled by the Triton that is installed, with what its assembler says.

    Raises what `compiled` does.
    """
    found = compiled(kernel)
    return described(kernel.digest, found)


def compiled(kernel: Emitted) -> KernelHandle:
    """Return Triton's handle of a kernel for compute capability 9.0, as yet on no device.

    Raises TileError if the compiler dropped the specialization, or needs more shared memory than
    Hopper has; and whatever the compiler raises.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    signature = {a.name: _type(kernel.source.program, a) for a in kernel.arguments}
    source = GluonASTSource(
        fn=function_of(kernel.text),
        signature=signature,
        constexprs={},
        attrs=aligned(kernel.arguments),
    )
    options = {"num_warps": 4, "maxnreg": _registers(kernel)}
    found = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    needed = INSTRUCTIONS if kernel.source.arefs else {}
    check(found.asm["ptx"], found.metadata.shared, needed)
    return cast("KernelHandle", found)


def _registers(kernel: Emitted) -> int:
    """Return the registers of a thread at the start, which all warps have alike."""
    warp_groups = kernel.source.rings.groups + bool(kernel.source.arefs)
    return min(CONSUMER_REGISTERS, 65536 // (128 * warp_groups) // 8 * 8)


def _type(program: TileProgram, argument: KernelArgument) -> str:
    match argument:
        case Descriptor(_, operand, box):
            dtype = program.operand(operand).dtype
            return f"tensordesc<{dtype}{[*box]},{layout_of(dtype, box)!r}>"
        case Pointer(_, operand):
            return f"*{program.operand(operand).dtype}"
        case StrideArgument() | SizeArgument():
            return "i32"


def layout_of(dtype: str, box: Sequence[int]) -> NVMMASharedLayout:
    """Return Gluon's layout in shared memory of boxes with elements of a program's type."""
    from triton.experimental.gluon.language import NVMMASharedLayout, bfloat16, float16

    element = {"bf16": bfloat16, "fp16": float16}[dtype]
    return NVMMASharedLayout.get_default_for([*box], element)


def aligned(arguments: Sequence[KernelArgument]) -> dict[tuple[int], list[list[str | int]]]:
    """Return Triton's attributes of arguments: addresses are multiples of 16 bytes."""
    places = [n for n, a in enumerate(arguments) if isinstance(a, Pointer)]
    return {(place,): [["tt.divisibility", 16]] for place in places}


def described(digest: str, kernel: KernelHandle) -> Built:
    """Return what the assembler says about a compiled kernel, whose text has the digest."""
    ptx = kernel.asm["ptx"]
    by = assembled(ptx)
    is_serialized = "wgmma.mma_async instructions are serialized" in by.messages
    return Built(digest, ptx, by.registers, by.spilled, kernel.metadata.shared, is_serialized)


def check(ptx: str, shared: int, needed: Mapping[str, str] = INSTRUCTIONS) -> None:
    """Raise TileError if a kernel lacks instructions, or needs more shared memory than there is."""
    lacking = [name for name, op in needed.items() if op not in ptx]
    if lacking:
        raise TileError(
            Diagnostic(
                f"the compiled kernel is not specialized: it has no {', '.join(lacking)}",
                help="this version of Triton drops the specialization; use another one",
            )
        )
    if shared > SHARED_MEMORY:
        raise TileError(
            Diagnostic(
                f"the compiled kernel needs {shared:,} bytes of shared memory, and Hopper has"
                f" {SHARED_MEMORY:,}",
                help="use fewer slots or smaller tiles",
            )
        )
