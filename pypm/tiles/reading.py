"""Tile programs from their text, and the check that a program has a meaning."""

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
    printed,
    reads,
    statement_text,
)

__all__ = ["dims_of", "meaning", "parsed"]

_NAME: Final = r"[a-z][a-z0-9]*"
_PAIR: Final = r"\[(\w+), (\w+)\]"
_OPERAND: Final = re.compile(rf"({_NAME}): (\w+){_PAIR}")
_AXIS: Final = re.compile(rf"({_NAME}): (\d+) of (\w+)")
_FILL: Final = re.compile(rf"({_NAME}) = ([-+.\deinf]+){_PAIR}")
_LOAD: Final = re.compile(rf"({_NAME}) = ({_NAME}){_PAIR}")
_DOT: Final = re.compile(rf"({_NAME}) = dot\(({_NAME}), ({_NAME})(\.T)?, ({_NAME})\)")
_MAP: Final = re.compile(rf'({_NAME}) = map "([^"]*)" ({_NAME}(?:, {_NAME})*)')
_STORE: Final = re.compile(rf"({_NAME}){_PAIR} = ({_NAME})")

_SIZE: Final = re.compile(r"[A-Z][A-Z0-9]*|1")

_OWN: Final = (
    "columns consumer float gl gluon group kernel mbarrier mma n phase piece producer range rows"
    " sigmoid slot step sync tanh tile tma turn"
)
RESERVED: Final = frozenset(_OWN.split())
"""Names that the text of kernels has for itself; its others have an underscore or are capital."""


def parsed(text: str) -> TileProgram:
    """Return the program of a text. Raises TileError where it is not one, or has no meaning."""
    reader = _TileReader(text.splitlines())
    program = reader.program()
    meaning(program)
    return program


@dataclass
class _TileReader:
    lines: Sequence[str]
    at: int = 0

    def fail(self, message: str, help: str) -> NoReturn:
        line = self.lines[self.at] if self.at < len(self.lines) else ""
        raise TileError(Diagnostic(message, _span(line, self.at + 1), "here", help))

    def while_matching(self, form: re.Pattern[str]) -> list[re.Match[str]]:
        found = []
        while self.at < len(self.lines) and (match := form.fullmatch(self.lines[self.at])):
            found.append(match)
            self.at += 1
        return found

    def axes(self, keyword: str) -> list[TileAxis]:
        line = self.lines[self.at] if self.at < len(self.lines) else ""
        parts = line.removeprefix(f"{keyword} ").split(", ")
        matches = [_AXIS.fullmatch(part) for part in parts]
        if not line.startswith(f"{keyword} ") or None in matches:
            self.fail(
                f"a tile program has a line `{keyword}`, and this is none",
                f"write `{keyword} NAME: BLOCK of SIZE`",
            )
        self.at += 1
        return [TileAxis(m[1], int(m[2]), m[3]) for m in matches if m]

    def statements(self, indent: str) -> tuple[Statement, ...]:
        found: list[Statement] = []
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.startswith("for ") or not line.startswith(indent):
                break
            statement = _statement(line[len(indent) :])
            if statement is None:
                break
            found.append(statement)
            self.at += 1
        return tuple(found)

    def program(self) -> TileProgram:
        operands = [TileOperand(m[1], m[2], (m[3], m[4])) for m in self.while_matching(_OPERAND)]
        grid = self.axes("tile")
        before = self.statements("")
        loop = self.axes("for")
        body = self.statements("  ")
        after = self.statements("")
        if self.at < len(self.lines):
            self.fail(
                "this is no statement of a tile program",
                "a statement loads `a = x[i, k]`, multiplies `c = dot(a, b, c)`,"
                ' maps `y = map "..." c, s` or stores `out[i, j] = y`',
            )
        return TileProgram(tuple(operands), tuple(grid), before, loop[0], body, after)


def _statement(text: str) -> Statement | None:
    if m := _FILL.fullmatch(text):
        try:
            return FillTile(m[1], float(m[2]), (m[3], m[4]))
        except ValueError:
            return None
    if m := _LOAD.fullmatch(text):
        return LoadTile(m[1], m[2], (m[3], m[4]))
    if m := _DOT.fullmatch(text):
        return DotTiles(m[1], m[2], m[3], m[4] is not None, m[5])
    if m := _MAP.fullmatch(text):
        return MapTiles(m[1], m[2], tuple(m[3].split(", ")))
    if m := _STORE.fullmatch(text):
        return StoreTile(m[1], (m[2], m[3]), m[4])
    return None


def _span(line: str, number: int) -> Span:
    start = len(line) - len(line.lstrip())
    return Span("<tile program>", number, start, number, max(len(line), start + 1), line)


# --- the meaning ---------------------------------------------------------------------------------


def meaning(program: TileProgram) -> Mapping[str, Dims]:
    """Return the axes of every tile by its name, the last ones of a name that is carried.

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
    if name[0] == "v":
        return steps[int(name[1:])]
    index = 0 if name == "acc" else int(name[1:]) + 1
    if index >= len(dims):
        raise ValueError(f"the pointwise program reads {name}, which is no argument")
    return dims[index]


def _joined(a: Dims, b: Dims) -> Dims:
    for x, y in zip(a, b, strict=True):
        if "1" not in (x, y) and x != y:
            raise ValueError(f"tiles with the axes {a} and {b} do not broadcast")
    rows, columns = (y if x == "1" else x for x, y in zip(a, b, strict=True))
    return rows, columns


def _is_free(name: str) -> bool:
    is_name = re.fullmatch(_NAME, name) is not None
    return is_name and not keyword.iskeyword(name) and name not in RESERVED


@dataclass
class _Meaning:
    program: TileProgram
    known: dict[str, Dims] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    """Types of elements of what was loaded; everything else is float32."""

    def check(self) -> Mapping[str, Dims]:
        p = self.program
        names = [o.name for o in p.operands] + [a.name for a in (*p.grid, p.loop)]
        for name in names:
            if names.count(name) > 1 or not _is_free(name):
                self.fail(name, f"the name `{name}` is taken", "choose another name")
        for size in {n for o in p.operands for n in o.sizes} | {a.of for a in p.axes.values()}:
            if not _SIZE.fullmatch(size):
                self.fail("tile", f"`{size}` is no name of a size", "sizes have capital letters")
        for operand in p.operands:
            if operand.dtype not in DTYPES:
                help = f"{did_you_mean(operand.dtype, DTYPES)} types are {', '.join(DTYPES)}"
                self.fail(operand.name, f"`{operand.dtype}` is no type of elements", help.strip())
        self.part(p.before, frozenset())
        carried = frozenset(self.known)
        self.part(p.body, carried)
        self.part(p.after, frozenset())
        if not p.results:
            self.fail("tile", "the program stores no result", "end it with `out[i, j] = y`")
        return self.known

    def part(self, statements: Sequence[Statement], carried: frozenset[str]) -> None:
        for statement in statements:
            for name in reads(statement):
                if name not in self.known:
                    help = did_you_mean(name, self.known) or "compute it before"
                    self.fail(statement, f"the tile `{name}` is not known here", help)
            try:
                dims = self.dims(statement)
            except ValueError as error:
                self.fail(statement, str(error), "tiles of one axis, or of one element, broadcast")
            if isinstance(statement, StoreTile):
                continue
            taken = statement.name in self.known and statement.name not in carried
            is_name = statement.name in {*self.program.axes, *self.names()}
            if taken or is_name or not _is_free(statement.name):
                help = "choose another name; only the loop may give one a new value"
                self.fail(statement, f"the name `{statement.name}` is taken", help)
            if self.known.get(statement.name, dims) != dims:
                help = "what a loop carries keeps its axes"
                self.fail(statement, f"`{statement.name}` had other axes", help)
            self.known[statement.name] = dims

    def names(self) -> tuple[str, ...]:
        return tuple(o.name for o in self.program.operands)

    def dims(self, statement: Statement) -> Dims:
        """Return the axes of what a statement defines. Raises ValueError if axes do not fit."""
        match statement:
            case FillTile(_, _, dims):
                self.sizes(dims)
                return dims
            case LoadTile(name, operand, dims):
                self.access(operand, dims)
                self.types[name] = self.program.operand(operand).dtype
                return dims
            case DotTiles():
                return self.dot(statement)
            case MapTiles(_, program, arguments):
                return dims_of(program, [self.known[a] for a in arguments])
            case StoreTile(operand, dims, source):
                self.access(operand, dims)
                if self.known[source] != dims:
                    given = ", ".join(self.known[source])
                    raise ValueError(f"the stored tile has the axes [{given}]")
                return dims

    def dot(self, statement: DotTiles) -> Dims:
        left, right = self.known[statement.left], self.known[statement.right]
        inner, column = right[::-1] if statement.turned else right
        if left[1] != inner or (left[0], column) != self.known[statement.onto]:
            raise ValueError("the axes of the product do not fit")
        types = {self.types.get(statement.left), self.types.get(statement.right)}
        if len(types) > 1 or not types <= {"bf16", "fp16"}:
            raise ValueError("a product takes two loaded tiles of bf16, or two of fp16")
        return left[0], column

    def sizes(self, dims: Dims) -> tuple[str, ...]:
        for d in dims:
            if d != "1" and d not in self.program.axes:
                raise ValueError(f"there is no axis `{d}`")
        return tuple("1" if d == "1" else self.program.axes[d].of for d in dims)

    def access(self, operand: str, dims: Dims) -> None:
        if operand not in self.names():
            raise ValueError(f"there is no operand `{operand}`")
        sizes = self.program.operand(operand).sizes
        if self.sizes(dims) != sizes:
            raise ValueError(f"`{operand}` has the sizes [{', '.join(sizes)}]")

    def fail(self, place: Statement | str, message: str, help: str) -> NoReturn:
        lines = printed(self.program).splitlines()
        start = place if isinstance(place, str) else statement_text(place)
        number = next((n for n, line in enumerate(lines, 1) if line.strip().startswith(start)), 1)
        raise TileError(Diagnostic(message, _span(lines[number - 1], number), "here", help))
