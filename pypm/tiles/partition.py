"""The pass that divides a tile program between a producer and groups of consumers.

Loads that products read go to the producer, a warp that starts copies into shared memory. All other
statements go to the consumers, groups of four warps that share the rows of a tile. Between them are
*asynchronous references* (Tawa, arXiv 2510.14719): rings of `depth` slots. The producer *puts* a
copy into an empty slot; a consumer *gets* it when it has landed, and gives it back as *consumed*
when the products that read it have ended. What is loaded before the loop has a ring of one slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from pypm.diagnostics import Diagnostic
from pypm.tiles.meaning import meaning
from pypm.tiles.program import (
    DTYPES,
    CastTile,
    Dims,
    DotTiles,
    FillTile,
    LoadTile,
    ReduceTile,
    Statement,
    StoreTile,
    TileError,
    TileProgram,
    reads,
    statement_text,
)
from pypm.tiles.schedule import LoopSteps, is_early, loop_steps, steps_ahead
from pypm.tiles.steps import (
    Aref,
    Await,
    Consumed,
    Get,
    Issue,
    Perform,
    Rings,
    Specialized,
    Step,
)

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
COPY_AXES: Final = 5
"""Axes of a tensor that TMA copies boxes of, at most."""


def partitioned(program: TileProgram, rings: Rings) -> Specialized:
    """Return a program divided between the producer and the consumers.

    Raises TileError, with the reason, for a program without a meaning and for one that cannot be
    placed: too little shared memory or too few registers, shapes that products do not take, or a
    load that neither the producer nor the consumers can do.
    """
    return _Partition(program, rings, meaning(program)).run()


@dataclass(frozen=True)
class _Partition:
    program: TileProgram
    rings: Rings
    tiles: Mapping[str, Dims]

    def run(self) -> Specialized:
        self.rings_are_possible()
        arefs = tuple(self.arefs())
        self.all_is_placed(arefs)
        self.shapes_are_possible()
        kept = [aref for aref in arefs if aref.is_kept]
        turning = [aref for aref in arefs if not aref.is_kept]
        steps = self.steps(turning)
        copied = self.copied(arefs)
        before = [s for s in self.program.before if s not in copied]
        found = Specialized(
            self.program,
            self.rings,
            arefs,
            (*map(Get, kept), *map(Perform, before)),
            steps.turn,
            (*steps.end, *(Consumed(a, 0) for a in kept), *map(Perform, self.program.after)),
            steps.flying,
            self.shared(arefs),
            steps.first,
            steps.last,
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

    def steps(self, arefs: Sequence[Aref]) -> LoopSteps:
        body, rings = self.program.body, self.rings
        if not rings.ahead:
            return loop_steps(body, arefs, rings.in_flight)
        found = steps_ahead(body, arefs)
        if rings.ahead > 1 or rings.in_flight or found is None:
            _refuse(
                f"no product can be issued {rings.ahead} turns ahead",
                "one of copies alone can be issued a turn ahead, if the turn itself reads no other"
                " product of its own, and none are in flight between turns",
            )
        return found

    @property
    def dots(self) -> tuple[DotTiles, ...]:
        return tuple(s for s in self.program.body if isinstance(s, DotTiles))

    @property
    def stores(self) -> tuple[StoreTile, ...]:
        return tuple(s for s in self.program.statements if isinstance(s, StoreTile))

    def block(self, axis: str) -> int:
        return 1 if axis == "1" else self.program.axes[axis].block

    def rings_are_possible(self) -> None:
        depth, in_flight, groups = self.rings.depth, self.rings.in_flight, self.rings.groups
        if not 0 <= in_flight < depth:
            _refuse(
                f"{in_flight} products cannot be in flight with {depth} slots",
                "a slot more than products in flight, or the producer waits for ever",
            )
        ends = {(store.dims[-2], d) for store in self.stores for d in store.dims[-1:] if d != "1"}
        if len(ends) > 1 or len({store.dims[-2] for store in self.stores}) > 1:
            _refuse("results have different rows or columns", "all are tiles of the same two axes")
        rows = self.block(self.stores[0].dims[-2])
        sizes = (64, 128, 256) if self.dots else (rows,)
        if groups < 1 or rows % groups or rows // groups not in sizes:
            _refuse(
                f"{rows} rows cannot be divided between {groups} groups",
                "each group takes 64, 128 or 256 rows"
                if self.dots
                else "a program without products has one group",
            )
        for _, axis in ends:
            columns, pieces = self.block(axis), self.rings.pieces
            if pieces not in (1, 2, 4, 8) or columns < 8 * pieces:
                _refuse(
                    f"{columns} columns cannot be stored in {pieces} pieces",
                    "there are 1, 2, 4 or 8 pieces, of 8 columns and more",
                )
            if pieces > 1:
                self.pieces_are_possible(axis)

    def pieces_are_possible(self, columns: str) -> None:
        for statement in self.program.after:
            if isinstance(statement, ReduceTile) and self.tiles[statement.source][1] == columns:
                _refuse(
                    f"`{statement_text(statement)}` needs all columns, which are in"
                    f" {self.rings.pieces} pieces",
                    "use one piece",
                )

    # --- the producer ----------------------------------------------------------------------------

    def arefs(self) -> Iterator[Aref]:
        """Yield the rings in the order in which the loop first reads them."""
        kept = {s.name: s for s in self.program.before if isinstance(s, LoadTile)}
        loads = kept | {s.name: s for s in self.program.body if isinstance(s, LoadTile)}
        users: dict[str, tuple[int, ...]] = {}
        for n, dot in enumerate(self.dots):
            for name in (dot.left, dot.right):
                users[name] = (*users.get(name, ()), n)
        together: dict[tuple[bool, tuple[int, ...]], list[LoadTile]] = {}
        for name, by in users.items():
            if name in loads:
                together.setdefault((name in kept, by), []).append(loads[name])
        for n, ((is_kept, _), some) in enumerate(together.items()):
            size = sum(self.bytes(load.operand, load.dims) for load in some)
            depth = 1 if is_kept else self.rings.depth
            yield Aref(f"r{n}", tuple(some), depth, size, is_kept)

    def copied(self, arefs: Sequence[Aref]) -> list[LoadTile]:
        return [load for aref in arefs for load in aref.loads]

    def bytes(self, operand: str, dims: Dims) -> int:
        rows, columns = self.program.blocks(dims)
        return rows * columns * DTYPES[self.program.operand(operand).dtype].itemsize

    def all_is_placed(self, arefs: tuple[Aref, ...]) -> None:
        p, copied = self.program, {load.name for load in self.copied(arefs)}
        read = {name for s in p.statements for name in reads(s)}
        for load in self.copied(arefs):
            if len(load.dims) > COPY_AXES:
                _refuse(
                    f"`{load.operand}` has {len(load.dims)} axes, and a copy has {COPY_AXES}",
                    "join axes that follow one another in memory",
                )
        for statement in p.body:
            match statement:
                case LoadTile(name) if name not in read:
                    _refuse(f"no product reads `{name}`, which the loop loads", "leave it out")
                case DotTiles():
                    self.is_product(statement, copied)
                case StoreTile(operand):
                    _refuse(f"the loop stores to `{operand}`", "store after the loop")
        for statement in (*p.before, *p.after):
            is_late_fill = isinstance(statement, FillTile) and statement in p.after and p.body
            if isinstance(statement, DotTiles | StoreTile) and statement in p.before:
                _misplaced(statement)
            if isinstance(statement, DotTiles) or is_late_fill:
                _misplaced(statement)
        for statement in p.statements:
            for name in {*reads(statement)} & copied:
                if not isinstance(statement, DotTiles):
                    _refuse(
                        f"`{name}` is read from a ring by `{statement_text(statement)}`",
                        "only products read shared memory: load it once more, by another name",
                    )

    def is_product(self, dot: DotTiles, copied: set[str]) -> None:
        casts = {s.name for s in self.program.body if isinstance(s, CastTile)}
        if dot.left not in copied | casts or dot.right not in copied:
            _refuse(
                f"the product `{dot.name}` reads a tile that is neither loaded nor cast",
                "the right tile of a product comes from a ring, the left one may be cast",
            )
        if dot.onto not in (None, dot.name):
            _refuse(
                f"the product `{dot.name}` is added to `{dot.onto}`",
                "a product in the loop accumulates in itself",
            )

    def shapes_are_possible(self) -> None:
        if self.program.loop is not None and not self.dots:
            _refuse("the loop multiplies nothing", "it needs a product that accumulates")
        rows = self.stores[0].dims[-2]
        numbers = 0
        for dot in {dot.name: dot for dot in self.dots}.values():
            of, columns = self.tiles[dot.name]
            inner, width = self.block(self.tiles[dot.left][1]), self.block(columns)
            if of != rows:
                _refuse(
                    f"the tile `{dot.name}` has the axes [{of}, {columns}]",
                    f"products have the rows of the results, `{rows}`",
                )
            if inner not in (16, 32, 64, 128, 256) or width not in (8, 16, 32, 64, 128, 256):
                _refuse(
                    f"no instruction multiplies tiles 64 x {inner} and {inner} x {width}",
                    "blocks are powers of 2: the inner one from 16 to 256, columns from 8 to 256",
                )
            twice = 1 + (self.rings.ahead and is_early(dot, self.program.body))
            numbers += twice * self.block(of) * width // (self.rings.groups * THREADS)
        for axis in self.program.axes.values():
            if axis.block & (axis.block - 1):
                _refuse(
                    f"the axis `{axis.name}` has blocks of {axis.block}",
                    "blocks are powers of 2",
                )
        if numbers > REGISTERS:
            _refuse(
                f"a thread accumulates {numbers} numbers, and has registers for {REGISTERS}",
                "use smaller tiles or more groups",
            )

    def shared(self, arefs: tuple[Aref, ...]) -> int:
        if not arefs:
            return CAPTURES  # what sums between warps need is less
        rings = sum(a.depth * (a.size + 2 * BARRIER) for a in arefs)
        stores = self.stores if self.program.segments is None else ()
        staged = sum(self.bytes(s.operand, s.dims) for s in stores)
        return rings + staged // self.rings.pieces + CAPTURES


def _misplaced(statement: Statement) -> NoReturn:
    _refuse(
        f"`{statement_text(statement)}` stands at the wrong side of the loop",
        "tiles are filled before the loop or in it, multiplied in it, and stored after it",
    )


def _refuse(message: str, help: str, *notes: str) -> NoReturn:
    raise TileError(Diagnostic(message, help=help, notes=notes))
