"""Marks in sources: parameters with their choices, and regions that may be rewritten.

constexpr int ROWS = 4;  // evolve: 1 2 4 8
BLOCK = 64  # evolve: 32 64 128

// evolve: begin sum
...
// evolve: end
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pypm.diagnostics import Diagnostic, PyPMError, Span

__all__ = [
    "MarkedParameter",
    "MarkedRegion",
    "parameters",
    "regions",
    "with_regions",
    "with_values",
]

_SOURCES: Final = (".c", ".cc", ".cpp", ".h", ".hpp", ".py", ".pypm", ".toml", ".cu")
_PARAMETER: Final = re.compile(
    r"^(?P<head>.*?\b(?P<name>[A-Za-z_]\w*)(?:\s*=\s*|\s+))(?P<value>[-\w.\"]+)"
    r"(?P<tail>\s*[;,]?\s*(?://|#)\s*evolve:(?P<choices>.*))$"
)
_BEGIN: Final = re.compile(r"^\s*(?://|#)\s*evolve:\s*begin\s+(\w+)\s*$")
_END: Final = re.compile(r"^\s*(?://|#)\s*evolve:\s*end\s*$")


@dataclass(frozen=True, slots=True)
class MarkedParameter:
    """A marked value."""

    name: str
    """The file and the name, `kernel.cpp:ROWS`."""
    value: str
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MarkedRegion:
    """Marked lines."""

    name: str
    """The file and the name, `kernel.cpp:sum`."""
    lines: tuple[str, ...]


def parameters(files: Mapping[str, bytes]) -> dict[str, MarkedParameter]:
    """Return the marked parameters of some files by name.

    Raises PyPMError if two have the same name, or the value is not among the choices.
    """
    found: dict[str, MarkedParameter] = {}
    for path, number, line in _lines(files):
        mark = _PARAMETER.match(line)
        if mark is None:
            if "evolve:" in line and not _BEGIN.match(line) and not _END.match(line):
                help = "write `NAME = VALUE  # evolve: CHOICES`, `evolve: begin NAME` or its `end`"
                raise _error(path, number, line, "the mark is not understood", help)
            continue
        each = MarkedParameter(
            f"{path}:{mark['name']}", mark["value"], tuple(mark["choices"].split())
        )
        if each.name in found:
            raise _error(path, number, line, f"`{mark['name']}` is marked twice", "rename one")
        if each.value not in each.choices:
            listed = " ".join(each.choices) or "none"
            problem = f"`{each.value}` is not among the choices: {listed}"
            raise _error(path, number, line, problem, "add it to them")
        found[each.name] = each
    return found


def with_values(files: Mapping[str, bytes], values: Mapping[str, str]) -> dict[str, bytes]:
    """Return files in which marked parameters have other values, given by name."""

    def line_of(path: str, line: str) -> str:
        mark = _PARAMETER.match(line)
        if mark is None or f"{path}:{mark['name']}" not in values:
            return line
        return mark["head"] + values[f"{path}:{mark['name']}"] + mark["tail"]

    found = dict(files)
    for path in {name.rpartition(":")[0] for name in values}:
        lines = _text(files[path]).split("\n")
        found[path] = "\n".join(line_of(path, line) for line in lines).encode(
            "utf-8", "surrogateescape"
        )
    return found


def regions(files: Mapping[str, bytes]) -> dict[str, MarkedRegion]:
    """Return the marked regions of some files by name.

    Raises PyPMError for a region that does not end, or begins inside of another, or whose name
    occurs twice.
    """
    found: dict[str, MarkedRegion] = {}
    name, begun, inside = "", ("", 0, ""), list[str]()
    for path, number, line in _lines(files):
        if name and begun[0] != path:
            break
        if begin := _BEGIN.match(line):
            if name or f"{path}:{begin[1]}" in found:
                problem = "the region begins inside of another" if name else "the name occurs twice"
                raise _error(path, number, line, problem, "end one region before the next")
            name, begun, inside = f"{path}:{begin[1]}", (path, number, line), []
        elif _END.match(line):
            if not name:
                raise _error(path, number, line, "no region begins before", "remove the mark")
            found[name] = MarkedRegion(name, tuple(inside))
            name = ""
        elif name:
            inside.append(line)
    if name:
        raise _error(*begun, "the region does not end", "write `evolve: end` behind it")
    return found


def with_regions(
    files: Mapping[str, bytes], texts: Mapping[str, tuple[str, ...]]
) -> dict[str, bytes]:
    """Return files in which marked regions have other lines, given by name."""
    found = dict(files)
    for path in {name.rpartition(":")[0] for name in texts}:
        made: list[str] = []
        name = ""
        for line in _text(files[path]).split("\n"):
            begin = _BEGIN.match(line)
            if _END.match(line):
                name = ""
            if name not in texts:
                made.append(line)
            if begin:
                name = f"{path}:{begin[1]}"
                made += texts.get(name, ())
        found[path] = "\n".join(made).encode("utf-8", "surrogateescape")
    return found


def _lines(files: Mapping[str, bytes]) -> Iterator[tuple[str, int, str]]:
    for path, content in sorted(files.items()):
        if path.endswith(_SOURCES):
            for number, line in enumerate(_text(content).split("\n"), 1):
                yield path, number, line


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def _error(path: str, number: int, line: str, problem: str, help: str) -> PyPMError:
    start = line.find("evolve:")
    span = Span(path, number, start, number, len(line), line)
    return PyPMError(Diagnostic(f"a mark in `{path}` is wrong", span, problem, help))
