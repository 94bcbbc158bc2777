"""Mutants of persistent kernels of Triton, and what notices each.

    python -m tests.events.triton_mutants

Each runs with ten seeds in the emulator; a table of tasks that is wrong is refused by the checks as
well. Exits with 1 if nothing notices a mutant, or something is found in the kernel as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from pypm.events.checks import check_events, check_order
from pypm.events.grids import EventError
from pypm.events.tasks import TaskTable
from pypm.events.triton.emulator import Fault, emulate
from pypm.events.triton.tables import BoundStep
from tests.events.triton_steps import check_decoder, decoder

__all__ = ["MUTANTS", "KernelMutant", "noticed"]

SEEDS: Final = 10


@dataclass(frozen=True)
class KernelMutant:
    """A change of the text, or of the tables that a launch reads."""

    name: str
    text: tuple[str, str] | None = None
    tables: Callable[[dict[str, Tensor]], None] = lambda arguments: None
    table: Callable[[TaskTable], TaskTable] | None = None
    """The same change, of the table that is checked."""


RUN: Final = "        run(tl.load(row), row, tl.load(task + 1), tl.load(task + 2), batch)\n"
NOTIFY: Final = "        notify_events(counters, notes, tl.load(task + 5), tl.load(task + 6))\n"
TAKE: Final = 'tl.atomic_add(tickets, 1, sem="relaxed", scope="gpu")'


def fewer(arguments: dict[str, Tensor]) -> None:
    arguments["waits"][:, 1] -= 1


def other_events(arguments: dict[str, Tensor]) -> None:
    arguments["waits"][:, 0] = arguments["waits"][:, 0].roll(1)


def reversed_tasks(arguments: dict[str, Tensor]) -> None:
    arguments["tasks"].copy_(arguments["tasks"].flip(0))


def twice(arguments: dict[str, Tensor]) -> None:
    arguments["tasks"][1] = arguments["tasks"][0]


def swapped(table: TaskTable) -> TaskTable:
    return replace(table, tasks=table.tasks[::-1], waits=table.waits[::-1], notes=table.notes[::-1])


def lowered_counts(table: TaskTable) -> TaskTable:
    waits = tuple(tuple((event, count - 1) for event, count in each) for each in table.waits)
    return replace(table, waits=waits)


def shifted(table: TaskTable) -> TaskTable:
    events = [event for each in table.waits for event, _ in each]
    other = iter([events[-1], *events])
    waits = tuple(tuple((next(other), count) for _, count in each) for each in table.waits)
    return replace(table, waits=waits)


MUTANTS: Final = (
    KernelMutant("acquire is relaxed", ('sem="acquire"', 'sem="relaxed"')),
    KernelMutant("release is relaxed", ('sem="release"', 'sem="relaxed"')),
    KernelMutant("release is for one block", ('"release", scope="gpu"', '"release", scope="cta"')),
    KernelMutant("no wait", ("- wanted < 0", "- wanted < -1000000")),
    KernelMutant("first wait alone", ("range(first, last):\n        counter =",
                                      "range(first, last)[:1]:\n        counter =")),
    KernelMutant("no notification", (NOTIFY, "")),
    KernelMutant("no barrier before it", ("    tl.debug_barrier()\n", "")),
    KernelMutant("it comes before the task", (RUN + NOTIFY, NOTIFY + RUN)),
    KernelMutant("a count is one too low", ("* launch\n", "* launch - 1\n")),
    KernelMutant("a count is one too high", ("* launch\n", "* launch + 1\n")),
    KernelMutant("launches are not counted", ("* launch\n", "\n")),
    KernelMutant("another event is notified", ("tl.load(notes + n)", "(tl.load(notes + n) ^ 1)")),
    KernelMutant("tickets are loaded and stored", (TAKE, "tl.load(tickets)")),
    KernelMutant("a ticket past the end is run", ("launch < count", "launch <= count")),
    KernelMutant("rows beyond the batch", ("rows < batch", "rows < batch + 1")),
    KernelMutant("the new key is not kept out", (" & (across != position)", "")),
    KernelMutant("counts of the table", None, fewer, lowered_counts),
    KernelMutant("events of the table", None, other_events, shifted),
    KernelMutant("the order of tickets", None, reversed_tasks, swapped),
    KernelMutant("a task twice, another never", None, twice),
)  # fmt: skip


def changed(mutant: KernelMutant | None) -> tuple[BoundStep, str]:
    """Return a step and the text that it runs, with the changes of a mutant."""
    step = decoder(2, torch.float32)
    text = step.kernel.text
    if mutant is not None:
        mutant.tables({n: x for n, x in step.arguments.items() if isinstance(x, Tensor)})
        if mutant.text is not None:
            assert mutant.text[0] in text, mutant.name
            text = text.replace(*mutant.text)
    return step, text


def noticed(mutant: KernelMutant | None, seed: int) -> str | None:
    """Return what the emulator says of two launches, or that results are wrong; None if nothing."""
    step, text = changed(mutant)
    try:
        emulate(step, launches=2, seed=seed, text=text)
        check_decoder(step)
    except Fault as fault:
        return str(fault)
    except AssertionError:
        return "another result"
    return None


def refused(mutant: KernelMutant) -> str | None:
    """Return what the checks say of a mutant's table; None if they have no table, or accept it."""
    if mutant.table is None:
        return None
    try:
        table = mutant.table(decoder(2, torch.float32).table)
        check_order(table)
        check_events(table)
    except EventError as error:
        return str(error.diagnostic.message)
    return None


def main() -> int:
    wrong = [said for seed in range(SEEDS) if (said := noticed(None, seed))]
    print(f"as it is: {len(wrong)} of {SEEDS} seeds; {wrong[:1]}")
    missed = bool(wrong)
    for mutant in MUTANTS:
        found = [said for seed in range(SEEDS) if (said := noticed(mutant, seed))]
        checks = refused(mutant)
        missed |= not found and checks is None
        by_checks = "" if checks is None else f"; refused: {checks}"
        print(f"{mutant.name}: {len(found)} of {SEEDS} seeds; {' '.join(found[:1])}{by_checks}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
