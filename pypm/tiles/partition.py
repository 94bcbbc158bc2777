"""The pass that divides a tile program between a producer and groups of consumers.

Loads that products read go to the producer, a warp that starts copies into shared memory. All other
statements go to the consumers, groups of four warps that share the rows of a tile. Between them are
*asynchronous references* (Tawa, arXiv 2510.14719): rings of `depth` slots. The producer *puts* a
copy into an empty slot; a consumer *gets* it when it has landed, and gives it back as *consumed*
when the products that read it have ended. With `in_flight` products, that is so many turns later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NoReturn, TypeAlias

from pypm.diagnostics import Diagnostic
from pypm.tiles.program import (
    DTYPES,
    Dims,
    DotTiles,
    FillTile,
    LoadTile,
    MapTiles,
    Statement,
    StoreTile,
    TileError,
    TileProgram,
    reads,
    statement_text,
)
from pypm.tiles.reading import meaning

__all__ = [
    "SHARED_MEMORY",
    "Aref",
    "Await",
    "Consumed",
    "Get",
    "Issue",
    "Perform",
    "Rings",
    "Specialized",
    "Step",
    "partitioned",
]

SHARED_MEMORY: Final = 232_448
"""Bytes of shared memory that one program may use on Hopper."""
REGISTERS: Final = 200
"""Accumulated numbers that a thread may hold beside all else."""
THREADS: Final = 128
"""Threads of a group of consumers: one warp group, which issues products together."""
BARRIER: Final = 8
"""Bytes of a barrier."""
CAPTURES: Final = 1024
"""Bytes in which Triton passes the arguments of a kernel to its partitions, at most."""


@dataclass(frozen=True, slots=True)
class Rings:
    """A request: slots of each ring, products in flight, groups, and pieces of the columns.

    The rows of a tile are divided between the groups. Results are computed and stored in pieces,
    which need fewer registers and less shared memory at a time.
    """

    depth: int = 3
    in_flight: int = 1
    groups: int = 1
    pieces: int = 1


@dataclass(frozen=True, slots=True)
class Aref:
    """A ring: what is loaded into one slot together, because the same products read it."""

    name: str
    loads: tuple[LoadTile, ...]
    depth: int
    size: int
    """Bytes of a slot."""


@dataclass(frozen=True, slots=True)
class Get:
    """Wait until the copies of this turn have landed."""

    aref: Aref


@dataclass(frozen=True, slots=True)
class Issue:
    """Start a product; its operands are read until it is awaited."""

    dot: DotTiles


@dataclass(frozen=True, slots=True)
class Await:
    """Wait until at most `left` products are in flight, and give the tiles they accumulate in."""

    left: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Consumed:
    """Give back the slot of the turn `behind` this one, if there was one."""

    aref: Aref
    behind: int


@dataclass(frozen=True, slots=True)
class Perform:
    statement: Statement


Step: TypeAlias = Get | Issue | Await | Consumed | Perform


@dataclass(frozen=True, slots=True)
class Specialized:
    """A program with its rings, and the steps of every group of consumers.

    In each turn of the loop, the producer puts the slots of all rings, in their order.
    """

    program: TileProgram
    rings: Rings
    arefs: tuple[Aref, ...]
    before: tuple[Step, ...]
    turn: tuple[Step, ...]
    after: tuple[Step, ...]
    shared: int
    """Bytes of shared memory of one program."""

    def __str__(self) -> str:
        r = self.rings
        lines = [f"{r.groups} groups, {r.in_flight} in flight, {self.shared:,} bytes shared"]
        for aref in self.arefs:
            names = ", ".join(load.name for load in aref.loads)
            lines.append(f"aref {aref.name}: {names}; {aref.depth} slots of {aref.size:,} bytes")
        lines += ["producer:", "  for each turn:"]
        for aref in self.arefs:
            lines += [f"    put {aref.name}", *(f"      {statement_text(x)}" for x in aref.loads)]
        lines += ["consumers:", *(f"  {_step(step)}" for step in self.before), "  for each turn:"]
        lines += [f"    {_step(step)}" for step in self.turn]
        lines += [f"  {_step(step)}" for step in self.after]
        return "\n".join(lines) + "\n"

    @property
    def rows(self) -> str:
        """The axis that is divided between the groups."""
        return self.program.grid[0].name

    def blocks(self, dims: Dims) -> tuple[int, int]:
        """Return the shape of what one group has of a tile with these axes."""
        rows, columns = self.program.blocks(dims)
        return (rows // self.rings.groups if dims[0] == self.rows else rows), columns

    def boxes(self, load: LoadTile) -> int:
        """Return the number of copies that load a tile: one for each group, or one for all."""
        return self.rings.groups if load.dims[0] == self.rows else 1

    def piece(self, store: StoreTile) -> tuple[int, int]:
        """Return the shape of what one group stores at a time."""
        rows, columns = self.blocks(store.dims)
        return rows, columns // self.rings.pieces

    @property
    def stores(self) -> tuple[StoreTile, ...]:
        return tuple(s for s in self.program.statements if isinstance(s, StoreTile))


def _step(step: Step) -> str:
    match step:
        case Get(aref):
            return f"get {aref.name}"
        case Issue(dot):
            return f"issue {statement_text(dot)}"
        case Await(left, names):
            return f"await {', '.join(names)}; {left} left in flight"
        case Consumed(aref, behind):
            return f"consumed {aref.name}" + (f", {behind} turns behind" if behind else "")
        case Perform(statement):
            return statement_text(statement)


def partitioned(program: TileProgram, rings: Rings) -> Specialized:
    """Return a program divided between the producer and the consumers.

    Raises TileError, with the reason, for a program without a meaning and for one that cannot be
    placed: too little shared memory or too few registers, shapes that products do not take, or a
    load that neither the producer nor the consumers can do.
    """
    return _Partition(program, rings).run()


@dataclass(frozen=True)
class _Partition:
    program: TileProgram
    rings: Rings

    def run(self) -> Specialized:
        dims = meaning(self.program)
        self.rings_are_possible()
        arefs = tuple(self.arefs())
        self.all_is_placed(arefs)
        self.shapes_are_possible(dims)
        found = Specialized(
            self.program,
            self.rings,
            arefs,
            tuple(Perform(s) for s in self.program.before),
            tuple(self.turn(arefs)),
            tuple(self.end(arefs)),
            self.shared(arefs),
        )
        if found.shared > SHARED_MEMORY:
            parts = "; ".join(f"{a.name}: {a.depth} slots of {a.size:,} bytes" for a in arefs)
            _refuse(
                f"the program needs {found.shared:,} bytes of shared memory, and Hopper has"
                f" {SHARED_MEMORY:,}",
                "use fewer slots, smaller tiles or more pieces",
                f"rings: {parts}",
            )
        return found

    @property
    def dots(self) -> tuple[DotTiles, ...]:
        return tuple(s for s in self.program.body if isinstance(s, DotTiles))

    @property
    def accumulators(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(dot.name for dot in self.dots))

    def rings_are_possible(self) -> None:
        depth, in_flight, groups = self.rings.depth, self.rings.in_flight, self.rings.groups
        if not 0 <= in_flight < depth:
            _refuse(
                f"{in_flight} products cannot be in flight with {depth} slots",
                "a slot more than products in flight, or the producer waits for ever",
            )
        if len(self.program.grid) != 2:
            _refuse(
                "the grid has not two axes", "tiles have rows and columns: `tile i: ..., j: ...`"
            )
        rows = self.program.grid[0].block
        if groups < 1 or rows % groups or rows // groups not in (64, 128, 256):
            _refuse(
                f"{rows} rows cannot be divided between {groups} groups",
                "each group takes 64, 128 or 256 rows",
            )
        columns, pieces = self.program.grid[-1].block, self.rings.pieces
        if pieces not in (1, 2, 4, 8) or columns < 8 * pieces:
            _refuse(
                f"{columns} columns cannot be stored in {pieces} pieces",
                "there are 1, 2, 4 or 8 pieces, of 8 columns and more",
            )

    # --- the producer ----------------------------------------------------------------------------

    def arefs(self) -> Iterator[Aref]:
        """Yield the rings in the order in which the loop first reads them."""
        loads = {s.name: s for s in self.program.body if isinstance(s, LoadTile)}
        users: dict[str, tuple[int, ...]] = {}
        for n, dot in enumerate(self.dots):
            for name in (dot.left, dot.right):
                users[name] = (*users.get(name, ()), n)
        together: dict[tuple[int, ...], list[LoadTile]] = {}
        for name, by in users.items():
            if name in loads:
                together.setdefault(by, []).append(loads[name])
        for n, some in enumerate(together.values()):
            size = sum(self.bytes(load.operand, load.dims) for load in some)
            yield Aref(f"r{n}", tuple(some), self.rings.depth, size)

    def bytes(self, operand: str, dims: Dims) -> int:
        rows, columns = self.program.blocks(dims)
        return rows * columns * DTYPES[self.program.operand(operand).dtype].itemsize

    def all_is_placed(self, arefs: tuple[Aref, ...]) -> None:
        copied = {load.name for aref in arefs for load in aref.loads}
        for statement in self.program.body:
            match statement:
                case LoadTile(name) if name not in copied:
                    _refuse(
                        f"no product reads `{name}`, which the loop loads",
                        "consumers would wait for global memory in every turn: load it after"
                        " the loop",
                    )
                case DotTiles(name, left, right, _, onto):
                    if {left, right} - copied:
                        _refuse(
                            f"the product `{name}` reads a tile that the loop does not load",
                            "both tiles of a product come from rings",
                        )
                    if onto != name:
                        _refuse(
                            f"the product `{name}` is added to `{onto}`",
                            "a product in the loop accumulates in itself",
                        )
                case MapTiles(name) | FillTile(name) | StoreTile(name):
                    _refuse(
                        f"the loop computes `{name}` between its products",
                        "only loads and products may be in the loop so far",
                    )
        for statement in (*self.program.before, *self.program.after):
            is_fill, is_before = isinstance(statement, FillTile), statement in self.program.before
            if isinstance(statement, DotTiles) or is_fill != is_before:
                _refuse(
                    f"`{statement_text(statement)}` stands at the wrong side of the loop",
                    "tiles are filled before the loop, multiplied in it, and all else is after it",
                )
            for name in {*reads(statement)} & copied:
                _refuse(
                    f"`{name}` is read from a ring after its turn", "load it again after the loop"
                )

    def shapes_are_possible(self, dims: Mapping[str, Dims]) -> None:
        rows, columns = self.program.grid
        inner, names = self.program.loop.block, self.accumulators
        for name in names:
            if dims[name] != (rows.name, columns.name):
                _refuse(
                    f"the tile `{name}` has the axes [{', '.join(dims[name])}]",
                    f"products have the axes of the grid, [{rows.name}, {columns.name}]",
                )
        if not names:
            _refuse("the loop multiplies nothing", "it needs a product that accumulates")
        if inner not in (16, 32, 64, 128, 256) or columns.block not in (8, 16, 32, 64, 128, 256):
            _refuse(
                f"no instruction multiplies tiles 64 x {inner} and {inner} x {columns.block}",
                "blocks are powers of 2: the inner one from 16 to 256, columns from 8 to 256",
            )
        numbers = len(names) * rows.block * columns.block // (self.rings.groups * THREADS)
        if numbers > REGISTERS:
            _refuse(
                f"a thread accumulates {numbers} numbers, and has registers for {REGISTERS}",
                "use smaller tiles or more groups",
            )

    def shared(self, arefs: tuple[Aref, ...]) -> int:
        rings = sum(a.depth * (a.size + 2 * BARRIER) for a in arefs)
        stores = (s for s in self.program.statements if isinstance(s, StoreTile))
        staged = sum(self.bytes(s.operand, s.dims) for s in stores)
        return rings + staged // self.rings.pieces + CAPTURES

    # --- the consumers ---------------------------------------------------------------------------

    def turn(self, arefs: tuple[Aref, ...]) -> Iterator[Step]:
        """Yield the steps of one turn; each slot is got just before the first product reads it.

        Products end in the order in which they were issued. Before this turn's are issued, those of
        `in_flight` turns before have ended, and their slots are given back.
        """
        behind, dots = self.rings.in_flight, self.dots
        got: set[str] = set()
        for n, dot in enumerate(dots):
            for aref in arefs:
                if aref.name not in got and {dot.left, dot.right} & {x.name for x in aref.loads}:
                    got.add(aref.name)
                    yield Get(aref)
            if n == 0 and behind:
                yield Await((behind - 1) * len(dots), self.accumulators)
                yield from (Consumed(aref, behind) for aref in arefs)
            yield Issue(dot)
        if not behind:
            yield Await(0, self.accumulators)
            yield from (Consumed(aref, 0) for aref in arefs)

    def end(self, arefs: tuple[Aref, ...]) -> Iterator[Step]:
        if self.rings.in_flight:
            yield Await(0, self.accumulators)
        for behind in range(self.rings.in_flight, 0, -1):
            yield from (Consumed(aref, behind) for aref in arefs)
        yield from (Perform(s) for s in self.program.after)


def _refuse(message: str, help: str, *notes: str) -> NoReturn:
    raise TileError(Diagnostic(message, help=help, notes=notes))
