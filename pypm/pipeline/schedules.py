"""Schedules with one task for the whole backward: GPipe and 1F1B, plain and interleaved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.pipeline.tasks import Kind, Task

__all__ = ["Eager1F1B", "GPipe", "Interleaved1F1B", "InterleavedGPipe", "Std1F1B"]

F, B = Kind.FORWARD, Kind.BACKWARD


@dataclass(frozen=True, slots=True)
class GPipe:
    """All forwards, then all backwards; a stage on each rank."""

    stages: int

    def tasks(self, microbatches: int) -> list[list[Task]]:
        """Return the tasks of each rank."""
        return InterleavedGPipe(self.stages, self.stages).tasks(microbatches)


@dataclass(frozen=True, slots=True)
class Std1F1B:
    """Forwards and backwards in turn, after as few forwards as keep all ranks busy.

    A rank keeps the activations of at most `stages` microbatches.
    """

    stages: int

    def tasks(self, microbatches: int) -> list[list[Task]]:
        """Return the tasks of each rank."""
        ahead = range(self.stages - 1, -1, -1)
        return [_in_turn(rank, n, microbatches) for rank, n in enumerate(ahead)]


@dataclass(frozen=True, slots=True)
class Eager1F1B:
    """1F1B with nearly twice the forwards ahead, so that transfers overlap with tasks."""

    stages: int

    def tasks(self, microbatches: int) -> list[list[Task]]:
        """Return the tasks of each rank."""
        ahead = range(2 * (self.stages - 1), -1, -2)
        return [_in_turn(rank, n, microbatches) for rank, n in enumerate(ahead)]


def _in_turn(stage: int, ahead: int, microbatches: int) -> list[Task]:
    forwards = [Task(stage, each, F) for each in range(microbatches)]
    backwards = [Task(stage, each, B) for each in range(microbatches)]
    return [*interleaved(forwards, backwards, ahead)]


def interleaved(forwards: Sequence[Task], backwards: Sequence[Task], ahead: int) -> Iterator[Task]:
    """Yield some forwards ahead, then a forward and a backward in turn, then what is left."""
    ahead = min(ahead, len(forwards))
    yield from forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        yield forward
        yield backward
    yield from backwards[len(forwards) - ahead :]


@dataclass(frozen=True, slots=True)
class InterleavedGPipe:
    """GPipe with several stages on each rank: stage `s` is on rank `s % ranks`.

    Raises PyPMError if `ranks` does not divide `stages`.
    """

    stages: int
    ranks: int

    def __post_init__(self) -> None:
        _check_even(self.stages, self.ranks)

    def tasks(self, microbatches: int) -> list[list[Task]]:
        """Return the tasks of each rank."""
        order = range(microbatches)
        own = [range(rank, self.stages, self.ranks) for rank in range(self.ranks)]
        return [
            [Task(stage, each, F) for stage in stages for each in order]
            + [Task(stage, each, B) for stage in reversed(stages) for each in order]
            for stages in own
        ]


@dataclass(frozen=True, slots=True)
class Interleaved1F1B:
    """1F1B with several stages on each rank: stage `s` is on rank `s % ranks`.

    With `v` stages on a rank the idle time is that of 1F1B divided by `v`. Raises PyPMError if
    `ranks` does not divide `stages`.
    """

    stages: int
    ranks: int

    def __post_init__(self) -> None:
        _check_even(self.stages, self.ranks)

    def tasks(self, microbatches: int) -> list[list[Task]]:
        """Return the tasks of each rank.

        Microbatches pass in rounds of equal size, about as many as there are ranks. Raises
        PyPMError if the number of rounds, `microbatches // ranks`, does not divide `microbatches`.
        """
        rounds = max(1, microbatches // self.ranks)
        if microbatches % rounds:
            message = f"{microbatches} microbatches do not make {rounds} rounds of equal size"
            help = f"take a multiple of {self.ranks}, the number of ranks"
            raise PyPMError(Diagnostic(message, help=help))
        size = microbatches // rounds
        return [self._of_rank(rank, microbatches, size) for rank in range(self.ranks)]

    def _of_rank(self, rank: int, microbatches: int, size: int) -> list[Task]:
        own = range(rank, self.stages, self.ranks)
        starts = range(0, microbatches, size)
        forwards = [Task(s, n, F) for k in starts for s in own for n in range(k, k + size)]
        backwards = [Task(s, n, B) for k in starts for s in own[::-1] for n in range(k, k + size)]
        ahead = (len(own) - 1) * size + 2 * (self.ranks - 1 - rank)
        return [*interleaved(forwards, backwards, ahead)]


def _check_even(stages: int, ranks: int) -> None:
    if ranks < 1 or stages < 1 or stages % ranks:
        message = f"{stages} stages cannot be shared evenly by {ranks} ranks"
        help = "the number of stages is a multiple of the number of ranks"
        raise PyPMError(Diagnostic(message, help=help))
