"""Programs of graphs: one text for all sizes of a batch, which the kernel in C++ reads.

`step.cpp` describes the text. Its numbers are those of a table of tasks, as functions of the rows
of the batch; each is a multiple of these, plus a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import accumulate
from math import prod
from typing import Final

from pypm.events.decoder import ROWS, AttentionBody, DecoderStep, MatrixOperand, ProductBody
from pypm.events.decoder import decoder_graph as graph_of
from pypm.events.grids import Grid, Sizes, TileGraph, TileMap, number, refuse
from pypm.events.tasks import in_order
from pypm.events.tensors import EventTensor, event_tensors, signature

__all__ = ["ACTIVATIONS", "NORMS", "printed"]

ACTIVATIONS: Final = (None, "silu", "gelu", "gelu_tanh")
"""Activations by the numbers that programs have for them."""
NORMS: Final = (None, "rms", "layer", "rounded rms")
"""Norms by their numbers; the last is rounded to the type of the rows before its weight."""


def printed(step: DecoderStep) -> str:
    """Return the program of a step. Raises EventError if it has no such program."""
    graph = graph_of(step)
    grids = in_order(graph)
    events = _Events(graph)
    places = {"x": "t0", "out": "r"}
    widths: list[int] = []
    for grid in grids:
        body = grid.body
        if isinstance(body, (ProductBody, AttentionBody)) and body.out != "out":
            places[body.out] = f"s{len(widths)}"
            widths.append(_width(body))
    lines = [
        f"elements {_elements(grids)}",
        f"buffers {len(widths)} {' '.join(map(str, widths))}",
        f"events {events.total}",
        f"layers {len(step.layers)} groups {step.groups} size {step.size}",
        f"grids {len(grids)}",
        *(f"{_grid(grid, events)} {_body(grid, places)}" for grid in grids),
    ]
    return "\n".join(lines) + "\n"


def _width(body: ProductBody | AttentionBody) -> int:
    """Return the elements of a row of a body's result."""
    if isinstance(body, ProductBody):
        return body.weight.columns
    return body.step.groups * body.step.heads * body.step.size


def _elements(grids: tuple[Grid, ...]) -> int:
    """Return the elements of all weights, by which the kernel decides how many threads pay."""
    bodies = [grid.body for grid in grids]
    return sum(
        b.weight.size * b.weight.columns * (1 if b.gate is None else 2)
        for b in bodies
        if isinstance(b, ProductBody)
    )


class _Events:
    """The events of a graph, numbered one tensor after the other, for any size of the batch."""

    def __init__(self, graph: TileGraph) -> None:
        self.graph = graph
        self.tensors = event_tensors(graph)

    @property
    def total(self) -> str:
        return _affine(lambda sizes: sum(prod(e.shape(self.graph, sizes)) for e in self.tensors))

    def first(self, event: EventTensor, sizes: Sizes) -> int:
        """Return the number of the first event of a tensor."""
        lengths = [prod(each.shape(self.graph, sizes)) for each in self.tensors]
        return [0, *accumulate(lengths)][self.tensors.index(event)]

    def strides(self, event: EventTensor, sizes: Sizes) -> list[int]:
        """Return the steps between events along each axis of the tensor of tiles; 0 where the axis
        has no coordinate.
        """
        shape = [*event.shape(self.graph, sizes)]
        return [prod(shape[sum(map(bool, event.runs[: n + 1])) :]) if run else 0
                for n, run in enumerate(event.runs)]  # fmt: skip

    def waits(self, grid: Grid) -> Iterator[str]:
        """Yield first event, two steps and arrivals for each event that a task waits for."""
        for reads in dict.fromkeys(grid.inputs):
            event = signature(reads)
            if event in self.tensors:
                yield " ".join(
                    (
                        _affine(partial(self.first, event)),
                        *(self._step(event, reads, index) for index in _indices(grid)),
                        _affine(partial(event.count, self.graph)),
                    )
                )

    def notes(self, grid: Grid) -> Iterator[str]:
        """Yield first event, and step and block of two indices, for each event of a task."""
        for writes in grid.outputs:
            for event in self.tensors:
                if event.tensor != writes.tensor:
                    continue
                parts = [_affine(partial(self.first, event))]
                for index in _indices(grid):
                    block = _block(event, writes, index)
                    parts += [self._step(event, writes, index), str(block)]
                yield " ".join(parts)

    def _step(self, event: EventTensor, given: TileMap, index: str | None) -> str:
        def step(sizes: Sizes) -> int:
            strides = self.strides(event, sizes)
            parts = zip(given.parts, strides, strict=True)
            return sum(s for part, s in parts if index is not None and part.index == index)

        return _affine(step)


def _block(event: EventTensor, writes: TileMap, index: str | None) -> int:
    """Return how many tasks along an index notify one event, each of them no other."""
    blocks = {1}
    for part, run in zip(writes.parts, event.runs, strict=True):
        if run and (part.index is None or run % part.length):
            raise refuse(f"a task of `{writes}` notifies several events of {event}")
        if run and part.index == index:
            blocks.add(run // part.length)
    if len(blocks) > 2:
        raise refuse(f"`{writes}` uses `{index}` in two ways")
    return max(blocks)


def _indices(grid: Grid) -> tuple[str | None, str | None]:
    names = tuple(grid.sizes)
    if len(names) > 2:
        raise refuse(f"grid `{grid.name}` has {len(names)} indices, and the kernel takes two")
    first, last = (None, None, *names)[-2:]
    return first, last


def _affine(value: Callable[[Sizes], int]) -> str:
    """Return a number as a text in b, the rows of the batch. Raises EventError if it is no multiple
    of b plus a constant.
    """
    one, two, three, five = (value({ROWS: n}) for n in (1, 2, 3, 5))
    step = two - one
    constant = one - step
    if (three, five) != (constant + 3 * step, constant + 5 * step):
        raise refuse(f"{one}, {two} and {three} for one, two and three rows are on no line")
    if not step:
        return str(constant)
    return f"{constant}+{step}b" if constant else f"{step}b"


def _grid(grid: Grid, events: _Events) -> str:
    kind = "product" if isinstance(grid.body, ProductBody) else "attention"
    sizes = [_affine(partial(number, size)) for size in grid.sizes.values()]
    rows, columns = ["1", *sizes][-2:]
    waits, notes = [*events.waits(grid)], [*events.notes(grid)]
    counted = (
        f"waits {' '.join([str(len(waits)), *waits])} notes {' '.join([str(len(notes)), *notes])}"
    )
    return f"{kind} {rows} {columns} {counted}"


def _body(grid: Grid, places: Mapping[str, str]) -> str:
    body = grid.body
    if isinstance(body, ProductBody):
        return _product(body, places)
    assert isinstance(body, AttentionBody)
    layer, step = body.layer, body.step
    angles = ("-", "-") if layer.angles is None else map(_operand, layer.angles)
    operands = map(_operand, (layer.keys, layer.values, layer.mask, layer.position))
    tensors = (places[body.q], places[body.k], places[body.v], *angles, *operands)
    numbers = (body.number, step.groups, step.heads, step.size, repr(layer.scale))
    return " ".join(map(str, (*tensors, places[body.out], *numbers)))


def _product(body: ProductBody, places: Mapping[str, str]) -> str:
    residual = "-" if body.residual is None else places[body.residual]
    norm = body.norm
    of_norm: tuple[object, ...] = (0, "-", "-", 0.0, 0.0, "-")
    if norm is not None:
        weights = _operand(norm.weight), _operand(norm.bias)
        numbers = repr(norm.eps), repr(norm.offset), _operand(norm.added)
        of_norm = (NORMS.index(norm.kind), *weights, *numbers)
    sizes = ACTIVATIONS.index(body.activation), body.weight.size, body.weight.columns, body.block
    tensors = places[body.x], residual, places[body.out]
    parts = (*tensors, *of_norm, _matrix(body.weight), _matrix(body.gate), *sizes)
    return " ".join(map(str, parts))


def _operand(place: int | None) -> str:
    return "-" if place is None else f"t{place}"


def _matrix(given: MatrixOperand | None) -> str:
    if given is None:
        return "- - 1 0"
    return f"{_operand(given.matrix)} {_operand(given.bias)} {int(given.turned)} {given.first}"
