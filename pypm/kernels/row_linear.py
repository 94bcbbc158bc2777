"""Linear layers of a few rows, as a step of decoding has them, which take as long as reading the
weight does. It runs on CPUs, in C++, where there is a compiler; else `reference` runs.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from pypm.fx import is_known_scalar
from pypm.kernels.linear import empty, flops
from pypm.kernels.support import native
from pypm.kernels.support.registration import custom_operator

__all__ = ["compute", "reference", "row_linear", "unsupported"]

SOURCE: Final = Path(__file__).with_suffix(".cpp")
NATIVE: Final = (torch.float32, torch.bfloat16)
"""Types of the kernel in C++."""
ROWS: Final = 4
"""The most rows of which the library has a function; of more, others are as fast."""


def reference(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x weight^T + bias, [*rows, out]; x [*rows, in], weight [out, in], bias [out]."""
    return F.linear(x, weight, bias).contiguous()


def unsupported(x: Tensor, weight: Tensor) -> str | None:
    """Return why the kernel in C++ does not take these operands, or None."""
    rows = prod(x.shape[:-1])
    if not (is_known_scalar(rows) and 0 < rows <= ROWS):
        return f"the rows are not known to be 1 to {ROWS}"
    if not weight.is_contiguous():
        return "the elements of an output do not lie side by side in the weight"
    return native.unsupported(SOURCE, NATIVE, weight)


def compute(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return what `reference` returns; in C++, where it can be, of a sum in float32."""
    if unsupported(x, weight):
        return reference(x, weight, bias)
    found: Tensor = native.operator(SOURCE, "row_linear_native")(x, weight, bias)
    return found


row_linear = custom_operator(
    "pypm::row_linear",
    compute,
    outputs=empty,
    unsupported=unsupported,
    operands={"x": "[*rows, in] T", "weight": "[out, in] T", "bias": "[out] T?"},
    reference=reference,
    flops=flops,
)
