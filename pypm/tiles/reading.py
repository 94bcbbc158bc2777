"""Tile programs from their text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from pypm.diagnostics import Diagnostic
from pypm.tiles.meaning import NAME, line_span, meaning
from pypm.tiles.program import (
    CastTile,
    DotTiles,
    FillTile,
    LoadTile,
    LoopRange,
    MapTiles,
    PlaceTile,
    ReduceTile,
    Segments,
    SizeTile,
    Statement,
    StoreTile,
    TileAxis,
    TileError,
    TileOperand,
    TileProgram,
)

__all__ = ["parsed"]

_DIMS: Final = r"\[(\w+(?:, \w+)+)\]"
_OPERAND: Final = re.compile(rf"({NAME}): (\w+){_DIMS}")
_AXIS: Final = re.compile(rf"({NAME}): (\d+) of (\w+)")
_VISITS: Final = re.compile(r"(.*?)( from (\w+) ([-+]) (\d+))?( to (\w+) ([-+]) (\d+))?")
_SEGMENTS: Final = re.compile(rf"rows ({NAME}) of ({NAME}): (\d+) of (\w+) end at ({NAME})")
_FILL: Final = re.compile(rf"({NAME}) = ([-+.\deinf]+){_DIMS}")
_LOAD: Final = re.compile(rf"({NAME}) = ({NAME}){_DIMS}")
_PLACE: Final = re.compile(rf"({NAME}) = place\(({NAME})\){_DIMS}")
_SIZE_OF: Final = re.compile(rf"({NAME}) = size\((\w+)\)")
_DOT: Final = re.compile(rf"({NAME}) = dot\(({NAME}), ({NAME})(\.T)?(?:, ({NAME}))?\)")
_REDUCE: Final = re.compile(rf"({NAME}) = (sum|max)\(({NAME})\)")
_CAST: Final = re.compile(rf"({NAME}) = cast\(({NAME}), (\w+)\)")
_MAP: Final = re.compile(rf'({NAME}) = map "([^"]*)" ({NAME}(?:, {NAME})*)')
_STORE: Final = re.compile(rf"({NAME}){_DIMS} = ({NAME})")


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
        raise TileError(Diagnostic(message, line_span(line, self.at + 1), "here", help))

    def while_matching(self, form: re.Pattern[str]) -> list[re.Match[str]]:
        found = []
        while self.at < len(self.lines) and (match := form.fullmatch(self.lines[self.at])):
            found.append(match)
            self.at += 1
        return found

    def axes(self, keyword: str, line: str) -> list[TileAxis]:
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

    def line(self) -> str:
        return self.lines[self.at] if self.at < len(self.lines) else ""

    def loop(self) -> tuple[TileAxis | None, LoopRange | None]:
        if not self.line().startswith("for "):
            return None, None
        found = _VISITS.fullmatch(self.line())
        axes = {found[3], found[7]} - {None} if found else set()
        if found is None or len(axes) > 1:
            self.fail("the ends of a loop are on two axes", "write `from i - 8 to i + 8`")
        (axis,) = self.axes("for", found[1])
        if not axes:
            return axis, None
        first, end = (int(found[n] + found[n + 1]) if found[n] else None for n in (4, 8))
        return axis, LoopRange(axes.pop(), first, end)

    def program(self) -> TileProgram:
        operands = [
            TileOperand(m[1], m[2], tuple(m[3].split(", "))) for m in self.while_matching(_OPERAND)
        ]
        grid = self.axes("tile", self.line())
        segments = [
            Segments(m[1], TileAxis(m[2], int(m[3]), m[4]), m[5])
            for m in self.while_matching(_SEGMENTS)
        ]
        before = self.statements("")
        loop, visits = self.loop()
        body = () if loop is None else self.statements("  ")
        after = before if loop is None else self.statements("")
        if self.at < len(self.lines):
            self.fail(
                "this is no statement of a tile program",
                "a statement loads `a = x[i, k]`, multiplies `c = dot(a, b, c)`,"
                ' maps `y = map "..." c, s` or stores `out[i, j] = y`',
            )
        before = () if loop is None else before
        return TileProgram(
            tuple(operands), tuple(grid), before, loop, body, after, visits, *segments[:1]
        )


def _statement(text: str) -> Statement | None:
    if m := _FILL.fullmatch(text):
        try:
            return FillTile(m[1], float(m[2]), _dims(m[3]))
        except ValueError:
            return None
    if m := _LOAD.fullmatch(text):
        return LoadTile(m[1], m[2], _dims(m[3]))
    if m := _PLACE.fullmatch(text):
        return PlaceTile(m[1], m[2], _dims(m[3]))
    if m := _SIZE_OF.fullmatch(text):
        return SizeTile(m[1], m[2])
    if m := _DOT.fullmatch(text):
        return DotTiles(m[1], m[2], m[3], m[4] is not None, m[5])
    if m := _REDUCE.fullmatch(text):
        return ReduceTile(m[1], m[2], m[3])
    if m := _CAST.fullmatch(text):
        return CastTile(m[1], m[3], m[2])
    if m := _MAP.fullmatch(text):
        return MapTiles(m[1], m[2], tuple(m[3].split(", ")))
    if m := _STORE.fullmatch(text):
        return StoreTile(m[1], _dims(m[2]), m[3])
    return None


def _dims(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))
