"""The arguments of a kernel: descriptors of what is copied, addresses and strides, and sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pypm.tiles.arguments import (
    Descriptor,
    KernelArgument,
    Pointer,
    SizeArgument,
    StrideArgument,
)
from pypm.tiles.program import LoadTile, SizeTile, StoreTile
from pypm.tiles.steps import Specialized

__all__ = ["ArgumentList", "described"]


def described(access: LoadTile | StoreTile) -> str:
    """Return the name of the descriptor of what is copied."""
    return f"{access.name if isinstance(access, LoadTile) else access.operand}_desc"


@dataclass(frozen=True)
class ArgumentList:
    """The arguments of the kernel of a partitioned program."""

    source: Specialized

    @property
    def copied(self) -> list[LoadTile]:
        """Tiles that products read."""
        return [load for aref in self.source.arefs for load in aref.loads]

    @property
    def sides(self) -> list[LoadTile]:
        """Tiles that consumers load."""
        loads = [s for s in self.source.program.statements if isinstance(s, LoadTile)]
        return [load for load in loads if load not in self.copied]

    def all(self) -> Iterator[KernelArgument]:
        """Yield all arguments, in order."""
        source, program = self.source, self.source.program
        copies: list[LoadTile | StoreTile] = [*self.copied, *source.staged]
        for access in copies:
            yield Descriptor(described(access), access.operand, self.box(access))
        direct: list[LoadTile | StoreTile] = [*self.sides]
        direct += [store for store in source.stores if store not in source.staged]
        for side in direct:
            name = side.name if isinstance(side, LoadTile) else side.operand
            strides = source.strides(side.operand, side.dims)
            is_packed = side.dims[-1] != "1" and len(side.dims) - 1 not in strides
            yield Pointer(f"{name}_ptr", side.operand, is_packed)
            for dim, unit in strides.items():
                yield StrideArgument(f"{name}_stride{dim}", side.operand, dim, unit)
        if program.segments is not None:
            yield Pointer(f"{program.segments.ends}_ptr", program.segments.ends)
            yield StrideArgument(f"{program.segments.ends}_stride0", program.segments.ends, 0)
        used = [axis.of for axis in program.axes.values()]
        used += [s.size for s in program.statements if isinstance(s, SizeTile)]
        yield from (SizeArgument(name) for name in dict.fromkeys(used) if not name.isdigit())

    def box(self, access: LoadTile | StoreTile) -> tuple[int, ...]:
        """Return the shape of one copy of a tile."""
        blocks = self.source.blocks(access.dims)
        inner = blocks if isinstance(access, LoadTile) else self.source.piece(access)
        return (*(1 for _ in access.dims[2:]), *inner)
