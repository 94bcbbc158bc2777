"""Lines of a part of `make gpu`: each is measured by itself, and has a verdict."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import torch

from benchmarks.results import Cell, Document, Results, load, option

__all__ = ["FAILED", "OK", "VERDICT", "Lines", "Row", "run"]

VERDICT: Final = "verdict"
OK: Final = "ok"
FAILED: Final = "failed"

Row: TypeAlias = Sequence[Cell]


class Lines(Results):
    """The tables of a part. The last cell of a line is its verdict: "ok", or what is wrong.

    What a line raises is its verdict, and the next one is measured. Lines that an earlier run wrote
    into the same file are taken over, unless they failed.
    """

    def __init__(self, output: Path | None, *, has_gpu: bool = True) -> None:
        super().__init__(output, has_gpu=has_gpu)
        is_there = output is not None and output.exists()
        self._earlier: Document = load(output) if is_there else {"tables": {}}  # type: ignore[arg-type]
        self._table = ""

    def begin(self, *columns: str, name: str = "table", caption: str = "") -> None:
        """Begin a table of these columns and one for verdicts."""
        self._table = name
        self.table(*columns, VERDICT, name=name, caption=caption)

    def line(self, name: str, measure: Callable[[], Row]) -> None:
        """Add the line of a name: what `measure` returns, its verdict included.

        Raises RuntimeError if the device has failed for this process, with all lines to come.
        """
        if name in (known := self.known()):
            self.row(*known[name])
            return
        try:
            self.row(name, *measure())
        except Exception as error:
            what = (str(error).strip().splitlines() or [""])[0]
            empty = [None] * (self.width() - 2)
            self.row(name, *empty, f"{FAILED}: {type(error).__name__}: {what}"[:200])
            if torch.cuda.is_available():
                torch.cuda.synchronize()

    def known(self) -> dict[str, list[Cell]]:
        """Return the lines of an earlier run for the latest table, by their names."""
        rows = self._earlier["tables"].get(self._table, {"rows": []})["rows"]
        return {row[0]: row for row in rows if not str(row[-1]).startswith(FAILED)}

    def rows(self) -> list[list[Cell]]:
        """Return the lines of the latest table."""
        found: list[list[Cell]] = self.document["tables"][self._table]["rows"]
        return found

    def width(self) -> int:
        """Return the number of columns of the latest table, its verdict included."""
        return len(self.document["tables"][self._table]["columns"])

    def column(self, at: int) -> list[float]:
        """Return the numbers of a column of the latest table; lines that failed have none."""
        return [x for row in self.rows() if isinstance(x := row[at], (int, float))]

    def least_and_largest(self, at: int, name: str) -> None:
        """Add the two as figures, of a column that has numbers; another call renews them."""
        if found := self.column(at):
            figures = {f"{name}, least": min(found), f"{name}, largest": max(found)}
            self.document["figures"].update(figures)
            self.write()


def run(part: Callable[[Lines], None], about: str) -> None:
    """Measure the lines of a part on the GPU that is here, without gradients.

    Raises SystemExit if there is none.
    """
    parser = argparse.ArgumentParser(description=about)
    option(parser)
    output = parser.parse_args().output
    if not torch.cuda.is_available():
        raise SystemExit("there is no GPU")
    with torch.no_grad():
        part(Lines(output))
