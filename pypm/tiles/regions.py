"""Tile programs of matched regions: a product and its epilogue, and the gated MLP.

A side input of the epilogue that is itself a product of the same rows becomes a second product of
the program, so that both share the load of the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from torch import Tensor, fx

from pypm.diagnostics import Diagnostic
from pypm.fx import describe, metadata
from pypm.kernels.support.lowering import PRODUCTS, SAME, lowered
from pypm.tiles.meaning import meaning
from pypm.tiles.partition import Rings
from pypm.tiles.program import (
    DTYPES,
    Dims,
    DotTiles,
    FillTile,
    LoadTile,
    MapTiles,
    Statement,
    StoreTile,
    TileAxis,
    TileError,
    TileOperand,
    TileProgram,
)

__all__ = ["TileRegion", "tile_region"]


@dataclass(frozen=True, slots=True)
class TileRegion:
    """The program of a region, the rings that suit it, and the nodes of its operands."""

    program: TileProgram
    rings: Rings
    nodes: tuple[tuple[str, fx.Node], ...]
    """Nodes by the names of operands, without the result."""

    def matrices(self, value: Callable[[fx.Node], Tensor]) -> dict[str, Tensor]:
        """Return the operands as matrices, from the values of their nodes; results are missing."""
        shapes = {operand.name: operand.sizes for operand in self.program.operands}
        found = {}
        for name, node in self.nodes:
            x, (rows, _) = value(node), shapes[name]
            found[name] = x.reshape(1 if rows == "1" else -1, (1, *x.shape)[-1])
        return found


def tile_region(nodes: Sequence[fx.Node]) -> TileRegion:
    """Return the tile program of a region, whose nodes are a product and its epilogue, in order.

    Raises TileError, with the reason, if there is none: for other types than bf16 and fp16, and for
    operators that the pointwise language lacks.
    """
    first = [node for node in nodes if describe(node).operator.name in PRODUCTS]
    if len(first) != 1:
        _refuse(f"the region has {len(first)} products, and a tile program begins with one")
    found = lowered(nodes)
    if isinstance(found, str):
        _refuse(found)
    builder = _RegionBuilder([*first], {})
    for node, _ in found.sides:
        if (partner := _partner(node, first[0], nodes)) is not None:
            builder.partners[node] = len(builder.products)
            builder.products.append(partner)
    return builder.build(nodes[-1], found.program, found.sides)


@dataclass
class _RegionBuilder:
    products: list[fx.Node]
    partners: dict[fx.Node, int]
    """Side inputs that are products of the same rows, with their places in `products`."""

    def build(
        self, root: fx.Node, program: str, sides: Sequence[tuple[fx.Node, bool]]
    ) -> TileRegion:
        operands: list[TileOperand] = []
        nodes: list[tuple[str, fx.Node]] = []
        body: list[Statement] = []
        after: list[Statement] = []
        x = _factors(self.products[0])[0]
        operands.append(TileOperand("x", _dtype(x), ("M", "K")))
        nodes.append(("x", x))
        body.append(LoadTile("a", "x", ("i", "k")))

        def side(name: str, node: fx.Node, has_rows: bool) -> None:
            sizes: Dims = ("M" if has_rows else "1", "1" if _columns(node) == 1 else "N")
            operands.append(TileOperand(f"{name}in", _dtype(node), sizes))
            nodes.append((f"{name}in", node))
            dims: Dims = ("i" if has_rows else "1", "1" if sizes[1] == "1" else "j")
            after.append(LoadTile(name, f"{name}in", dims))

        for n, product in enumerate(self.products):
            _, w, turned, bias = _factors(product)
            operands.append(TileOperand(f"w{n}", _dtype(w), ("N", "K") if turned else ("K", "N")))
            nodes.append((f"w{n}", w))
            body.append(LoadTile(f"b{n}", f"w{n}", ("j", "k") if turned else ("k", "j")))
            body.append(DotTiles(f"c{n}", "a", f"b{n}", turned, f"c{n}"))
            if n and bias is not None:
                side(f"d{n}", bias, False)
                after.append(MapTiles(f"e{n}", "add(acc,s0)", (f"c{n}", f"d{n}")))
        arguments = ["c0"]
        for n, (node, has_rows) in enumerate(sides):
            if node in self.partners:
                k = self.partners[node]
                arguments.append(f"c{k}" if _factors(self.products[k])[3] is None else f"e{k}")
            else:
                side(f"s{n}", node, has_rows)
                arguments.append(f"s{n}")
        after.append(MapTiles("y", program, tuple(arguments)))
        after.append(StoreTile("out", ("i", "j"), "y"))
        operands.append(TileOperand("out", _dtype(root), ("M", "N")))
        if operands[-1].dtype not in ("bf16", "fp16"):
            _refuse(f"the result is {operands[-1].dtype}")
        columns = 256 // len(self.products)
        made = TileProgram(
            tuple(operands),
            (TileAxis("i", 128, "M"), TileAxis("j", columns, "N")),
            tuple(FillTile(f"c{n}", 0.0, ("i", "j")) for n in range(len(self.products))),
            TileAxis("k", 64, "K"),
            tuple(body),
            tuple(after),
        )
        meaning(made)
        # in two pieces, a GELU and a residual spill
        return TileRegion(made, Rings(depth=3, in_flight=1, groups=2, pieces=4), tuple(nodes))


Factors = tuple[fx.Node, fx.Node, bool, fx.Node | None]
"""Rows, weight, whether it is turned, and the bias."""


def _factors(product: fx.Node) -> Factors:
    call = describe(product)
    name, given = call.operator.name, [a for a in call.arguments if isinstance(a, fx.Node)]
    place = PRODUCTS[name]
    bias = None if place is None else call.arguments[place]
    x, w = given[1:3] if place == 0 else given[:2]
    turned, inner = name == "aten.linear", describe(w)
    if inner.operator.name in ("aten.permute", "aten.t") and not turned:
        w, turned = next(inner.nodes), True
    return x, w, turned, bias if isinstance(bias, fx.Node) else None


def _partner(node: fx.Node, product: fx.Node, nodes: Sequence[fx.Node]) -> fx.Node | None:
    """Return the product of the same rows that a side input is, maybe in another shape, if it is
    for this region alone.
    """
    users = {*nodes}
    while True:
        name = describe(node).operator.name
        if (name not in PRODUCTS and name not in SAME) or not users.issuperset(node.users):
            return None
        if name in PRODUCTS:
            return node if _rows(node) is _rows(product) else None
        users, node = {node}, next(describe(node).nodes)


_VIEWS: Final = ("aten._unsafe_view", "aten.reshape", "aten.view")


def _rows(product: fx.Node) -> fx.Node:
    """Return the tensor whose rows a product multiplies, under views that keep these."""
    x = _factors(product)[0]
    while describe(x).operator.name in _VIEWS:
        source = next(describe(x).nodes)
        if _columns(source) != _columns(x):
            break
        x = source
    return x


_NAMES: Final = {dtype: name for name, dtype in DTYPES.items()}


def _tensor(node: fx.Node) -> Tensor:
    found = metadata(node)
    if not isinstance(found, Tensor):
        _refuse(f"the shape of `{node}` is not known")
    return found


def _dtype(node: fx.Node) -> str:
    dtype = _tensor(node).dtype
    if dtype not in _NAMES:
        _refuse(f"`{node}` is {dtype}")
    return _NAMES[dtype]


def _columns(node: fx.Node) -> int:
    columns: int = (1, *_tensor(node).shape)[-1]
    return columns


def _refuse(reason: str) -> NoReturn:
    raise TileError(
        Diagnostic(
            f"the region has no tile program: {reason}",
            help="a tile program is a product of bf16 or fp16 with elementwise operators after it",
        )
    )
