"""Launches of persistent kernels on Hopper GPUs. No rule makes them: a caller binds a step himself.

A launch is cooperative: the driver refuses a grid of which not all programs are resident at once.
Tickets would end without that, too: the earliest task that has not ended belongs to a program that
runs.
"""

from __future__ import annotations

from typing import Final

import torch

from pypm.events.triton.build import compiled
from pypm.events.triton.tables import BoundStep
from pypm.kernels.support.devices import off_gpu
from pypm.kernels.support.hopper import KernelHandle, no_hopper

__all__ = ["launch_refusal", "launched", "resident"]

_HANDLES: Final[dict[tuple[str, torch.device], KernelHandle]] = {}
"""Compiled kernels by text; a handle is loaded on the device on which it first runs."""


def launch_refusal(step: BoundStep) -> str | None:
    """Return why a step is not launched, or None."""
    x = step.operands[0]
    if any(each.device != x.device for each in step.operands):
        return "the operands are on several devices"
    return off_gpu(x) or no_hopper(x.device)


def resident(device: torch.device) -> int:
    """Return a number of programs that are resident on a GPU: one for each multiprocessor."""
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count


def launched(step: BoundStep) -> None:
    """Run a step on the GPU of its operands, on the current stream, into its buffers.

    Raises ValueError with the reason if there is no such launch, and RuntimeError if the driver
    refuses a grid of so many programs.
    """
    reason = launch_refusal(step)
    if reason is not None:
        raise ValueError(f"no persistent kernel of Triton runs: {reason}")
    key = step.kernel.text, step.operands[0].device
    if key not in _HANDLES:
        _HANDLES[key] = compiled(step.kernel)
    _HANDLES[key][step.programs, 1, 1](*step.arguments.values())
