"""A partitioned tile program: its rings, and what every group of consumers does, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pypm.tiles.program import (
    DTYPES,
    Dims,
    DotTiles,
    LoadTile,
    Statement,
    StoreTile,
    TileProgram,
    statement_text,
)

__all__ = ["Aref", "Await", "Consumed", "Get", "Issue", "Perform", "Rings", "Specialized", "Step"]


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
    ahead: int = 0
    """1 if products of copies alone are issued a turn ahead, beside what reads those of a turn."""


@dataclass(frozen=True, slots=True)
class Aref:
    """A ring: what is loaded into one slot together, because the same products read it."""

    name: str
    loads: tuple[LoadTile, ...]
    depth: int
    size: int
    """Bytes of a slot."""
    is_kept: bool = False
    """True if the slot is filled once a tile, before the loop, and read in all turns."""


@dataclass(frozen=True, slots=True)
class Get:
    """Wait until the copies of the turn `ahead` of this one have landed."""

    aref: Aref
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class Issue:
    """Start a product of the turn `ahead`; its operands are read until it is awaited."""

    dot: DotTiles
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class Await:
    """Wait until at most `left` products are in flight, and give the tiles they accumulate in."""

    left: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Consumed:
    """Give back the slot of the turn `behind` this one, if there was one; -1 for the next turn."""

    aref: Aref
    behind: int


@dataclass(frozen=True, slots=True)
class Perform:
    statement: Statement


Step: TypeAlias = Get | Issue | Await | Consumed | Perform


@dataclass(frozen=True, slots=True)
class Specialized:
    """A program with its rings, and the steps of every group of consumers.

    Before the loop, the producer fills the rings that are kept; in each turn it puts the slots of
    all others, in their order. Without rings there is no producer.
    """

    program: TileProgram
    rings: Rings
    arefs: tuple[Aref, ...]
    before: tuple[Step, ...]
    turn: tuple[Step, ...]
    after: tuple[Step, ...]
    flying: tuple[str, ...]
    """Tiles of which products are in flight where a turn begins."""
    shared: int
    """Bytes of shared memory of one program."""
    first: tuple[Step, ...] = ()
    """Steps before the first turn, if there is one: products that are issued a turn ahead."""
    last: tuple[Step, ...] = ()
    """The last turn, if the others issue products for the next one."""

    def __str__(self) -> str:
        r = self.rings
        lines = [f"{r.groups} groups, {r.in_flight} in flight, {self.shared:,} bytes shared"]
        for aref in self.arefs:
            names = ", ".join(load.name for load in aref.loads)
            lines.append(f"aref {aref.name}: {names}; {aref.depth} slots of {aref.size:,} bytes")
        if not self.arefs:
            lines += ["no producer: nothing is multiplied", "consumers:"]
            lines += [f"  {_step(step)}" for step in self.after]
            return "\n".join(lines) + "\n"
        lines.append("producer:")
        lines += (f"  {line}" for a in self.arefs if a.is_kept for line in _put(a))
        lines.append("  for each turn:")
        lines += (f"    {line}" for a in self.arefs if not a.is_kept for line in _put(a))
        lines += ["consumers:", *(f"  {_step(step)}" for step in self.before)]
        if self.first:
            lines += ["  before the first turn:", *(f"    {_step(step)}" for step in self.first)]
        lines.append(f"  for each turn{' but the last' if self.last else ''}:")
        lines += [f"    {_step(step)}" for step in self.turn]
        if self.last:
            lines += ["  for the last turn:", *(f"    {_step(step)}" for step in self.last)]
        lines += [f"  {_step(step)}" for step in self.after]
        return "\n".join(lines) + "\n"

    @property
    def rows(self) -> str:
        """The axis that is divided between the groups."""
        return self.stores[0].dims[-2]

    @property
    def columns(self) -> str:
        """The axis of the results that is cut into pieces."""
        return next((s.dims[-1] for s in self.stores if s.dims[-1] != "1"), "1")

    def blocks(self, dims: Dims) -> tuple[int, int]:
        """Return the shape of what one group has of a tile with these axes."""
        rows, columns = self.program.blocks(dims)
        return (rows // self.rings.groups if dims[-2] == self.rows else rows), columns

    def boxes(self, load: LoadTile) -> int:
        """Return the number of copies that load a tile: one for each group, or one for all."""
        return self.rings.groups if load.dims[-2] == self.rows else 1

    def piece(self, store: StoreTile) -> tuple[int, int]:
        """Return the shape of what one group stores at a time."""
        rows, columns = self.blocks(store.dims)
        return rows, columns // self.rings.pieces

    @property
    def stores(self) -> tuple[StoreTile, ...]:
        return tuple(s for s in self.program.statements if isinstance(s, StoreTile))

    @property
    def staged(self) -> tuple[StoreTile, ...]:
        """Stores by TMA, from shared memory; the others write to global memory directly."""
        return tuple(s for s in self.stores if self.arefs and self.is_staged(s))

    def strides(self, operand: str, dims: Dims) -> dict[int, int]:
        """Return the dimensions by whose strides consumers find a tile, with units of elements.

        Without products, and in results, rows are packed: a thread accesses 16 bytes at once if all
        rows begin at multiples of 16 bytes, which follows from their length if that is a number.
        """
        used = {n: 1 for n, axis in enumerate(dims) if axis != "1"}
        is_packed = not self.arefs or operand in self.program.results
        if dims[-1] == "1" or not is_packed:
            return used
        del used[len(dims) - 1]
        found = self.program.operand(operand)
        most = 16 // DTYPES[found.dtype].itemsize
        length = found.sizes[-1]
        unit = most if length.isdigit() and int(length) % most == 0 else 1
        return dict.fromkeys(used, unit)

    def is_staged(self, store: StoreTile) -> bool:
        segments = self.program.segments
        if segments is not None and store.dims[-2] == segments.rows:
            return False  # a copy would go on beyond the end of the segment
        dtype = DTYPES[self.program.operand(store.operand).dtype]
        return "1" not in store.dims[-2:] and dtype.itemsize == 2


def _put(aref: Aref) -> list[str]:
    return [f"put {aref.name}", *(f"  {statement_text(x)}" for x in aref.loads)]


def _step(step: Step) -> str:
    match step:
        case Get(aref, ahead):
            return f"get {aref.name}{', 1 turn ahead' if ahead else ''}"
        case Issue(dot, ahead):
            return f"issue {statement_text(dot)}{', 1 turn ahead' if ahead else ''}"
        case Await(left, names):
            return f"await {', '.join(names)}; {left} left in flight"
        case Consumed(aref, behind):
            turn = ", 1 turn ahead" if behind < 0 else f", {behind} turns behind" if behind else ""
            return f"consumed {aref.name}{turn}"
        case Perform(statement):
            return statement_text(statement)
