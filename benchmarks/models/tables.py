"""Records of points as tables: milliseconds, ratios, what was fused, and what was left out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

from rich import box
from rich.table import Table

from benchmarks.models.point import EAGER
from benchmarks.models.running import Record, speedup
from pypm.rules import attention

__all__ = ["fused", "left_out", "line", "ratios", "times"]

SHOWN: Final = (
    EAGER, "compile", "PyPM", "SDPA", "compile, frozen", "PyPM, frozen", "SDPA, frozen",
)  # fmt: skip
RATIOS: Final = (
    ("compile", EAGER),
    ("PyPM", EAGER),
    ("SDPA", EAGER),
    ("PyPM", "compile"),
    ("PyPM", "SDPA"),
    ("PyPM, frozen", EAGER),
    ("PyPM, frozen", "compile, frozen"),
    ("PyPM, frozen", "SDPA, frozen"),
)
"""Which version is held against which."""
ATTENTION: Final = {rule.name for rule in attention.RULES}


def times(records: Sequence[Record]) -> Table:
    made = _made(records, SHOWN)
    table = _table(
        "Milliseconds: medians of interleaved rounds, one thread",
        [*made, "rounds"],
        "compile: torch.compile. PyPM: torch.compile with it. SDPA: written by hand, compiled.",
    )
    for record in records:
        rounds = len(record["versions"].get(EAGER, {}).get("rounds_s", {}))
        table.add_row(record["label"], *(_time(record, name) for name in made), str(rounds))
    return table


def ratios(records: Sequence[Record]) -> Table:
    made = _made(records, SHOWN)
    pairs = [(fast, slow) for fast, slow in RATIOS if fast in made and slow in made]
    headers = [f"{fast} / {slow.removesuffix(', frozen')}" for fast, slow in pairs]
    table = _table("How many times faster: medians of ratios within a round", headers, "")
    for record in records:
        found = (_number(speedup(record, slow, fast)) for fast, slow in pairs)
        table.add_row(record["label"], *found)
    table.add_section()
    for dtype in dict.fromkeys(record["dtype"] for record in records):
        some = [record for record in records if record["dtype"] == dtype]
        table.add_row(f"{dtype}, mean", *(_mean(some, slow, fast) for fast, slow in pairs))
    return table


def fused(records: Sequence[Record]) -> Table:
    wrong = _made(records, ("compile", "PyPM", "SDPA", "compile, frozen", "PyPM, frozen"))
    table = _table(
        "What PyPM fused, and errors",
        ["attention sites", "other rewrites", "s in PyPM", *(f"error, {name}" for name in wrong)],
        "Errors: the largest difference from eager, relative to the largest number it computes.",
    )
    for record in records:
        errors = (record["versions"].get(name, {}).get("error") for name in wrong)
        shown = ("-" if error is None else f"{error:.0e}" for error in errors)
        table.add_row(record["label"], *_fused(record), *shown)
    return table


def left_out(records: Sequence[Record]) -> Iterator[str]:
    """A line for each thing that failed or was not done."""
    for record in records:
        for how in ("failed", "skipped"):
            if how in record:
                yield f"{record['label']}: {how}: {record[how]}"
        of_all = record.get("failed", record.get("skipped"))
        for name, found in record["versions"].items():
            for how in ("failed", "skipped", "note"):
                if how in found and found[how] != of_all:
                    yield f"{record['label']}, {name}: {how}: {found[how]}"


def line(record: Record) -> str:
    made = _made([record], SHOWN)
    shown = ", ".join(f"{name.replace(',', '')} {_time(record, name)}" for name in made)
    return f"{record['label']}: {record.get('skipped') or record.get('failed') or shown}"


def _table(title: str, headers: Sequence[str], caption: str) -> Table:
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    for header in headers:
        table.add_column(
            header.replace(", ", "\n").replace(" / ", "\n/ "), justify="right", no_wrap=True
        )
    return table


def _made(records: Sequence[Record], versions: Sequence[str]) -> list[str]:
    """Those of `versions` that were asked for."""
    return [name for name in versions if any(name in record["versions"] for record in records)]


def _time(record: Record, name: str) -> str:
    found = record["versions"].get(name, {})
    if "median_s" in found:
        return _number(found["median_s"] * 1e3)
    return "failed" if "failed" in found or "failed" in record else "-"


def _fused(record: Record) -> tuple[str, str, str]:
    found = record["versions"].get("PyPM", {})
    if "rewrites" not in found:
        return "-", "-", "-"
    ours = sum(count for rule, count in found["rewrites"].items() if rule in ATTENTION)
    others = sum(found["rewrites"].values()) - ours
    return f"{ours} of {record['sites']}", str(others), f"{found['pypm_s']:.2f}"


def _mean(records: Sequence[Record], slow: str, fast: str) -> str:
    """The geometric mean over points."""
    found = [ratio for record in records if (ratio := speedup(record, slow, fast))]
    return _number(math.exp(sum(map(math.log, found)) / len(found))) if found else "-"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
