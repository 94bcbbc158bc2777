"""Tile programs: the computation of one tile of a result, as a value and as text.

A program names its operands in global memory, the grid of tiles, and statements. A tile is indexed
by axes; one loop, if there is any, visits the blocks of another axis, and carries what its
statements define anew. Its text is its identity: two programs are equal if their texts are.

    x: bf16[M, K]
    w: bf16[N, K]
    bias: bf16[1, N]
    out: bf16[M, N]
    tile i: 128 of M, j: 128 of N
    acc = 0.0[i, j]
    for k: 64 of K
      a = x[i, k]
      b = w[j, k]
      acc = dot(a, b.T, acc)
    s = bias[1, j]
    y = map "add(acc,s0);silu(v0)" acc, s
    out[i, j] = y

A tile has two axes, of which either may be "1". Operands may have more in front, with blocks of one
element. `map` applies a program of `pypm.kernels.support.pointwise`: its first argument is `acc`,
the others are s0, s1, ... (m0, m1, ... if they hold bits). `sum` and `max` reduce the columns of a
tile, `place` gives indices, `size` a size. Tiles beyond the end of an operand read zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch

from pypm.diagnostics import PyPMError

__all__ = [
    "DTYPES",
    "CastTile",
    "Dims",
    "DotTiles",
    "FillTile",
    "LoadTile",
    "LoopRange",
    "MapTiles",
    "PlaceTile",
    "ReduceTile",
    "Segments",
    "SizeTile",
    "Statement",
    "StoreTile",
    "TileAxis",
    "TileError",
    "TileOperand",
    "TileProgram",
    "printed",
    "reads",
    "statement_text",
]

DTYPES: Final[Mapping[str, torch.dtype]] = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp8e4nv": torch.float8_e4m3fn,
    "i1": torch.bool,
    "i8": torch.int8,
    "i32": torch.int32,
    "i64": torch.int64,
}
"""Types of elements by their names in programs, which are Triton's."""

Dims: TypeAlias = tuple[str, ...]
"""Names of axes, or "1" for one element: two of a tile, all of an operand."""


class TileError(PyPMError):
    """A tile program without a meaning, or one that cannot be placed on the machine."""


@dataclass(frozen=True, slots=True)
class TileAxis:
    """An axis that is cut into blocks: `block` elements of the size `of`, a name or a number."""

    name: str
    block: int
    of: str

    @property
    def is_whole(self) -> bool:
        """True if one block has the whole axis."""
        return self.of.isdigit() and int(self.of) <= self.block


@dataclass(frozen=True, slots=True)
class LoopRange:
    """The positions that a loop has to visit, from where the tile begins on an axis.

    Blocks without any position from `first` up to `end`, which are offsets, are left out.
    """

    axis: str
    first: int | None = None
    end: int | None = None

    def turns(self, start: int, block: int, size: int) -> range:
        """Return the blocks, by number, for a tile that begins at `start`."""
        first = 0 if self.first is None else max(start + self.first, 0) // block
        end = size if self.end is None else min(size, max(start + self.end, 0))
        return range(first, -(-end // block))


@dataclass(frozen=True, slots=True)
class Segments:
    """Rows that belong to the places of another axis, one after another, as tokens to experts.

    Those of a place end before the number that an operand has for it. A tile has rows of one place,
    and nothing is stored beyond their end; places may have none.
    """

    rows: str
    axis: TileAxis
    ends: str


@dataclass(frozen=True, slots=True)
class TileOperand:
    """A tensor in global memory; its sizes are names, or numbers."""

    name: str
    dtype: str
    sizes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FillTile:
    name: str
    value: float
    dims: Dims


@dataclass(frozen=True, slots=True)
class LoadTile:
    name: str
    operand: str
    dims: Dims


@dataclass(frozen=True, slots=True)
class PlaceTile:
    """Indices on an axis, as float32, exact up to 2**24."""

    name: str
    axis: str
    dims: Dims


@dataclass(frozen=True, slots=True)
class SizeTile:
    """A size, as one float32."""

    name: str
    size: str


@dataclass(frozen=True, slots=True)
class DotTiles:
    """The product of two tiles, the right one turned or not, added to `onto` if there is one."""

    name: str
    left: str
    right: str
    turned: bool
    onto: str | None


@dataclass(frozen=True, slots=True)
class ReduceTile:
    """The sum or the largest of each row of a tile; NaN if one of them is."""

    name: str
    how: str
    source: str


@dataclass(frozen=True, slots=True)
class CastTile:
    """A tile rounded to the nearest, half to even; integers and fp8 saturate."""

    name: str
    dtype: str
    source: str


@dataclass(frozen=True, slots=True)
class MapTiles:
    """A program of pointwise steps, applied to tiles that broadcast to one shape."""

    name: str
    program: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoreTile:
    operand: str
    dims: Dims
    source: str


Statement: TypeAlias = (
    FillTile
    | LoadTile
    | PlaceTile
    | SizeTile
    | DotTiles
    | MapTiles
    | ReduceTile
    | CastTile
    | StoreTile
)


@dataclass(frozen=True, slots=True)
class TileProgram:
    """Operands, the grid, statements before the loop, the loop, and statements after it.

    Without a loop, all statements are in `after`. Consecutive tiles differ in the first axis of the
    grid.
    """

    operands: tuple[TileOperand, ...]
    grid: tuple[TileAxis, ...]
    before: tuple[Statement, ...]
    loop: TileAxis | None
    body: tuple[Statement, ...]
    after: tuple[Statement, ...]
    visits: LoopRange | None = None
    """The range of the loop; None for the whole axis."""
    segments: Segments | None = None

    def __str__(self) -> str:
        return printed(self)

    @property
    def axes(self) -> dict[str, TileAxis]:
        loop = () if self.loop is None else (self.loop,)
        others = loop if self.segments is None else (self.segments.axis, *loop)
        return {axis.name: axis for axis in (*self.grid, *others)}

    @property
    def statements(self) -> Iterator[Statement]:
        yield from (*self.before, *self.body, *self.after)

    @property
    def results(self) -> tuple[str, ...]:
        """Names of the operands that are stored to."""
        return tuple(s.operand for s in self.statements if isinstance(s, StoreTile))

    def operand(self, name: str) -> TileOperand:
        """Return the operand of a name. Raises StopIteration if there is none."""
        return next(each for each in self.operands if each.name == name)

    def blocks(self, dims: Dims) -> tuple[int, int]:
        """Return the shape of a tile with these axes, of which the last two count."""
        rows, columns = (1 if d == "1" else self.axes[d].block for d in dims[-2:])
        return rows, columns


def reads(statement: Statement) -> tuple[str, ...]:
    """Return the names of the tiles that a statement reads."""
    match statement:
        case FillTile() | LoadTile() | PlaceTile() | SizeTile():
            return ()
        case DotTiles(_, left, right, _, onto):
            return (left, right) if onto is None else (left, right, onto)
        case MapTiles(_, _, arguments):
            return arguments
        case StoreTile(_, _, source) | ReduceTile(_, _, source) | CastTile(_, _, source):
            return (source,)


def printed(program: TileProgram) -> str:
    """Return the text of a program, which `pypm.tiles.reading.parsed` reads."""
    lines = [f"{o.name}: {o.dtype}[{', '.join(o.sizes)}]" for o in program.operands]
    lines.append("tile " + ", ".join(map(_axis, program.grid)))
    if program.segments is not None:
        rows, axis, ends = program.segments.rows, program.segments.axis, program.segments.ends
        lines.append(f"rows {rows} of {_axis(axis)} end at {ends}")
    lines += map(statement_text, program.before)
    if program.loop is not None:
        lines.append(f"for {_axis(program.loop)}{_visits(program.visits)}")
    lines += [f"  {statement_text(s)}" for s in program.body]
    lines += map(statement_text, program.after)
    return "\n".join(lines) + "\n"


def _axis(axis: TileAxis) -> str:
    return f"{axis.name}: {axis.block} of {axis.of}"


def _visits(visits: LoopRange | None) -> str:
    if visits is None:
        return ""
    ends = (("from", visits.first), ("to", visits.end))
    return "".join(
        f" {word} {visits.axis} {'-' if at < 0 else '+'} {abs(at)}"
        for word, at in ends
        if at is not None
    )


def statement_text(statement: Statement) -> str:
    """Return one line of the text of a program."""
    match statement:
        case FillTile(name, value, dims):
            return f"{name} = {value}[{', '.join(dims)}]"
        case LoadTile(name, operand, dims):
            return f"{name} = {operand}[{', '.join(dims)}]"
        case PlaceTile(name, axis, dims):
            return f"{name} = place({axis})[{', '.join(dims)}]"
        case SizeTile(name, size):
            return f"{name} = size({size})"
        case DotTiles(name, left, right, turned, onto):
            added = "" if onto is None else f", {onto}"
            return f"{name} = dot({left}, {right}{'.T' if turned else ''}{added})"
        case ReduceTile(name, how, source):
            return f"{name} = {how}({source})"
        case CastTile(name, dtype, source):
            return f"{name} = cast({source}, {dtype})"
        case MapTiles(name, program, arguments):
            return f'{name} = map "{program}" {", ".join(arguments)}'
        case StoreTile(operand, dims, source):
            return f"{operand}[{', '.join(dims)}] = {source}"
