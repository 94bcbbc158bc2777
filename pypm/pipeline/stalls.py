"""The progress of all ranks, from which a rank that fails finds the one that it waits for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch.distributed import (  # type: ignore[attr-defined]
    HashStore,
    PrefixStore,
    Store,
    TCPStore,
)

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.pipeline.plan import Kind, Task
from pypm.torch_internals import Computation, PipelineAction

__all__ = ["Followed", "Progress"]

Orders = Mapping[int, Sequence[PipelineAction]]


def launcher_store() -> Store:
    """Return the store that torch's launchers start; without one, a store of this process alone."""
    if "MASTER_PORT" not in os.environ:
        return HashStore()
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return PrefixStore("pypm", TCPStore(address, port, is_master=False))


class Followed(list[PipelineAction]):
    """The actions of one rank; it notes which one is running."""

    def __init__(self, actions: Sequence[PipelineAction], progress: Progress) -> None:
        super().__init__(actions)
        self.progress = progress

    def __iter__(self) -> Iterator[PipelineAction]:
        for place in range(len(self)):
            self.progress.note(place)
            yield self[place]
        self.progress.note(len(self))

    def __deepcopy__(self, memo: object) -> list[PipelineAction]:
        return self[:]  # torch prints a copy when an action fails


@dataclass(frozen=True, slots=True)
class _Position:
    step: int
    action: int


class Progress:
    """The place of each rank in its list of actions, in the store of the process group."""

    def __init__(self, orders: Orders, rank: int) -> None:
        self.orders = {each: [*actions] for each, actions in orders.items()}
        self.rank = rank
        self.step = 0
        self.store = launcher_store()

    def begin(self) -> None:
        self.step += 1
        self.note(0)

    def note(self, place: int) -> None:
        self.store.set(f"pipeline_{self.rank}", f"{self.step} {place}")

    def blame(self, error: Exception) -> PyPMError:
        """Return an error that names the rank that keeps this one from going on."""
        places = {rank: self._place(rank) for rank in self.orders}
        raised = error.__cause__  # torch wraps what a stage raises, and no error of a transfer
        rank = self._blocked_by(places) if raised is None else self.rank
        own = self._doing(self.rank, places[self.rank])
        reason = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        if raised is not None:
            reason = f"{type(raised).__name__}: {raised}"
        if rank == self.rank:
            return PyPMError(Diagnostic(f"rank {rank} failed in {own}", notes=(reason,)))
        if places[rank].step < self.step:
            other = f"has not begun step {self.step}"
        else:
            other = f"does not finish {self._doing(rank, places[rank])}"
        return PyPMError(
            Diagnostic(
                f"rank {self.rank} waits for rank {rank}, which {other}",
                notes=(f"rank {self.rank} is at {own}", reason),
                help=f"rank {rank} ended or hangs; its own error, if there is one, tells why",
            )
        )

    def _place(self, rank: int) -> _Position:
        key = f"pipeline_{rank}"
        if not self.store.check([key]):
            return _Position(0, 0)
        step, action = self.store.get(key).split()
        return _Position(int(step), int(action))

    def _blocked_by(self, places: Mapping[int, _Position]) -> int:
        """Follow what ranks wait for, from a failed transfer here to one that waits for none.

        What was sent to this rank may not have arrived.
        """
        rank = self.rank
        if places[rank].action == len(self.orders[rank]):  # it waits until its values are received
            rank = next((r for r in places if not self._is_over(r, places[r])), rank)
        seen = {rank}
        while not self._is_over(rank, places[rank]) and places[rank].step == self.step:
            awaited = self._awaited(self.orders[rank][places[rank].action])
            if awaited is None:
                break
            other, place = awaited
            has_sent = places[other].step > self.step or (
                places[other].step == self.step and places[other].action > place
            )
            if (has_sent and rank != self.rank) or other in seen:
                break
            seen.add(other)
            rank = other
        return rank

    def _is_over(self, rank: int, place: _Position) -> bool:
        return place.step > self.step or (
            place.step == self.step and place.action == len(self.orders[rank])
        )

    def _awaited(self, action: PipelineAction) -> tuple[int, int] | None:
        """Return the rank that sends what an action needs, and the place of the sending."""
        stage, microbatch = action.stage_index, action.microbatch_index
        match action.computation_type:
            case Computation.FORWARD:
                wanted = PipelineAction(stage - 1, Computation.SEND_F, microbatch)
            case Computation.FULL_BACKWARD | Computation.BACKWARD_INPUT:
                wanted = PipelineAction(stage + 1, Computation.SEND_B, microbatch)
            case _:
                return None
        for rank, actions in self.orders.items():
            if wanted in actions:
                return rank, actions.index(wanted)
        return None

    def _doing(self, rank: int, place: _Position) -> str:
        if place.action == len(self.orders[rank]):
            return "the end of the step"
        action = self.orders[rank][place.action]
        kinds = {kind.value: kind for kind in Kind}
        if action.computation_type.value in kinds and action.microbatch_index is not None:
            kind = kinds[action.computation_type.value]
            return f"the {Task(action.stage_index, action.microbatch_index, kind)}"
        return f"`{action}`"
