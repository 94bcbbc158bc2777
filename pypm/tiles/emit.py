"""Gluon text of a partitioned tile program: a kernel with one producer and groups of consumers.

The text has all constants of the partition in it, and is complete: Triton compiles it, and
`pypm.tiles.emulator` executes it. Turns are counted over all tiles of a program, since the phases
of barriers go on from tile to tile. A program without products has one group and no producer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pypm.tiles.arguments import KernelArgument
from pypm.tiles.meaning import meaning
from pypm.tiles.partition import Aref, Await, Consumed, Get, Issue, Perform, Specialized, Step
from pypm.tiles.program import (
    Dims,
    DotTiles,
    LoadTile,
    Statement,
    StoreTile,
    reads,
)
from pypm.tiles.text.argument_list import ArgumentList, described
from pypm.tiles.text.grid_text import GridText
from pypm.tiles.text.layouts import TileLayouts
from pypm.tiles.text.prelude import PRELUDE
from pypm.tiles.text.tile_text import TileText

__all__ = ["CONSUMER_REGISTERS", "Emitted", "emitted"]


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
    return Emitted(emitter.text(), tuple(emitter.given.all()), source)


PRODUCER_REGISTERS: Final = 24
CONSUMER_REGISTERS: Final = 240


class _Emitter:
    def __init__(self, source: Specialized) -> None:
        self.source, self.program = source, source.program
        self.tiles = meaning(source.program)
        self.values = TileText(source, self.tiles)
        self.grid = GridText(source.program)
        self.given = ArgumentList(source)

    def text(self) -> str:
        blocks = [PRELUDE.rstrip(), *self.values.functions()]
        if self.source.arefs:
            blocks += ["\n".join(self.producer()), "\n".join(self.consumer())]
            blocks.append("\n".join(self.kernel()))
        else:
            given = ", ".join(a.name for a in self.given.all())
            lines = [f"@gluon.jit\ndef kernel({given}):", *self.consumed()]
            blocks.append("\n".join(lines))
        return "\n\n\n".join(blocks) + "\n"

    # --- arguments -------------------------------------------------------------------------------

    @property
    def buffers(self) -> list[str]:
        rings = [f"{load.name}_ring" for load in self.given.copied]
        stages = [f"{store.operand}_stage" for store in self.source.staged]
        barriers = [f"{a.name}_{kind}" for a in self.source.arefs for kind in ("full", "empty")]
        return [*rings, *stages, *barriers]

    @property
    def passed(self) -> str:
        return ", ".join([*(a.name for a in self.given.all()), *self.buffers])

    # --- the producer ----------------------------------------------------------------------------

    @property
    def is_keeping(self) -> bool:
        return any(aref.is_kept for aref in self.source.arefs)

    @property
    def counters(self) -> tuple[str, ...]:
        return ("turn", "round") if self.is_keeping else ("turn",)

    def producer(self) -> Iterator[str]:
        yield f"@gluon.jit\ndef producer({self.passed}):"
        yield from self.grid.tiles(self.counters)
        for aref in self.source.arefs:
            if aref.is_kept:
                yield from (f"        {line}" for line in self.put(aref))
        yield from self.grid.loop(self.source.rings.depth)
        yield f"            {self.grid.place}"
        for aref in self.source.arefs:
            if not aref.is_kept:
                yield from (f"            {line}" for line in self.put(aref))
        yield "            turn += 1"
        if self.is_keeping:
            yield "        round += 1"

    def put(self, aref: Aref) -> Iterator[str]:
        slot, phase = _at(aref)
        yield f"mbarrier.wait({aref.name}_empty.index({slot}), {phase} ^ 1)"
        yield f"mbarrier.expect({aref.name}_full.index({slot}), {aref.size})"
        for load in aref.loads:
            boxes, (rows, _) = self.source.boxes(load), self.source.blocks(load.dims)
            for n in range(boxes):
                at = [self.values.start(axis) for axis in load.dims]
                at[-2] += f" + {n * rows}" if n else ""
                yield (
                    f"tma_load({load.name}_desc, [{', '.join(at)}],"
                    f" {aref.name}_full.index({slot}),"
                    f" {load.name}_ring.index({_box(slot, boxes, n)}))"
                )

    # --- consumers -------------------------------------------------------------------------------

    def consumer(self) -> Iterator[str]:
        yield f"@gluon.jit\ndef consumer({self.passed}, group: gl.constexpr):"
        yield from self.consumed()
        if self.source.staged:
            yield "    tma.store_wait(0)"

    def consumed(self) -> Iterator[str]:
        source = self.source
        yield from (f"    {line}" for line in TileLayouts(source, self.tiles).text())
        yield from self.grid.tiles(self.counters)
        if source.rings.groups > 1:
            rows = self.program.axes[source.rows]
            yield f"        {rows.name} += group * {rows.block // source.rings.groups}"
        for step in source.before:
            yield from (f"        {line}" for line in self.step(step))
        if self.program.loop is not None:
            yield from self.loop()
        yield from (f"        {line}" for line in self.results())
        if self.is_keeping:
            yield "        round += 1"

    def loop(self) -> Iterator[str]:
        for name in self.source.flying:
            yield f"        {name}_next = warpgroup_mma_init({name})"
        if self.source.first:
            yield from (f"        {line}" for line in self.turns_ahead())
        else:
            yield from self.grid.loop(self.source.rings.depth)
            if self.needs_place:
                yield f"            {self.grid.place}"
            yield from (f"            {line}" for line in self.turn(self.source.turn))
        for step in self.source.after:
            if not isinstance(step, Perform):
                yield from (f"        {line}" for line in self.step(step))

    def turns_ahead(self) -> Iterator[str]:
        """Yield turns that issue products for the next one, and a last one that does not."""
        source, depth = self.source, self.source.rings.depth
        at = [f"slot = turn % {depth}", f"phase = turn // {depth} & 1"]
        place = [self.grid.place] if self.needs_place else []
        turns = self.grid.turns
        yield f"if {turns} > 0:"
        for line in (*at, *self.steps_text(source.first), f"for step in range({turns} - 1):"):
            yield f"    {line}"
        ahead = f"slot_next = (turn + 1) % {depth}", f"phase_next = (turn + 1) // {depth} & 1"
        for line in (*at, *ahead, *place, *self.turn(source.turn)):
            yield f"        {line}"
        last = [line.replace("step", f"({turns} - 1)") for line in place]
        for line in (*at, *last, *self.turn(source.last)):
            yield f"    {line}"

    def turn(self, steps: Sequence[Step]) -> Iterator[str]:
        yield from self.steps_text(steps)
        yield "turn += 1"

    def steps_text(self, steps: Sequence[Step]) -> Iterator[str]:
        """Yield the lines of steps in a turn."""
        issued: set[str] = set()
        for step in steps:
            yield from self.step(step, issued)

    @property
    def needs_place(self) -> bool:
        """True if consumers read where the tiles of a turn begin."""
        loop = self.program.loop
        performed = [s.statement for s in self.source.turn if isinstance(s, Perform)]
        return any(loop and loop.name in getattr(s, "dims", ()) for s in performed)

    def is_chained(self, name: str) -> bool:
        """Return whether turns only add to a tile, whose products may be in flight between."""
        performed = [s.statement for s in self.source.turn if isinstance(s, Perform)]
        changed = {getattr(s, "name", None) for s in performed}
        return name in self.source.flying and name not in changed

    def step(self, step: Step, issued: set[str] | None = None) -> Iterator[str]:
        """Yield the lines of a step; `issued` has tiles whose products this turn has started."""
        match step:
            case Get(aref, ahead):
                slot, phase = _at(aref, ahead)
                yield f"mbarrier.wait({aref.name}_full.index({slot}), {phase})"
            case Issue(dot, ahead):
                assert issued is not None
                yield self.issue(dot, issued, ahead)
                issued.add(dot.name)
            case Await(left, names):
                in_turn = issued is not None
                done = [f"{n}_done" if in_turn and self.is_chained(n) else n for n in names]
                waited = ", ".join(f"{n}_next" for n in names)
                yield f"{', '.join(done)} = warpgroup_mma_wait({left}, deps=({waited},))"
            case Consumed(aref, behind):
                depth, ahead = aref.depth, max(-behind, 0)
                slot = f"(turn + {depth - behind}) % {depth}" if behind > 0 else _at(aref, ahead)[0]
                counted = self.grid.turns if issued is None else "step"
                pred = f", pred={counted} >= {behind}" if behind > 0 else ""
                yield f"mbarrier.arrive({aref.name}_empty.index({slot}), count=1{pred})"
            case Perform(statement):
                yield from self.values.statement(statement)

    def issue(self, dot: DotTiles, issued: set[str], ahead: int) -> str:
        dims = self.tiles[dot.name]
        left, right = (self.operand(name, dims, ahead) for name in (dot.left, dot.right))
        turned = ".permute((1, 0))" if dot.turned else ""
        if dot.onto is None:
            onto = f"{self.values.full(dims, '0.0')}, use_acc=False"
        else:
            kind = "_next" if dot.onto in issued else "_done" * self.is_chained(dot.onto)
            onto = f"{dot.onto}{kind}"
        return f"{dot.name}_next = warpgroup_mma({left}, {right}{turned}, {onto}, is_async=True)"

    def operand(self, name: str, dims: Dims, ahead: int) -> str:
        """Return an operand of a product whose result has axes `dims`: shared, or in registers."""
        found = next(((a, x) for a in self.source.arefs for x in a.loads if x.name == name), None)
        if found is None:
            layout = self.values.layout(dims)
            held = f"gl.DotOperandLayout(operand_index=0, parent={layout}, k_width=2)"
            return f"gl.convert_layout({name}, {held})"
        aref, load = found
        boxes, shape = self.source.boxes(load), self.source.blocks(load.dims)
        flat = f".reshape({shape})" if len(load.dims) > 2 else ""
        return f"{name}_ring.index({_box(_at(aref, ahead)[0], boxes, 'group')}){flat}"

    # --- results ---------------------------------------------------------------------------------

    def results(self) -> Iterator[str]:
        """Yield the statements after the loop, once for each piece of the columns."""
        pieces, columns = self.source.rings.pieces, self.source.columns
        performed = [s.statement for s in self.source.after if isinstance(s, Perform)]
        if pieces == 1:
            for statement in performed:
                yield from self.values.statement(statement)
            return
        after = {s.name for s in performed if not isinstance(s, StoreTile)}
        read = dict.fromkeys(name for s in performed for name in reads(s) if name not in after)
        carried = [name for name in read if self.tiles[name][1] == columns]
        whole = [s for s in performed if self.dims(s)[-1] != columns]
        for statement in whole:
            yield from self.values.statement(statement)
        for name in carried:
            yield from self.cut(name, name, pieces, self.program.axes[columns].block)
        for n in range(pieces):
            yield from (f"{name} = {name}_{n}" for name in carried)
            values = TileText(self.source, self.tiles, n)
            for statement in performed:
                if statement not in whole:
                    yield from values.statement(statement)

    def dims(self, statement: Statement) -> Dims:
        if isinstance(statement, StoreTile):
            return statement.dims
        return self.tiles[statement.name]

    def cut(self, name: str, out: str, pieces: int, width: int) -> Iterator[str]:
        """Yield statements that cut the columns of a tile into pieces, named `out`_0 and so on."""
        if pieces == 1:
            return
        height, half = self.source.blocks((self.source.rows, "1"))[0], width // 2
        both = f"gl.permute(gl.reshape({name}, ({height}, 2, {half})), (0, 2, 1))"
        yield f"{out}_l, {out}_r = gl.split({both})"
        for n, side in enumerate("lr"):
            if pieces == 2:
                yield f"{out}_{n} = gl.convert_layout({out}_{side}, piece)"
                continue
            yield from self.cut(f"{out}_{side}", f"{out}_{side}", pieces // 2, half)
            for m in range(pieces // 2):
                yield f"{out}_{n * (pieces // 2) + m} = {out}_{side}_{m}"

    # --- the kernel ------------------------------------------------------------------------------

    def kernel(self) -> Iterator[str]:
        source, rings = self.source, self.source.rings
        yield f"@gluon.jit\ndef kernel({', '.join(a.name for a in self.given.all())}):"
        rooms: list[tuple[str, int, LoadTile | StoreTile]] = [
            (f"{load.name}_ring", aref.depth * source.boxes(load), load)
            for aref in source.arefs
            for load in aref.loads
        ]
        rooms += [(f"{store.operand}_stage", rings.groups, store) for store in source.staged]
        allocate, layout = "gl.allocate_shared_memory", "mbarrier.MBarrierLayout()"
        for name, count, access in rooms:
            shape, desc = [count, *self.given.box(access)], described(access)
            yield f"    {name} = {allocate}({desc}.dtype, {shape}, {desc}.layout)"
        for aref in source.arefs:
            for kind in ("full", "empty"):
                yield f"    {aref.name}_{kind} = {allocate}(gl.int64, [{aref.depth}, 1], {layout})"
        for depth in dict.fromkeys(aref.depth for aref in source.arefs):
            yield f"    for n in gl.static_range({depth}):"
            for aref in source.arefs:
                if aref.depth == depth:
                    yield f"        mbarrier.init({aref.name}_full.index(n), count=1)"
                    yield f"        mbarrier.init({aref.name}_empty.index(n), count={rings.groups})"
        yield "    gl.warp_specialize(["
        for group in range(rings.groups):
            yield f"        (consumer, ({self.passed}, {group})),"
        yield f"        (producer, ({self.passed})),"
        warps = [4] * (rings.groups - 1) + [1]
        registers = [CONSUMER_REGISTERS] * (rings.groups - 1) + [PRODUCER_REGISTERS]
        yield f"    ], {warps}, {registers})"


def _at(aref: Aref, ahead: int = 0) -> tuple[str, str]:
    """Return the slot and the phase of a ring at a turn, or of one that is kept, at a tile."""
    if aref.is_kept:
        return "0", "(round & 1)"
    return ("slot_next", "phase_next") if ahead else ("slot", "phase")


def _box(slot: str, boxes: int, box: str | int) -> str:
    return f"{slot} * {boxes} + {box}" if boxes > 1 else slot
