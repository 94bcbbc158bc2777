"""Layouts of tiles in registers: one for each axis of columns, and one for pieces.

With products, a tile has the layout of an accumulator of its width; without, rows are divided
between warps, or columns if there are too many for one warp.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pypm.tiles.program import Dims, ReduceTile
from pypm.tiles.steps import Specialized

__all__ = ["TileLayouts"]

WARP_NUMBERS: Final = 64
"""Numbers of a row that one thread has, at most, if one warp has the row."""


@dataclass(frozen=True, slots=True)
class TileLayouts:
    """Layouts by their names in the text, for tiles by their axes."""

    source: Specialized
    tiles: Mapping[str, Dims]
    """Axes of all tiles."""

    @property
    def home(self) -> str:
        """The axis in whose layout tiles of one column are: that of the first reduction."""
        statements = self.source.program.statements
        reduced = (self.tiles[s.source][1] for s in statements if isinstance(s, ReduceTile))
        return next(reduced, self.source.columns)

    def of(self, dims: Dims, in_pieces: bool = False) -> str:
        """Return the name of a tile's layout; in pieces, columns of the results have another."""
        axis = dims[-1]
        if in_pieces and axis == self.source.columns and self.source.rings.pieces > 1:
            return "piece"
        return f"layout_{self.home if axis == '1' else axis}"

    def text(self) -> Iterator[str]:
        """Yield the statements that define the layouts."""
        copied = {load.name for aref in self.source.arefs for load in aref.loads}
        axes = [dims[1] for name, dims in self.tiles.items() if name not in copied]
        for axis in dict.fromkeys([self.home, *axes]):
            if axis in self.source.program.axes or axis == self.home:
                yield f"layout_{axis}: gl.constexpr = {self.made(axis, 1)}"
        if self.source.rings.pieces > 1:
            made = self.made(self.source.columns, self.source.rings.pieces)
            yield f"piece: gl.constexpr = {made}"

    def made(self, axis: str, pieces: int) -> str:
        columns = self.source.program.blocks((axis,) * 2)[1] // pieces
        if self.source.arefs:
            return (
                "gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1],"
                f" instr_shape=[16, {max(columns, 8)}, 16])"
            )
        lanes = min(32, columns)
        each = min(8, max(1, columns // lanes))
        warps = [1, 4] if columns // lanes > WARP_NUMBERS else [4, 1]
        return f"gl.BlockedLayout([1, {each}], [{32 // lanes}, {lanes}], {warps}, [1, 0])"
