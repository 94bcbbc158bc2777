"""Plain Triton text of a partitioned tile program: no producer, no groups, no rings.

The kernel computes whole tiles with all its warps, and Triton pipelines the loop. It takes what the
specialized kernel takes, computes the same, and is its peer when the specialization is measured.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pypm.tiles.arguments import Descriptor, KernelArgument, Pointer, SizeArgument, StrideArgument
from pypm.tiles.meaning import meaning
from pypm.tiles.program import Dims, DotTiles, LoadTile, Statement, StoreTile
from pypm.tiles.steps import Specialized
from pypm.tiles.text.argument_list import ArgumentList, described
from pypm.tiles.text.grid_text import GridText
from pypm.tiles.text.prelude import PLAIN_PRELUDE, in_triton
from pypm.tiles.text.tile_text import TileText, element_of

__all__ = ["PlainKernel", "plain"]


@dataclass(frozen=True, slots=True)
class PlainKernel:
    """The text of a kernel, which is its function `kernel`, and what this takes, in order."""

    text: str
    arguments: tuple[KernelArgument, ...]
    source: Specialized
    """The partitioned program, whose groups and pieces are one."""
    warps: int
    by_triton: bool
    """True if Triton is asked to specialize the warps."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def plain(source: Specialized, *, by_triton: bool = False) -> PlainKernel:
    """Return the plain kernel of a partitioned program, with four warps for each of its groups.

    If `by_triton`, the loop asks for Triton's own specialization, which needs four warps, and
    descriptors that the kernel makes by itself.
    """
    warps = 4 if by_triton else 4 * source.rings.groups
    whole = replace(source, rings=replace(source.rings, groups=1, pieces=1))
    emitter = _PlainEmitter(whole, by_triton)
    return PlainKernel(emitter.text(), tuple(emitter.arguments()), whole, warps, by_triton)


@dataclass(frozen=True)
class _PlainText(TileText):
    """Text of statements without layouts, which Triton chooses."""

    def layout(self, dims: Dims) -> str:
        return ""

    def statement(self, statement: Statement) -> Iterator[str]:
        copied = [load for aref in self.source.arefs for load in aref.loads]
        match statement:
            case LoadTile(name, _, dims) if statement in copied:
                flat = f".reshape({self.shape(dims)})" if len(dims) > 2 else ""
                yield f"{name} = {described(statement)}.load([{self.at(dims)}]){flat}"
            case DotTiles(name, left, right, turned, onto):
                added = "" if onto is None else f", {onto}"
                yield f"{name} = gl.dot({left}, {right}{'.T' if turned else ''}{added})"
            case StoreTile(_, dims, source) if statement in self.source.staged:
                box = ArgumentList(self.source).box(statement)
                flat = f".reshape({box})" if len(dims) > 2 else ""
                element = element_of(self.source.program.operand(statement.operand).dtype)
                tile = f"{source}.to({element}){flat}"
                yield f"{described(statement)}.store([{self.at(dims)}], {tile})"
            case _:
                yield from super().statement(statement)

    def at(self, dims: Dims) -> str:
        return ", ".join(map(self.start, dims))

    def full(self, dims: Dims, value: str) -> str:
        return f"gl.full({self.shape(dims)}, {value}, gl.float32)"

    def indices(self, dims: Dims, dim: int) -> str:
        function, size = ("down", "across")[dim], self.shape(dims)[dim]
        return f"{function}({self.start(dims[-2:][dim])}, {size})"


@dataclass(frozen=True)
class _PlainEmitter:
    source: Specialized
    by_triton: bool

    def text(self) -> str:
        values = _PlainText(self.source, meaning(self.source.program))
        blocks = [*values.functions(), "\n".join(self.kernel(values))]
        return "\n\n\n".join([PLAIN_PRELUDE.rstrip(), *map(in_triton, blocks)]) + "\n"

    def kernel(self, values: _PlainText) -> Iterator[str]:
        program, grid = self.source.program, GridText(self.source.program)
        yield f"@gluon.jit\ndef kernel({', '.join(a.name for a in self.arguments())}):"
        yield from self.descriptors()
        yield from grid.tiles()
        for statement in program.before:
            yield from (f"        {line}" for line in values.statement(statement))
        if program.loop is not None:
            turns = f"gl.range({grid.turns}, warp_specialize=True)"
            yield f"        for step in {turns if self.by_triton else f'range({grid.turns})'}:"
            yield f"            {grid.place}"
        for statement in program.body:
            yield from (f"            {line}" for line in values.statement(statement))
        for statement in program.after:
            yield from (f"        {line}" for line in values.statement(statement))

    # --- arguments -------------------------------------------------------------------------------

    def arguments(self) -> Iterator[KernelArgument]:
        """Yield the arguments; those that descriptors are made of in the place of these."""
        given = ArgumentList(self.source).all()
        if not self.by_triton:
            yield from given
            return
        sizes: dict[str, SizeArgument] = {}
        for argument in given:
            match argument:
                case Descriptor(name, operand):
                    yield Pointer(f"{name}_ptr", operand, is_packed=True)
                    shape = self.source.program.operand(operand).sizes
                    for dim in range(len(shape) - 1):
                        yield StrideArgument(f"{name}_stride{dim}", operand, dim)
                    sizes |= {n: SizeArgument(n) for n in shape if not n.isdigit()}
                case SizeArgument(name):
                    sizes[name] = argument
                case _:
                    yield argument
        yield from sizes.values()

    def descriptors(self) -> Iterator[str]:
        """Yield statements that make the descriptors, if they are not given."""
        for argument in ArgumentList(self.source).all() if self.by_triton else ():
            if isinstance(argument, Descriptor):
                name, shape = argument.name, self.source.program.operand(argument.operand).sizes
                strides = [*(f"{name}_stride{n}" for n in range(len(shape) - 1)), "1"]
                yield (
                    f"    {name} = gl.make_tensor_descriptor({name}_ptr, [{', '.join(shape)}],"
                    f" [{', '.join(strides)}], {[*argument.box]})"
                )
