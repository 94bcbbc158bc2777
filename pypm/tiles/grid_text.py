"""Gluon text of the loops over tiles and turns, which the producer and the consumers share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pypm.tiles.program import TileAxis, TileProgram

__all__ = ["GridText"]


@dataclass(frozen=True)
class GridText:
    """Text of the loops of a program."""

    program: TileProgram

    def tiles(self, is_keeping: bool) -> Iterator[str]:
        """Yield the loop over the tiles of a program, and where they begin; it may count them."""
        axes = [axis for axis in self.program.grid if not axis.is_whole]
        yield "    turn = 0"
        if is_keeping:
            yield "    round = 0"
        count = " * ".join(map(_count, axes)) or "1"
        yield f"    for tile in range(gl.program_id(0), {count}, gl.num_programs(0)):"
        rest = "tile"
        for n, axis in enumerate(axes):
            is_last, block = n + 1 == len(axes), f" * {axis.block}" if axis.block > 1 else ""
            index = rest if is_last else f"{rest} % {_count(axis)}"
            yield f"        {axis.name} = {index}{block}"
            if not is_last:
                if n + 2 < len(axes):
                    yield f"        tiles_left = {rest} // {_count(axis)}"
                    rest = "tiles_left"
                else:
                    rest = f"{rest} // {_count(axis)}"
        yield from (f"        {axis.name} = 0" for axis in self.program.grid if axis.is_whole)
        yield from (f"        {line}" for line in self.visited())

    def visited(self) -> Iterator[str]:
        loop, visits = self.program.loop, self.program.visits
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
        return _count(self.program.loop) if self.program.visits is None else "turns"

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
