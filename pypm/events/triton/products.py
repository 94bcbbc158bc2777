"""Triton text of products: norms of rows, one or two weights, activations and residuals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from pypm.events.decoder import MatrixOperand, NormOperands, ProductBody
from pypm.events.triton.numbers import (
    ALIGNED,
    BODY,
    GridNumber,
    SizeOf,
    TensorAddress,
    itemsize,
    multiplied,
)
from pypm.kernels.support.pointwise import parse, statements

__all__ = ["ROWS", "ProductText", "product_numbers", "product_text"]

ROWS: Final = 16
"""Rows of a tile, of which those of the batch are computed: the least of a product's operand."""
INNER: Final = 128
"""Bytes of a row that one turn of the loop multiplies."""


_OPERANDS: Final = {"weight": "", "bias": "", "added": "float32"}
"""Operands of norms, and their types."""


@dataclass(frozen=True, slots=True)
class WeightText:
    """One weight of a product, as far as the text depends on it."""

    name: str
    turned: bool
    has_bias: bool

    @property
    def sum(self) -> str:
        """Return the name of its products."""
        return f"{self.name}_sum"


@dataclass(frozen=True, slots=True)
class ProductText:
    """A product, as far as the text depends on it."""

    element: str
    """The type of elements."""
    block: int
    norm: NormOperands | None
    """Places of operands are 0 if there are any."""
    weights: tuple[WeightText, ...]
    """The weight; and the gate, if there is one."""
    program: str
    """The result from the products, as in `pypm.kernels.support.pointwise`: `acc` is the gate's, or
    the weight's if there is no gate."""
    has_residual: bool
    is_whole: bool
    """True if turns divide the rows, and tiles the columns."""
    is_aligned: bool

    @property
    def width(self) -> int:
        """Return the columns of a tile of the text, a power of two."""
        return max(16, 1 << (self.block - 1).bit_length())

    @property
    def inner(self) -> int:
        """Return the elements of a row that one turn of the loop multiplies."""
        return INNER // itemsize(self.element)

    def functions(self) -> Iterator[str]:
        """Yield the function of the program."""
        if self.program:
            yield f"@triton.jit\ndef {BODY}_map({', '.join(self.sides())}):"
            yield from (f"    {line}" for line in statements(self.program, "({})"))
            yield "\n"

    def sides(self) -> list[str]:
        """Return the names that the program reads."""
        count = len(self.weights) - 1 + self.has_residual
        return ["acc", *(f"s{n}" for n in range(count))]

    def lines(self) -> Iterator[str]:
        """Yield the statements of a task."""
        yield f"rows = tl.arange(0, {ROWS})[:, None]"
        yield "is_row = rows < batch"
        if self.is_aligned:
            yield f"size = tl.multiple_of(size, {ALIGNED})"
        yield "of_row = x + rows * size"
        if self.norm is not None:
            yield from self.statistics(self.norm)
        yield f"column = j * {self.block} + tl.arange(0, {self.width})"
        for weight in self.weights:
            yield f"{weight.sum} = tl.zeros(({ROWS}, {self.width}), tl.float32)"
        yield f"for k in range(0, size, {self.inner}):"
        yield from (f"    {line}" for line in self.turn())
        yield from self.result()

    # --- norms -----------------------------------------------------------------------------------

    @property
    def of_rows(self) -> str:
        """Return the mask of parts of rows."""
        return "is_row" if self.is_whole else "is_row & (at < size)"

    def part(self) -> Iterator[str]:
        """Yield the statements of the part of all rows from `k` on."""
        yield f"at = k + tl.arange(0, {self.inner})[None, :]"
        yield f"part = tl.load(of_row + at, mask={self.of_rows}, other=0.0)"

    def summed(self, value: str) -> Iterator[str]:
        """Yield the statements that sum a value over all elements of each row."""
        yield f"summed = tl.zeros(({ROWS}, {self.inner}), tl.float32)"
        yield f"for k in range(0, size, {self.inner}):"
        yield from (f"    {line}" for line in self.part())
        yield "    part = part.to(tl.float32)"
        yield f"    summed += {value}"

    def statistics(self, norm: NormOperands) -> Iterator[str]:
        square = "part * part"
        if norm.kind == "layer":
            yield from self.summed("part")
            yield "center = (tl.sum(summed, 1) / size)[:, None]"
            square = f"tl.where({self.of_rows}, (part - center) * (part - center), 0.0)"
        yield from self.summed(square)
        added = "" if norm.added is None else " + tl.load(norm_added)"
        yield f"factor = tl.rsqrt(tl.sum(summed, 1) / size + {norm.eps}{added})[:, None]"

    def normed(self, norm: NormOperands) -> Iterator[str]:
        """Yield the statements that normalize a part, which is loaded."""
        read = "tl.load({} + at, mask=at < size, other=0.0).to(tl.float32)"
        read = read.replace(", mask=at < size, other=0.0", "") if self.is_whole else read
        center = " - center" if norm.kind == "layer" else ""
        yield f"part = (part.to(tl.float32){center}) * factor"
        if norm.kind == "rounded rms":
            yield f"part = part.to(tl.{self.element}).to(tl.float32)"
        if norm.weight is not None:
            yield f"part = part * ({read.format('norm_weight')} + {norm.offset})"
        if norm.bias is not None:
            yield f"part = part + {read.format('norm_bias')}"
        yield f"part = part.to(tl.{self.element})"

    # --- products --------------------------------------------------------------------------------

    def turn(self) -> Iterator[str]:
        yield from self.part()
        if self.norm is not None:
            yield from self.normed(self.norm)
        yield f"inner = k + tl.arange(0, {self.inner})[:, None]"
        mask = f"(inner < size) & {self.is_column}[None, :]"
        masked = "" if self.is_whole else f", mask={mask}, other=0.0"
        for weight in self.weights:
            name, total = weight.name, weight.sum
            place = (
                f"{name} + column[None, :] * size + inner"
                if weight.turned
                else f"{name} + inner * {name}_width + column[None, :]"
            )
            yield f"{name}_part = tl.load({place}{masked})"
            yield f"{total} = {multiplied('part', f'{name}_part', total)}"

    @property
    def is_column(self) -> str:
        end = f"(j + 1) * {self.block}"
        return f"((column < {end}) & (column < columns))"

    def result(self) -> Iterator[str]:
        mask = "is_row" if self.is_whole else f"is_row & {self.is_column}[None, :]"
        for weight in self.weights:
            if weight.has_bias:
                masked = "" if self.is_whole else f", mask={self.is_column}, other=0.0"
                read = f"tl.load({weight.name}_bias + column{masked}).to(tl.float32)"
                yield f"{weight.sum} += {read}[None, :]"
        yield "place = rows * columns + column[None, :]"
        given = [weight.sum for weight in reversed(self.weights)]
        if self.has_residual:
            yield f"rest = tl.load(residual + place, mask={mask}, other=0.0).to(tl.float32)"
            given.append("rest")
        found = f"{BODY}_map({', '.join(given)})" if self.program else given[0]
        yield f"found = {found}"
        yield f"tl.store(out + place, found.to(tl.{self.element}), mask={mask})"


def product_text(body: ProductBody, element: str) -> ProductText:
    """Return what the text of a product depends on, for this type of elements.

    Raises ValueError for an activation that kernels do not have.
    """
    norm = body.norm and replace(
        body.norm,
        weight=_first(body.norm.weight),
        bias=_first(body.norm.bias),
        added=_first(body.norm.added),
    )
    pairs = (("weight", body.weight), ("gate", body.gate))
    weights = tuple(
        WeightText(name, m.turned, m.bias is not None) for name, m in pairs if m is not None
    )
    turns = body.weight.size * itemsize(element) % INNER == 0
    even = turns and body.weight.columns % body.block == 0
    is_whole = even and body.block == max(16, 1 << (body.block - 1).bit_length())
    program = _program(body)
    parse(program)
    return ProductText(
        element, body.block, norm, weights, program, body.residual is not None, is_whole,
        body.weight.size % ALIGNED == 0,
    )  # fmt: skip


def _first(place: int | None) -> int | None:
    return None if place is None else 0


def _program(body: ProductBody) -> str:
    """Return the program of activation, product with the gate's, and residual, as there are."""
    steps, last, sides = [], "acc", 0
    if body.activation is not None:
        steps.append(f"{body.activation}({last})")
        last = "v0"
    for operation, is_there in (("mul", body.gate), ("add", body.residual)):
        if is_there is not None:
            steps.append(f"{operation}({last},s{sides})")
            last, sides = f"v{len(steps) - 1}", sides + 1
    return ";".join(steps)


def product_numbers(body: ProductBody) -> dict[str, GridNumber]:
    """Return the numbers of a product, by the names that its text has for them."""
    found: dict[str, GridNumber] = {
        "x": TensorAddress(body.x),
        "out": TensorAddress(body.out),
        "size": body.weight.size,
        "columns": body.weight.columns,
    }
    if body.residual is not None:
        found["residual"] = TensorAddress(body.residual)
    if body.norm is not None:
        for name, dtype in _OPERANDS.items():
            place = getattr(body.norm, name)
            if place is not None:
                found[f"norm_{name}"] = TensorAddress(place, dtype=dtype)
    for name, matrix in (("weight", body.weight), ("gate", body.gate)):
        if matrix is not None:
            found |= _of_matrix(name, matrix)
    return found


def _of_matrix(name: str, matrix: MatrixOperand) -> dict[str, GridNumber]:
    first = matrix.first * (matrix.size if matrix.turned else 1)
    found: dict[str, GridNumber] = {name: TensorAddress(matrix.matrix, first)}
    if not matrix.turned:
        found[f"{name}_width"] = SizeOf(matrix.matrix, 1)
    if matrix.bias is not None:
        found[f"{name}_bias"] = TensorAddress(matrix.bias, matrix.first)
    return found
