"""The grids of one decoding step of a stack of decoder layers.

A layer is seven grids: queries, keys and values, each from the normalized input; attention by row
and group of heads; its output product with the residual; the hidden units, gated or not; the output
of the layer with the residual. With a mixture of experts the last two are three: the choice of
experts of each row; the hidden units of each expert, for the rows that chose it; and for each row
the sum over its experts, which waits for these alone. A norm is no grid: each task that reads
normalized rows computes it anew. Tiles of queries, keys and values are those of one group of heads,
so attention begins with the group whose three products are there; all others need whole rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pypm.events.grids import Grid, TileGraph
from pypm.events.tasks import GridTask

__all__ = [
    "AttentionBody",
    "DecoderLayer",
    "DecoderStep",
    "ExpertBody",
    "ExpertChoice",
    "ExpertSumBody",
    "MatrixOperand",
    "NormOperands",
    "ProductBody",
    "RouteBody",
    "cost_of",
    "decoder_graph",
]

COLUMNS: Final = 32
"""Columns of a tile of a product."""
ROWS: Final = "B"
"""Name of the number of rows of the batch."""


@dataclass(frozen=True, slots=True)
class MatrixOperand:
    """A weight: places of matrix and bias among operands; [out, in] if turned, else [in, out]."""

    matrix: int
    bias: int | None
    turned: bool
    size: int
    columns: int
    first: int = 0
    """The first of the outputs that are computed."""


@dataclass(frozen=True, slots=True)
class NormOperands:
    """(x - center) / root(mean square + eps) * (weight + offset) + bias.

    "rms" has no center; "rounded rms" is rounded to the type of x before it meets the weight. To
    eps is added the number in the operand `added`, float32, if there is one.
    """

    kind: str
    weight: int | None
    bias: int | None
    eps: float
    offset: float
    added: int | None = None


@dataclass(frozen=True, slots=True)
class ExpertChoice:
    """Softmax over a product with the router, and the `top` largest of it for each row."""

    router: MatrixOperand
    top: int
    normalized: bool
    """The weights of the chosen experts are divided by their sum."""


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """One layer; integers are places among the operands.

    With experts, gate, up and down are weights of all of them: [experts, out, in].
    """

    before: NormOperands
    q: MatrixOperand
    k: MatrixOperand
    v: MatrixOperand
    angles: tuple[int, int] | None
    """Cosines and sines, [batch or 1, size]."""
    keys: int
    values: int
    mask: int
    position: int
    scale: float
    out: MatrixOperand
    after: NormOperands
    gate: MatrixOperand | None
    up: MatrixOperand
    activation: str
    down: MatrixOperand
    experts: ExpertChoice | None = None


@dataclass(frozen=True, slots=True)
class DecoderStep:
    """A stack of layers over x, operand 0, [batch, width]."""

    width: int
    groups: int
    heads: int
    """Heads of queries for each group."""
    size: int
    """Elements of a head."""
    layers: tuple[DecoderLayer, ...]


@dataclass(frozen=True, slots=True)
class ProductBody:
    """`block` columns of activation(norm(x) gate) * (norm(x) weight) + residual, of all rows;
    without a gate, of activation(norm(x) weight) + residual.
    """

    x: str
    out: str
    weight: MatrixOperand
    block: int
    norm: NormOperands | None = None
    gate: MatrixOperand | None = None
    activation: str | None = None
    residual: str | None = None

    @property
    def cost(self) -> int:
        """Return the elements of weights that a task reads, which take most of its time."""
        return self.block * self.weight.size * (1 if self.gate is None else 2)


@dataclass(frozen=True, slots=True)
class RouteBody:
    """The experts of a row, and their weights."""

    x: str
    out: str
    norm: NormOperands
    experts: ExpertChoice


@dataclass(frozen=True, slots=True)
class ExpertBody:
    """`block` columns of activation(norm(x) gate) * (norm(x) up) by one expert, of its rows."""

    x: str
    choice: str
    out: str
    norm: NormOperands
    layer: DecoderLayer
    block: int
    gate: MatrixOperand

    @property
    def cost(self) -> int:
        """Return the elements of weights that a task with any rows reads."""
        return 2 * self.block * self.layer.up.size


@dataclass(frozen=True, slots=True)
class ExpertSumBody:
    """`block` columns of the residual and of the weighted sum over the experts of a row."""

    x: str
    choice: str
    out: str
    residual: str
    layer: DecoderLayer
    experts: ExpertChoice
    block: int

    @property
    def cost(self) -> int:
        """Return the elements of weights that a task reads."""
        return self.block * self.layer.down.size * self.experts.top


@dataclass(frozen=True, slots=True)
class AttentionBody:
    """Attention of a row and a group of heads over a cache with a new key and value."""

    q: str
    k: str
    v: str
    out: str
    number: int
    """The number of the layer."""
    step: DecoderStep

    @property
    def layer(self) -> DecoderLayer:
        return self.step.layers[self.number]

    def cost(self, keys: int) -> int:
        """Return the elements of keys and values that a task reads."""
        return 2 * keys * self.step.size


def decoder_graph(step: DecoderStep) -> TileGraph:
    """Return the grids of a step; "x" is its input, and the last grid writes "out"."""
    wide = -(-step.width // COLUMNS)
    tensors: dict[str, tuple[int | str, ...]] = {"x": (wide,)}
    grids: list[Grid] = []
    source = "x"
    for number, layer in enumerate(step.layers):
        result = "out" if number == len(step.layers) - 1 else f"x{number + 1}"
        grids += _layer(step, number, layer, source, result, tensors)
        source = result
    return TileGraph(tensors, ("x",), tuple(grids))


def _layer(
    step: DecoderStep,
    number: int,
    layer: DecoderLayer,
    x: str,
    result: str,
    tensors: dict[str, tuple[int | str, ...]],
) -> list[Grid]:
    def named(name: str) -> str:
        return f"{name}{number}"

    def product(body: ProductBody, reads: tuple[str, ...]) -> Grid:
        tiles = -(-body.weight.columns // body.block)
        tensors[body.out] = (tiles,)
        return Grid(body.out, {"j": tiles}, reads, (f"j -> {body.out}[j]",), body)

    q, k, v, attended, middle, hidden = map(named, ("q", "k", "v", "a", "m", "h"))
    tensors[attended] = (ROWS, step.groups)
    attention = Grid(
        attended,
        {"b": ROWS, "g": step.groups},
        tuple(f"b,g -> {each}[g]" for each in (q, k, v)),
        (f"b,g -> {attended}[b, g]",),
        AttentionBody(q, k, v, attended, number, step),
    )
    before, after, kind = layer.before, layer.after, layer.activation
    rows = ":, " if len(tensors[x]) == 2 else ""
    if layer.experts is None:
        last = (
            ProductBody(middle, hidden, layer.up, COLUMNS, after, layer.gate, kind),
            ProductBody(hidden, result, layer.down, COLUMNS, residual=middle),
        )
        ends = [
            product(last[0], (f"j -> {middle}[:]",)),
            product(last[1], (f"j -> {hidden}[:]", f"j -> {middle}[j]")),
        ]
    else:
        ends = _experts(number, layer, layer.experts, middle, result, tensors)
    bodies = (
        ProductBody(x, q, layer.q, step.heads * step.size, before),
        ProductBody(x, k, layer.k, step.size, before),
        ProductBody(x, v, layer.v, step.size, before),
        ProductBody(attended, middle, layer.out, COLUMNS, residual=x),
    )
    return [
        *(product(body, (f"j -> {x}[{rows}:]",)) for body in bodies[:3]),
        attention,
        product(bodies[3], (f"j -> {attended}[:, :]", f"j -> {x}[{rows}j]")),
        *ends,
    ]


def _experts(
    number: int,
    layer: DecoderLayer,
    experts: ExpertChoice,
    x: str,
    result: str,
    tensors: dict[str, tuple[int | str, ...]],
) -> list[Grid]:
    """Return the grids of a mixture of experts, and add the tensors that they write."""
    choice, hidden = f"e{number}", f"h{number}"
    count, units, wide = experts.router.columns, layer.up.columns, layer.down.columns
    tiles, columns = -(-units // COLUMNS), -(-wide // COLUMNS)
    tensors[choice] = (ROWS, experts.top)
    tensors[hidden] = (count, tiles)
    tensors[result] = (ROWS, columns)
    assert layer.gate is not None, "experts have gates"
    norm = layer.after
    return [
        Grid(
            choice, {"b": ROWS}, (f"b -> {x}[:]",), (f"b -> {choice}[b, :]",),
            RouteBody(x, choice, norm, experts),
        ),
        Grid(
            hidden, {"e": count, "j": tiles}, (f"e,j -> {choice}[:, :]", f"e,j -> {x}[:]"),
            (f"e,j -> {hidden}[e, j]",),
            ExpertBody(x, choice, hidden, norm, layer, COLUMNS, layer.gate),
        ),
        Grid(
            result, {"b": ROWS, "j": columns},
            (f"b,j -> {hidden}[{choice}[b, :], :]", f"b,j -> {x}[j]"),
            (f"b,j -> {result}[b, j]",),
            ExpertSumBody(hidden, choice, result, x, layer, experts, COLUMNS),
        ),
    ]  # fmt: skip


def cost_of(keys: int) -> Callable[[GridTask], float]:
    """Return the elements that a task reads of weights and of caches with so many filled keys."""

    def cost(task: GridTask) -> float:
        body = task.grid.body
        if isinstance(body, (ProductBody, ExpertBody, ExpertSumBody)):
            return body.cost
        return body.cost(keys) if isinstance(body, AttentionBody) else 1.0

    return cost
