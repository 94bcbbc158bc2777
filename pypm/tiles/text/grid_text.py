"""Gluon text of the loops over tiles and turns, which the producer and the consumers share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pypm.tiles.program import Segments, TileAxis, TileProgram

__all__ = ["GridText"]


@dataclass(frozen=True)
class GridText:
    """Text of the loops of a program."""

    program: TileProgram

    def tiles(self, counters: Sequence[str] = ()) -> Iterator[str]:
        """Yield the loop over the tiles of a program, and where they begin, after `counters`."""
        segments = self.program.segments
        axes = [axis for axis in self.program.grid if not axis.is_whole]
        yield from (f"    {name} = 0" for name in counters)
        count = " * ".join(map(self.count, axes)) or "1"
        yield f"    for tile in range(gl.program_id(0), {count}, gl.num_programs(0)):"
        rest = "tile"
        for n, axis in enumerate(axes):
            is_last, block = n + 1 == len(axes), f" * {axis.block}" if axis.block > 1 else ""
            index = rest if is_last else f"{rest} % {self.count(axis)}"
            if segments is not None and axis.name == segments.rows:
                yield from (f"        {line}" for line in self.segment(segments, axis, index))
            else:
                yield f"        {axis.name} = {index}{block}"
            if not is_last:
                if n + 2 < len(axes):
                    yield f"        tiles_left = {rest} // {self.count(axis)}"
                    rest = "tiles_left"
                else:
                    rest = f"{rest} // {self.count(axis)}"
        yield from (f"        {axis.name} = 0" for axis in self.program.grid if axis.is_whole)
        yield from (f"        {line}" for line in self.visited())

    def count(self, axis: TileAxis) -> str:
        """Return how many tiles there are on an axis, at most: each segment may end with a part."""
        segments = self.program.segments
        if segments is None or axis.name != segments.rows:
            return _count(axis)
        return f"({_count(axis)} + {segments.axis.of})"

    def segment(self, segments: Segments, rows: TileAxis, index: str) -> Iterator[str]:
        """Yield the search for the segment of a tile, which is none beyond the last one."""
        i, e, ends = rows.name, segments.axis.name, segments.ends
        yield f"{i}_left = {index}"
        yield f"{i} = 0"
        yield f"{i}_end = 0"
        yield f"{e} = 0"
        yield f"{e}_first = 0"
        yield f"for n in range({segments.axis.of}):"
        yield f"    {e}_last = gl.load({ends}_ptr + n * {ends}_stride0)"
        yield f"    {e}_count = gl.cdiv({e}_last - {e}_first, {rows.block})"
        yield f"    if ({i}_left >= 0) & ({i}_left < {e}_count):"
        yield f"        {i} = {e}_first + {i}_left * {rows.block}"
        yield f"        {i}_end = {e}_last"
        yield f"        {e} = n"
        yield f"    {i}_left = {i}_left - {e}_count"
        yield f"    {e}_first = {e}_last"

    def visited(self) -> Iterator[str]:
        loop, visits = self.program.loop, self.program.visits
        segments = self.program.segments
        if loop is not None and segments is not None:
            i = segments.rows
            # by a comparison instead, LLVM makes two paths, and ptxas serializes the products
            yield f"turns = gl.minimum(gl.maximum({i}_end - {i}, 0), 1) * {_count(loop)}"
        if loop is None or visits is None:
            return
        first, end = "0", _count(loop)
        if visits.first is not None:
            first = f"gl.maximum({visits.axis} + {visits.first}, 0) // {loop.block}"
        if visits.end is not None:
            stop = f"gl.cdiv(gl.maximum({visits.axis} + {visits.end}, 0), {loop.block})"
            end = f"gl.minimum({end}, {stop})"
        yield f"first_turn = {first}"
        yield f"turns = gl.maximum({end} - first_turn, 0)"

    @property
    def turns(self) -> str:
        """Return the number of turns of the loop."""
        assert self.program.loop is not None
        is_given = self.program.visits is not None or self.program.segments is not None
        return "turns" if is_given else _count(self.program.loop)

    def loop(self, depth: int) -> Iterator[str]:
        """Yield the loop over turns, and the slot and the phase of each in rings of some depth."""
        yield f"        for step in range({self.turns}):"
        yield f"            slot = turn % {depth}"
        yield f"            phase = turn // {depth} & 1"

    @property
    def place(self) -> str:
        """Return the statement that says where the tiles of a turn begin."""
        assert self.program.loop is not None
        step = "step" if self.program.visits is None else "(first_turn + step)"
        return f"{self.program.loop.name} = {step} * {self.program.loop.block}"


def _count(axis: TileAxis) -> str:
    """Return how many blocks an axis has."""
    if axis.of.isdigit():
        return str(-(-int(axis.of) // axis.block))
    return axis.of if axis.block == 1 else f"gl.cdiv({axis.of}, {axis.block})"
