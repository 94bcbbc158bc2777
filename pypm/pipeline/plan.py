"""Plans: schedules that were checked to run to their end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, TypeAlias

from pypm.diagnostics import Diagnostic, PyPMError

__all__ = [
    "ClockedRun",
    "Kind",
    "Plan",
    "Schedule",
    "Step",
    "Task",
    "needs",
    "plan",
    "run",
    "steps",
]

MOST_PARTS: Final = 1 << 16
"""The largest number of pairs of a stage and a microbatch; each pair has two or three tasks."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A legal schedule for a number of microbatches."""

    ranks: tuple[tuple[Task, ...], ...]
    """The tasks of each rank, in order."""
    stages: int
    microbatches: int
    rank_of: tuple[int, ...]
    """The rank of each stage."""


def plan(schedule: Schedule, *, stages: int, microbatches: int) -> Plan:
    """Return the tasks of a schedule, checked.

    Arguments:
        schedule: a shipped schedule, or any object with `tasks(microbatches)`.
        stages: the number of stages of the pipeline.
        microbatches: the number of parts of a batch.

    Raises PyPMError if there are more than `MOST_PARTS` pairs of a stage and a microbatch, if a
    task has no such stage or microbatch, is missing or doubled, if the tasks of a stage are on two
    ranks, or if the ranks would wait for each other forever. The message names the rank, the task
    and what it waits for.
    """
    if stages < 1 or microbatches < 1:
        message = f"{stages} stages and {microbatches} microbatches are no pipeline"
        raise PyPMError(Diagnostic(message, help="both are at least 1"))
    if stages * microbatches > MOST_PARTS:
        message = f"{stages:,} stages of {microbatches:,} microbatches are too many to plan"
        raise PyPMError(Diagnostic(message, help=f"their product is at most {MOST_PARTS:,}"))
    ranks = tuple(map(tuple, schedule.tasks(microbatches)))
    found = Plan(ranks, stages, microbatches, _ranks_of(ranks, stages, microbatches))
    _check_counts(found)
    done = run(found, lambda task: 1.0, lambda stage, kind: 0.0)
    if not done.is_over:
        raise PyPMError(_deadlock(found, done))
    return found


# --- which tasks there are --------------------------------------------------------------------


def _ranks_of(ranks: Sequence[Sequence[Task]], stages: int, microbatches: int) -> tuple[int, ...]:
    """Return the rank of each stage. Raises PyPMError for tasks outside of the pipeline."""
    found: dict[int, int] = {}
    for rank, tasks in enumerate(ranks):
        for task in tasks:
            if not (0 <= task.stage < stages and 0 <= task.microbatch < microbatches):
                raise PyPMError(
                    Diagnostic(
                        f"rank {rank} has a task for the {task}, which does not exist",
                        notes=(f"there are {stages} stages and {microbatches} microbatches",),
                    )
                )
            if found.setdefault(task.stage, rank) != rank:
                other = found[task.stage]
                message = f"stage {task.stage} is on rank {other} and on rank {rank}"
                help = f"a stage has its weights on one rank; move the {task} to rank {other}"
                raise PyPMError(Diagnostic(message, help=help))
    missing = [stage for stage in range(stages) if stage not in found]
    if missing:
        raise PyPMError(Diagnostic(f"no rank has a task of stage {missing[0]}"))
    return tuple(found[stage] for stage in range(stages))


def _check_counts(found: Plan) -> None:
    """Raise PyPMError unless each result is computed exactly once."""
    owners: dict[Step, Task] = {}
    for rank, tasks in enumerate(found.ranks):
        for task in tasks:
            for step in steps(task):
                if step in owners:
                    again = "is there twice"
                    if owners[step].kind is not task.kind:
                        again = f"repeats a part of the {owners[step]}"
                    raise PyPMError(Diagnostic(f"the {task} {again}, on rank {rank}"))
                owners[step] = task
    for stage, rank in enumerate(found.rank_of):
        for microbatch in range(found.microbatches):
            for kind in (Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT):
                if (kind, stage, microbatch) not in owners:
                    task = Task(stage, microbatch, kind)
                    raise PyPMError(Diagnostic(f"rank {rank} has no task for the {task}"))


# --- a run ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ClockedRun:
    """The times of tasks, each as early as its rank and its inputs allow."""

    spans: tuple[tuple[tuple[float, float], ...], ...]
    """The start and the end of the tasks of each rank, as far as they could run."""
    ends: dict[Step, float]
    """The end of the task that computes a result."""
    is_over: bool
    """True if all tasks could run."""


def run(
    plan: Plan, duration: Callable[[Task], float], delay: Callable[[int, Kind], float]
) -> ClockedRun:
    """ClockedRun the tasks of a plan, or of one that may be illegal, on a clock.

    `delay` is given the stage and the kind of a result that another rank needs, and returns how
    long its transfer takes. Transfers of different results overlap each other and tasks.
    """
    ends: dict[Step, float] = {}
    spans: list[list[tuple[float, float]]] = [[] for _ in plan.ranks]
    clock = [0.0 for _ in plan.ranks]
    is_moving = True
    while is_moving:
        is_moving = False
        for rank, tasks in enumerate(plan.ranks):
            while len(spans[rank]) < len(tasks):
                task = tasks[len(spans[rank])]
                inputs = [*needs(task, plan.stages)]
                if any(step not in ends for step in inputs):
                    break
                ready = [clock[rank]]
                for step in inputs:
                    kind, stage, _ = step
                    is_sent = plan.rank_of[stage] != rank
                    ready.append(ends[step] + (delay(stage, kind) if is_sent else 0.0))
                start = max(ready)
                clock[rank] = start + duration(task)
                spans[rank].append((start, clock[rank]))
                ends.update(dict.fromkeys(steps(task), clock[rank]))
                is_moving = True
    is_over = all(len(s) == len(t) for s, t in zip(spans, plan.ranks, strict=True))
    return ClockedRun(tuple(map(tuple, spans)), ends, is_over)


def _deadlock(found: Plan, done: ClockedRun) -> Diagnostic:
    """Describe why no rank can go on."""
    places = {
        step: (rank, position)
        for rank, tasks in enumerate(found.ranks)
        for position, task in enumerate(tasks)
        for step in steps(task)
    }
    lines = []
    for rank, tasks in enumerate(found.ranks):
        position = len(done.spans[rank])
        if position == len(tasks):
            continue
        step = next(s for s in needs(tasks[position], found.stages) if s not in done.ends)
        other, place = places[step]
        awaited = found.ranks[other][place]
        lines.append(
            f"rank {rank}, task {position}: the {tasks[position]} waits for the {awaited}, which "
            f"is task {place} of {'the same rank' if other == rank else f'rank {other}'}"
        )
    help = "a rank runs its tasks in order; move a task before those that wait for it"
    return Diagnostic("the schedule deadlocks: no rank can go on", notes=tuple(lines), help=help)


class Kind(Enum):
    """The part of a training step that a task computes."""

    FORWARD = "F"
    BACKWARD = "B"
    """Gradients of inputs and of weights."""
    BACKWARD_INPUT = "I"
    """Gradients of inputs alone; those of weights follow in a task of their own."""
    BACKWARD_WEIGHT = "W"


_WORDS: Final = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.BACKWARD_INPUT: "backward for inputs",
    Kind.BACKWARD_WEIGHT: "backward for weights",
}


@dataclass(frozen=True, slots=True)
class Task:
    """One pass of a microbatch through a stage; stages and microbatches count from 0."""

    stage: int
    microbatch: int
    kind: Kind
    latency: float | None = None
    """Its time, in the unit of the stages' costs; None for the cost of its stage."""

    @property
    def label(self) -> str:
        """Return a short name, as torch writes it: `2F5`."""
        return f"{self.stage}{self.kind.value}{self.microbatch}"

    def __str__(self) -> str:
        return f"{_WORDS[self.kind]} of microbatch {self.microbatch} in stage {self.stage}"


class Schedule(Protocol):
    """The order of tasks on each rank. A user's own schedule is any class with this method."""

    def tasks(self, microbatches: int) -> Sequence[Sequence[Task]]:
        """Return a list of tasks for each rank, in the order in which the rank runs them.

        A stage belongs to the rank whose list has its tasks. Sends and receives are inferred.
        """
        ...


Step: TypeAlias = tuple[Kind, int, int]
"""A result that other tasks wait for: FORWARD, BACKWARD_INPUT or BACKWARD_WEIGHT, the stage and the
microbatch."""


def steps(task: Task) -> Iterator[Step]:
    """Yield the results of a task: two for a full backward."""
    if task.kind is Kind.BACKWARD:
        yield Kind.BACKWARD_INPUT, task.stage, task.microbatch
        yield Kind.BACKWARD_WEIGHT, task.stage, task.microbatch
    else:
        yield task.kind, task.stage, task.microbatch


def needs(task: Task, stages: int) -> Iterator[Step]:
    """Yield the results that a task waits for, in a pipeline of that many stages."""
    stage, microbatch = task.stage, task.microbatch
    match task.kind:
        case Kind.FORWARD:
            if stage > 0:
                yield Kind.FORWARD, stage - 1, microbatch
        case Kind.BACKWARD | Kind.BACKWARD_INPUT:
            yield Kind.FORWARD, stage, microbatch
            if stage < stages - 1:
                yield Kind.BACKWARD_INPUT, stage + 1, microbatch
        case Kind.BACKWARD_WEIGHT:
            yield Kind.BACKWARD_INPUT, stage, microbatch
