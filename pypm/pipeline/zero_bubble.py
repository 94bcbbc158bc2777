"""Schedules that compute gradients of weights later, where a rank would wait: zero bubble."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.pipeline.schedules import interleaved
from pypm.pipeline.tasks import Kind, Task

__all__ = ["ZBH1", "ZBV", "DualPipeV"]

F, B = Kind.FORWARD, Kind.BACKWARD
BI, BW = Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT


@dataclass(frozen=True, slots=True)
class ZBH1:
    """1F1B in which rank `r` computes gradients of weights `r` microbatches later.

    A third of 1F1B's idle time is left if forward, gradients of inputs and gradients of weights
    take the same time, and no rank keeps more activations than rank 0 of 1F1B. From "Zero Bubble
    Pipeline Parallelism" (Qi et al., 2023), schedule ZB-H1.
    """

    stages: int

    def tasks(self, microbatches: int) -> list[list[Task]]:
        """Return the tasks of each rank."""
        return [[*self._of_rank(rank, microbatches)] for rank in range(self.stages)]

    def _of_rank(self, rank: int, microbatches: int) -> Iterator[Task]:
        forwards = [Task(rank, each, F) for each in range(microbatches)]
        inputs = [Task(rank, each, BI) for each in range(microbatches)]
        waiting: deque[Task] = deque()
        for task in interleaved(forwards, inputs, self.stages - 1 - rank):
            yield task
            if task.kind is BI:
                waiting.append(Task(rank, task.microbatch, BW))
                if len(waiting) > rank:
                    yield waiting.popleft()
        yield from waiting


@dataclass(slots=True)
class _Rank:
    """The tasks of one rank of a pipeline in the shape of a V.

    Rank `r` has stage `r`, which is its branch 0, and stage `stages - 1 - r`, its branch 1. Tasks
    of a kind and a branch are added in the order of microbatches, and none beyond the last.
    """

    rank: int
    stages: int
    microbatches: int
    tasks: list[Task] = field(default_factory=list)
    count: Counter[tuple[Kind, int]] = field(default_factory=Counter)
    later: deque[int] = field(default_factory=deque)
    """The branches whose gradients of weights are to be computed, the oldest first."""

    def add(self, kind: Kind, branch: int) -> None:
        """Add the next task of a kind."""
        counted = (BI, BW) if kind is B else (kind,)
        microbatch = self.count[counted[0], branch]
        for each in counted:
            self.count[each, branch] += 1
        if kind is BI:
            self.later.append(branch)
        if microbatch < self.microbatches:
            stage = self.stages - 1 - self.rank if branch else self.rank
            self.tasks.append(Task(stage, microbatch, kind))

    def add_weights(self) -> None:
        """Add the gradients of weights that wait longest, if any do."""
        if self.later:
            self.add(BW, self.later.popleft())


def _check_v(stages: int) -> None:
    if stages < 2 or stages % 2:
        message = f"{stages} stages make no V: each rank has one on the way out and one back"
        raise PyPMError(Diagnostic(message, help="take an even number of stages"))


@dataclass(frozen=True, slots=True)
class ZBV:
    """Two stages on each rank, from rank 0 to the last and back: nearly no idle time.

    From "Pipeline Parallelism with Controllable Memory" (Qi et al., 2024). Raises PyPMError if the
    number of stages is odd.
    """

    stages: int

    def __post_init__(self) -> None:
        _check_v(self.stages)

    def tasks(self, microbatches: int) -> list[list[Task]]:
        """Return the tasks of each rank."""
        return [self._of_rank(rank, microbatches) for rank in range(self.stages // 2)]

    def _of_rank(self, rank: int, microbatches: int) -> list[Task]:
        ranks = self.stages // 2
        own = _Rank(rank, self.stages, microbatches)
        total = max(2 * ranks - 1, microbatches)  # tasks beyond the last microbatch are left out
        for _ in range(2 * (ranks - rank) - 1):
            own.add(F, 0)
        for _ in range(rank):
            own.add(F, 1)
            own.add(F, 0)
        for _ in range(ranks - rank):
            own.add(F, 1)
            own.add(BI, 1)
            own.add_weights()
        while own.count[F, 1] < total:
            if own.count[F, 0] < total:
                own.add(F, 0)
            for branch in (0, 1):
                if branch:
                    own.add(F, 1)
                own.add(BI, branch)
                own.add_weights()
        for _ in range(rank):
            own.add(BI, 0)
            own.add(BI, 1)
        for _ in range(ranks - rank):
            own.add(BI, 0)
            own.later.remove(0)
            own.add(BW, 0)
        for branch in (1, 0):
            for _ in range(own.later.count(branch)):
                own.add(BW, branch)
        return own.tasks


@dataclass(frozen=True, slots=True)
class DualPipeV:
    """Two stages on each rank as in ZBV, forwards of one beside backwards of the other.

    From DeepSeek's DualPipe, in the form of a V. A forward and a backward that it pairs follow
    each other here. Raises PyPMError if the number of stages is odd.
    """

    stages: int

    def __post_init__(self) -> None:
        _check_v(self.stages)

    def tasks(self, microbatches: int) -> list[list[Task]]:
        """Return the tasks of each rank. Raises PyPMError for fewer microbatches than stages."""
        if microbatches < self.stages:
            message = f"DualPipeV cannot run {microbatches} microbatches in {self.stages} stages"
            help = "take at least as many microbatches as stages"
            raise PyPMError(Diagnostic(message, help=help))
        return [self._of_rank(rank, microbatches) for rank in range(self.stages // 2)]

    def _of_rank(self, rank: int, microbatches: int) -> list[Task]:
        ranks = self.stages // 2
        after = ranks - 1 - rank
        own = _Rank(rank, self.stages, microbatches)
        for _ in range(2 * after):
            own.add(F, 0)
        for _ in range(rank + 1):
            own.add(F, 0)
            own.add(F, 1)
        for _ in range(after):
            own.add(BI, 1)
            own.add_weights()
            own.add(F, 1)
        for _ in range(microbatches - self.stages + rank + 1):
            own.add(F, 0)
            own.add(B, 1)
            own.add(F, 1)
            own.add(B, 0)
        for _ in range(after):
            own.add(B, 1)
            own.add(F, 1)
            own.add(B, 0)
        self._drain(own, rank, after)
        return own.tasks

    @staticmethod
    def _drain(own: _Rank, rank: int, after: int) -> None:
        """Add the last backwards; the gradients of weights of their second half come at the end."""
        for number in range(2 * (rank + 1)):
            own.add(B if number <= rank else BI, 1 - number % 2)
        for _ in range(after):
            own.add_weights()
            own.add(BI, 0)
        while own.later:
            own.add_weights()
