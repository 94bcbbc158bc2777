"""The results of a tile program by torch, one tile after another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

import torch
from torch import Tensor

from pypm.kernels.support.pointwise import evaluate
from pypm.tiles.program import (
    Dims,
    DotTiles,
    FillTile,
    LoadTile,
    MapTiles,
    Statement,
    StoreTile,
    TileProgram,
)

__all__ = ["execute", "sizes_of"]


def sizes_of(program: TileProgram, operands: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the sizes by name, from the shapes of the operands.

    Raises ValueError if two operands disagree about a size.
    """
    found = {"1": 1}
    for operand in program.operands:
        for name, size in zip(operand.sizes, operands[operand.name].shape, strict=True):
            if found.setdefault(name, size) != size:
                raise ValueError(f"the size {name} is {found[name]}, and {size} of {operand.name}")
    return found


def execute(
    program: TileProgram, operands: Mapping[str, Tensor], dtype: torch.dtype = torch.float64
) -> None:
    """Compute the results of a program into the operands that it stores to.

    `operands` has a matrix for every operand. Tiles are computed in `dtype` and rounded once, where
    they are stored. Raises ValueError if two operands disagree about a size.
    """
    sizes = sizes_of(program, operands)
    counts = [range(-(-sizes[axis.of] // axis.block)) for axis in program.grid]
    for place in product(*counts):
        at = {axis.name: n * axis.block for axis, n in zip(program.grid, place, strict=True)}
        tiles: dict[str, Tensor] = {}
        for statement, where in _unrolled(program, sizes, at):
            _run(program, statement, operands, tiles, where, dtype)


def _unrolled(
    program: TileProgram, sizes: Mapping[str, int], at: Mapping[str, int]
) -> Iterator[tuple[Statement, Mapping[str, int]]]:
    yield from ((s, at) for s in program.before)
    for start in range(0, sizes[program.loop.of], program.loop.block):
        yield from ((s, {**at, program.loop.name: start}) for s in program.body)
    yield from ((s, at) for s in program.after)


def _run(
    program: TileProgram, statement: Statement, operands: Mapping[str, Tensor],
    tiles: dict[str, Tensor], at: Mapping[str, int], dtype: torch.dtype,
) -> None:  # fmt: skip
    match statement:
        case FillTile(name, value, dims):
            tiles[name] = torch.full(program.blocks(dims), value, dtype=dtype)
        case LoadTile(name, operand, dims):
            tile = torch.zeros(program.blocks(dims), dtype=dtype)
            part = operands[operand][_places(program, dims, at)]
            tile[tuple(map(slice, part.shape))] = part.to(dtype)
            tiles[name] = tile
        case DotTiles(name, left, right, turned, onto):
            other = tiles[right].T if turned else tiles[right]
            tiles[name] = tiles[onto] + tiles[left] @ other
        case MapTiles(name, text, arguments):
            first, *others = (tiles[a] for a in arguments)
            whole = sum((torch.zeros_like(o) for o in others), torch.zeros_like(first))
            tiles[name] = evaluate(text, first.expand(whole.shape), others)
        case StoreTile(operand, dims, source):
            part = operands[operand][_places(program, dims, at)]
            part.copy_(tiles[source][tuple(map(slice, part.shape))])


def _places(program: TileProgram, dims: Dims, at: Mapping[str, int]) -> tuple[slice, ...]:
    starts = (at.get(d, 0) for d in dims)
    return tuple(slice(s, s + n) for s, n in zip(starts, program.blocks(dims), strict=True))
