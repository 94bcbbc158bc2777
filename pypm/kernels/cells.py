"""Operands for which recurrent cells have kernels in C++."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from pypm.fx import is_known_scalar
from pypm.kernels.support import native

__all__ = ["ROWS", "not_native"]

NATIVE: Final = (torch.float32, torch.float64)
"""Types of the kernels."""
ROWS: Final = 16
"""Rows of a batch up to which they are faster than a library for large matrices."""


def not_native(source: Path, h: Tensor) -> str | None:
    """Return why the kernel of a C++ file does not take states [rows, hidden], or is slower; or
    None.
    """
    rows = h.shape[0]
    if not (is_known_scalar(rows) and 0 < rows <= ROWS):
        return f"the rows are not known to be 1 to {ROWS}"
    return native.unsupported(source, NATIVE, h)
