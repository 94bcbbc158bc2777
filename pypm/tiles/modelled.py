"""Cycles of a kernel on a Hopper GPU by the rates of `pypm.tiles.timeline`: a model, not a time."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod
from typing import Final

from pypm.diagnostics import Diagnostic
from pypm.tiles.emit import Emitted
from pypm.tiles.program import TileError
from pypm.tiles.timeline import spans_of

__all__ = ["modelled_cycles"]

TURNS: Final = 6, 12
"""Turns that are emulated; each further one takes as long as the last of these."""


def modelled_cycles(kernel: Emitted, sizes: Mapping[str, int], multiprocessors: int) -> float:
    """Return the cycles in which the last multiprocessor ends.

    Arguments:
        kernel: the kernel.
        sizes: the sizes of its axes by name.
        multiprocessors: those of the GPU; the tiles are divided between them.

    Two tiles are emulated, one after another, to know what one more of them takes. Raises TileError
    for a program without products in a loop, with a loop over a part of an axis, or with segments.
    """
    program = kernel.source.program
    loop = program.loop
    if loop is None or program.visits is not None or program.segments is not None:
        what = "no loop" if loop is None else "segments" if program.segments else "a range"
        problem = f"the program has {what}, of which no cycles are known"
        raise TileError(Diagnostic(problem, help="time it on a GPU"))
    tiles = prod(ceil(sizes[axis.of] / axis.block) for axis in program.grid if not axis.is_whole)
    turns = ceil(sizes[loop.of] / loop.block)
    one, two = (_end(kernel, count, turns) for count in (1, 2))
    return one + (ceil(tiles / multiprocessors) - 1) * (two - one)


def _end(kernel: Emitted, tiles: int, turns: int) -> float:
    """Return the cycle in which a program ends that computes some tiles."""
    few, some = (min(turns, most) for most in TURNS)
    last = _emulated(kernel, tiles, some)
    if turns == some:
        return last
    return last + (last - _emulated(kernel, tiles, few)) / (some - few) * (turns - some)


def _emulated(kernel: Emitted, tiles: int, turns: int) -> float:
    return max(span.end for span in spans_of(kernel, tiles, turns))
