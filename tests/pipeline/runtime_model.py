"""A small model of a runtime with messages, and random schedules to compare it with the checks.

It knows nothing of the checks in `pypm.pipeline`: ranks run their tasks in order, values between
ranks are messages, and values on one rank are in a table.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pypm.pipeline import Kind, Task

Lists = Sequence[Sequence[Task]]
Message = tuple[str, int, int]


@dataclass(frozen=True)
class Listed:
    """A user's own schedule, for one number of microbatches."""

    lists: Lists

    def tasks(self, microbatches: int) -> Lists:
        return self.lists


class Missing(Exception):
    """A rank reads a value that is not there."""


class Rank:
    """One rank: its stages, the values that it keeps, and its mailbox."""

    def __init__(self, stages: set[int]) -> None:
        self.stages = stages
        self.kept: set[Message] = set()
        self.mail: set[Message] = set()
        self.passes: list[Message] = []

    def take(self, name: str, stage: int, microbatch: int) -> None:
        if (name, stage, microbatch) not in self.kept:
            raise Missing(f"{name} of microbatch {microbatch} in stage {stage}")
        self.kept.remove((name, stage, microbatch))


def outcome(lists: Lists, stages: int, microbatches: int) -> str:
    """Run the lists; return "ends", "deadlock", "wrong passes", or what is missing."""
    home = {task.stage: rank for rank, tasks in reversed([*enumerate(lists)]) for task in tasks}
    ranks = [Rank({s for s, r in home.items() if r == rank}) for rank in range(len(lists))]
    programs = {
        rank: _program(ranks, home, rank, tasks, stages, microbatches)
        for rank, tasks in enumerate(lists)
    }
    awaited: dict[int, Message] = {}
    try:
        while programs:
            ready = [r for r in programs if r not in awaited or awaited[r] in ranks[r].mail]
            if not ready:
                return "deadlock"
            for rank in ready:
                message = next(programs[rank], None)
                if message is None:
                    del programs[rank]
                else:
                    awaited[rank] = message
    except Missing as missing:
        return f"missing: {missing}"
    found = sorted(each for rank in ranks for each in rank.passes)
    every = [
        (n, s, m)
        for n in ("backward", "forward")
        for s in range(stages)
        for m in range(microbatches)
    ]
    return "ends" if found == every else "wrong passes"


def _program(
    ranks: list[Rank],
    home: dict[int, int],
    rank: int,
    tasks: Sequence[Task],
    stages: int,
    microbatches: int,
) -> Iterator[Message]:
    """Run the tasks of a rank; yield while a message is awaited."""
    own = ranks[rank]
    for task in tasks:
        stage, each = task.stage, task.microbatch
        if stage not in own.stages or not 0 <= each < microbatches or not 0 <= stage < stages:
            raise Missing(f"weights or data for {task}")
        source = {Kind.FORWARD: stage - 1, Kind.BACKWARD_WEIGHT: None}.get(task.kind, stage + 1)
        if source is not None and 0 <= source < stages:
            name = "values" if task.kind is Kind.FORWARD else "gradients"
            message = (name, stage, each)
            if source in own.stages:
                own.take(*message)
            else:
                while message not in own.mail:
                    yield message
                own.mail.remove(message)
        if task.kind is Kind.FORWARD:
            own.kept.add(("graph", stage, each))
            own.passes.append(("forward", stage, each))
        elif task.kind is not Kind.BACKWARD_WEIGHT:
            own.take("graph", stage, each)
        if task.kind is Kind.BACKWARD_WEIGHT:
            own.take("half", stage, each)
        if task.kind is Kind.BACKWARD_INPUT:
            own.kept.add(("half", stage, each))
        if task.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT):
            own.passes.append(("backward", stage, each))
        if task.kind is not Kind.BACKWARD_WEIGHT:
            forward = task.kind is Kind.FORWARD
            target = stage + 1 if forward else stage - 1
            if 0 <= target < stages:
                sent = ("values" if forward else "gradients", target, each)
                if target in own.stages:
                    own.kept.add(sent)
                elif target in home:
                    ranks[home[target]].mail.add(sent)


def random_lists(draw: random.Random) -> tuple[list[list[Task]], int, int]:
    """Return the lists of a legal schedule, its number of stages and of microbatches."""
    ranks, microbatches = draw.randint(1, 4), draw.randint(1, 4)
    homes = [*range(ranks), *(draw.randrange(ranks) for _ in range(draw.randint(0, 3)))]
    draw.shuffle(homes)
    stages = len(homes)
    lists: list[list[Task]] = [[] for _ in range(ranks)]
    done: set[tuple[str, int, int]] = {("F", -1, m) for m in range(microbatches)}
    done |= {("I", stages, m) for m in range(microbatches)}
    open_tasks = [
        Task(stage, each, kind)
        for stage in range(stages)
        for each in range(microbatches)
        for kind in draw.choice([[Kind.FORWARD, Kind.BACKWARD], [*Kind][:1] + [*Kind][2:]])
    ]
    while open_tasks:
        task = draw.choice([task for task in open_tasks if _is_ready(task, done)])
        open_tasks.remove(task)
        lists[homes[task.stage]].append(task)
        names = "IW" if task.kind is Kind.BACKWARD else task.kind.value
        done |= {(name, task.stage, task.microbatch) for name in names}
    return lists, stages, microbatches


def _is_ready(task: Task, done: set[tuple[str, int, int]]) -> bool:
    stage, each = task.stage, task.microbatch
    if task.kind is Kind.FORWARD:
        return ("F", stage - 1, each) in done
    if task.kind is Kind.BACKWARD_WEIGHT:
        return ("I", stage, each) in done
    return {("F", stage, each), ("I", stage + 1, each)} <= done


def changed(draw: random.Random, lists: Lists) -> list[list[Task]]:
    """Return lists with one task moved, removed, doubled or renamed."""
    copy = [[*tasks] for tasks in lists]
    rank = draw.choice([rank for rank, tasks in enumerate(copy) if tasks])
    place = draw.randrange(len(copy[rank]))
    task = copy[rank].pop(place)
    match draw.choice(["move", "move", "remove", "double", "rename", "elsewhere"]):
        case "move":
            copy[rank].insert(draw.randint(0, len(copy[rank])), task)
        case "double":
            copy[rank].insert(place, task)
            copy[rank].insert(draw.randint(0, len(copy[rank])), task)
        case "rename":
            copy[rank].insert(place, Task(task.stage, task.microbatch + 1, task.kind))
        case "elsewhere":
            other = draw.choice(copy)
            other.insert(draw.randint(0, len(other)), task)
    return copy
