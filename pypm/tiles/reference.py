"""The results of a tile program by torch, one tile after another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import pad

from pypm.kernels.support.pointwise import evaluate
from pypm.tiles.program import (
    DTYPES,
    CastTile,
    Dims,
    DotTiles,
    FillTile,
    LoadTile,
    MapTiles,
    PlaceTile,
    ReduceTile,
    SizeTile,
    Statement,
    StoreTile,
    TileProgram,
)

__all__ = ["execute", "sizes_of", "whole"]


def sizes_of(program: TileProgram, operands: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the sizes by name, from the shapes of the operands; numbers are their own names.

    Raises ValueError if two operands disagree about a size, or one is not the number it should be.
    """
    numbers = {n for o in program.operands for n in o.sizes if n.isdigit()}
    found = {"1": 1, **{n: int(n) for n in numbers}}
    for operand in program.operands:
        for name, size in zip(operand.sizes, operands[operand.name].shape, strict=True):
            if found.setdefault(name, size) != size:
                raise ValueError(f"the size {name} is {found[name]}, and {size} of {operand.name}")
    return found


def execute(
    program: TileProgram, operands: Mapping[str, Tensor], dtype: torch.dtype = torch.float64
) -> None:
    """Compute the results of a program into the operands that it stores to.

    `operands` has a tensor for every operand. Tiles are computed in `dtype`, integers among them,
    and rounded where the program casts and where they are stored. Raises ValueError if two operands
    disagree about a size.
    """
    sizes = sizes_of(program, operands)
    for at in _tiles(program, operands, sizes):
        run = _TileRun(program, operands, sizes, dtype, {})
        for statement, where in _unrolled(program, sizes, at):
            run.perform(statement, where)


def whole(
    program: TileProgram, operands: Mapping[str, Tensor], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Return the results of a program by their names, each computed as one tile, in `dtype`.

    `operands` has a tensor for every operand that is not a result. Nothing is written, so that
    torch can differentiate and batch the computation. Raises ValueError if two operands disagree
    about a size.
    """
    given = tuple(o for o in program.operands if o.name not in program.results)
    sizes = sizes_of(replace(program, operands=given), operands)
    grid = (replace(axis, block=max(1, sizes[axis.of])) for axis in program.grid)
    loop = program.loop and replace(program.loop, block=max(1, sizes[program.loop.of]))
    made = replace(program, grid=tuple(grid), loop=loop)
    run = _TileRun(made, operands, sizes, dtype, {})
    found = {}
    for statement, at in _unrolled(made, sizes, {axis.name: 0 for axis in made.grid}):
        if isinstance(statement, StoreTile):
            shape = [sizes[name] for name in made.operand(statement.operand).sizes]
            found[statement.operand] = run.tiles[statement.source][tuple(map(slice, shape))]
        else:
            run.perform(statement, at)
    return found


def _tiles(
    program: TileProgram, operands: Mapping[str, Tensor], sizes: Mapping[str, int]
) -> Iterator[dict[str, int]]:
    """Yield where each tile begins on every axis, and the end of its segment of rows."""
    segments = program.segments
    counts = [range(-(-sizes[axis.of] // axis.block)) for axis in program.grid]
    for place in product(*counts):
        at = {axis.name: n * axis.block for axis, n in zip(program.grid, place, strict=True)}
        if segments is None:
            yield at
            continue
        begin, offset = 0, at[segments.rows]
        for n, end in enumerate(operands[segments.ends].flatten().tolist()):
            if begin + offset < end:
                rows = {segments.rows: begin + offset, f"{segments.rows} end": end}
                yield {**at, **rows, segments.axis.name: n}
            begin = end


def _unrolled(
    program: TileProgram, sizes: Mapping[str, int], at: Mapping[str, int]
) -> Iterator[tuple[Statement, Mapping[str, int]]]:
    yield from ((s, at) for s in program.before)
    loop, visits = program.loop, program.visits
    if loop is not None:
        size = sizes[loop.of]
        whole = range(-(-size // loop.block))
        turns = visits.turns(at[visits.axis], loop.block, size) if visits else whole
        for turn in turns:
            yield from ((s, {**at, loop.name: turn * loop.block}) for s in program.body)
    yield from ((s, at) for s in program.after)


class _TileRun:
    """The run of one tile, whose values it keeps by name."""

    def __init__(
        self, program: TileProgram, operands: Mapping[str, Tensor], sizes: Mapping[str, int],
        dtype: torch.dtype, tiles: dict[str, Tensor],
    ) -> None:  # fmt: skip
        self.program, self.operands, self.sizes = program, operands, sizes
        self.dtype, self.tiles = dtype, tiles

    def perform(self, statement: Statement, at: Mapping[str, int]) -> None:
        tiles = self.tiles
        match statement:
            case StoreTile(operand, dims, source):
                part = self.operands[operand][self.places(dims, at)]
                tile = tiles[source][tuple(slice(n) for n in part.shape[-2:])]
                part.copy_(tile.expand(part.shape))
            case DotTiles(name, left, right, turned, onto):
                found = tiles[left] @ (tiles[right].T if turned else tiles[right])
                tiles[name] = found if onto is None else tiles[onto] + found
            case MapTiles(name, text, arguments):
                first, *others = (tiles[a] for a in arguments)
                whole = sum((torch.zeros_like(o) for o in others), torch.zeros_like(first))
                tiles[name] = evaluate(text, first.expand(whole.shape), others)
            case ReduceTile(name, how, source):
                reduced = torch.sum if how == "sum" else torch.amax
                tiles[name] = reduced(tiles[source], -1, keepdim=True)
            case CastTile(name, dtype, source):
                tiles[name] = rounded(tiles[source], dtype)
            case _:
                tiles[statement.name] = self.made(statement, at)

    def made(
        self, statement: FillTile | LoadTile | PlaceTile | SizeTile, at: Mapping[str, int]
    ) -> Tensor:
        blocks = self.program.blocks
        match statement:
            case FillTile(_, value, dims):
                device = next(iter(self.operands.values())).device
                return torch.full(blocks(dims), value, dtype=self.dtype, device=device)
            case LoadTile(_, operand, dims):
                part = self.operands[operand][self.places(dims, at)].to(self.dtype)
                part = part.reshape(part.shape[-2:])
                rows, columns = (n - m for n, m in zip(blocks(dims), part.shape, strict=True))
                return pad(part, (0, columns, 0, rows))
            case PlaceTile(_, axis, dims):
                block = self.program.axes[axis].block
                return (at[axis] + torch.arange(block, dtype=self.dtype)).view(blocks(dims))
            case SizeTile(_, size):
                return torch.full((1, 1), self.sizes[size], dtype=self.dtype)

    def places(self, dims: Dims, at: Mapping[str, int]) -> tuple[slice, ...]:
        starts = [at.get(d, 0) for d in dims]
        blocks = [1] * (len(dims) - 2) + [*self.program.blocks(dims)]
        ends = [at.get(f"{d} end", s + n) for d, s, n in zip(dims, starts, blocks, strict=True)]
        return tuple(
            slice(s, min(s + n, end)) for s, n, end in zip(starts, blocks, ends, strict=True)
        )


def rounded(x: Tensor, dtype: str) -> Tensor:
    """Return what a cast to an element type gives, in the type of x."""
    match dtype:
        case "i8":
            return x.round().clamp(-128, 127)
        case "fp8e4nv":
            x = x.clamp(-448, 448)
    return x.to(DTYPES[dtype]).to(x.dtype)
