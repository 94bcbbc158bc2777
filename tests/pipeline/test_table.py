"""The table of bubbles in the documentation, computed."""

from __future__ import annotations

from pypm.pipeline import (
    ZBH1,
    ZBV,
    GPipe,
    Interleaved1F1B,
    Schedule,
    Simulation,
    plan,
    simulate,
)
from tests.floors import ROOT

COLUMNS = (
    *("S", "M", "GPipe, 1F1B", "interleaved, v = 2", "interleaved, v = 4", "ZB-H1", "ZBV"),
    *("gain, v = 4", "gain, ZBV"),
)
HEAD = f"| {' | '.join(COLUMNS)} |\n|{' ---: |' * len(COLUMNS)}\n"
SIZES = [(ranks, microbatches) for ranks in (4, 8, 16) for microbatches in (8, 16, 32, 64)]


def simulated(schedule: Schedule, stages: int, microbatches: int) -> Simulation:
    return simulate(plan(schedule, stages=stages, microbatches=microbatches))


def row(ranks: int, microbatches: int) -> list[Simulation]:
    """Return GPipe, two interleaved schedules, ZB-H1 and ZBV."""
    schedules: list[tuple[Schedule, int]] = [
        (GPipe(ranks), 1),
        (Interleaved1F1B(2 * ranks, ranks), 2),
        (Interleaved1F1B(4 * ranks, ranks), 4),
        (ZBH1(ranks), 1),
        (ZBV(2 * ranks), 2),
    ]
    return [simulated(each, chunks * ranks, microbatches) for each, chunks in schedules]


def gain(found: Simulation, plain: Simulation) -> float:
    """Return the utilization of one over that of the other."""
    return (1 - found.bubble) / (1 - plain.bubble)


def table() -> str:
    lines = []
    for ranks, microbatches in SIZES:
        found = row(ranks, microbatches)
        cells = [str(ranks), str(microbatches), *(f"{each.bubble:.1%}" for each in found)]
        cells += [f"{gain(found[place], found[0]):.2f}" for place in (2, 4)]
        lines.append(f"| {' | '.join(cells)} |\n")
    return HEAD + "".join(lines)


def test_the_table_of_the_documentation() -> None:
    assert table() in (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")


def test_where_the_gain_is_at_least_what_jaxpp_reports() -> None:
    """Wherever GPipe is idle for more than 15 % of the time, as on 8 ranks with 32 microbatches."""
    for ranks, microbatches in SIZES:
        plain, _, interleaved, _, v = row(ranks, microbatches)
        if plain.bubble > 0.15 and microbatches >= ranks:
            assert gain(interleaved, plain) >= 1.11
            assert gain(v, plain) >= 1.11
