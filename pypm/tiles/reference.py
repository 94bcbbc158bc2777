"""The results of a tile program by torch: many tiles at a time, and nothing is written to operands.

An axis of which operands have places before their rows, as the heads of attention, is a dimension
of every tile. Other axes of the grid are one block, but for those that a loop is relative to, whose
tiles visit other blocks, and for segments of rows, which are computed one after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

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
    TileOperand,
    TileProgram,
)

__all__ = ["execute", "sizes_of", "stacked_axes", "whole"]


def sizes_of(program: TileProgram, operands: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the sizes by name, from the shapes of the operands; numbers are their own names.

    Raises ValueError if two operands disagree about a size, or one is not the number it should be,
    or an operand has another number of dimensions.
    """
    numbers = {n for o in program.operands for n in o.sizes if n.isdigit()}
    found = {"1": 1, **{n: int(n) for n in numbers}}
    for operand in program.operands:
        shape = operands[operand.name].shape
        if len(shape) != len(operand.sizes):
            given = ", ".join(operand.sizes)
            raise ValueError(f"`{operand.name}` is [{given}], and has {len(shape)} dimensions")
        for name, size in zip(operand.sizes, shape, strict=True):
            if found.setdefault(name, size) != size:
                raise ValueError(f"the size {name} is {found[name]}, and {size} of {operand.name}")
    return found


def stacked_axes(program: TileProgram) -> tuple[str, ...]:
    """Return the axes of the grid that stand before the rows of an operand, in order."""
    accesses = [s for s in program.statements if isinstance(s, LoadTile | StoreTile)]
    places = [s for s in program.statements if isinstance(s, PlaceTile)]
    front = {d for s in accesses for d in s.dims[:-2]}
    front |= {s.axis for s in places if s.dims == ("1", "1")}
    return tuple(axis.name for axis in program.grid if axis.name in front)


def execute(
    program: TileProgram, operands: Mapping[str, Tensor], dtype: torch.dtype = torch.float64
) -> None:
    """Compute the results of a program into the operands that it stores to.

    `operands` has a tensor for every operand. Tiles are computed in `dtype`, and rounded where the
    program casts and where they are stored. Raises ValueError if two operands disagree about a
    size.
    """
    sizes_of(program, operands)
    for name, result in whole(program, operands, dtype).items():
        operands[name].copy_(result)


def whole(
    program: TileProgram,
    operands: Mapping[str, Tensor],
    dtype: torch.dtype,
    *,
    at_once: bool = False,
) -> dict[str, Tensor]:
    """Return the results of a program by their names, computed in `dtype`.

    `operands` has a tensor for every operand that is not a result. Nothing is written, so that
    torch can differentiate and batch the computation. Rows that belong to no segment are zeros;
    with `at_once`, and where the number of segments is a symbol, there must be none: each row is
    then computed with what belongs to its segment. Raises ValueError if two operands disagree about
    a size.
    """
    given = tuple(o for o in program.operands if o.name not in program.results)
    sizes = sizes_of(replace(program, operands=given), operands)
    run = _WholeRun(program, operands, sizes, dtype)
    if program.segments is not None:
        return run.of_segments(program.segments.ends, program.segments.axis.name, at_once)
    visits = program.visits
    if visits is None:
        return run.results({})
    block = program.axes[visits.axis].block
    starts = range(0, max(1, sizes[program.axes[visits.axis].of]), block)
    parts = [run.results({visits.axis: start}) for start in starts]
    stores = {s.operand: s.dims.index(visits.axis) for s in run.stores}
    return {name: torch.cat([part[name] for part in parts], dim) for name, dim in stores.items()}


@dataclass
class _WholeRun:
    """The tiles of a program, [*stacked, rows, columns], by name."""

    program: TileProgram
    operands: Mapping[str, Tensor]
    sizes: Mapping[str, int]
    dtype: torch.dtype
    tiles: dict[str, Tensor] = field(default_factory=dict)
    owners: Tensor | None = None
    """The segment of each row, if rows are stacked, each with what belongs to its segment."""

    @cached_property
    def stacked(self) -> tuple[str, ...]:
        own = () if self.owners is None else (self.program.segments.rows,)  # type: ignore[union-attr]
        return (*own, *stacked_axes(self.program))

    @cached_property
    def stores(self) -> tuple[StoreTile, ...]:
        return tuple(s for s in self.program.statements if isinstance(s, StoreTile))

    @cached_property
    def blocks(self) -> Mapping[str, int]:
        """The sizes of blocks by axis, which are 1 of those that are stacked."""
        program, loop = self.program, self.program.loop
        kept = {program.visits.axis} if program.visits else set()
        found = {"1": 1}
        for name, axis in program.axes.items():
            is_block = axis.is_whole or name in kept or axis is loop
            found[name] = axis.block if is_block else self.sizes[axis.of]
        if loop is not None and all(isinstance(s, DotTiles | LoadTile) for s in program.body):
            found[loop.name] = max(1, self.sizes[loop.of])  # what is added up in one turn or more
        if program.segments is not None:
            found[program.segments.axis.name] = 1
        return found | dict.fromkeys(self.stacked, 1)

    @property
    def device(self) -> torch.device:
        return next(iter(self.operands.values())).device

    # --- the parts of a run ----------------------------------------------------------------------

    def of_segments(self, ends: str, axis: str, at_once: bool) -> dict[str, Tensor]:
        """Return the results whose rows have those of each segment."""
        assert self.program.segments is not None
        last = self.operands[ends].flatten()
        first = torch.cat([last.new_zeros(1), last[:-1]])
        rows = torch.arange(self.blocks[self.program.segments.rows], device=last.device)
        if at_once or type(last.shape[0]) is not int:
            return replace(self, owners=torch.searchsorted(last, rows, right=True)).results({})
        shapes = {s.operand: self.program.operand(s.operand).sizes for s in self.stores}
        found = {
            name: torch.zeros([self.sizes[n] for n in shape], dtype=self.dtype, device=self.device)
            for name, shape in shapes.items()
        }
        for n in range(len(last)):
            is_inside = ((first[n] <= rows) & (rows < last[n]))[:, None]
            for name, part in self.results({axis: n}).items():
                found[name] = torch.where(is_inside, part, found[name])
        return found

    def results(self, at: Mapping[str, int]) -> dict[str, Tensor]:
        """Return the results of the tiles that begin at `at`."""
        program, found = self.program, {}
        self.tiles = {}
        for statement, where in self.unrolled(at):
            if isinstance(statement, StoreTile):
                operand = program.operand(statement.operand)
                found[operand.name] = self.stored(operand, statement, at)
            else:
                self.tiles[statement.name] = self.tile(statement, where)
        return found

    def unrolled(self, at: Mapping[str, int]) -> Iterator[tuple[Statement, Mapping[str, int]]]:
        program, loop, visits = self.program, self.program.loop, self.program.visits
        yield from ((s, at) for s in program.before)
        if loop is not None:
            size, block = self.sizes[loop.of], self.blocks[loop.name]
            turns = range(-(-size // block))
            if visits is not None:
                turns = visits.turns(at[visits.axis], block, size)
            for turn in turns:
                yield from ((s, {**at, loop.name: turn * block}) for s in program.body)
        yield from ((s, at) for s in program.after)

    # --- tiles -----------------------------------------------------------------------------------

    def tile(self, statement: Statement, at: Mapping[str, int]) -> Tensor:
        """Return the tile that a statement defines."""
        tiles, size = self.tiles, [1] * len(self.stacked)
        match statement:
            case FillTile(_, value, dims):
                size += [self.blocks[d] for d in dims]
                return torch.full(size, value, dtype=self.dtype, device=self.device)
            case SizeTile(_, name):
                number = self.sizes[name]
                return torch.full([*size, 1, 1], number, dtype=self.dtype, device=self.device)
            case LoadTile(_, operand, dims):
                return self.loaded(self.operands[operand], dims, at)
            case PlaceTile(_, axis, dims):
                return self.places(axis, dims, at)
            case DotTiles(_, left, right, turned, onto):
                found = tiles[left] @ (tiles[right].mT if turned else tiles[right])
                return found if onto is None else tiles[onto] + found
            case MapTiles(_, text, arguments):
                first, *others = (tiles[a] for a in arguments)
                shapes = (tiles[a].shape for a in arguments)
                shape = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
                return evaluate(text, first.expand(shape), others)
            case ReduceTile(_, how, source):
                reduced = torch.sum if how == "sum" else torch.amax
                return reduced(tiles[source], -1, keepdim=True)
            case CastTile(_, dtype, source):
                return rounded(tiles[source], dtype)
            case StoreTile():
                raise AssertionError(f"{statement} defines nothing")

    def places(self, axis: str, dims: Dims, at: Mapping[str, int]) -> Tensor:
        count = self.blocks[axis]
        shape = [1] * len(self.stacked) + [self.blocks[d] for d in dims]
        if axis in self.stacked:
            count = self.sizes[self.program.axes[axis].of]
            shape[self.stacked.index(axis)] = count
        index = torch.arange(count, dtype=self.dtype, device=self.device)
        return (at.get(axis, 0) + index).view(shape)

    def loaded(self, x: Tensor, dims: Dims, at: Mapping[str, int]) -> Tensor:
        """Return a tile of an operand, filled up with zeros; integers keep their type."""
        if x.is_floating_point() or x.dtype == torch.bool:
            x = x.to(self.dtype)
        if self.owners is not None:
            segments = self.program.segments
            assert segments is not None
            if segments.axis.name in dims:
                x = x.index_select(dims.index(segments.axis.name), self.owners)
                dims = tuple(segments.rows if d == segments.axis.name else d for d in dims)
        for n, d in enumerate(dims):
            if d == "1" or d in self.stacked:
                continue
            start, count = at.get(d, 0), self.blocks[d]
            x = x.narrow(n, start, min(count, x.shape[n] - start))
            missing = count - x.shape[n]
            if missing:
                x = pad(x, [0, 0] * (x.dim() - 1 - n) + [0, missing])
        return self.turned(x, dims)

    def turned(self, x: Tensor, dims: Dims) -> Tensor:
        """Return [*dims] as [*stacked, rows, columns]."""
        names = [d if d in self.stacked else "" for d in dims]
        order = [names.index(d) for d in self.stacked if d in names]
        inner = [n for n in (len(dims) - 2, len(dims) - 1) if not names[n]]
        rest = [n for n in range(len(dims) - 2) if not names[n]]  # of one element
        shape = [x.shape[names.index(d)] if d in names else 1 for d in self.stacked]
        shape += [1 if names[n] else x.shape[n] for n in (-2, -1)]
        return x.permute([*order, *rest, *inner]).reshape(shape)

    def stored(self, operand: TileOperand, store: StoreTile, at: Mapping[str, int]) -> Tensor:
        """Return the part of a result that tiles are, without what is beyond its end."""
        tile, dims, count = self.tiles[store.source], store.dims, len(self.stacked)
        shape = [self.sizes[name] for name in operand.sizes]
        wanted = [1] * (count + 2)
        order = []
        for n, d in enumerate(dims):
            place = n - len(dims) + count + 2
            if d in self.stacked:
                place = self.stacked.index(d)
            elif d != "1":
                shape[n] = min(self.blocks[d], shape[n] - at.get(d, 0))
            if d != "1":
                wanted[place] = shape[n]
                order.append(place)
        for place, size in enumerate(wanted):
            if tile.shape[place] > size:  # of tiles that store to one place, the last one stays
                start = tile.shape[place] - 1 if place < count else 0
                tile = tile.narrow(place, start, size)
        rest = [place for place in range(count + 2) if place not in order]
        return tile.expand(wanted).permute([*order, *rest]).reshape(shape)


def rounded(x: Tensor, dtype: str) -> Tensor:
    """Return what a cast to an element type gives, in the type of x."""
    match dtype:
        case "i8":
            return x.round().clamp(-128, 127)
        case "fp8e4nv":
            x = x.clamp(-448, 448)
    return x.to(DTYPES[dtype]).to(x.dtype)
