"""Tile programs that compute rows without products: norms, activations, and quantization by row.

A tile has all columns of some rows. Sums and largest values are taken over a row; numbers beyond
its end are zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

from torch import Tensor

from pypm.diagnostics import Diagnostic
from pypm.kernels.support.pointwise import PointwiseStep, printed
from pypm.tiles.meaning import meaning
from pypm.tiles.partition import Rings
from pypm.tiles.program import (
    DTYPES,
    CastTile,
    Dims,
    LoadTile,
    MapTiles,
    PlaceTile,
    ReduceTile,
    Statement,
    StoreTile,
    TileAxis,
    TileError,
    TileOperand,
    TileProgram,
)

__all__ = ["NormOf", "Quantization", "RowTiles", "gated_tiles", "norm_tiles"]

LONGEST: Final = 8192
"""Elements of a row, at most: a thread has 64 of them."""
WARP_ROW: Final = 2048
"""Elements of a row that one warp has by itself, at most."""
_ELEMENTS: Final = {DTYPES[name]: name for name in ("bf16", "fp16", "fp32")}
_ROUNDINGS: Final = {"bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, slots=True)
class RowTiles:
    """The tile program of rows, and the operands that it reads, in the order they were given."""

    program: TileProgram
    rings: Rings
    inputs: tuple[str, ...]

    def operands(
        self, inputs: Sequence[Tensor], results: Sequence[Tensor] = ()
    ) -> dict[str, Tensor]:
        """Return operands as matrices of rows.

        `inputs` are those that are not None, in the order of the function that made the program;
        `results`, if they are to be among them, are contiguous tensors of which rows are the last
        dimension, in the order of its stores.
        """
        found = dict(zip(self.inputs, inputs, strict=True))
        found |= dict(zip(self.program.results, results, strict=bool(results)))
        sizes = {operand.name: operand.sizes for operand in self.program.operands}
        for name, x in found.items():
            rows, columns = sizes[name]
            width = 1 if columns == "1" else int(columns)
            found[name] = x.reshape(1, -1) if rows == "1" else x.reshape(-1, width)
        return found


@dataclass(frozen=True, slots=True)
class NormOf:
    """A norm of rows: x / sqrt(mean x^2 + eps) * (w + offset) + b, centered before or not."""

    eps: float
    offset: float = 0.0
    is_centered: bool = False


@dataclass(frozen=True, slots=True)
class Quantization:
    """Steps of each row: max(max |x|, low) / top, and numbers of steps from least to most."""

    dtype: str
    """An element type, "i8" or "fp8e4nv"."""
    top: float
    low: float
    least: float
    most: float


def norm_tiles(
    x: Tensor, y: Tensor | None, w: Tensor | None, b: Tensor | None, norm: NormOf,
    steps: Quantization | None = None,
) -> RowTiles:  # fmt: skip
    """Return the tile program of a norm of x, or of x + y, which is then a result too.

    Arguments:
        x: rows in bf16, fp16 or float32, [..., N].
        y: what is added to x before, of its shape; the sum is rounded to the type of x.
        w, b: weight and bias [N].
        norm: the norm.
        steps: how the norm is quantized.

    Results are the norm in the type of x, or its numbers of steps and the steps of rows in float32,
    then the sum. Only shapes and types are read. Raises TileError, with the reason, for other
    types, and for rows that are too long.
    """
    builder = _RowBuilder(x)
    value = builder.load("x", x)
    if y is not None:
        if y.shape != x.shape:
            _refuse("the addends have different shapes")
        total = builder.map("total", "add", value, builder.load("y", y))
        value = builder.rounded("h", total)
    normed = builder.normed(value, w, b, norm)
    if steps is None:
        builder.store("out", builder.dtype, normed)
    else:
        builder.quantized(normed, steps)
    if y is not None:
        builder.store("sum1", builder.dtype, value)
    return builder.build()


def gated_tiles(
    gate: Tensor, up: Tensor | None, activation: str, steps: Quantization | None = None
) -> RowTiles:
    """Return the tile program of activation(gate) * up, in the type of gate or quantized.

    Arguments:
        gate, up: rows of one shape, [..., N]; `up` may be None.
        activation: a function of the pointwise language, as "silu".
        steps: how the result is quantized.

    Raises TileError as `norm_tiles` does.
    """
    builder = _RowBuilder(gate)
    value = builder.map("act", activation, builder.load("x", gate))
    if up is not None:
        if up.shape != gate.shape:
            _refuse("the gate has another shape")
        value = builder.map("y", "mul", value, builder.load("up", up))
    if steps is None:
        builder.store("out", builder.dtype, value)
    else:
        builder.quantized(value, steps)
    return builder.build()


@dataclass
class _RowBuilder:
    like: Tensor
    """The rows."""
    operands: list[TileOperand] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    stores: list[Statement] = field(default_factory=list)
    results: list[TileOperand] = field(default_factory=list)

    @property
    def columns(self) -> int:
        columns: int = self.like.shape[-1]
        if not 1 <= columns <= LONGEST:
            _refuse(f"a row has {columns:,} elements, and not up to {LONGEST:,}")
        return columns

    @property
    def block(self) -> int:
        return max(32, 1 << (self.columns - 1).bit_length())

    @property
    def dtype(self) -> str:
        return self.element(self.like)

    def element(self, x: Tensor) -> str:
        if x.dtype not in _ELEMENTS:
            _refuse(f"an operand is {x.dtype}")
        return _ELEMENTS[x.dtype]

    def load(self, name: str, x: Tensor, is_row: bool = False) -> str:
        """Add an operand, [..., N] or [N] for each row, and the load of its tile."""
        if is_row and x.shape != (self.columns,):
            _refuse(f"`{name}` has the shape {[*x.shape]}, and not [{self.columns}]")
        size = str(self.columns)
        self.operands.append(TileOperand(name, self.element(x), ("1" if is_row else "M", size)))
        self.statements.append(LoadTile(f"{name}t", name, ("1" if is_row else "i", "j")))
        return f"{name}t"

    def map(self, name: str, operation: str, *arguments: str | float) -> str:
        """Add a map of one step on tiles and numbers."""
        tiles = [a for a in arguments if isinstance(a, str)]
        names = {tile: f"s{n - 1}" if n else "acc" for n, tile in enumerate(dict.fromkeys(tiles))}
        given = tuple(names[a] if isinstance(a, str) else a for a in arguments)
        text = printed([PointwiseStep(operation, given)])
        self.statements.append(MapTiles(name, text, tuple(names)))
        return name

    def reduce(self, name: str, how: str, tile: str) -> str:
        self.statements.append(ReduceTile(name, how, tile))
        return name

    def rounded(self, name: str, tile: str) -> str:
        """Round a tile to the type of the rows."""
        return self.map(name, _ROUNDINGS.get(self.dtype, "number"), tile)

    def store(self, name: str, dtype: str, tile: str, dims: Dims = ("i", "j")) -> None:
        size = str(self.columns) if dims[1] == "j" else "1"
        self.results.append(TileOperand(name, dtype, ("M", size)))
        self.stores.append(StoreTile(name, dims, tile))

    def normed(self, value: str, w: Tensor | None, b: Tensor | None, norm: NormOf) -> str:
        count = float(self.columns)
        if norm.is_centered:
            mean = self.map("mean", "div", self.reduce("e", "sum", value), count)
            value = self.inside(self.map("d", "sub", value, mean))
        squares = self.reduce("u", "sum", self.map("sq", "mul", value, value))
        variance = self.map("var1", "add", self.map("v", "div", squares, count), norm.eps)
        value = self.map("n1", "mul", value, self.map("f", "rsqrt", variance))
        if w is not None:
            weight = self.load("w", w, is_row=True)
            if norm.offset:
                weight = self.map("w1", "add", weight, norm.offset)
            value = self.map("n2", "mul", value, weight)
        return value if b is None else self.map("n3", "add", value, self.load("b", b, is_row=True))

    def inside(self, tile: str) -> str:
        """Add zeros beyond the end of the rows to a tile."""
        if self.block == self.columns:
            return tile
        self.statements.append(PlaceTile("at", "j", ("1", "j")))
        text = f"lt(s0,{float(self.columns)});where(v0,acc,0.0)"
        self.statements.append(MapTiles("d1", text, (tile, "at")))
        return "d1"

    def quantized(self, value: str, steps: Quantization) -> None:
        largest = self.reduce("big", "max", self.map("size1", "abs", value))
        if steps.low:
            largest = self.map("least", "maximum", largest, steps.low)
        scale = self.map("scale1", "div", largest, steps.top)
        number = self.map("q1", "div", value, scale)
        number = self.map("q2", "maximum", number, steps.least)
        number = self.map("q3", "minimum", number, steps.most)
        self.statements.append(CastTile("q4", steps.dtype, number))
        self.store("out", steps.dtype, "q4")
        self.store("scale", "fp32", scale, ("i", "1"))

    def build(self) -> RowTiles:
        rows = 4 if self.block <= WARP_ROW else 1
        made = TileProgram(
            (*self.operands, *self.results),
            (TileAxis("i", rows, "M"), TileAxis("j", self.block, str(self.columns))),
            (),
            None,
            (),
            (*self.statements, *self.stores),
        )
        meaning(made)
        inputs = tuple(operand.name for operand in self.operands)
        return RowTiles(made, Rings(groups=1), inputs)


def _refuse(reason: str) -> NoReturn:
    raise TileError(
        Diagnostic(
            f"the rows have no tile program: {reason}",
            help="it takes rows of bf16, fp16 or float32",
        )
    )
