"""Global memory of emulated programs: the histories of elements, and counters that order them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pypm.emulation.clocks import AccessHistory, Clock, ClockedAgent, Fault, access, join
from pypm.emulation.pointers import EmulatedPointer, accessed, extent, load_global, store_global
from pypm.events.triton.tables import BoundStep, written_by

__all__ = ["SharedMemory"]


@dataclass
class ElementHistories:
    """The histories of the elements of a tensor; those with equal ones share one."""

    label: str
    of: Tensor
    """For each element the number of its history."""
    all: list[tuple[AccessHistory, int]] = field(default_factory=list)
    """Histories, and how many elements each has."""

    def access(self, by: tuple[str, int], clock: Mapping[str, int], at: Tensor, kind: str) -> None:
        """Record an access of elements.

        Raises Fault for a race, and for a read of what nothing has written.
        """
        at = torch.unique(at)
        numbers = self.of[at]
        for number in torch.unique(numbers).tolist():
            here = at[numbers == number]
            history, count = self.all[number]
            if here.numel() < count:
                history = AccessHistory(history.written, dict(history.read))
                self.of[here] = len(self.all)
                self.all[number] = self.all[number][0], count - here.numel()
                self.all.append((history, here.numel()))
            if kind == "read" and history.written is None:
                raise Fault(f"{by[0]} reads what nothing has written: {self.label}")
            access(by, clock, history, kind, self.label)


@dataclass
class SharedMemory:
    """The tensors of a step in one launch; what its tasks write is not written before."""

    step: BoundStep
    written: dict[int, ElementHistories] = field(init=False)
    """By the addresses of tensors, of those that tasks of this launch write."""
    tensors: dict[int, tuple[str, Tensor]] = field(init=False)
    """Names and tensors to which grids have addresses, by their own."""
    counters: dict[tuple[int, int], Clock] = field(default_factory=dict)
    """The clocks that arrivals at each counter have released."""

    def __post_init__(self) -> None:
        buffers = self.step.buffers
        named = {**buffers, **{f"operand {n}": x for n, x in enumerate(self.step.operands)}}
        self.tensors = {x.data_ptr(): (name, x) for name, x in named.items()}
        grids = {task.grid.name: task.grid for task in self.step.table.tasks}
        self.written = {
            x.data_ptr(): ElementHistories(
                name, torch.zeros(x.numel(), dtype=torch.int64), [(AccessHistory(), x.numel())]
            )
            for grid in grids.values()
            for name, _ in written_by(grid)
            for x in (buffers[name],)
        }

    def pointer(self, address: int, dtype: torch.dtype) -> EmulatedPointer:
        """Return the pointer for an address. Raises Fault if no tensor of this type is there."""
        for begin, (name, x) in self.tensors.items():
            offset, rest = divmod(address - begin, x.element_size())
            if 0 <= offset < max(extent(x), 1):
                if x.dtype != dtype or rest:
                    raise Fault(f"a pointer to {dtype} in {name}, which is {x.dtype}")
                return EmulatedPointer(x, offset)
        raise Fault(f"no tensor is at the address {address}")

    # --- accesses --------------------------------------------------------------------------------

    def load(
        self, agent: ClockedAgent, at: EmulatedPointer, mask: Tensor | None, other: float
    ) -> Tensor:
        """Return elements. Raises Fault as `_record` does."""
        self._record(agent, at, mask, "read")
        return load_global(at, mask, other)

    def store(
        self, agent: ClockedAgent, at: EmulatedPointer, value: Tensor, mask: Tensor | None
    ) -> None:
        """Write elements. Raises Fault as `_record` does."""
        self._record(agent, at, mask, "write")
        store_global(at, value, mask)

    def _record(
        self, agent: ClockedAgent, at: EmulatedPointer, mask: Tensor | None, kind: str
    ) -> None:
        """Record an access in the clock of its program and the histories of its elements.

        Raises Fault for what `ElementHistories.access` does; for a store to a tensor that
        its tasks only read, and for an access of a counter that is not atomic.
        """
        address = at.tensor.data_ptr()
        arguments = self.step.arguments
        if any(at.tensor is arguments[name] for name in ("tickets", "counters")):
            raise Fault(f"{agent.name} accesses a counter, and not by one operation")
        histories = self.written.get(address)
        if histories is None:
            if kind == "write":
                raise Fault(f"{agent.name} writes a tensor that is only read")
            return
        _, offset, kept = accessed(at, mask, kind)
        time = agent.clock.get(agent.own, 0) + 1
        histories.access((agent.own, time), agent.clock, offset[kept], kind)
        agent.clock[agent.own] = time

    def add(self, agent: ClockedAgent, at: EmulatedPointer, value: int, order: str) -> int:
        """Add to a counter, and return what it was; `order` is that of the operation.

        Raises Fault for a place beyond the counters.
        """
        flat, _, _ = accessed(at, None, "look" if value == 0 else "count")
        place = int(at.offset)
        released = self.counters.setdefault((at.tensor.data_ptr(), place), {})
        if order in ("release", "acq_rel"):
            join(released, agent.released())
        if order in ("acquire", "acq_rel"):
            join(agent.clock, released)
        before = int(flat[place])
        flat[place] += value
        return before

    def value(self, at: EmulatedPointer) -> int:
        """Return the value of a counter, or of none."""
        place = int(at.offset)
        return int(at.tensor[place]) if 0 <= place < at.tensor.numel() else 0

    def name(self, at: EmulatedPointer) -> str:
        """Return the name of a counter, for messages."""
        place = int(at.offset)
        is_event = at.tensor is self.step.arguments["counters"]
        events = self.step.table.events
        return f"event {events[place]}" if is_event and 0 <= place < len(events) else "the tickets"
