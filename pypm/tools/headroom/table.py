"""The table of a program's regions, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Final

from pypm.fields import Plain
from pypm.fx.reporting.appraisal import duration
from pypm.fx.reporting.node_records import Frame
from pypm.roofline import Bound, Score, score
from pypm.tools.headroom.clock import PartTimes

__all__ = ["Row", "Table"]

SHOWN: Final = 20
"""The most regions that the text lists."""
OPERATORS: Final = 4
"""The most operators that the text names of one region."""


@dataclass(frozen=True)
class Row:
    """Equal regions of a program. Seconds are those of one region."""

    nodes: tuple[str, ...]
    """The nodes of the first of them."""
    end: str
    """The last of these that is no view."""
    operators: tuple[str, ...]
    """The operators that they call, each once; views are left out."""
    module: str
    """The path of the module of `end`."""
    source: Frame | None
    """The line of the model that `end` comes from."""
    count: int
    """The number of equal regions."""
    rules: tuple[str, ...]
    """The rules that take the region; empty if none does."""
    bound: Bound
    """The least time of the region on the hardware."""
    times: PartTimes | None = None
    """The measured seconds, if there are any."""
    note: str = ""
    """The reason for which it was not measured."""

    @property
    def seconds(self) -> float | None:
        """Return the measured seconds: after the rewrites, if there are any."""
        if self.times is None:
            return None
        return self.times.compiled if self.times.rewritten is None else self.times.rewritten

    @property
    def headroom(self) -> float | None:
        """Return the seconds that all of them together may save at most; None if not measured."""
        return None if self.seconds is None else self.count * (self.seconds - self.bound.seconds)

    @cached_property
    def score(self) -> Score:
        """Return the score of the time, with `torch.compile` alone as the baseline."""
        if self.times is None or not self.seconds:
            return Score(None)
        return score(self.seconds, self.times.compiled, self.bound)

    @property
    def weight(self) -> float:
        """Return the seconds of all of them that shares are computed of: measured, or at best."""
        return self.count * (self.bound.seconds if self.times is None else self.times.compiled)

    @property
    def order(self) -> tuple[bool, bool, float]:
        """Return a key for sorting: what no rule takes first, and of these the most headroom."""
        found = self.headroom
        return bool(self.rules), found is None, -(self.weight if found is None else found)

    def __str__(self) -> str:
        names = [name.rpartition(".")[2] for name in self.operators[:OPERATORS]]
        more = len(self.operators) - len(names)
        text = ", ".join([*names, *([f"{more} more"] if more > 0 else [])])
        return f"{text} at {self.end}" + (
            f" and {self.count - 1} like it" if self.count > 1 else ""
        )


@dataclass(frozen=True)
class Table:
    """The regions of a program on some hardware, what no rule takes first."""

    rows: tuple[Row, ...]
    whole: Bound
    """The least time of a program with the same results."""
    is_measured: bool
    start: tuple[str, ...] = ()
    """The nodes for `suggest`, of the first region that no rule takes and that has a pattern."""

    @cached_property
    def hints(self) -> dict[str, int]:
        """Return the values of symbolic sizes for which the seconds are."""
        bounds = (self.whole, *(row.bound for row in self.rows))
        return {name: value for bound in bounds for name, value in bound.hints.items()}

    @cached_property
    def _total(self) -> float:
        return sum(row.weight for row in self.rows)

    def share(self, row: Row) -> float:
        """Return the part of all regions' seconds that a row has, from 0 to 1."""
        return row.weight / self._total if self._total else 0.0

    def as_dict(self) -> Plain:
        """Return plain data for JSON; seconds are those of all equal regions together."""
        return {
            "hardware": self.whole.hardware,
            "is_measured": self.is_measured,
            "bound_seconds_of_the_whole": self.whole.seconds,
            "assumed_sizes": self.hints,
            "unknown_operators": [*self.whole.unknown],
            "regions": [self._row(row) for row in self.rows],
        }

    def _row(self, row: Row) -> Plain:
        times = row.times or PartTimes(0.0)
        return {
            "nodes": [*row.nodes],
            "end": row.end,
            "operators": [*row.operators],
            "module": row.module,
            "source": row.source and asdict(row.source),
            "count": row.count,
            "rules": [*row.rules],
            "bound_seconds": row.count * row.bound.seconds,
            "limited_by": row.bound.limited_by,
            "compiled_seconds": row.count * times.compiled if row.times else None,
            "rewritten_seconds": None if times.rewritten is None else row.count * times.rewritten,
            "headroom_seconds": row.headroom,
            "score": row.score.value,
            "flags": [*row.score.flags],
            "share": self.share(row),
            "note": row.note,
        }

    def __str__(self) -> str:
        lines = [*_aligned([self._titles, *map(self._cells, self.rows[:SHOWN])])]
        rest = self.rows[SHOWN:]
        if rest:
            share = sum(map(self.share, rest))
            lines.append(f"{len(rest)} more kinds of regions take {share:.0%}")
        return "\n".join([*lines, "", *self._notes()])

    @property
    def _titles(self) -> list[str]:
        measured = ["compiled", "rewritten", "score"] if self.is_measured else ["limited by"]
        return ["at best", *measured, "share", "rule", "region"]

    def _cells(self, row: Row) -> list[str]:
        middle = [row.bound.limited_by]
        if self.is_measured:
            times = (None, None) if row.times is None else (row.times.compiled, row.times.rewritten)
            value = row.score.value
            middle = ["-" if time is None else duration(row.count * time) for time in times]
            middle.append("-" if value is None else f"{value:.2f}")
        best = duration(row.count * row.bound.seconds)
        return [best, *middle, f"{self.share(row):.0%}", ", ".join(row.rules) or "-", str(row)]

    def _notes(self) -> Iterator[str]:
        best = sum(row.count * row.bound.seconds for row in self.rows)
        yield (
            f"on {self.whole.hardware}: at best {duration(best)} one region after the other, and "
            f"{duration(self.whole.seconds)} all in one"
        )
        if not self.is_measured:
            yield "nothing was measured, since this machine is another: shares are those at best"
        if self.hints:
            sizes = ", ".join(f"{name} = {value}" for name, value in self.hints.items())
            yield f"symbolic sizes count as {sizes}"
        if self.whole.unknown:
            yield f"work that is not known counts as none: {', '.join(self.whole.unknown)}"
        for row in self.rows[:SHOWN]:
            if row.note:
                yield f"{row}: {row.note}"
            for flag in row.score.flags:
                yield f"{row}: {flag}"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield lines: numbers to the right, the last two columns to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[:-2], widths, strict=False)]
        yield "  ".join([*cells, row[-2].ljust(widths[-2]), row[-1]])
