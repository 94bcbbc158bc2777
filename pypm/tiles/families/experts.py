"""Tile programs of grouped experts: rows sorted by expert, each times the matrix of its expert.

A tile has rows of one expert, which it finds from the ends of all experts' rows. Experts may have
no rows, and any number of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor

from pypm.diagnostics import Diagnostic
from pypm.tiles.meaning import meaning
from pypm.tiles.partition import Rings
from pypm.tiles.program import (
    DTYPES,
    DotTiles,
    FillTile,
    LoadTile,
    Segments,
    StoreTile,
    TileAxis,
    TileError,
    TileOperand,
    TileProgram,
)

__all__ = ["ExpertTiles", "by_expert", "experts_tiles"]


@dataclass(frozen=True, slots=True)
class ExpertTiles:
    """A tile program of the operands x, w, ends and out, and the rings that suit it."""

    program: TileProgram
    rings: Rings


def by_expert(ids: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Return the order in which rows are sorted by expert, and the operand `ends`.

    Arguments:
        ids: the expert of each row, [M]; negative ones count from the last expert.
        experts: their number E.

    The order is int64 [M], and the ends int32 [E, 1].
    """
    found, order = torch.sort(torch.where(ids < 0, ids + experts, ids), stable=True)
    each = torch.arange(experts, device=ids.device, dtype=ids.dtype)
    ends = torch.searchsorted(found, each, right=True)
    return order, ends.to(torch.int32)[:, None]


def experts_tiles(x: Tensor, w: Tensor, is_turned: bool) -> ExpertTiles:
    """Return the tile program of x w for each expert, in the type of x.

    Arguments:
        x: rows, sorted by expert, [M, K], in bf16 or fp16.
        w: a matrix for each expert, [E, N, K] if `is_turned`, else [E, K, N].
        is_turned: whether x is multiplied by the transposed matrices.

    Only shapes and types are read. Raises TileError, with the reason, for other types and shapes.
    """
    names = {dtype: name for name, dtype in DTYPES.items() if name in ("bf16", "fp16")}
    if x.dtype not in names or x.dtype != w.dtype:
        _refuse(f"the operands are {x.dtype} and {w.dtype}")
    if x.dim() != 2 or w.dim() != 3 or x.shape[1] != w.shape[2 if is_turned else 1]:
        _refuse(f"rows of shape {[*x.shape]} do not fit matrices of shape {[*w.shape]}")
    dtype = names[x.dtype]
    sizes, dims = (("N", "K"), ("j", "k")) if is_turned else (("K", "N"), ("k", "j"))
    made = TileProgram(
        (
            TileOperand("x", dtype, ("M", "K")),
            TileOperand("w", dtype, ("E", *sizes)),
            TileOperand("ends", "i32", ("E", "1")),
            TileOperand("out", dtype, ("M", "N")),
        ),
        (TileAxis("i", 128, "M"), TileAxis("j", 128, "N")),
        (FillTile("c", 0.0, ("i", "j")),),
        TileAxis("k", 64, "K"),
        (
            LoadTile("a", "x", ("i", "k")),
            LoadTile("b", "w", ("e", *dims)),
            DotTiles("c", "a", "b", is_turned, "c"),
        ),
        (StoreTile("out", ("i", "j"), "c"),),
        segments=Segments("i", TileAxis("e", 1, "E"), "ends"),
    )
    meaning(made)
    return ExpertTiles(made, Rings(depth=3, in_flight=1, groups=2))


def _refuse(reason: str) -> NoReturn:
    raise TileError(
        Diagnostic(
            f"the experts have no tile program: {reason}",
            help="it takes rows [M, K] and matrices [E, N, K] or [E, K, N] of bf16 or fp16",
        )
    )
