"""Tiles of Triton's products: their shape by size and device, and their order in the grid."""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from pypm.kernels.support.triton import jit, tl

__all__ = ["GROUP", "ProductTile", "fitting", "ordered", "tile"]


class ProductTile(NamedTuple):
    """Shape of the tile that one program computes, its warps and its pipelined loads."""

    m: int
    n: int
    k: int
    warps: int
    stages: int


GROUP: Final = 8
"""Number of consecutive tiles in a column, which share columns of b in the cache."""


def tile(m: int, n: int, size: int) -> ProductTile:
    """Return the tile for a product [m, n] of elements of `size` bytes."""
    if size == 4:
        return ProductTile(64, 64, 32, 4, 3) if m > 32 else ProductTile(16, 64, 64, 4, 3)
    if m <= 32:
        return ProductTile(16 if m <= 16 else 32, 64, 128, 4, 4)
    if m <= 64 or m * n <= 2048 * 2048:
        return ProductTile(64, 128, 64, 4, 4)
    return ProductTile(128, 128, 64, 8, 4)


def fitting(at: ProductTile, x: Tensor) -> ProductTile:
    """Return the tile with as many pipelined loads of elements of x as its device has room for."""
    if x.device.type != "cuda":
        return at
    known = torch.cuda.get_device_properties(x.device)
    room = known.shared_memory_per_block_optin  # type: ignore[attr-defined]
    loaded = (at.m + at.n) * at.k * x.element_size()
    return at._replace(stages=max(1, min(at.stages, room // loaded)))


@jit
def ordered(program, rows, columns, together):
    """Return the row and column of a tile: `together` of a column, then those to their right."""
    first = program // (together * columns) * together
    height = tl.minimum(rows - first, together)
    inside = program % (together * columns)
    return first + inside % height, inside // height
