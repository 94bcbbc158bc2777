"""The shipped schedules: GPipe and 1F1B, interleaved ones, those with little idle time."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from pypm.diagnostics import Diagnostic, PyPMError, did_you_mean
from pypm.pipeline.plan import Kind, Schedule, Task

__all__ = [
    "SCHEDULES",
    "ZBH1",
    "ZBV",
    "DualPipeV",
    "Eager1F1B",
    "GPipe",
    "Interleaved1F1B",
    "InterleavedGPipe",
    "Std1F1B",
    "schedule",
]

F, B = Kind.FORWARD, Kind.BACKWARD
BI, BW = Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT


def _of_kind(kind: Kind, stages: Iterable[int], microbatches: Iterable[int]) -> list[Task]:
    return [Task(stage, each, kind) for stage in stages for each in microbatches]


def _in_turn(forwards: Sequence[Task], backwards: Sequence[Task], ahead: int) -> Iterator[Task]:
    """Yield some forwards ahead, then a forward and a backward in turn, then what is left."""
    ahead = min(ahead, len(forwards))
    yield from forwards[:ahead]
    for forward, backward in zip(forwards[ahead:], backwards, strict=False):
        yield forward
        yield backward
    yield from backwards[len(forwards) - ahead :]


# --- a stage on each rank ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Plain:
    stages: int

    def tasks(self, microbatches: int) -> list[list[Task]]:
        """Return the tasks of each rank."""
        return [[*self._of_rank(rank, range(microbatches))] for rank in range(self.stages)]

    def _of_rank(self, rank: int, order: range) -> Iterable[Task]:
        raise NotImplementedError


class GPipe(_Plain):
    """All forwards, then all backwards; a stage on each rank."""

    def _of_rank(self, rank: int, order: range) -> Iterable[Task]:
        return [*_of_kind(F, [rank], order), *_of_kind(B, [rank], order)]


class Std1F1B(_Plain):
    """Forwards and backwards in turn, after as few forwards as keep all ranks busy.

    A rank keeps the activations of at most `stages` microbatches.
    """

    def _of_rank(self, rank: int, order: range) -> Iterable[Task]:
        forwards, backwards = _of_kind(F, [rank], order), _of_kind(B, [rank], order)
        return _in_turn(forwards, backwards, self.stages - 1 - rank)


class Eager1F1B(_Plain):
    """1F1B with nearly twice the forwards ahead, so that transfers overlap with tasks."""

    def _of_rank(self, rank: int, order: range) -> Iterable[Task]:
        forwards, backwards = _of_kind(F, [rank], order), _of_kind(B, [rank], order)
        return _in_turn(forwards, backwards, 2 * (self.stages - 1 - rank))


class ZBH1(_Plain):
    """1F1B in which rank `r` computes gradients of weights `r` microbatches later.

    A third of 1F1B's idle time is left if forward, gradients of inputs and gradients of weights
    take the same time, and no rank keeps more activations than rank 0 of 1F1B. From "Zero Bubble
    Pipeline Parallelism" (Qi et al., 2023), schedule ZB-H1.
    """

    def _of_rank(self, rank: int, order: range) -> Iterable[Task]:
        forwards, inputs = _of_kind(F, [rank], order), _of_kind(BI, [rank], order)
        waiting: deque[Task] = deque()
        for task in _in_turn(forwards, inputs, self.stages - 1 - rank):
            yield task
            if task.kind is BI:
                waiting.append(Task(rank, task.microbatch, BW))
                if len(waiting) > rank:
                    yield waiting.popleft()
        yield from waiting


# --- several stages on each rank: stage `s` is on rank `s % ranks` ----------------------------


@dataclass(frozen=True, slots=True)
class _Interleaved:
    stages: int
    ranks: int

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.stages < 1 or self.stages % self.ranks:
            message = f"{self.stages} stages cannot be shared evenly by {self.ranks} ranks"
            help = "the number of stages is a multiple of the number of ranks"
            raise PyPMError(Diagnostic(message, help=help))

    def _own(self, rank: int) -> range:
        return range(rank, self.stages, self.ranks)


class InterleavedGPipe(_Interleaved):
    """GPipe with several stages on each rank: stage `s` is on rank `s % ranks`.

    Raises PyPMError if `ranks` does not divide `stages`.
    """

    def tasks(self, microbatches: int) -> list[list[Task]]:
        """Return the tasks of each rank."""
        order = range(microbatches)
        own = map(self._own, range(self.ranks))
        return [_of_kind(F, each, order) + _of_kind(B, each[::-1], order) for each in own]


class Interleaved1F1B(_Interleaved):
    """1F1B with several stages on each rank: stage `s` is on rank `s % ranks`.

    With `v` stages on a rank the idle time is that of 1F1B divided by `v`. Raises PyPMError if
    `ranks` does not divide `stages`.
    """

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
        order = [range(start, start + size) for start in range(0, microbatches, size)]
        return [[*self._of_rank(rank, order, size)] for rank in range(self.ranks)]

    def _of_rank(self, rank: int, order: Sequence[range], size: int) -> Iterator[Task]:
        own = self._own(rank)
        forwards = [task for part in order for task in _of_kind(F, own, part)]
        backwards = [task for part in order for task in _of_kind(B, own[::-1], part)]
        return _in_turn(forwards, backwards, (len(own) - 1) * size + 2 * (self.ranks - 1 - rank))


# --- two stages on each rank, in the shape of a V ---------------------------------------------

Phases: TypeAlias = Sequence[tuple[int, str]]
"""Tasks as text, each with a number of repetitions: `F0 I1` is the next forward of branch 0, and
the next gradients of inputs of branch 1; `W` are those of weights that wait longest, if any do."""


@dataclass(frozen=True, slots=True)
class _V:
    """Rank `r` has stage `r`, its branch 0, and stage `stages - 1 - r`, its branch 1."""

    stages: int

    def __post_init__(self) -> None:
        if self.stages < 2 or self.stages % 2:
            message = f"{self.stages} stages make no V: each rank has one on the way out and one"
            help = "take an even number of stages"
            raise PyPMError(Diagnostic(f"{message} back", help=help))

    def tasks(self, microbatches: int) -> list[list[Task]]:
        """Return the tasks of each rank."""
        return [self._of_rank(rank, microbatches) for rank in range(self.stages // 2)]

    def _phases(self, rank: int, microbatches: int) -> Phases:
        raise NotImplementedError

    def _of_rank(self, rank: int, microbatches: int) -> list[Task]:
        """Return the tasks of the phases: of each kind and branch in the order of microbatches."""
        tasks: list[Task] = []
        count: Counter[tuple[Kind, int]] = Counter()
        later: list[int] = []  # branches with gradients of weights to compute, the oldest first
        phases = self._phases(rank, microbatches)
        for word in (word for times, text in phases for word in text.split() * times):
            kind = Kind(word[0])
            branch = int(word[1:]) if word[1:] else next(iter(later), 0)
            if kind is BI:
                later.append(branch)
            elif kind is BW:
                if branch not in later:
                    continue
                later.remove(branch)
            parts = (BI, BW) if kind is B else (kind,)
            microbatch = count[parts[0], branch]
            count.update((part, branch) for part in parts)
            if microbatch < microbatches:  # phases may go beyond the last one
                tasks.append(Task((rank, self.stages - 1 - rank)[branch], microbatch, kind))
        return tasks


class ZBV(_V):
    """Two stages on each rank, from rank 0 to the last and back: nearly no idle time.

    From "Pipeline Parallelism with Controllable Memory" (Qi et al., 2024). Raises PyPMError if the
    number of stages is odd.
    """

    def _phases(self, rank: int, microbatches: int) -> Phases:
        after = self.stages // 2 - rank
        total = max(self.stages - 1, microbatches)
        return (
            (2 * after - 1, "F0"),
            (rank, "F1 F0"),
            (after, "F1 I1 W"),
            (total - self.stages + rank + 1, "F0 I0 W F1 I1 W"),
            (after - 1, "I0 W F1 I1 W"),
            (rank, "I0 I1"),
            (after, "I0 W0"),
            (total, "W1"),
            (total, "W0"),
        )


class DualPipeV(_V):
    """Two stages on each rank as in ZBV, forwards of one beside backwards of the other.

    From DeepSeek's DualPipe, in the form of a V. A forward and a backward that it pairs follow
    each other here. Raises PyPMError if the number of stages is odd.
    """

    def tasks(self, microbatches: int) -> list[list[Task]]:
        """Return the tasks of each rank. Raises PyPMError for fewer microbatches than stages."""
        if microbatches < self.stages:
            message = f"DualPipeV cannot run {microbatches} microbatches in {self.stages} stages"
            help = "take at least as many microbatches as stages"
            raise PyPMError(Diagnostic(message, help=help))
        return super().tasks(microbatches)

    def _phases(self, rank: int, microbatches: int) -> Phases:
        after = self.stages // 2 - 1 - rank
        last = [f"{'B' if n <= rank else 'I'}{1 - n % 2}" for n in range(2 * (rank + 1))]
        return (
            (2 * after, "F0"),
            (rank + 1, "F0 F1"),
            (after, "I1 W F1"),
            (microbatches - self.stages + rank + 1, "F0 B1 F1 B0"),
            (after, "B1 F1 B0"),
            (1, " ".join(last)),
            (after, "W I0"),
            (2 * microbatches, "W"),
        )


# --- by name ----------------------------------------------------------------------------------

SCHEDULES: Final[Mapping[str, tuple[Callable[..., Schedule], int | None]]] = MappingProxyType(
    {
        "gpipe": (GPipe, 1),
        "1f1b": (Std1F1B, 1),
        "eager-1f1b": (Eager1F1B, 1),
        "zb-h1": (ZBH1, 1),
        "interleaved-gpipe": (InterleavedGPipe, None),
        "interleaved-1f1b": (Interleaved1F1B, None),
        "zbv": (ZBV, 2),
        "dual-pipe-v": (DualPipeV, 2),
    }
)
"""Classes of schedules, and the number of stages that each has on a rank; None for any number."""


def schedule(name: str, *, stages: int, ranks: int | None = None) -> Schedule:
    """Return a shipped schedule.

    Arguments:
        name: a key of `SCHEDULES`.
        stages: the number of stages.
        ranks: the number of ranks; by default the one that the schedule has for these stages, and
            half as many as stages for one that is interleaved.

    Raises PyPMError for another name, or for a number of ranks that does not fit.
    """
    if name not in SCHEDULES:
        listed = ", ".join(f"`{each}`" for each in SCHEDULES)
        help = f"{did_you_mean(name, SCHEDULES)} the schedules are {listed}".lstrip()
        raise PyPMError(Diagnostic(f"there is no schedule `{name}`", help=help))
    make, share = SCHEDULES[name]
    if share is None:
        return make(stages, stages // 2 if ranks is None else ranks)
    if ranks not in (None, stages // share):
        message = f"`{name}` has {share} stage{'s' * (share > 1)} on each rank"
        help = f"{stages} stages are for {stages // share} ranks"
        raise PyPMError(Diagnostic(f"{message}, not {stages} on {ranks} ranks", help=help))
    return make(stages)
