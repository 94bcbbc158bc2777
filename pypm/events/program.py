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

from pypm.events.decoder import (
    ROWS,
    AttentionBody,
    DecoderStep,
    ExpertBody,
    ExpertSumBody,
    MatrixOperand,
    NormOperands,
    ProductBody,
    RouteBody,
)
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
    choices: list[str] = []
    for grid in grids:
        body = grid.body
        if isinstance(body, RouteBody):
            places[body.out] = str(len(choices))
            choices.append(f"{body.experts.top} {body.experts.router.columns}")
        elif grid.name != "out":
            places[grid.name] = f"s{len(widths)}"
            widths.append(_width(grid))
    lines = [
        f"elements {_elements(grids)}",
        " ".join(map(str, ("buffers", len(widths), *widths, "choices", len(choices), *choices))),
        f"events {events.total}",
        f"layers {len(step.layers)} groups {step.groups} size {step.size}",
        f"grids {len(grids)}",
        *(f"{_grid(grid, events, places)} {_body(grid, places)}" for grid in grids),
    ]
    return "\n".join(lines) + "\n"


def _width(grid: Grid) -> int:
    """Return the elements of a row of a grid's result."""
    match body := grid.body:
        case ProductBody():
            return body.weight.columns
        case AttentionBody():
            return body.step.groups * body.step.heads * body.step.size
        case ExpertBody():
            assert body.layer.experts is not None
            return body.layer.up.columns * body.layer.experts.top
        case ExpertSumBody():
            return body.layer.down.columns
    raise refuse(f"the kernel has no body {body}")


def _elements(grids: tuple[Grid, ...]) -> int:
    """Return the elements of all weights, by which the kernel decides how many threads pay."""
    return sum(map(_weights, grids))


def _weights(grid: Grid) -> int:
    """Return the elements of weights that a grid reads for one row."""
    match body := grid.body:
        case ProductBody(weight=w):
            return w.size * w.columns * (1 if body.gate is None else 2)
        case ExpertBody():
            assert body.layer.experts is not None
            return 2 * body.layer.up.size * body.layer.up.columns * body.layer.experts.top
        case ExpertSumBody():
            return body.layer.down.size * body.layer.down.columns * body.experts.top
    return 0


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
            if event in self.tensors and not reads.chosen:
                yield " ".join(
                    (
                        _affine(partial(self.first, event)),
                        *(self._step(event, reads, index) for index in _indices(grid)),
                        _affine(partial(event.count, self.graph)),
                    )
                )

    def chosen(self, grid: Grid, places: Mapping[str, str]) -> Iterator[str]:
        """Yield first event, two steps, arrivals, step for each number of a tile, and the choice,
        for the tiles of rows that a task chooses.
        """
        for reads in grid.inputs:
            for part in reads.chosen:
                event, (row, *others) = signature(reads), part.source.parts
                fits = len(reads.chosen) == 1 and len(grid.sizes) == 2 and not part.is_range
                if not fits or row.index != next(iter(grid.sizes)) or [*map(str, others)] != [":"]:
                    raise refuse(f"the kernel chooses tiles by rows of numbers, not by `{reads}`")
                axis = reads.parts.index(part)
                parts = (
                    _affine(partial(self.first, event)),
                    *(self._step(event, reads, index) for index in _indices(grid)),
                    _affine(partial(event.count, self.graph)),
                    _affine(partial(self._along, event, axis)),
                )
                yield " ".join((*parts, places[part.source.tensor]))

    def _along(self, event: EventTensor, axis: int, sizes: Sizes) -> int:
        return self.strides(event, sizes)[axis]

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


KINDS: Final[Mapping[type, str]] = {
    ProductBody: "product",
    AttentionBody: "attention",
    RouteBody: "route",
    ExpertBody: "hidden",
    ExpertSumBody: "sum",
}


def _grid(grid: Grid, events: _Events, places: Mapping[str, str]) -> str:
    kind = KINDS[type(grid.body)]
    sizes = [_affine(partial(number, size)) for size in grid.sizes.values()]
    rows, columns = ["1", *sizes][-2:]
    lists = {
        "waits": [*events.waits(grid)],
        "notes": [*events.notes(grid)],
        "chosen": [*events.chosen(grid, places)],
    }
    counted = (" ".join((name, str(len(found)), *found)) for name, found in lists.items())
    return " ".join((kind, rows, columns, *counted))


def _body(grid: Grid, places: Mapping[str, str]) -> str:
    body = grid.body
    match body:
        case ProductBody():
            return _product(body, places)
        case RouteBody(experts=e):
            numbers = (e.router.size, int(e.normalized), places[body.out])
            return _words(places[body.x], *_norm(body.norm), _matrix(e.router), *numbers)
        case ExpertBody(layer=layer):
            kind = ACTIVATIONS.index(layer.activation)
            sizes = (kind, layer.up.size, layer.up.columns, body.block, places[body.choice])
            matrices = (_matrix(layer.up), _matrix(body.gate))
            return _words(places[body.x], places[body.out], *_norm(body.norm), *matrices, *sizes)
        case ExpertSumBody(layer=layer):
            tensors = (places[body.x], places[body.residual], places[body.out])
            down = layer.down
            rest = (down.size, down.columns, body.block, places[body.choice])
            return _words(*tensors, _matrix(down), *rest)
    assert isinstance(body, AttentionBody)
    return _attention(body, places)


def _words(*parts: int | str) -> str:
    return " ".join(map(str, parts))


def _attention(body: AttentionBody, places: Mapping[str, str]) -> str:
    layer, step = body.layer, body.step
    angles = ("-", "-") if layer.angles is None else map(_operand, layer.angles)
    operands = map(_operand, (layer.keys, layer.values, layer.mask, layer.position))
    tensors = (places[body.q], places[body.k], places[body.v], *angles, *operands)
    numbers = (body.number, step.groups, step.heads, step.size, repr(layer.scale))
    return _words(*tensors, places[body.out], *numbers)


def _product(body: ProductBody, places: Mapping[str, str]) -> str:
    residual = "-" if body.residual is None else places[body.residual]
    sizes = ACTIVATIONS.index(body.activation), body.weight.size, body.weight.columns, body.block
    tensors = places[body.x], residual, places[body.out]
    parts = (*tensors, *_norm(body.norm), _matrix(body.weight), _matrix(body.gate), *sizes)
    return _words(*parts)


def _norm(norm: NormOperands | None) -> tuple[int | str, ...]:
    if norm is None:
        return (0, "-", "-", "0.0", "0.0", "-")
    weights = _operand(norm.weight), _operand(norm.bias)
    numbers = repr(norm.eps), repr(norm.offset), _operand(norm.added)
    return (NORMS.index(norm.kind), *weights, *numbers)


def _operand(place: int | None) -> str:
    return "-" if place is None else f"t{place}"


def _matrix(given: MatrixOperand | None) -> str:
    if given is None:
        return "- - 1 0"
    return f"{_operand(given.matrix)} {_operand(given.bias)} {int(given.turned)} {given.first}"
