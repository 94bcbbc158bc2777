"""The name of this machine's processor, by which figures that were measured on it are kept."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

__all__ = ["processor"]


@cache
def processor() -> str:
    """Return the model of the CPU, and what it can do that other machines of the model cannot."""
    model = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration, UnicodeDecodeError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if "model name" in line)
    return f"{model}, {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores"
