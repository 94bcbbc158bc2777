"""Grids of tile tasks, and the tiles that each task reads and writes.

A tensor is cut into tiles, which have coordinates. A grid is a set of tasks, one for each value of
its indices. A map says which tiles of a tensor a task reads or writes:

    "b,j -> x[b, j]"            one tile
    "b,j -> x[b, :]"            all tiles of an axis
    "b,j -> x[b, 4*j:4*j+4]"    as many as four side by side

What a task reads may depend on data. The numbers of tiles are then elements of another tensor,
which has a tile for each element, and which the task reads as well:

    "b,j -> h[topk[b, :], j]"                  the tiles with the numbers topk[b, :]
    "e -> x[range(ptr[e], ptr[e+1]), :]"       those from ptr[e] on, before ptr[e+1]

Sizes are numbers or names; a name, as "B" for the rows of a batch, gets a number when the graph is
cut into tasks. Nobody writes events or counts: `pypm.events.tensors` derives them from the maps.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeAlias

from pypm.diagnostics import Diagnostic, PyPMError

__all__ = [
    "ChosenTiles",
    "ElementsOf",
    "EventError",
    "Grid",
    "Size",
    "Sizes",
    "TileGraph",
    "TileMap",
    "TilePart",
    "Tiles",
    "parsed",
]

Size: TypeAlias = int | str
"""A number, or a name."""
Sizes: TypeAlias = Mapping[str, int]
"""Numbers for names."""
Tiles: TypeAlias = tuple[int, ...]
"""Coordinates of one tile, or of one task."""
ElementsOf: TypeAlias = Mapping[str, Mapping[Tiles, int]]
"""The elements of tensors that hold numbers of tiles."""


class EventError(PyPMError):
    """A graph of grids without a meaning, or a schedule that could not run it."""


def refuse(message: str, help: str = "") -> EventError:
    """Return the error with this message."""
    return EventError(Diagnostic(message, help=help))


@dataclass(frozen=True, slots=True)
class TilePart:
    """The tiles of one axis: `length` of them from `length` times an index on, or all."""

    index: str | None
    length: int = 1

    def __str__(self) -> str:
        if self.index is None:
            return ":"
        if self.length == 1:
            return self.index
        return f"{self.length}*{self.index}:{self.length}*{self.index}+{self.length}"


@dataclass(frozen=True, slots=True)
class ChosenTiles:
    """The tiles of one axis whose numbers are elements of a tensor, or from one to the next."""

    source: TileMap
    is_range: bool
    index: None = field(default=None, init=False)
    length: int = field(default=1, init=False)

    def __str__(self) -> str:
        name, parts = self.source.tensor, ", ".join(map(str, self.source.parts))
        return f"range({name}[{parts}], {name}[{parts}+1])" if self.is_range else f"{name}[{parts}]"

    @property
    def read(self) -> TileMap:
        """Return the map of the elements that a task reads: of a range, all."""
        if not self.is_range:
            return self.source
        return TileMap(self.source.indices, self.source.tensor, (TilePart(None),))

    def numbers(self, at: Tiles, data: ElementsOf) -> Iterable[int]:
        """Return the numbers of the tiles for a task. Raises EventError if they are not known."""
        name = self.source.tensor
        if name not in data:
            raise refuse(f"`{self}` has no data", help=f"pass the elements of `{name}`")
        known = data[name]
        shape = tuple(1 + max(axis) for axis in zip(*known, strict=True))
        places = [*self.source.tiles(at, shape)]
        if not self.is_range:
            return dict.fromkeys(known[place] for place in places)
        ((n,),) = places
        return range(known[n,], known[n + 1,])


@dataclass(frozen=True, slots=True)
class TileMap:
    """The tiles of one tensor that a task reads or writes."""

    indices: tuple[str, ...]
    tensor: str
    parts: tuple[TilePart | ChosenTiles, ...]

    def __str__(self) -> str:
        return f"{','.join(self.indices)} -> {self.tensor}[{', '.join(map(str, self.parts))}]"

    @property
    def chosen(self) -> tuple[ChosenTiles, ...]:
        """Return the parts that depend on data."""
        return tuple(part for part in self.parts if isinstance(part, ChosenTiles))

    def tiles(self, task: Tiles, shape: Tiles, data: ElementsOf | None = None) -> Iterator[Tiles]:
        """Yield the tiles for a task, which may lie outside of a tensor of this shape; without
        data, all that the task may choose.
        """
        at = dict(zip(self.indices, task, strict=True))

        def along(part: TilePart | ChosenTiles, size: int) -> Iterable[int]:
            if isinstance(part, ChosenTiles):
                return range(size) if data is None else part.numbers(task, data)
            if part.index is None:
                return range(size)
            return range(part.length * at[part.index], part.length * (at[part.index] + 1))

        return itertools.product(*(along(*each) for each in zip(self.parts, shape, strict=True)))


_MAP: Final = re.compile(r"(?P<indices>[\w,\s]*)->\s*(?P<tensor>[\w.]+)\s*\[(?P<parts>.*)\]\s*")
_CHOSEN: Final = re.compile(r"([\w.]+)\[([^\[\]]*)\]")
_RANGE: Final = re.compile(r"range\(([\w.]+)\[(\w+)\],([\w.]+)\[(\w+)\+1\]\)")
_SPAN: Final = re.compile(r"(\d+)\*(\w+):(\d+)\*(\w+)\+(\d+)")


def parsed(text: str) -> TileMap:
    """Return the map of a text. Raises EventError if it is none."""
    found = _MAP.fullmatch(text)
    if found is None:
        raise refuse(f"`{text}` is no map", help='write it as "b,j -> x[b, :]"')
    indices = tuple(filter(None, (name.strip() for name in found["indices"].split(","))))
    parts = tuple(_part(part, text, indices) for part in _split(found["parts"].replace(" ", "")))
    flat = [each for part in parts for each in _plain(part)]
    unknown = [part.index for part in flat if part.index not in (None, *indices)]
    if unknown or len({*indices}) < len(indices):
        what = f"uses `{unknown[0]}`, which is no index of it" if unknown else "repeats an index"
        raise refuse(f"`{text}` {what}")
    return TileMap(indices, found["tensor"], parts)


def _split(parts: str) -> list[str]:
    """Split a text at the commas outside of brackets."""
    found, depth = [""], 0
    for letter in parts:
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return found


def _plain(part: TilePart | ChosenTiles) -> Iterator[TilePart]:
    """Yield the parts by which tiles are named, also those of a tensor of numbers."""
    inner = part.source.parts if isinstance(part, ChosenTiles) else (part,)
    for each in inner:
        assert isinstance(each, TilePart), "numbers of tiles are not chosen by others"
        yield each


def _part(text: str, whole: str, indices: tuple[str, ...]) -> TilePart | ChosenTiles:
    span = _RANGE.fullmatch(text)
    if span is not None and (span[1], span[2]) == (span[3], span[4]):
        return ChosenTiles(TileMap(indices, span[1], (TilePart(span[2]),)), True)
    chosen = _CHOSEN.fullmatch(text)
    if chosen is not None:
        inner = tuple(_plain_part(part, whole) for part in chosen[2].split(","))
        return ChosenTiles(TileMap(indices, chosen[1], inner), False)
    return _plain_part(text, whole)


def _plain_part(text: str, whole: str) -> TilePart:
    if text == ":":
        return TilePart(None)
    if text.isidentifier():
        return TilePart(text)
    span = _SPAN.fullmatch(text)
    if span is not None and span[2] == span[4] and span[1] == span[3] == span[5] != "0":
        return TilePart(span[2], int(span[1]))
    raise refuse(
        f"`{text}` in `{whole}` names no tiles",
        help="tiles of an axis are `i`, `:`, `4*i:4*i+4` with the same number three times, or"
        " chosen by a tensor, `ids[i, :]` or `range(ptr[i], ptr[i+1])`",
    )


@dataclass(frozen=True)
class Grid:
    """Tasks of one kind.

    Arguments:
        name: names the grid in diagnostics.
        sizes: the number of values of each index, in the order in which tasks are numbered.
        reads, writes: texts of maps, each with the grid's indices.
        body: the computation of a task, for a backend; not looked at here.

    Raises EventError if a text is no map, or has other indices, or if what is written depends on
    data: nothing would say that each tile is written once.
    """

    name: str
    sizes: Mapping[str, Size]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    body: object = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for each in (*self.inputs, *self.outputs):
            if each.indices != tuple(self.sizes):
                known = ", ".join(self.sizes)
                raise refuse(f"`{each}` of grid `{self.name}` has other indices than {known}")
        for each in self.outputs:
            if each.chosen:
                raise refuse(f"what `{each}` of grid `{self.name}` writes depends on data")

    @cached_property
    def inputs(self) -> tuple[TileMap, ...]:
        """Return the maps of what a task reads, first of the numbers by which it chooses tiles."""
        found = tuple(map(parsed, self.reads))
        return tuple(dict.fromkeys((*(c.read for m in found for c in m.chosen), *found)))

    @cached_property
    def outputs(self) -> tuple[TileMap, ...]:
        return tuple(map(parsed, self.writes))

    def tasks(self, sizes: Sizes) -> Iterator[Tiles]:
        """Yield the tasks in order."""
        return itertools.product(*(range(number(size, sizes)) for size in self.sizes.values()))


def number(size: Size, sizes: Sizes) -> int:
    """Return the number of a size. Raises EventError for a name without one."""
    if isinstance(size, int):
        return size
    if size not in sizes:
        raise refuse(f"the size `{size}` has no number", help=f"known are {', '.join(sizes)}")
    return sizes[size]


@dataclass(frozen=True)
class TileGraph:
    """Grids, and the tensors between them.

    Arguments:
        tensors: the number of tiles along each axis of each tensor.
        inputs: names of the tensors that no grid writes.
        grids: the grids.

    Raises EventError for a map of an unknown tensor or with another number of axes, for two grids
    of one name, and for an input that is written.
    """

    tensors: Mapping[str, tuple[Size, ...]]
    inputs: tuple[str, ...]
    grids: tuple[Grid, ...]

    def __post_init__(self) -> None:
        names = [grid.name for grid in self.grids]
        for name in names:
            if names.count(name) > 1:
                raise refuse(f"two grids are named `{name}`")
        for grid in self.grids:
            for each in (*grid.inputs, *grid.outputs):
                axes = self.tensors.get(each.tensor)
                if axes is None or len(axes) != len(each.parts):
                    what = "is of no known tensor" if axes is None else f"has not {len(axes)} axes"
                    raise refuse(f"`{each}` of grid `{grid.name}` {what}")
            for each in grid.outputs:
                if each.tensor in self.inputs:
                    raise refuse(f"grid `{grid.name}` writes `{each.tensor}`, which is an input")

    def shape(self, tensor: str, sizes: Sizes) -> Tiles:
        """Return the number of tiles along each axis of a tensor."""
        return tuple(number(size, sizes) for size in self.tensors[tensor])

    def writers(self, tensor: str) -> list[tuple[Grid, TileMap]]:
        """Return the grids that write a tensor, with their maps."""
        return [(g, each) for g in self.grids for each in g.outputs if each.tensor == tensor]
