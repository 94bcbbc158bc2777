"""RMSNorm of a sum, quantized to int8 with a scale for each row, in one pass over the rows.

On CPUs it is computed in C++ where there is a compiler; else `reference` runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from pypm.kernels.support import native
from pypm.kernels.support.registration import custom_operator

__all__ = ["compute", "quantized_norm", "reference", "unsupported"]

SOURCE: Final = Path(__file__).with_suffix(".cpp")
NATIVE: Final = (torch.float32, torch.float64)
"""Types of the kernel in C++."""


def unsupported(x: Tensor, y: Tensor, weight: Tensor | None) -> str | None:
    """Return why the kernel in C++ does not take these operands of `reference`; or None."""
    return native.unsupported(SOURCE, NATIVE, x, y, weight)


def compute(
    x: Tensor,
    y: Tensor,
    weight: Tensor | None,
    eps: float,
    top: float,
    low: float,
    least: float,
    most: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what `reference` returns, in C++ where it can be."""
    if unsupported(x, y, weight) is not None:
        return reference(x, y, weight, eps, top, low, least, most)
    kernel = native.operator(SOURCE, "quantized_norm_native")
    found: tuple[Tensor, Tensor, Tensor] = kernel(x, y, weight, eps, top, low, least, most)
    return found


def empty(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.empty(x.shape, dtype=torch.int8, device=x.device),
        torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device),
        torch.empty(x.shape, dtype=x.dtype, device=x.device),
    )


def reference(
    x: Tensor,
    y: Tensor,
    weight: Tensor | None,
    eps: float,
    top: float,
    low: float,
    least: float,
    most: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the RMSNorm n of x + y in steps of a scale for each row, the scales, and x + y.

    Arguments:
        x, y: [..., columns], of one floating-point type.
        weight: [columns], or None for ones.
        eps: added to the mean square.
        top: the largest value in steps; a scale is max(largest magnitude of the row, low) / top.
        low: the smallest magnitude for which a scale is computed.
        least, most: the lowest and the highest value in steps: whole numbers of eight bits.

    n is x / sqrt(mean x^2 + eps) * weight over the last dimension, computed in float32 or wider and
    rounded to the type of x. The first result is int8 [..., columns]: n / scale, rounded and
    clamped to [least, most]. Scales are float32 [..., 1].
    """
    total = x + y
    wide = total.to(torch.promote_types(total.dtype, torch.float32))
    n = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    n = (n if weight is None else n * weight).to(total.dtype).to(wide.dtype)
    scale = n.abs().amax(-1, keepdim=True).clamp(min=low) / top
    q = (n / scale).clamp(least, most).round().to(torch.int8)
    return q.contiguous(), scale.to(torch.float32).contiguous(), total.contiguous()


def misfit(x: Tensor) -> str | None:
    """Return why rows of x have no norm, or None."""
    if not x.dtype.is_floating_point:
        return f"`x` is {x.dtype}; it must be of a floating-point type"
    return None if x.shape[-1] else "`x` has no columns"


quantized_norm = custom_operator(
    "pypm::quantized_norm",
    compute,
    outputs=empty,
    unsupported=unsupported,
    operands={
        "x": "[*rows, columns] T",
        "y": "[*rows, columns] T",
        "weight": "[columns] T?",
    },
    requires=misfit,
    reference=reference,
)
