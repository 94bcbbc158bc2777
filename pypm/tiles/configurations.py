"""Shapes of tiles and rings that compile without spills, and the one for some sizes.

`configurations.json` is what `pypm.tiles.search` found by compiling. Which of them is the fastest
is a guess, by a model of a multiprocessor of an H100; no GPU has been asked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import ceil, prod
from pathlib import Path
from typing import Final

from torch import Tensor, fx

from pypm.fx import metadata
from pypm.tiles.launch import multiprocessors
from pypm.tiles.operator import inputs_of
from pypm.tiles.partition import Rings
from pypm.tiles.program import DTYPES, DotTiles, LoadTile, TileAxis, TileProgram
from pypm.tiles.reference import sizes_of
from pypm.tiles.regions import TileRegion
from pypm.tiles.timeline import BYTES, LATENCY, OPERATIONS, WRITES

__all__ = ["TABLE", "TileConfiguration", "configurations", "configured", "configured_for"]

TABLE: Final = Path(__file__).with_name("configurations.json")


@dataclass(frozen=True, slots=True)
class TileConfiguration:
    """The blocks of a program with so many products, its rings, and what its assembler said."""

    products: int
    rows: int
    columns: int
    inner: int
    depth: int
    in_flight: int
    groups: int
    pieces: int
    registers: int = 0
    """Of a thread."""
    spilled: int = 0
    shared: int = 0
    """Bytes of shared memory of one program."""

    @property
    def rings(self) -> Rings:
        return Rings(self.depth, self.in_flight, self.groups, self.pieces)


@cache
def configurations() -> tuple[TileConfiguration, ...]:
    """Return the configurations that are shipped."""
    rows = json.loads(TABLE.read_text(encoding="utf-8"))
    return tuple(TileConfiguration(**row) for row in rows)


def configured_for(region: TileRegion) -> tuple[TileProgram, Rings]:
    """Return the program of a region with the blocks and rings that suit its sizes; those of the
    region if these are not known.
    """
    operands = region.matrices(_matrix)
    inputs = replace(region.program, operands=inputs_of(region.program))
    sizes = sizes_of(inputs, operands)
    if not all(isinstance(n, int) for n in sizes.values()):
        return region.program, region.rings
    device = next(iter(operands.values())).device
    return configured(region.program, region.rings, sizes, multiprocessors(device))


def _matrix(node: fx.Node) -> Tensor:
    found = metadata(node)
    assert isinstance(found, Tensor), node  # regions have tensors as operands
    return found


def configured(
    program: TileProgram, rings: Rings, sizes: Mapping[str, int], multiprocessors: int
) -> tuple[TileProgram, Rings]:
    """Return a program with the blocks that suit its sizes, and its rings.

    Arguments:
        program: a program of products and what follows them; another one is returned as it is.
        rings: its rings, if it is returned as it is.
        sizes: the sizes by name.
        multiprocessors: those of the GPU; configurations that give each a tile are preferred.
    """
    dots = [s for s in program.body if isinstance(s, DotTiles)]
    is_plain = all(isinstance(s, DotTiles | LoadTile) for s in program.body)
    found = [each for each in configurations() if each.products == len(dots)]
    inner = program.loop
    if inner is None or not is_plain or len(program.grid) != 2 or not found:
        return program, rings
    first, second = (sizes[axis.of] for axis in program.grid)

    def cost(at: TileConfiguration) -> tuple[bool, float, int]:
        count = ceil(first / at.rows) * ceil(second / at.columns)
        turns = ceil(sizes[inner.of] / at.inner)
        waves = ceil(count / multiprocessors)
        return count < multiprocessors, waves * _cycles(program, inner, at, turns), count

    best = min(found, key=cost)
    rows, columns = program.grid
    grid = replace(rows, block=best.rows), replace(columns, block=best.columns)
    loop = replace(inner, block=best.inner)
    return replace(program, grid=grid, loop=loop), best.rings


def _cycles(program: TileProgram, inner: TileAxis, at: TileConfiguration, turns: int) -> float:
    """Return the cycles of a tile, whose turns are bound by products or by copies."""
    blocks = (at.rows, at.columns, at.inner)
    named = dict(zip((*(a.name for a in program.grid), inner.name), blocks, strict=True))
    loads = [s for s in program.body if isinstance(s, LoadTile)]
    copied = sum(
        prod(named.get(d, 1) for d in load.dims)
        * DTYPES[program.operand(load.operand).dtype].itemsize
        for load in loads
    )
    turn = max(2 * at.products * prod(blocks) / OPERATIONS, copied / BYTES)
    return LATENCY + turns * turn + at.pieces * WRITES
