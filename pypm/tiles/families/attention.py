"""Tile programs of attention with a score program, for any number of queries, keys and heads.

The loop visits blocks of keys and carries, for each query, the largest score, the sum of weights
and the weighted sum of values, which are scaled when a larger score is met. Scores are in base 2.
Heads of queries that share keys are an axis of their own: nothing is divided by their number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

from torch import Tensor

from pypm.diagnostics import Diagnostic
from pypm.kernels.attention.expressions import TRUE, Element, Name, Number
from pypm.kernels.attention.programs import ScoreProgram
from pypm.tiles.families.scores import NoScores, ScoreSteps, key_range
from pypm.tiles.meaning import meaning
from pypm.tiles.partition import Rings
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
    TileAxis,
    TileError,
    TileOperand,
    TileProgram,
)

__all__ = ["AttentionTiles", "attention_tiles"]

HIDDEN: Final = -1e30
"""A score below all others, of a key that counts only if a query sees no key at all."""
_AXES: Final = {"b": "b", "q": "i", "k": "t"}
_SIZES: Final = {"b": "B", "q": "S", "k": "T"}


@dataclass(frozen=True, slots=True)
class AttentionTiles:
    """The tile program of a score program, and the rings that suit it."""

    program: TileProgram
    rings: Rings
    elements: tuple[tuple[str, Element], ...]
    """Operands that scores read, by name."""

    def operands(
        self, q: Tensor, k: Tensor, v: Tensor, tensors: Sequence[Tensor],
        out: Tensor | None = None,
    ) -> dict[str, Tensor]:  # fmt: skip
        """Return views of the operands, in the shapes of the program and in its order.

        Arguments:
            q: [B, H, S, D].
            k, v: [B, G, T, D], where G divides H.
            tensors: what the score program reads, by number.
            out: the result, [B, H, S, D], if it is to be among them.
        """
        groups, sizes = k.shape[1], {**dict(zip("bhq", q.shape, strict=False)), "k": k.shape[2]}
        found = {"q": _grouped(q, groups), "k": k, "v": v}
        for name, element in self.elements:
            found[name] = _view(tensors[element.tensor], element, sizes, groups)
        return found if out is None else found | {"out": _grouped(out, groups)}


def attention_tiles(
    program: ScoreProgram, q: Tensor, k: Tensor, v: Tensor, tensors: Sequence[Tensor], scale: float
) -> AttentionTiles:
    """Return the tile program of attention.

    Arguments:
        program: the scores, in which "none" and "zero" for hidden rows both give zeros.
        q: [B, H, S, D] in bf16 or fp16.
        k, v: [B, G, T, D] in the type of q, where G divides H.
        tensors: what the program reads, by number.
        scale: factor of q k^T, before the program.

    Only the shapes and types of tensors are read. Raises TileError, with the reason, for other
    types, for shapes that do not agree and for scores that the pointwise language lacks.
    """
    is_grouped = q.dim() == k.dim() == 4 and k.shape[1] and q.shape[1] % k.shape[1] == 0
    is_alike = is_grouped and (q.shape[0], q.shape[3]) == (k.shape[0], k.shape[3])
    if not is_alike or k.shape != v.shape:
        _refuse("queries, keys and values have other shapes than [B, H, S, D] and [B, G, T, D]")
    names = {dtype: name for name, dtype in DTYPES.items() if name in ("bf16", "fp16")}
    if q.dtype not in names or not q.dtype == k.dtype == v.dtype:
        _refuse(f"the operands are {q.dtype}, {k.dtype} and {v.dtype}")
    if not 16 <= q.shape[3] <= 256:
        _refuse(f"a head has {q.shape[3]} elements, and not 16 to 256")
    try:
        builder = _AttentionBuilder(program, tensors, names[q.dtype], q.shape[3], scale)
        return builder.build()
    except NoScores as error:
        _refuse(str(error))


@dataclass
class _AttentionBuilder:
    program: ScoreProgram
    tensors: Sequence[Tensor]
    dtype: str
    size: int
    """Elements of a head."""
    scale: float
    operands: list[TileOperand] = field(default_factory=list)
    elements: dict[Element, str] = field(default_factory=dict)
    before: list[Statement] = field(default_factory=list)
    body: list[Statement] = field(default_factory=list)

    def build(self) -> AttentionTiles:
        size, dtype = str(self.size), self.dtype
        of_queries, of_keys = ("B", "G", "R", "S", size), ("B", "G", "T", size)
        queries: Dims = ("b", "h", "r", "i", "d")
        self.operands += [
            TileOperand("q", dtype, of_queries),
            TileOperand("k", dtype, of_keys),
            TileOperand("v", dtype, of_keys),
        ]
        self.before.append(LoadTile("qs", "q", queries))
        self.body.append(LoadTile("ks", "k", ("b", "h", "t", "d")))
        self.body.append(DotTiles("s", "qs", "ks", True, None))
        self.scores()
        self.softmax()
        after = (
            MapTiles("y", "eq(s0,0.0);div(acc,s0);where(v0,0.0,v1)", ("o", "l")),
            StoreTile("out", queries, "y"),
        )
        width = 1 << (self.size - 1).bit_length()
        grid = (
            TileAxis("i", 128, "S"),
            TileAxis("r", 1, "R"),
            TileAxis("h", 1, "G"),
            TileAxis("b", 1, "B"),
            TileAxis("d", width, size),
        )
        fills = [FillTile("m", -math.inf, ("i", "1")), FillTile("l", 0.0, ("i", "1"))]
        fills.append(FillTile("o", 0.0, ("i", "d")))
        sees_all = self.program.hidden == "mean"
        visits = None if sees_all else key_range(self.program.visible, "i", grid[0].block)
        made = TileProgram(
            (*self.operands, TileOperand("out", dtype, of_queries)),
            grid,
            (*self.before, *fills),
            TileAxis("t", 64, "T"),
            tuple(self.body),
            after,
            visits,
        )
        meaning(made)
        elements = tuple((name, element) for element, name in self.elements.items())
        # with two groups, products of the last turn in flight do not fit beside those of this one,
        # scores a turn ahead do not fit into heads of more than 128, nor beside what consumers load
        # into those of more than 64
        loads = sum(isinstance(s, LoadTile) for s in self.body)
        ahead = 1 if self.size <= (128 if loads == 2 else 64) else 0
        # results of 256 columns do not fit into shared memory beside two slots of keys and values
        pieces = 1 if width <= 128 else 2
        rings = Rings(depth=2, in_flight=0, groups=2, pieces=pieces, ahead=ahead)
        return AttentionTiles(made, rings, elements)

    def softmax(self) -> None:
        """Add the weights of the scores `w`, and carry what was summed before."""
        self.body += [
            ReduceTile("e", "max", "w"),
            MapTiles("g", "maximum(acc,s0)", ("m", "e")),
            # a row without any key so far: all its weights are exp2(-inf)
            MapTiles("c", "eq(acc,-inf);where(v0,0.0,acc)", ("g",)),
            MapTiles("f", "sub(acc,s0);exp2(v0)", ("m", "c")),
            MapTiles("p", "sub(acc,s0);exp2(v0)", ("w", "c")),
            ReduceTile("u", "sum", "p"),
            MapTiles("l", "mul(acc,s0);add(v0,s1)", ("l", "f", "u")),
            MapTiles("m", "", ("g",)),
            MapTiles("o", "mul(acc,s0)", ("o", "f")),
            CastTile("w16", self.dtype, "p"),
            LoadTile("vs", "v", ("b", "h", "t", "d")),
            DotTiles("o", "w16", "vs", False, "o"),
        ]

    def scores(self) -> None:
        """Add the scores `w` in base 2, -inf where there is no key."""
        steps = ScoreSteps("s", self.named)
        score = steps.scaled("acc", self.scale)
        score = steps.scaled(steps.value(self.program.score, score), math.log2(math.e))
        self.body.append(PlaceTile("at", "t", ("1", "t")))
        self.before.append(SizeTile("count", "T"))
        inside = steps.add("lt", steps.side("at"), steps.side("count"))
        if self.program.visible != TRUE:
            visible = steps.value(self.program.visible, score)
            if self.program.hidden == "mean":
                score = steps.add("where", visible, score, HIDDEN)
            else:
                inside = steps.add("and", inside, visible)
        steps.add("where", inside, score, -math.inf)
        self.body.append(MapTiles("w", *steps.map()))

    # --- what scores read ------------------------------------------------------------------------

    def named(self, x: Name | Element) -> tuple[str, bool]:
        """Return the tile of an index or an element, and whether it holds bits."""
        if isinstance(x, Element):
            name = self.elements.get(x) or self.element(x)
            return f"{name}t", self.dtype_of(x) == "i1"
        match x.name:
            case "k":
                return "at", False
            case "q":
                self.once(PlaceTile("row", "i", ("i", "1")))
                return "row", False
            case "b":
                self.once(PlaceTile("batch", "b", ("1", "1")))
                return "batch", False
        self.once(PlaceTile("part", "r", ("1", "1")))
        self.once(PlaceTile("place1", "h", ("1", "1")))
        self.once(SizeTile("share", "R"))
        self.once(MapTiles("head", "mul(acc,s0);add(v0,s1)", ("place1", "share", "part")))
        return "head", False

    def once(self, statement: Statement) -> None:
        if statement not in self.before:
            self.before.append(statement)

    def dtype_of(self, x: Element) -> str:
        names = {dtype: name for name, dtype in DTYPES.items()}
        dtype = self.tensors[x.tensor].dtype
        if dtype not in names:
            raise NoScores(f"the scores read a tensor of {dtype}")
        return names[dtype]

    def element(self, x: Element) -> str:
        """Add an operand for an element, and the load of its tile."""
        read = [i.name for i in x.indices if isinstance(i, Name)]
        if len({*read}) != len(read) or not all(isinstance(i, Name | Number) for i in x.indices):
            raise NoScores("the scores read elements at computed indices")
        name = self.elements[x] = f"x{len(self.elements)}"
        front = [d for d in ("b", "h", "r") if d.replace("r", "h") in read]
        dims = (*front, "i" if "q" in read else "1", "t" if "k" in read else "1")
        sizes = {"b": "B", "h": "G", "r": "R", "i": "S", "t": "T", "1": "1"}
        self.operands.append(TileOperand(name, self.dtype_of(x), tuple(sizes[d] for d in dims)))
        (self.body if "k" in read else self.before).append(LoadTile(f"{name}t", name, dims))
        return name


def _grouped(x: Tensor, groups: int) -> Tensor:
    """Return a view of [B, H, S, D] as [B, G, R, S, D]."""
    return _split(x, 1, groups)


def _split(x: Tensor, dim: int, groups: int) -> Tensor:
    shape = x.shape
    return x.view(*shape[:dim], groups, shape[dim] // groups, *shape[dim + 1 :])


def _view(x: Tensor, element: Element, sizes: Mapping[str, int], groups: int) -> Tensor:
    """Return a view of what an element is read from: batches, heads, queries, keys.

    `sizes` are those of the scores; a tensor may be longer.
    """
    names: list[str] = []
    for dim, index in reversed([*enumerate(element.indices)]):
        if isinstance(index, Name):
            names.insert(0, index.name)
            x = x.narrow(dim, 0, sizes[index.name])
        elif isinstance(index, Number):
            x = x.select(dim, int(index.value))
    order = [n for n in "bhqk" if n in names]
    x = x.permute([names.index(n) for n in order])
    if "h" in order:
        x = _split(x, order.index("h"), groups)
    if "k" not in order:
        x = x.unsqueeze(-1)
    return x if "q" in order else x.unsqueeze(-2)


def _refuse(reason: str) -> NoReturn:
    raise TileError(
        Diagnostic(
            f"the attention has no tile program: {reason}",
            help="it takes bf16 or fp16, and scores of the pointwise language",
        )
    )
