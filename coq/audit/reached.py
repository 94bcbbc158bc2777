"""Definitions that the audited statements rest on, as commands for Coq that print them.

    python3 audit/reached.py < audit/Audit.v > audit/Definitions.v

Beside each file that it compiles, Coq writes a `.glob` file: the byte where each definition begins,
and each place where a name is read, with the name's library. A definition is reached if a statement
reads it, or if a reached definition does. Proofs do not count.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

OWNERS = {"def", "prf", "ind", "rec", "class", "inst", "not", "abbrev"}
PARTS = {"constr", "proj", "meth"}
"""Constructors and fields stand for the type that declares them."""
BEGINNING = re.compile(r"(\w+) (\d+):\d+ \S+ (\S+)")
READING = re.compile(r"R(\d+):\d+ (\S+) \S+ (.+) (\w+)")
CONTEXT = re.compile(rb"^\s*(?:Context|Variables?|Hypothes[ie]s)\b.*?\.\s", re.M | re.S)

Item = tuple[str, str]
"""A library and a name in it."""


class File:
    """One compiled file: where its definitions begin, and what is read where."""

    def __init__(self, source: Path) -> None:
        self.text = source.read_bytes()
        self.library = ""
        self.starts: list[tuple[int, str, str]] = []
        self.parts: dict[str, str] = {}
        self.readings: list[tuple[int, Item]] = []
        for line in source.with_suffix(".glob").read_text(encoding="utf-8").splitlines():
            if line.startswith("F"):
                self.library = line[1:]
            elif found := READING.fullmatch(line):
                self.readings.append((int(found[1]), (found[2], found[3])))
            elif found := BEGINNING.match(line):
                self._begin(found[1], int(found[2]), found[3])
        self.contexts = [match.span() for match in CONTEXT.finditer(self.text)]

    def _begin(self, kind: str, start: int, name: str) -> None:
        if kind in OWNERS:
            self.starts.append((start, kind, name))
        elif kind in PARTS and self.starts:
            self.parts[name] = self.starts[-1][2]

    def end(self, at: int) -> int:
        """Return where the definition at an index ends; a theorem ends where its proof begins."""
        start, kind, _ = self.starts[at]
        end = self.starts[at + 1][0] if at + 1 < len(self.starts) else len(self.text)
        proof = self.text.find(b"Proof", start, end) if kind == "prf" else -1
        return end if proof < 0 else proof

    def read(self) -> Iterator[tuple[str, Item]]:
        """Yield each name of this file with each item that it reads."""
        places = [start for start, _, _ in self.starts]
        for place, item in self.readings:
            at = bisect_right(places, place) - 1
            if any(start <= place < end for start, end in self.contexts):
                yield from ((name, item) for _, _, name in self.starts)
            elif at >= 0 and place < self.end(at):
                yield self.starts[at][2], item


def reached(files: list[File], roots: list[Item]) -> list[Item]:
    """Return what the roots rest on, in the order of the files."""
    parts = {
        (file.library, part): (file.library, of)
        for file in files
        for part, of in file.parts.items()
    }
    kinds = {(f.library, name): kind for f in files for _, kind, name in f.starts}
    read: dict[Item, set[Item]] = {item: set() for item in kinds}
    for file in files:
        instances = {(file.library, name) for _, kind, name in file.starts if kind == "inst"}
        for _, _, name in file.starts:
            read[file.library, name] |= instances  # found by their class, and not by name
        for name, item in file.read():
            read[file.library, name].add(parts.get(item, item))
    found: set[Item] = set()
    waiting = [*roots]
    while waiting:
        for item in read[waiting.pop()] - found:
            if kinds.get(item, "prf") != "prf":
                found.add(item)
                waiting.append(item)
    return [item for item in kinds if item in found and kinds[item] not in {"not", "abbrev"}]


def main() -> None:
    """Print a command for each definition that the statements of the standard input reach."""
    sources = [
        Path(line) for line in Path("_CoqProject").read_text().split() if line.endswith(".v")
    ]
    files = [File(source) for source in sources]
    audited = re.findall(r"^Check @(\w+)\.([\w']+)\.", sys.stdin.read(), re.M)
    libraries = {file.library.rsplit(".", 1)[-1]: file for file in files}
    roots = [(libraries[module].library, name) for module, name in audited]
    print("Set Printing Width 100.")
    names = {file.library: file for file in files}
    for library, name in reached(files, roots):
        file = names[library]
        print(f"Require {library}. {command(file, name)} {library}.{name}.")


def command(file: File, name: str) -> str:
    """Return `Print`, or `Check` for what tactics define: its type says what it decides."""
    at = next(at for at, (_, _, other) in enumerate(file.starts) if other == name)
    text = file.text[file.starts[at][0] : file.end(at)]
    return "Check" if b"Defined." in text else "Print"


if __name__ == "__main__":
    main()
