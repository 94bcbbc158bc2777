"""Tasks of a pipeline: a forward or backward pass of one microbatch through one stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, TypeAlias

__all__ = ["Kind", "Schedule", "Step", "Task", "needs", "steps"]


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
