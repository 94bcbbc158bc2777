"""Values to run graphs on: random ones, and those on which rewrites go wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

__all__ = ["KINDS", "filled"]

KINDS: Final = (
    "small integers",
    "normal",
    "positive",
    "zeros",
    "ones",
    "large",
    "tiny",
    "infinities",
    "nans",
    "signed zeros",
)
"""Fillings of tensors, the plainest first."""


def filled(kind: str, likes: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Tensors with the shapes, strides and dtypes of `likes`, the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return [_filled(kind, like, generator) for like in likes]


def _filled(kind: str, like: Tensor, generator: torch.Generator) -> Tensor:
    sizes = zip(like.shape, like.stride(), strict=True)
    extent = 1 + sum(max(n - 1, 0) * stride for n, stride in sizes)
    values = _values(kind, extent, generator)
    if like.dtype.is_complex:
        values = torch.complex(values, _values(kind, extent, generator))
    elif like.dtype == torch.bool:
        values = values > 0
    elif not like.dtype.is_floating_point:
        values = values.nan_to_num(0.0, 7.0, -7.0).round()
        values = values if like.dtype.is_signed else values.abs()
    return values.to(like.dtype).as_strided(like.shape, like.stride())


def _values(kind: str, count: int, generator: torch.Generator) -> Tensor:
    normal = torch.randn(count, generator=generator, dtype=torch.float64)
    at = torch.randint(0, 4, (count,), generator=generator)
    match kind:
        case "small integers":
            return torch.randint(-3, 4, (count,), generator=generator).double()
        case "positive":
            return normal.abs() + 0.1
        case "zeros":
            return torch.zeros(count, dtype=torch.float64)
        case "ones":
            return torch.ones(count, dtype=torch.float64)
        case "large":
            return normal * 1e3
        case "tiny":
            return normal * 1e-3
        case "infinities":
            return normal.where(at > 1, torch.inf * (1 - 2 * at))
        case "signed zeros":
            return normal.where(at > 1, 0.0 * (1 - 2 * at))
        case "nans":
            return normal.where(at > 0, torch.nan)
        case _:
            return normal
