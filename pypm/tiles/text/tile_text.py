"""Gluon text of the statements that consumers perform on tiles in registers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pypm.kernels.support.pointwise import parse, statements
from pypm.tiles.meaning import INTEGERS
from pypm.tiles.program import (
    DTYPES,
    CastTile,
    Dims,
    DotTiles,
    FillTile,
    LoadTile,
    MapTiles,
    PlaceTile,
    ReduceTile,
    SizeTile,
    Statement,
    StoreTile,
)
from pypm.tiles.steps import Specialized
from pypm.tiles.text.layouts import TileLayouts

__all__ = ["TileText", "element_of"]

NUMBER: Final = "({})"


@dataclass(frozen=True)
class TileText:
    """Text of statements; of those after the loop, for the piece with this number of columns."""

    source: Specialized
    tiles: Mapping[str, Dims]
    piece: int | None = None

    @property
    def layouts(self) -> TileLayouts:
        return TileLayouts(self.source, self.tiles)

    def layout(self, dims: Dims) -> str:
        return self.layouts.of(dims, self.piece is not None)

    def is_cut(self, axis: str) -> bool:
        return self.piece is not None and axis == self.source.columns

    def shape(self, dims: Dims) -> tuple[int, int]:
        """Return the shape of what one group has of a tile, in this piece."""
        rows, columns = self.source.blocks(dims)
        return rows, (columns // self.source.rings.pieces if self.is_cut(dims[-1]) else columns)

    def start(self, axis: str) -> str:
        """Return where this tile begins on an axis."""
        if axis == "1":
            return "0"
        width = self.shape(("1", axis))[1]
        offset = (self.piece or 0) * width if self.is_cut(axis) else 0
        return f"{axis} + {offset}" if offset else axis

    def statement(self, statement: Statement) -> Iterator[str]:
        """Yield the lines of a statement that is no product."""
        match statement:
            case FillTile(name, value, dims):
                number = str(value) if abs(value) != float("inf") else f'float("{value}")'
                yield f"{name} = {self.full(dims, number)}"
            case LoadTile():
                yield self.load(statement)
            case PlaceTile(name, axis, ("1", "1")):
                yield f"{name} = {self.full(('1', '1'), axis)}"
            case PlaceTile(name, _, dims):
                index = self.indices(dims, 0 if dims[1] == "1" else 1)
                yield f"{name} = {index}.to(gl.float32)"
            case SizeTile(name, size):
                yield f"{name} = {self.full(('1', '1'), size)}"
            case MapTiles(name, text, arguments):
                used = [arguments[n] for n, _ in _parameters(statement)] if text else arguments[:1]
                given = ", ".join(self.converted(a, self.tiles[name]) for a in used)
                yield f"{name} = map_{name}({given})" if text else f"{name} = {given}"
            case ReduceTile(name, how, tile):
                call = "gl.sum({}, 1)" if how == "sum" else "gl.reduce({}, 1, larger)"
                found = f"gl.expand_dims({call.format(tile)}, 1)"
                is_home = self.layout(self.tiles[tile]) == self.layout(self.tiles[name])
                layout = self.layout(self.tiles[name])
                yield f"{name} = {found if is_home else f'gl.convert_layout({found}, {layout})'}"
            case CastTile(name, dtype, tile):
                function = {"i8": "to_int8({})", "fp8e4nv": "to_fp8({})"}.get(dtype, "{}.to({})")
                yield f"{name} = {function.format(tile, element_of(dtype))}"
            case StoreTile():
                yield from self.store(statement)
            case DotTiles():
                raise AssertionError(f"{statement} is issued")

    def full(self, dims: Dims, value: str) -> str:
        return f"gl.full({self.shape(dims)}, {value}, gl.float32, {self.layout(dims)})"

    def converted(self, name: str, dims: Dims) -> str:
        """Return a tile in the layout that tiles with these axes have."""
        layout = self.layout(dims)
        is_there = self.layout(self.tiles[name]) == layout
        return name if is_there else f"gl.convert_layout({name}, {layout})"

    def indices(self, dims: Dims, dim: int) -> str:
        """Return the indices of a tile's rows or columns."""
        function, size = ("down", "across")[dim], self.shape(dims)[dim]
        return f"{function}({self.start(dims[-2:][dim])}, {size}, {self.layout(dims)})"

    # --- global memory ---------------------------------------------------------------------------

    def address(self, name: str, operand: str, dims: Dims) -> tuple[str, str]:
        """Return the addresses of a tile, whose arguments are called after `name`, and a mask."""
        places, masks = [f"{name}_ptr"], []
        for n, axis in enumerate(dims):
            if axis == "1":
                continue
            if n < len(dims) - 2:
                places.append(f"gl.cast({axis}, gl.int64) * {name}_stride{n}")
                continue
            index = self.indices(dims, n - len(dims) + 2)
            if n in self.source.strides(operand, dims):
                unit = self.source.strides(operand, dims)[n]
                stride = f"({name}_stride{n} * {unit})" if unit > 1 else f"{name}_stride{n}"
                places.append(f"{index}.to(gl.int64) * {stride}")
            else:
                places.append(index)
            known, segments = self.source.program.axes[axis], self.source.program.segments
            if segments is not None and axis == segments.rows:
                masks.append(f"({index} < {axis}_end)")
            elif not known.is_whole or int(known.of) < known.block:
                masks.append(f"({index} < {known.of})")
        return " + ".join(places), " & ".join(masks)

    def load(self, load: LoadTile) -> str:
        places, mask = self.address(load.name, load.operand, load.dims)
        given = f", mask={mask}, other=0" if mask else ""
        dtype = self.source.program.operand(load.operand).dtype
        kept = "" if dtype in INTEGERS else ".to(gl.float32)"
        read = f"gl.load({places}{given}){' != 0' if dtype == 'i1' else kept}"
        return f"{load.name} = {read}"

    def store(self, store: StoreTile) -> Iterator[str]:
        operand, dims = store.operand, store.dims
        element = element_of(self.source.program.operand(operand).dtype)
        if store not in self.source.staged:
            places, mask = self.address(operand, operand, dims)
            given = f", mask={mask}" if mask else ""
            yield f"gl.store({places}, {store.source}.to({element}){given})"
            return
        stage = f"{operand}_stage.index(group)"
        tile = stage if len(dims) == 2 else f"{stage}.reshape({self.shape(dims)})"
        at = ", ".join(map(self.start, dims))
        # one thread has started the store before: it waits, and then all go on
        yield "tma.store_wait(0)"
        yield "sync()"
        yield f"{tile}.store({store.source}.to({element}))"
        yield "fence_async_shared()"
        yield "sync()"
        yield f"tma_store({operand}_desc, [{at}], {stage})"

    # --- functions -------------------------------------------------------------------------------

    def functions(self) -> Iterator[str]:
        """Yield a function for each pointwise program."""
        for statement in self.source.program.statements:
            if isinstance(statement, MapTiles) and statement.program:
                given = ", ".join(name for _, name in _parameters(statement))
                lines = [f"@gluon.jit\ndef map_{statement.name}({given}):"]
                lines += [f"    {_gluon(line)}" for line in statements(statement.program, NUMBER)]
                yield "\n".join(lines)


def _parameters(statement: MapTiles) -> list[tuple[int, str]]:
    """Return what a map reads: numbers of its arguments, and their names in its program."""
    named = {a for s in parse(statement.program) for a in s.arguments if isinstance(a, str)}
    others = [(n + 1, f"{kind}{n}") for n in range(len(statement.arguments)) for kind in "ms"]
    return [(n, name) for n, name in [(0, "acc"), *others] if name in named]


def element_of(dtype: str) -> str:
    """Return Gluon's name of an element type."""
    return "gl.float8e4nv" if dtype == "fp8e4nv" else f"gl.{str(DTYPES[dtype])[6:]}"


def _gluon(line: str) -> str:
    """Return a statement of the pointwise language in Gluon's names."""
    named = line.replace("tl.sigmoid(", "sigmoid(").replace("tl.", "gl.")
    return named.replace("(inf)", 'float("inf")').replace("(-inf)", '(-float("inf"))')
