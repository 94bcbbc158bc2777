"""Gluon text of a partitioned tile program: a kernel with one producer and groups of consumers.

The text has all constants of the partition in it, and is complete: Triton compiles it, and
`pypm.tiles.emulator` executes it. Turns are counted over all tiles of a program, since the phases
of barriers go on from tile to tile.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pypm.kernels.support.pointwise import statements
from pypm.tiles.arguments import (
    Descriptor,
    KernelArgument,
    Pointer,
    SizeArgument,
    StrideArgument,
)
from pypm.tiles.partition import (
    Aref,
    Await,
    Consumed,
    Get,
    Issue,
    Perform,
    Specialized,
    Step,
)
from pypm.tiles.program import (
    DTYPES,
    DotTiles,
    FillTile,
    LoadTile,
    MapTiles,
    Statement,
    StoreTile,
)

__all__ = ["Emitted", "emitted"]


@dataclass(frozen=True, slots=True)
class Emitted:
    """The text of a kernel, which is its function `kernel`, and what this takes, in order."""

    text: str
    arguments: tuple[KernelArgument, ...]
    source: Specialized

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def emitted(source: Specialized) -> Emitted:
    """Return the kernel of a partitioned program."""
    emitter = _Emitter(source)
    return Emitted(emitter.text(), tuple(emitter.arguments()), source)


PRELUDE: Final = """\
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_init, warpgroup_mma_wait)

# Names differ between versions of Triton.
sync = getattr(gl, "thread_barrier", None) or gl.barrier
tma_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
tma_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


@gluon.jit
def sigmoid(x):
    return 1.0 / (1.0 + gl.exp(-x))


@gluon.jit
def tanh(x):
    y = gl.abs(x)
    t = 1.0 - 2.0 / (gl.exp(2.0 * y) + 1.0)
    z = x * x
    series = x + x * z * (-1 / 3 + z * (2 / 15 + z * (-17 / 315 + z * (62 / 2835))))
    return gl.where(y < 0.25, series, gl.where(x < 0.0, -t, t))
"""

PRODUCER_REGISTERS: Final = 24
CONSUMER_REGISTERS: Final = 240


@dataclass(frozen=True)
class _Emitter:
    source: Specialized

    def text(self) -> str:
        blocks = [
            PRELUDE.rstrip(),
            *self.maps(),
            "\n".join(self.producer()),
            "\n".join(self.consumer()),
            "\n".join(self.kernel()),
        ]
        return "\n\n\n".join(blocks) + "\n"

    # --- arguments -------------------------------------------------------------------------------

    @property
    def sides(self) -> list[LoadTile]:
        return [s for s in self.source.program.after if isinstance(s, LoadTile)]

    @property
    def copied(self) -> list[LoadTile]:
        return [load for aref in self.source.arefs for load in aref.loads]

    def arguments(self) -> Iterator[KernelArgument]:
        source, program = self.source, self.source.program
        for load in self.copied:
            yield Descriptor(f"{load.name}_desc", load.operand, source.blocks(load.dims))
        for store in source.stores:
            yield Descriptor(f"{store.operand}_desc", store.operand, source.piece(store))
        for side in self.sides:
            yield Pointer(f"{side.name}_ptr", side.operand)
            yield StrideArgument(f"{side.name}_rows", side.operand, 0)
            yield StrideArgument(f"{side.name}_columns", side.operand, 1)
        used = [axis.of for axis in program.axes.values()]
        yield from (SizeArgument(name) for name in dict.fromkeys(used))

    @property
    def buffers(self) -> list[str]:
        rings = [f"{load.name}_ring" for load in self.copied]
        stages = [f"{store.operand}_stage" for store in self.source.stores]
        barriers = [f"{a.name}_{kind}" for a in self.source.arefs for kind in ("full", "empty")]
        return [*rings, *stages, *barriers]

    @property
    def passed(self) -> str:
        return ", ".join([*(a.name for a in self.arguments()), *self.buffers])

    # --- tiles and turns -------------------------------------------------------------------------

    def tiles(self) -> list[str]:
        rows, columns = self.source.program.grid
        down = f"gl.cdiv({rows.of}, {rows.block})"
        count = f"{down} * gl.cdiv({columns.of}, {columns.block})"
        return [
            "    turn = 0",
            f"    for tile in range(gl.program_id(0), {count}, gl.num_programs(0)):",
            f"        {rows.name} = tile % {down} * {rows.block}",
            f"        {columns.name} = tile // {down} * {columns.block}",
        ]

    def turns(self) -> list[str]:
        loop, depth = self.source.program.loop, self.source.rings.depth
        return [
            f"        for step in range(gl.cdiv({loop.of}, {loop.block})):",
            f"            slot = turn % {depth}",
            f"            phase = turn // {depth} & 1",
        ]

    def producer(self) -> Iterator[str]:
        loop = self.source.program.loop
        yield f"@gluon.jit\ndef producer({self.passed}):"
        yield from self.tiles()
        yield from self.turns()
        yield f"            {loop.name} = step * {loop.block}"
        for aref in self.source.arefs:
            yield f"            mbarrier.wait({aref.name}_empty.index(slot), phase ^ 1)"
            yield f"            mbarrier.expect({aref.name}_full.index(slot), {aref.size})"
            for load in aref.loads:
                yield from (f"            {line}" for line in self.copies(aref, load))
        yield "            turn += 1"

    def copies(self, aref: Aref, load: LoadTile) -> Iterator[str]:
        boxes, (rows, _) = self.source.boxes(load), self.source.blocks(load.dims)
        for n in range(boxes):
            at = f"[{load.dims[0]}{f' + {n * rows}' if n else ''}, {load.dims[1]}]"
            slot = f"slot * {boxes} + {n}" if boxes > 1 else "slot"
            yield (
                f"tma_load({load.name}_desc, {at}, {aref.name}_full.index(slot),"
                f" {load.name}_ring.index({slot}))"
            )

    # --- consumers -------------------------------------------------------------------------------

    def consumer(self) -> Iterator[str]:
        source, (rows, columns) = self.source, self.source.program.grid
        yield f"@gluon.jit\ndef consumer({self.passed}, group: gl.constexpr):"
        yield f"    mma: gl.constexpr = {_layout(columns.block)}"
        if source.rings.pieces > 1:
            yield f"    piece: gl.constexpr = {_layout(columns.block // source.rings.pieces)}"
        yield from self.tiles()
        if source.rings.groups > 1:
            yield f"        {rows.name} += group * {rows.block // source.rings.groups}"
        for step in source.before:
            yield from (f"        {line}" for line in self.step(step))
        if source.rings.in_flight:
            for name in self.accumulators:
                yield f"        {name}_next = warpgroup_mma_init({name})"
        yield from self.turns()
        for step in source.turn:
            yield from (f"            {line}" for line in self.step(step))
        yield "            turn += 1"
        for step in source.after:
            if isinstance(step, Perform):
                break
            yield from (f"        {line}" for line in self.step(step, in_turn=False))
        yield from (f"        {line}" for line in self.results())
        yield "    tma.store_wait(0)"

    @property
    def accumulators(self) -> list[str]:
        return [*dict.fromkeys(s.name for s in self.source.program.body if isinstance(s, DotTiles))]

    def step(self, step: Step, in_turn: bool = True) -> Iterator[str]:
        pipelined = self.source.rings.in_flight > 0
        match step:
            case Get(aref):
                yield f"mbarrier.wait({aref.name}_full.index(slot), phase)"
            case Issue(dot):
                left, right = (self.slot(name) for name in (dot.left, dot.right))
                turned = ".permute((1, 0))" if dot.turned else ""
                onto = f"{dot.onto}_done" if pipelined else dot.onto
                yield (
                    f"{dot.name}_next = warpgroup_mma({left}, {right}{turned}, {onto},"
                    " is_async=True)"
                )
            case Await(left, names):
                done = [f"{n}_done" if pipelined and in_turn else n for n in names]
                waited = ", ".join(f"{n}_next" for n in names)
                yield f"{', '.join(done)} = warpgroup_mma_wait({left}, deps=({waited},))"
            case Consumed(aref, behind):
                depth = self.source.rings.depth
                slot = f"(turn + {depth - behind}) % {depth}" if behind else "slot"
                counted = "step" if in_turn else self.count
                pred = f", pred={counted} >= {behind}" if behind else ""
                yield f"mbarrier.arrive({aref.name}_empty.index({slot}), count=1{pred})"
            case Perform(FillTile(name, value, dims)):
                shape = self.source.blocks(dims)
                yield f"{name} = gl.full({shape}, {_number(value)}, gl.float32, mma)"
            case Perform(statement):
                raise AssertionError(f"{statement} stands before or in the loop")

    @property
    def count(self) -> str:
        loop = self.source.program.loop
        return f"gl.cdiv({loop.of}, {loop.block})"

    def slot(self, name: str) -> str:
        load = next(load for load in self.copied if load.name == name)
        boxes = self.source.boxes(load)
        return f"{name}_ring.index({f'slot * {boxes} + group' if boxes > 1 else 'slot'})"

    # --- results ---------------------------------------------------------------------------------

    def results(self) -> Iterator[str]:
        """Yield the statements after the loop, once for each piece of the columns."""
        source, (rows, columns) = self.source, self.source.program.grid
        pieces, layout = source.rings.pieces, "piece" if source.rings.pieces > 1 else "mma"
        (height, _), width = source.blocks((rows.name, columns.name)), columns.block // pieces
        for name in self.accumulators:
            yield from self.cut(name, name, pieces, columns.block)
        if self.sides:
            yield f"rows = ({rows.name} + {_arange(height, 1, layout)})[:, None].to(gl.int64)"
        for n in range(pieces):
            column = f"{columns.name} + {n * width}" if n else columns.name
            if self.sides:
                yield f"columns = ({column} + {_arange(width, 0, layout)})[None, :].to(gl.int64)"
            if pieces > 1:
                yield from (f"{name} = {name}_{n}" for name in self.accumulators)
            for statement in source.program.after:
                yield from self.result(statement, column)

    def cut(self, name: str, out: str, pieces: int, width: int) -> Iterator[str]:
        """Yield statements that cut the columns of a tile into pieces, named `out`_0 and so on."""
        if pieces == 1:
            return
        rows, columns = self.source.program.grid
        height, half = self.source.blocks((rows.name, columns.name))[0], width // 2
        both = f"gl.permute(gl.reshape({name}, ({height}, 2, {half})), (0, 2, 1))"
        yield f"{out}_l, {out}_r = gl.split({both})"
        for n, side in enumerate("lr"):
            if pieces == 2:
                yield f"{out}_{n} = gl.convert_layout({out}_{side}, piece)"
                continue
            yield from self.cut(f"{out}_{side}", f"{out}_{side}", pieces // 2, half)
            for m in range(pieces // 2):
                yield f"{out}_{n * (pieces // 2) + m} = {out}_{side}_{m}"

    def result(self, statement: Statement, column: str) -> Iterator[str]:
        match statement:
            case LoadTile():
                yield self.side(statement)
            case MapTiles(name, text, arguments):
                yield (
                    f"{name} = map_{name}({', '.join(arguments)})"
                    if text
                    else (f"{name} = {arguments[0]}")
                )
            case StoreTile(operand, dims, source):
                stage = f"{operand}_stage.index(group)"
                dtype = str(DTYPES[self.source.program.operand(operand).dtype])
                # one thread has started the store before: it waits, and then all go on
                yield "tma.store_wait(0)"
                yield "sync()"
                yield f"{stage}.store({source}.to(gl.{dtype.removeprefix('torch.')}))"
                yield "fence_async_shared()"
                yield "sync()"
                yield f"tma_store({operand}_desc, [{dims[0]}, {column}], {stage})"
            case FillTile() | DotTiles():
                raise AssertionError(f"{statement} stands after the loop")

    def side(self, load: LoadTile) -> str:
        places, masks = [f"{load.name}_ptr"], []
        for index, size, dim in zip(("rows", "columns"), self.sizes(load), load.dims, strict=True):
            if dim != "1":
                places.append(f"{index} * {load.name}_{index}")
                masks.append(f"({index} < {size})")
        mask = f", mask={' & '.join(masks)}, other=0" if masks else ""
        is_bit = self.source.program.operand(load.operand).dtype == "i1"
        read = f"gl.load({' + '.join(places)}{mask})"
        return f"{load.name} = {read}{' != 0' if is_bit else '.to(gl.float32)'}"

    def sizes(self, load: LoadTile) -> tuple[str, str]:
        return self.source.program.operand(load.operand).sizes

    def maps(self) -> Iterator[str]:
        for statement in self.source.program.after:
            if isinstance(statement, MapTiles) and statement.program:
                bits = statement.program.replace("(", ",").replace(")", ",").split(",")
                others = [
                    f"m{n}" if f"m{n}" in bits else f"s{n}"
                    for n in range(len(statement.arguments) - 1)
                ]
                lines = [f"@gluon.jit\ndef map_{statement.name}({', '.join(['acc', *others])}):"]
                lines += [f"    {_gluon(line)}" for line in statements(statement.program, NUMBER)]
                yield "\n".join(lines)

    # --- the kernel ------------------------------------------------------------------------------

    def kernel(self) -> Iterator[str]:
        source, rings = self.source, self.source.rings
        yield f"@gluon.jit\ndef kernel({', '.join(a.name for a in self.arguments())}):"
        allocate = "gl.allocate_shared_memory"
        for load in self.copied:
            rows, columns = source.blocks(load.dims)
            slots, desc = rings.depth * source.boxes(load), f"{load.name}_desc"
            shape = f"[{slots}, {rows}, {columns}]"
            yield f"    {load.name}_ring = {allocate}({desc}.dtype, {shape}, {desc}.layout)"
        for store in source.stores:
            rows, columns = source.piece(store)
            shape, desc = f"[{rings.groups}, {rows}, {columns}]", f"{store.operand}_desc"
            yield f"    {store.operand}_stage = {allocate}({desc}.dtype, {shape}, {desc}.layout)"
        for aref in source.arefs:
            for kind in ("full", "empty"):
                shape, layout = f"[{rings.depth}, 1]", "mbarrier.MBarrierLayout()"
                yield f"    {aref.name}_{kind} = {allocate}(gl.int64, {shape}, {layout})"
        yield f"    for n in gl.static_range({rings.depth}):"
        for aref in source.arefs:
            yield f"        mbarrier.init({aref.name}_full.index(n), count=1)"
            yield f"        mbarrier.init({aref.name}_empty.index(n), count={rings.groups})"
        yield "    gl.warp_specialize(["
        for group in range(rings.groups):
            yield f"        (consumer, ({self.passed}, {group})),"
        yield f"        (producer, ({self.passed})),"
        warps = [4] * (rings.groups - 1) + [1]
        registers = [CONSUMER_REGISTERS] * (rings.groups - 1) + [PRODUCER_REGISTERS]
        yield f"    ], {warps}, {registers})"


NUMBER: Final = "({})"


def _number(value: float) -> str:
    return str(value) if abs(value) != float("inf") else f'float("{value}")'


def _gluon(line: str) -> str:
    """Return a statement of the pointwise language in Gluon's names."""
    named = line.replace("tl.sigmoid(", "sigmoid(").replace("tl.", "gl.")
    return named.replace("(inf)", 'float("inf")').replace("(-inf)", '(-float("inf"))')


def _layout(columns: int) -> str:
    return (
        "gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1],"
        f" instr_shape=[16, {columns}, 16])"
    )


def _arange(size: int, dim: int, layout: str) -> str:
    return f"gl.arange(0, {size}, layout=gl.SliceLayout({dim}, {layout}))"
