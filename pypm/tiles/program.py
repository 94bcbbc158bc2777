"""Tile programs: the computation of one tile of a result, as a value and as text.

A program names its operands in global memory, the grid of tiles, and statements. A tile is indexed
by axes; one loop accumulates over the last axis. Its text is its identity: two programs are equal
if their texts are.

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

`map` applies a program of `pypm.kernels.support.pointwise`: its first argument is `acc`, the others
are s0, s1, ... (m0, m1, ... if they hold bits). Tiles beyond the end of an operand read zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import torch

from pypm.diagnostics import PyPMError

__all__ = [
    "DTYPES",
    "DotTiles",
    "FillTile",
    "LoadTile",
    "MapTiles",
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
    "i1": torch.bool,
}
"""Types of elements by their names in programs, which are Triton's."""

Dims: TypeAlias = tuple[str, str]
"""The axes of a tile: names, or "1" for one element."""


class TileError(PyPMError):
    """A tile program without a meaning, or one that cannot be placed on the machine."""


@dataclass(frozen=True, slots=True)
class TileAxis:
    """An axis that is cut into blocks: `block` elements of the size `of`."""

    name: str
    block: int
    of: str


@dataclass(frozen=True, slots=True)
class TileOperand:
    """A matrix in global memory; its sizes are names, or "1"."""

    name: str
    dtype: str
    sizes: tuple[str, str]


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
class DotTiles:
    """The product of two tiles, the right one turned or not, added to `onto`."""

    name: str
    left: str
    right: str
    turned: bool
    onto: str


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


Statement: TypeAlias = FillTile | LoadTile | DotTiles | MapTiles | StoreTile


@dataclass(frozen=True, slots=True)
class TileProgram:
    """Operands, the grid, statements before the loop, the loop, and statements after it."""

    operands: tuple[TileOperand, ...]
    grid: tuple[TileAxis, ...]
    before: tuple[Statement, ...]
    loop: TileAxis
    body: tuple[Statement, ...]
    after: tuple[Statement, ...]

    def __str__(self) -> str:
        return printed(self)

    @property
    def axes(self) -> dict[str, TileAxis]:
        return {axis.name: axis for axis in (*self.grid, self.loop)}

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
        """Return the shape of a tile with these axes."""
        rows, columns = (1 if d == "1" else self.axes[d].block for d in dims)
        return rows, columns


def reads(statement: Statement) -> tuple[str, ...]:
    """Return the names of the tiles that a statement reads."""
    match statement:
        case FillTile() | LoadTile():
            return ()
        case DotTiles(_, left, right, _, onto):
            return left, right, onto
        case MapTiles(_, _, arguments):
            return arguments
        case StoreTile(_, _, source):
            return (source,)


def printed(program: TileProgram) -> str:
    """Return the text of a program, which `pypm.tiles.reading.parsed` reads."""
    lines = [f"{o.name}: {o.dtype}[{', '.join(o.sizes)}]" for o in program.operands]
    lines.append("tile " + ", ".join(map(_axis, program.grid)))
    lines += map(statement_text, program.before)
    lines.append(f"for {_axis(program.loop)}")
    lines += [f"  {statement_text(s)}" for s in program.body]
    lines += map(statement_text, program.after)
    return "\n".join(lines) + "\n"


def _axis(axis: TileAxis) -> str:
    return f"{axis.name}: {axis.block} of {axis.of}"


def statement_text(statement: Statement) -> str:
    """Return one line of the text of a program."""
    match statement:
        case FillTile(name, value, dims):
            return f"{name} = {value}[{', '.join(dims)}]"
        case LoadTile(name, operand, dims):
            return f"{name} = {operand}[{', '.join(dims)}]"
        case DotTiles(name, left, right, turned, onto):
            return f"{name} = dot({left}, {right}{'.T' if turned else ''}, {onto})"
        case MapTiles(name, program, arguments):
            return f'{name} = map "{program}" {", ".join(arguments)}'
        case StoreTile(operand, dims, source):
            return f"{operand}[{', '.join(dims)}] = {source}"
