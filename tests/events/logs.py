"""Logs of the kernel and of the emulator, in the words of the judge that is extracted from Coq."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from pypm.emulation.clocks import ClockedAgent
from pypm.emulation.pointers import EmulatedPointer
from pypm.events.tasks import TaskTable
from pypm.events.triton import emulator
from pypm.events.triton.memory import SharedMemory
from pypm.events.triton.tables import BoundStep

HEADER: Final = (Path(__file__).parent / "logged.h").read_text(encoding="utf-8")
NUMBER: Final = "logged::number(table, task)"
LOGGED: Final = {
    "size_t at = 0;\n    int64_t first":
        "logged::enter(next, false);\nsize_t at = 0;\nint64_t first",
    "ticket = next.fetch_add(1, std::memory_order_relaxed)": "ticket = logged::ticket(next, tasks)",
    "own = next.fetch_add(1, std::memory_order_relaxed)": "own = logged::enter(next, true)",
    "head.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)":
        "logged::take(head, at, queue, logged::number(table, lists->queues.order[places[at]]))",
    "lists = &prepared(workers)":
        "lists = &prepared(workers), logged::begin(), logged::prepared(table, lists->queues)",
    "++epoch;": "++epoch;\nif (schedule != Schedule::QUEUES) logged::begin();",
    "if (error)\n      std::rethrow": "logged::end();\nif (error)\n      std::rethrow",
    "for (int64_t n = 0; n < each.each; ++n)": f"""for (int64_t n = 0; n < each.each; ++n)
        if (logged::say("C", {NUMBER}, each.event(i, j, each.numbers[i * each.each + n])); true)""",
    "body(task.grid, i, j);":
        f'logged::say("B", {NUMBER}), body(task.grid, i, j), logged::say("F", {NUMBER});',
    "notify(ended);": f'logged::say("A", {NUMBER}), notify(ended);',
    "notify(counters[grid.notes[n]":
        f'logged::say("N", {NUMBER}, grid.notes[n].event(i, j)), notify(counters[grid.notes[n]',
    "return true;\n  }\n\n  template <class G>":
        f'return logged::say("L", {NUMBER}), true;\n  }}\n\n  template <class G>',
}  # fmt: skip
"""Texts of `workers.h`, and what stands there in a copy that logs. C says that numbers chose an
event for which a task waits, and A that a task ended, where grids wait for each other."""


@dataclass(frozen=True)
class Plan:
    """What the judge knows of a run."""

    waits: Sequence[Iterable[int]]
    """For each task, events; of the kernel without those that numbers choose."""
    notes: Sequence[Iterable[int]]
    queues: Sequence[Sequence[int]]
    order: Sequence[int]
    """All tasks in the order by which queues are sorted."""

    def query(self, workers: int, words: Iterable[str]) -> str:
        """Return the question whether words are a run to its end."""
        rank = {task: n for n, task in enumerate(self.order)}
        lists = (self.waits, self.notes, self.queues)
        fields = (" ".join(",".join(map(str, x)) or "-" for x in each) for each in lists)
        ranks = " ".join(str(rank[n]) for n in range(len(self.waits)))
        return "\t".join(["tasks", str(workers), *fields, ranks, " ".join(words)])

    def check(self) -> None:
        """Raise AssertionError unless this is a plan, as the theorems ask."""
        rank = {task: n for n, task in enumerate(self.order)}
        assert sorted(rank) == sorted(n for queue in self.queues for n in queue)
        assert sorted(rank) == [*range(len(self.waits))] == [*range(len(self.notes))]
        for queue in self.queues:
            assert [rank[n] for n in queue] == sorted(rank[n] for n in queue)
        tellers = defaultdict(list)
        for task, events in enumerate(self.notes):
            for event in events:
                tellers[event].append(task)
        for task, events in enumerate(self.waits):
            assert all(rank[n] < rank[task] for event in events for n in tellers[event])


def plan_of(table: TaskTable, queues: Sequence[Sequence[int]], order: Sequence[int]) -> Plan:
    """Return the plan of a table; without queues, that of tickets."""
    everything = range(len(table.tasks))
    waits = [[event for event, _ in waits] for waits in table.waits]
    return Plan(waits, table.notes, queues or [everything], order or everything)


def staged(table: Plan, grid_of: Sequence[object]) -> Plan:
    """Return the plan in which a grid waits for all before it, but those beside it, none of which
    waits for another; the event of a stage has the number of the stage.
    """
    stages: list[int] = []
    tellers = defaultdict(set)
    for task, notes in enumerate(table.notes):
        last = stages[-1] if stages else 0
        if not stages or grid_of[task] != grid_of[task - 1]:
            whole = [n for n in range(task, len(grid_of)) if grid_of[n] == grid_of[task]]
            needed = {event for n in whole for event in table.waits[n]}
            last += any(stages[n] == last for event in needed for n in tellers[event])
        stages.append(last)
        for event in notes:
            tellers[event].add(task)
    ends = max(stages) + 1
    return Plan(
        [[stage] if stage else [] for stage in stages],
        [[*range(stage + 1, ends)] for stage in stages],
        table.queues,
        table.order,
    )


def kernel_logs(output: str) -> Iterator[tuple[int, list[list[int]], list[int], list[str]]]:
    """Yield of each run the workers that entered, queues, the order of tasks, and words."""
    for line in output.splitlines():
        if line.startswith("log\t"):
            _, entered, queues, order, words = line.split("\t")
            lists = [[int(n) for n in word.split(",") if n != "-"] for word in queues.split()]
            yield int(entered), lists, [int(n) for n in order.split()], words.split()


def judged(plan: Plan, entered: int, words: Iterable[str]) -> str:
    """Return the query for a log of the kernel, whose numbers may choose further events."""
    waits = [[*events] for events in plan.waits]
    said = list[str]()
    for word in words:
        worker, task, *rest = word[1:].split(":")
        match word[0]:
            case "C":
                waits[int(task)] += [int(n) for n in rest if int(n) not in waits[int(task)]]
            case "A":
                said += (f"N{worker}:{task}:{event}" for event in plan.notes[int(task)])
            case _:
                said.append(word)
    full = Plan(waits, plan.notes, plan.queues, plan.order)
    full.check()
    return full.query(entered, said)


# --- the emulator of Triton -----------------------------------------------------------------------


class LoggedMemory(SharedMemory):
    """Logs what programs do to memory: a task begins with the first access of a result, and it has
    run when it notifies.
    """

    logs: list[list[str]]

    def __init__(self, step: BoundStep) -> None:
        super().__init__(step)
        self.log: list[str] = []
        self.tasks: dict[int, tuple[int, str]] = {}
        """Of each program its task, and the last that was logged of it."""
        self.logs.append(self.log)

    def say(self, program: int, task: int, kind: str) -> None:
        self.log.append(f"{kind}{program}:{task}")
        self.tasks[program] = task, kind

    def _record(self, agent: Any, at: EmulatedPointer, mask: Any, kind: str) -> None:
        task, last = self.tasks.get(agent.number, (-1, ""))
        if last == "T" and at.tensor.data_ptr() in self.written:
            self.say(agent.number, task, "B")
        super()._record(agent, at, mask, kind)

    def add(self, agent: ClockedAgent, at: EmulatedPointer, value: int, order: str) -> int:
        number: int = agent.number  # type: ignore[attr-defined]
        task, last = self.tasks.get(number, (-1, ""))
        is_event = at.tensor is self.step.arguments["counters"]
        if is_event and value:
            if last == "B":
                self.say(number, task, "F")
            self.log.append(f"N{number}:{task}:{int(at.offset)}")
        found = super().add(agent, at, value, order)
        if not is_event:
            if last:
                self.log += [f"F{number}:{task}"] * (last == "B") + [f"L{number}:{task}"]
            else:
                self.log.append(f"E{number}:0")
            count = len(self.step.table.tasks)
            ticket = found % (count + self.step.programs)
            self.tasks[number] = ticket, "T" if ticket < count else ""
            self.log += [f"T{number}:0:{ticket}"] * (ticket < count)
        return found


def emulated_logs(step: BoundStep, launches: int, seed: int) -> list[list[str]]:
    """Return the words of each launch of an emulated kernel."""
    LoggedMemory.logs = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(emulator, "SharedMemory", LoggedMemory)
        emulator.emulate(step, launches=launches, seed=seed)
    return LoggedMemory.logs


def with_texts(texts: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """Return files in which texts, each of which is there once, are changed."""
    found = {**texts}
    for place, change in changes.items():
        (name,) = (name for name, text in found.items() if text.count(place) == 1)
        found[name] = found[name].replace(place, change)
    return found
