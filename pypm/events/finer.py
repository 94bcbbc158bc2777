"""Graphs with smaller tiles of products: more tasks, for machines of many workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pypm.events.decoder import ProductBody
from pypm.events.grids import Grid, Size, TileGraph, TileMap, TilePart

__all__ = ["finer"]


def finer(graph: TileGraph, columns: int) -> TileGraph:
    """Return a graph with the same results, in which products have fewer columns a tile.

    A tile of products becomes as many equal tiles as it takes for each to have at most so many
    columns, and tasks of attention read these side by side. Products that read a tile of their own
    place, as those with a residual do, stay as they are, and so do those that are read like that.
    """
    placed = {each.tensor for grid in graph.grids for each in _by_place(grid)}
    parts = {}
    for grid in graph.grids:
        body = grid.body
        if not isinstance(body, ProductBody) or _by_place(grid) or body.out in placed:
            continue
        if body.weight.columns % body.block == 0:
            parts[body.out] = _parts(body.block, columns)
    tensors = {
        name: tuple(_times(size, parts.get(name, 1)) for size in shape)
        for name, shape in graph.tensors.items()
    }
    return TileGraph(tensors, graph.inputs, tuple(_grid(grid, parts) for grid in graph.grids))


def _by_place(grid: Grid) -> list[TileMap]:
    """Return the maps by which products read tiles that depend on the task."""
    reads = grid.inputs if isinstance(grid.body, ProductBody) else ()
    return [each for each in reads if any(part.index is not None for part in each.parts)]


def _parts(block: int, columns: int) -> int:
    """Return the smallest number of equal parts with at most so many columns."""
    return next(n for n in range(1, block + 1) if block % n == 0 and block // n <= columns)


def _times(size: Size, count: int) -> Size:
    return size if isinstance(size, str) else size * count


def _grid(grid: Grid, parts: Mapping[str, int]) -> Grid:
    reads = tuple(str(_read(each, parts.get(each.tensor, 1))) for each in grid.inputs)
    body = grid.body
    if not isinstance(body, ProductBody) or body.out not in parts:
        return Grid(grid.name, grid.sizes, reads, grid.writes, body)
    count = parts[body.out]
    sizes = {name: _times(size, count) for name, size in grid.sizes.items()}
    return Grid(grid.name, sizes, reads, grid.writes, replace(body, block=body.block // count))


def _read(reads: TileMap, count: int) -> TileMap:
    parts = [p if p.index is None else TilePart(p.index, p.length * count) for p in reads.parts]
    return replace(reads, parts=tuple(parts))
