"""Inductor's caches in tests: without graphs, with the kernels in C++ that the run compiled."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

__all__ = ["CACHE", "fresh_cache_in"]

CACHE: Final = "TORCHINDUCTOR_CACHE_DIR"
KERNELS: Final = "pypm/native"


def fresh_cache_in(folder: Path, kernels: Path | None = None) -> str:
    """Make a folder an Inductor cache without graphs, and return its path.

    PyPM's kernels in C++ take three seconds each to compile, and are found by all that they depend
    on: the cache has those of the folder `kernels`, by default of this process.
    """
    shared = kernels or Path(os.environ[CACHE], KERNELS)
    shared.mkdir(parents=True, exist_ok=True)
    link = folder / KERNELS
    link.parent.mkdir(parents=True)
    link.symlink_to(shared.resolve())
    return str(folder)
