"""Kernels of generated text, built for Hopper on any machine: functions, and their assembler."""

from __future__ import annotations

import hashlib
import linecache
import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol, cast

import torch

__all__ = ["Assembled", "KernelHandle", "assembled", "function_of", "no_hopper"]

CAPABILITY: Final = (9, 0)
"""The compute capability of Hopper."""


class KernelMetadata(Protocol):
    """The figures of a compiled kernel that are read here."""

    shared: int
    launch_cooperative_grid: bool


class KernelHandle(Protocol):
    """A kernel as Triton returns it: indexed by a grid, it is a function of its arguments."""

    asm: Mapping[str, str]
    metadata: KernelMetadata

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
        """Return the launch of a grid, on the current device and stream."""


def no_hopper(device: torch.device) -> str | None:
    """Return why no kernel for Hopper runs on a device; None if one does, or there is no GPU."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_capability(device)
    if found == CAPABILITY:
        return None
    return f"the kernel is for compute capability 9.0, and this GPU has {found[0]}.{found[1]}"


@dataclass(frozen=True, slots=True)
class Assembled:
    """Figures and messages of the assembler for a kernel."""

    registers: int
    """Those of a thread."""
    spilled: int
    """Bytes of registers that did not fit and are stored."""
    messages: str


def function_of(text: str) -> Callable[..., None]:
    """Return the function `kernel` of a text, which Triton can compile."""
    file = f"<pypm {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    # Triton reads the source of what it compiles
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    scope: dict[str, object] = {"__name__": "__main__"}
    exec(compile(text, file, "exec"), scope)
    return cast("Callable[..., None]", scope["kernel"])


def assembled(ptx: str) -> Assembled:
    """Return what Triton's assembler says of a text in PTX for compute capability 9.0.

    Raises CalledProcessError if it does not take the text.
    """
    from triton.backends.nvidia.compiler import get_ptxas  # that of the kernel: 3.9 has several

    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        done = subprocess.run(
            [get_ptxas(90).path, "-v", "-arch=sm_90a", str(source), "-o", f"{source}.cubin"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
    (registers,) = re.findall(r"Used (\d+) registers", done.stderr)
    (spilled,) = re.findall(r"(\d+) bytes spill stores", done.stderr)
    return Assembled(int(registers), int(spilled), done.stderr)
