"""The picture of schedules on the page about events: `python -m tests.events.picture`."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pypm.events import schedules
from pypm.events.checks import checked
from pypm.events.decoder import ROWS, DecoderStep, MatrixOperand, cost_of, decoder_graph
from pypm.events.drawing import schedule_lanes
from tests.events.steps import made
from tests.floors import ROOT

FILE: Final = ROOT / "docs" / "pictures" / "events.svg"
WORKERS: Final = 5
WIDTH, GROUPS, HEADS, SIZE, INNER = 64, 4, 2, 16, 112
SIZES: Final = {
    "q": (WIDTH, GROUPS * HEADS * SIZE), "k": (WIDTH, GROUPS * SIZE), "v": (WIDTH, GROUPS * SIZE),
    "out": (GROUPS * HEADS * SIZE, WIDTH), "gate": (WIDTH, INNER), "up": (WIDTH, INNER),
    "down": (INNER, WIDTH),
}  # fmt: skip


def svg() -> str:
    (layer,) = made(True, 1).step.layers
    matrices: dict[str, MatrixOperand] = {
        name: replace(getattr(layer, name), size=size, columns=columns)
        for name, (size, columns) in SIZES.items()
    }
    step = DecoderStep(WIDTH, GROUPS, HEADS, SIZE, (replace(layer, **matrices),))
    table = checked(decoder_graph(step), {ROWS: 2})
    cost = cost_of(60)
    runs = {
        "queues": schedules.by_queues(table, schedules.queues(table, WORKERS, cost), cost),
        "tickets": schedules.by_tickets(table, WORKERS, cost),
        "barriers": schedules.by_barriers(table, WORKERS, cost),
    }
    title = f"A decoder layer: {len(table.tasks)} tasks, {WORKERS} workers"
    return schedule_lanes(title, table, runs, cost, "elements read").svg()


if __name__ == "__main__":
    FILE.write_text(svg(), encoding="utf-8")
