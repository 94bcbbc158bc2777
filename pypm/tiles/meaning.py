"""The meaning of tile programs: names, axes and types that fit, or the reason why not."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NoReturn

from pypm.diagnostics import Diagnostic, Span, did_you_mean
from pypm.kernels.support.pointwise import parse
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
    Segments,
    SizeTile,
    Statement,
    StoreTile,
    TileError,
    TileProgram,
    printed,
    reads,
    statement_text,
)

__all__ = ["NAME", "RESERVED", "dims_of", "line_span", "meaning"]

NAME: Final = r"[a-z][a-z0-9]*"
"""A name of a program."""
_SIZE: Final = re.compile(r"[A-Z][A-Z0-9]*|\d+")

_OWN: Final = (
    "across between cast consumer dot down float gl gluon group kernel larger max mbarrier n phase"
    " piece place producer range round sigmoid size slot step sum sync tanh tile tl tma triton"
    " turn turns"
)
RESERVED: Final = frozenset(_OWN.split())
"""Names that the text of programs and kernels has for itself; its others have an underscore or are
capital."""

INTEGERS: Final = ("i8", "i32", "i64")
_COMPARED: Final = ("eq", "ge", "gt", "le", "lt", "ne")


def line_span(line: str, number: int) -> Span:
    """Return the span of a line of a program, without its indentation; lines count from 1."""
    start = len(line) - len(line.lstrip())
    return Span("<tile program>", number, start, number, max(len(line), start + 1), line)


def meaning(program: TileProgram) -> Mapping[str, Dims]:
    """Return the two axes of every tile by its name, the last ones of a name that is carried.

    Raises TileError if a name is unknown or taken, axes do not fit, or nothing is stored.
    """
    return _Meaning(program).check()


def dims_of(program: str, dims: Sequence[Dims]) -> Dims:
    """Return the axes of what a pointwise program returns, from those of its arguments.

    Raises ValueError if the program does not parse, reads an argument that there is not, or two of
    its arguments have different axes.
    """
    found: list[Dims] = []
    for step in parse(program):
        joined: Dims = ("1", "1")
        for argument in step.arguments:
            if isinstance(argument, str):
                joined = _joined(joined, _argument_dims(argument, dims, found))
        found.append(joined)
    return found[-1] if found else dims[0]


def _argument_dims(name: str, dims: Sequence[Dims], steps: Sequence[Dims]) -> Dims:
    index = _index(name)
    if index is None:
        return steps[int(name[1:])]
    if index >= len(dims):
        raise ValueError(f"the pointwise program reads {name}, which is no argument")
    return dims[index]


def _joined(a: Dims, b: Dims) -> Dims:
    for x, y in zip(a, b, strict=True):
        if "1" not in (x, y) and x != y:
            raise ValueError(f"tiles with the axes {a} and {b} do not broadcast")
    return tuple(y if x == "1" else x for x, y in zip(a, b, strict=True))


def _is_free(name: str) -> bool:
    is_name = re.fullmatch(NAME, name) is not None
    return is_name and not keyword.iskeyword(name) and name not in RESERVED


@dataclass
class _Meaning:
    program: TileProgram
    known: dict[str, Dims] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    """Types of elements of what was loaded or cast; everything else is float32."""
    in_loop: bool = False
    lost: frozenset[str] = frozenset()
    """Names that the loop defined."""

    def check(self) -> Mapping[str, Dims]:
        p = self.program
        self.declarations()
        self.part(p.before, frozenset())
        carried = dict(self.known)
        self.in_loop = True
        self.part(p.body, frozenset(carried))
        self.in_loop = False
        everything, self.known = self.known, carried
        self.lost = frozenset(everything.keys() - carried.keys())
        self.part(p.after, frozenset())
        if not p.results:
            self.fail("tile", "the program stores no result", "end it with `out[i, j] = y`")
        return {**everything, **self.known}

    def declarations(self) -> None:
        p = self.program
        axes = [*p.axes.values()]
        names = [o.name for o in p.operands] + [a.name for a in axes]
        for name in names:
            if names.count(name) > 1 or not _is_free(name):
                self.fail(name, f"the name `{name}` is taken", "choose another name")
        for size in {n for o in p.operands for n in o.sizes} | {a.of for a in axes}:
            if not _SIZE.fullmatch(size):
                self.fail("tile", f"`{size}` is no name of a size", "sizes have capital letters")
        for operand in p.operands:
            if operand.dtype not in DTYPES:
                help = f"{did_you_mean(operand.dtype, DTYPES)} types are {', '.join(DTYPES)}"
                self.fail(operand.name, f"`{operand.dtype}` is no type of elements", help.strip())
        if p.visits is not None and p.visits.axis not in {a.name for a in p.grid}:
            help = "a loop begins and ends relative to a tile of the grid"
            self.fail("for", f"there is no axis `{p.visits.axis}` of the grid", help)

        if p.segments is not None:
            self.segmented(p.segments)

    def segmented(self, segments: Segments) -> None:
        p, help = self.program, "write `rows i of e: 1 of E end at ends`, of an i32[E, 1]"
        found = [o for o in p.operands if o.name == segments.ends]
        shapes = [(o.dtype, o.sizes) for o in found]
        if shapes != [("i32", (segments.axis.of, "1"))] or segments.axis.block != 1:
            self.fail("rows", f"`{segments.ends}` has no ends of segments", help)
        if segments.rows not in {a.name for a in p.grid} or p.visits is not None:
            self.fail("rows", f"no rows `{segments.rows}` of the grid have segments", help)

    def part(self, statements: Sequence[Statement], carried: frozenset[str]) -> None:
        for statement in statements:
            for name in reads(statement):
                if name in self.lost and name not in self.known:
                    help = (
                        "a loop may have no turns: fill the tile before the loop, or load it after"
                    )
                    self.fail(statement, f"`{name}` is known in the loop alone", help)
                if name not in self.known:
                    help = did_you_mean(name, self.known) or "compute it before"
                    self.fail(statement, f"the tile `{name}` is not known here", help)
            try:
                dims = self.dims(statement)
            except ValueError as error:
                self.fail(statement, str(error), "tiles of one axis, or of one element, broadcast")
            if isinstance(statement, StoreTile):
                continue
            name = statement.name
            if not isinstance(statement, LoadTile | CastTile):
                self.types.pop(name, None)
            is_taken = name in self.known and name not in carried
            if is_taken or name in {*self.program.axes, *self.names()} or not _is_free(name):
                help = "choose another name; only the loop may give one a new value"
                self.fail(statement, f"the name `{name}` is taken", help)
            if self.known.get(name, dims) != dims:
                help = "what a loop carries keeps its axes"
                self.fail(statement, f"`{name}` had other axes", help)
            self.known[name] = dims

    def names(self) -> tuple[str, ...]:
        return tuple(o.name for o in self.program.operands)

    def dims(self, statement: Statement) -> Dims:
        """Return the axes of what a statement defines. Raises ValueError if they do not fit."""
        match statement:
            case FillTile(_, _, dims):
                self.sizes(dims)
                if len(dims) != 2:
                    raise ValueError("a tile has two axes")
                return dims
            case LoadTile(name, operand, dims):
                self.access(operand, dims)
                self.types[name] = self.program.operand(operand).dtype
                return dims[-2:]
            case PlaceTile(_, axis, dims):
                return self.place(axis, dims)
            case SizeTile(_, size):
                if size not in {n for o in self.program.operands for n in o.sizes}:
                    raise ValueError(f"there is no size `{size}`")
                return "1", "1"
            case DotTiles():
                return self.dot(statement)
            case MapTiles(_, program, arguments):
                self.compares(program, arguments)
                return dims_of(program, [self.known[a] for a in arguments])
            case ReduceTile(_, _, source):
                return self.reduced(self.known[source])
            case CastTile(name, dtype, source):
                self.cast(dtype, source)
                self.types[name] = dtype
                return self.known[source]
            case StoreTile():
                return self.stored(statement)

    def place(self, axis: str, dims: Dims) -> Dims:
        self.sizes((axis,))
        if len(dims) != 2 or {*dims} - {"1", axis} or dims == (axis, axis):
            raise ValueError(f"indices on `{axis}` have the axes [{axis}, 1] or [1, {axis}]")
        if dims == ("1", "1") and self.program.axes[axis].block != 1:
            raise ValueError(f"a tile has {self.program.axes[axis].block} indices on `{axis}`")
        return dims

    def dot(self, statement: DotTiles) -> Dims:
        left, right = self.known[statement.left], self.known[statement.right]
        inner, column = right[::-1] if statement.turned else right
        found = left[0], column
        is_added = statement.onto is None or found == self.known[statement.onto]
        if left[1] != inner or not is_added or "1" in (*found, inner):
            raise ValueError("the axes of the product do not fit")
        types = {self.types.get(statement.left), self.types.get(statement.right)}
        if len(types) > 1 or not types <= {"bf16", "fp16"}:
            raise ValueError("a product takes two tiles of bf16, or two of fp16")
        self.all_of(inner, "a product")
        return found

    def reduced(self, dims: Dims) -> Dims:
        if dims[1] == "1":
            raise ValueError("a tile with one column is reduced")
        self.all_of(dims[1], "a reduction")
        return dims[0], "1"

    def all_of(self, axis: str, what: str) -> None:
        """Raises ValueError if a tile has a part of an axis, of which no loop visits the others."""
        loop = self.program.loop
        if not self.program.axes[axis].is_whole and (loop is None or axis != loop.name):
            raise ValueError(f"{what} of a part of the axis `{axis}`")

    def compares(self, program: str, arguments: Sequence[str]) -> None:
        """Raises ValueError if a program computes with integers, which it may only compare."""
        for step in parse(program):
            for name in step.arguments:
                index = _index(name)
                if index is None or index >= len(arguments):
                    continue
                dtype = self.types.get(arguments[index])
                if dtype in INTEGERS and step.operation not in _COMPARED:
                    raise ValueError(f"`{arguments[index]}` has integers, which are only compared")

    def cast(self, dtype: str, source: str) -> None:
        if dtype not in ("bf16", "fp16", "fp8e4nv", "i8"):
            raise ValueError(f"no tile is cast to `{dtype}`")
        if self.types.get(source) in (*INTEGERS, "i1", "fp8e4nv"):
            raise ValueError(f"`{source}` has elements of {self.types[source]}")

    def stored(self, statement: StoreTile) -> Dims:
        operand, source = statement.operand, statement.source
        self.access(operand, statement.dims)
        if self.known[source] != statement.dims[-2:]:
            given = ", ".join(self.known[source])
            raise ValueError(f"the stored tile has the axes [{given}]")
        dtype, kind = self.program.operand(operand).dtype, self.types.get(source, "fp32")
        if kind != dtype and (dtype not in ("bf16", "fp16", "fp32") or kind in INTEGERS):
            raise ValueError(f"a tile of {kind} is stored as {dtype}: cast it before")
        return statement.dims

    def sizes(self, dims: Dims) -> tuple[str, ...]:
        loop = self.program.loop
        for d in dims:
            if d != "1" and d not in self.program.axes:
                raise ValueError(f"there is no axis `{d}`")
            if loop is not None and d == loop.name and not self.in_loop:
                raise ValueError(f"the axis `{d}` is known in the loop alone")
        return tuple("1" if d == "1" else self.program.axes[d].of for d in dims)

    def access(self, operand: str, dims: Dims) -> None:
        if operand not in self.names():
            raise ValueError(f"there is no operand `{operand}`")
        sizes = self.program.operand(operand).sizes
        if self.sizes(dims) != sizes:
            raise ValueError(f"`{operand}` has the sizes [{', '.join(sizes)}]")
        for d in dims[:-2]:
            if d != "1" and self.program.axes[d].block != 1:
                raise ValueError(f"a tile has one place on `{d}`, which stands before its rows")

    def fail(self, place: Statement | str, message: str, help: str) -> NoReturn:
        lines = printed(self.program).splitlines()
        start = place if isinstance(place, str) else statement_text(place)
        number = next((n for n, line in enumerate(lines, 1) if line.strip().startswith(start)), 1)
        raise TileError(Diagnostic(message, line_span(lines[number - 1], number), "here", help))


def _index(name: str | float) -> int | None:
    """Return which argument of a map a step reads by a name, or None if it is none."""
    if not isinstance(name, str) or name[0] == "v":
        return None
    return 0 if name == "acc" else int(name[1:]) + 1
