"""Persistent kernels built for Hopper on any machine, and checks of the instructions in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from pypm.events.grids import refuse
from pypm.events.triton.text import ARGUMENTS, PersistentKernel
from pypm.kernels.support.hopper import KernelHandle, assembled, function_of

__all__ = ["WARPS", "BuiltKernel", "built", "check_order", "compiled"]

WARPS: Final = 8
REGISTERS: Final = 255
"""All that a thread can have: the assembler would spill some to let more programs be resident."""
WAIT: Final = "ld.global.gpu.acquire"
NOTIFY: Final = "atom.global.gpu.release.add"
TICKET: Final = "atom.global.gpu.relaxed.add"


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """A kernel for compute capability 9.0, and the figures of its assembler."""

    digest: str
    """The SHA-256 of the text that was compiled."""
    ptx: str
    registers: int
    spilled: int
    """Bytes of registers that did not fit and are stored."""
    shared: int
    """Bytes of shared memory."""
    is_cooperative: bool
    """True if a grid is refused of which not all programs can be resident."""

    def __str__(self) -> str:
        return (
            f"{self.registers} registers, {self.spilled} bytes spilled,"
            f" {self.shared:,} bytes shared"
        )


def built(kernel: PersistentKernel) -> BuiltKernel:
    """Return a kernel, compiled by the Triton that is installed, with what its assembler says.

    Raises what `compiled` does.
    """
    found = compiled(kernel)
    ptx, metadata = found.asm["ptx"], found.metadata
    by = assembled(ptx)
    is_cooperative = metadata.launch_cooperative_grid
    return BuiltKernel(
        kernel.digest, ptx, by.registers, by.spilled, metadata.shared, is_cooperative
    )


def compiled(kernel: PersistentKernel) -> KernelHandle:
    """Return Triton's handle of a kernel for compute capability 9.0, as yet on no device.

    It has to be launched as a cooperative grid, all of whose programs are resident. Raises
    EventError if `check_order` does; and whatever the compiler raises.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(
        fn=function_of(kernel.text),
        signature=dict(ARGUMENTS),
        constexprs={},
    )
    options = {"num_warps": WARPS, "maxnreg": REGISTERS, "launch_cooperative_grid": True}
    found = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    check_order(found.asm["ptx"])
    return cast("KernelHandle", found)


def check_order(ptx: str) -> None:
    """Raise EventError unless the instructions of a kernel keep the order of its events.

    Waits are loads with acquire; after each, all threads meet before one reads what others wrote.
    Arrivals are additions with release; before each, all threads meet after their last stores. No
    load may come from the cache for memory that nobody writes.
    """
    lines = [line for line in ptx.splitlines() if _KINDS.search(line)]
    kinds = [_kind(line) for line in lines]
    for wanted, what in (("wait", WAIT), ("notify", NOTIFY), ("ticket", TICKET)):
        if wanted not in kinds:
            raise refuse(f"the compiled kernel has no {what}")
    if "constant" in kinds:
        raise refuse("the compiled kernel loads through the cache for constant memory")
    for n, kind in enumerate(kinds):
        if kind == "wait" and next((k for k in kinds[n + 1 :] if k != "wait"), "") != "barrier":
            raise refuse("the compiled kernel reads after a wait before its threads meet")
        if kind == "notify" and _before(kinds[:n]) != "barrier":
            raise refuse("the compiled kernel notifies after a store before its threads meet")


_PATTERNS: Final[Mapping[str, str]] = {
    "constant": r"ld\.global\.nc|ld\.global\S*\.nc",
    "wait": re.escape(WAIT),
    "notify": re.escape(NOTIFY),
    "ticket": re.escape(TICKET),
    "barrier": r"bar\.sync|barrier\.sync",
    "load": r"ld\.global|cp\.async\S*\.shared",
    "store": r"st\.global",
}
_KINDS: Final = re.compile("|".join(_PATTERNS.values()))


def _kind(line: str) -> str:
    return next(kind for kind, pattern in _PATTERNS.items() if re.search(pattern, line))


def _before(kinds: list[str]) -> str:
    """Return the last of a barrier and a store."""
    return next((kind for kind in reversed(kinds) if kind in ("barrier", "store")), "")
