"""The modules of Gluon that kernels use, with the effects of their operations on a `Machine`.

Operations return requests, which a partition yields; everything else computes at once, with torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TypeAlias

import torch
from torch import Tensor

from pypm.emulation.clocks import join
from pypm.emulation.pointers import EmulatedPointer, load_global, store_global
from pypm.emulation.requests import Body, Request
from pypm.tiles.emulator.global_memory import EmulatedDescriptor
from pypm.tiles.emulator.machine import Machine
from pypm.tiles.emulator.memory import Agent, Barrier, Job, SharedTile, access_tile, shared_tile

__all__ = ["scope_of"]


@dataclass(frozen=True, slots=True)
class _Accumulator:
    """The result of products that may not have ended: only products and waits take it."""

    job: Job | None
    cell: list[Tensor]

    @property
    def value(self) -> Tensor:
        return self.cell[-1]


Value: TypeAlias = Tensor | _Accumulator | float | SharedTile | Barrier
"""A value of the text."""


Exported: TypeAlias = SimpleNamespace | Callable[..., Request[Agent] | _Accumulator]
"""A module of the text, or a function."""


class _Barriers:
    def __init__(self, count: int, label: str) -> None:
        self.all = [Barrier(f"slot {n} of {label}") for n in range(count)]

    def index(self, n: int) -> Barrier:
        return self.all[n]


def scope_of(machine: Machine, program: int, programs: int) -> dict[str, Exported]:
    """Return the names that the text of a kernel reads, for one of `programs` programs."""
    gl = _language(machine)
    gl.program_id = lambda axis: program
    gl.num_programs = lambda axis: programs
    return {
        "gl": gl,
        "gluon": SimpleNamespace(jit=lambda function: function),
        "mbarrier": SimpleNamespace(
            MBarrierLayout=lambda: "mbarrier",
            init=lambda barrier, count: barrier.init(count),
            wait=partial(_wait, machine),
            arrive=partial(_arrive, machine),
            expect=_expect,
        ),
        "tma": SimpleNamespace(
            async_copy_global_to_shared=partial(_load, machine),
            async_copy_shared_to_global=partial(_store, machine),
            store_wait=_store_wait,
        ),
        "fence_async_shared": lambda: Request("a fence", Agent.fence),
        "warpgroup_mma_init": lambda tile: _Accumulator(None, [tile]),
        "warpgroup_mma": partial(_product, machine),
        "warpgroup_mma_wait": _await,
    }


# --- barriers and copies -------------------------------------------------------------------------


def _wait(machine: Machine, barrier: Barrier, phase: int, pred: bool = True) -> Request[Agent]:
    def act(agent: Agent) -> None:
        if pred:
            join(agent.clock, barrier.completed)
            machine.note("wait", agent.name, barrier.label)

    return Request(barrier.label, act, lambda agent: not pred or barrier.is_complete(phase))


def _arrive(machine: Machine, barrier: Barrier, *, count: int, pred: bool = True) -> Request[Agent]:
    def act(agent: Agent) -> None:
        if pred:
            barrier.arrive(agent.clock, count)
            agent.tick()
            machine.note("arrive", agent.name, barrier.label)

    return Request(barrier.label, act)


def _expect(barrier: Barrier, size: int) -> Request[Agent]:
    def act(agent: Agent) -> None:
        barrier.expected += size
        barrier.arrive(agent.clock, 1)
        agent.tick()

    return Request(barrier.label, act)


def _load(
    machine: Machine, source: EmulatedDescriptor, at: Sequence[int], barrier: Barrier,
    tile: SharedTile,
) -> Request[Agent]:  # fmt: skip
    def complete(job: Job) -> None:
        tile.data.copy_(source.read(at))
        barrier.receive(job.clock, source.size)

    def act(agent: Agent) -> None:
        machine.start(f"the copy into {tile.label}", agent, complete, writes=[tile])

    return Request("a copy", act)


def _store(
    machine: Machine, target: EmulatedDescriptor, at: Sequence[int], tile: SharedTile
) -> Request[Agent]:
    def act(agent: Agent) -> None:
        job = machine.start(
            f"stores of {agent.name}", agent, lambda job: target.write(at, tile.data), reads=[tile]
        )
        agent.stores.append(job)

    return Request("a store", act)


def _store_wait(left: int) -> Request[Agent]:
    def act(agent: Agent) -> None:
        agent.stores = _waited(agent, agent.stores, left)

    return Request("its stores", act, lambda agent: _ended(agent.stores, left))


def _ended(jobs: Sequence[Job], left: int) -> bool:
    """Return whether all jobs have ended but the last ones."""
    return all(job.done for job in jobs[: max(0, len(jobs) - left)])


def _waited(agent: Agent, jobs: list[Job], left: int) -> list[Job]:
    """Let an agent know what jobs did, all but the last ones, which are returned."""
    count = max(0, len(jobs) - left)
    for job in jobs[:count]:
        join(agent.clock, job.clock)
        job.awaited = True
    return jobs[count:]


def _tile_store(machine: Machine, tile: SharedTile, value: Tensor) -> Request[Agent]:
    def act(agent: Agent) -> None:
        time = agent.clock.get(agent.own, 0) + 1
        access_tile((agent.own, time), agent.clock, tile, "write")
        agent.clock[agent.own] = time
        tile.data.copy_(value)

    return Request("a write", act)


# --- products ------------------------------------------------------------------------------------


def _product(
    machine: Machine, left: SharedTile | Tensor, right: SharedTile,
    onto: _Accumulator | Tensor, *, use_acc: bool = True, is_async: bool = False,
) -> Request[Agent]:  # fmt: skip
    cell: list[Tensor] = []

    def complete(job: Job) -> None:
        base = onto.value if isinstance(onto, _Accumulator) else onto
        a = left.data if isinstance(left, SharedTile) else left
        found = a.float() @ right.data.float()
        cell.append(base + found if use_acc else found)

    def act(agent: Agent) -> Request[Agent] | _Accumulator:
        reads = [tile for tile in (left, right) if isinstance(tile, SharedTile)]
        before = agent.products[-1] if agent.products else None
        job = machine.start(f"products of {agent.name}", agent, complete, before, reads)
        agent.products.append(job)
        found = _Accumulator(job, cell)
        return found if is_async else _await(0, (found,))

    return Request("a product", act)


def _await(left: int, deps: Sequence[_Accumulator]) -> Request[Agent]:
    def value(dep: _Accumulator) -> _Accumulator | Tensor:
        return dep.value if dep.job is None or dep.job.awaited else dep

    def act(agent: Agent) -> _Accumulator | Tensor | tuple[_Accumulator | Tensor, ...]:
        agent.products = _waited(agent, agent.products, left)
        found = tuple(map(value, deps))
        return found[0] if len(found) == 1 else found

    return Request("its products", act, lambda agent: _ended(agent.products, left))


# --- the language --------------------------------------------------------------------------------


def _language(machine: Machine) -> SimpleNamespace:
    def allocate(
        dtype: torch.dtype, shape: Sequence[int], layout: str, label: str
    ) -> SharedTile | _Barriers:
        if layout == "mbarrier":
            return _Barriers(shape[0], label)
        return shared_tile(torch.full([*shape], float("nan"), dtype=dtype), label)

    def specialize(
        bodies: Sequence[tuple[Callable[..., Body[Agent]], Sequence[Value]]],
        warps: Sequence[int],
        registers: Sequence[int],
    ) -> Request[Agent]:
        made = [
            (f"{function.__name__}{n}", function(*given))
            for n, (function, given) in enumerate(bodies)
        ]
        return Request("a fork", lambda agent: machine.fork(made, agent))

    names = ("abs", "cos", "erf", "exp", "exp2", "log", "rsqrt", "sin", "sqrt")
    types = ("bfloat16", "float16", "float32", "int8", "int64")
    return SimpleNamespace(
        allocate_shared_memory=allocate,
        warp_specialize=specialize,
        barrier=lambda: Request("its warps", lambda agent: None),
        NVMMADistributedLayout=lambda **_: "registers",
        DotOperandLayout=lambda **_: "registers",
        BlockedLayout=lambda *_: "registers",
        SliceLayout=lambda *_: "registers",
        constexpr=int,
        static_range=range,
        cdiv=lambda a, b: -(-a // b),
        arange=lambda start, end, layout: torch.arange(start, end),
        full=_full,
        load=load_global,
        store=_store_to_global,
        cast=lambda x, dtype: x,
        maximum=max,
        minimum=min,
        sum=torch.sum,
        reduce=_reduce,
        expand_dims=lambda x, axis: x.unsqueeze(axis),
        where=_where,
        reshape=lambda x, shape: x.reshape(shape),
        permute=lambda x, order: x.permute(order),
        split=lambda x: (x[..., 0], x[..., 1]),
        convert_layout=lambda x, layout: x,
        shared_store=lambda tile, value: _tile_store(machine, tile, value),
        float8e4nv=torch.float8_e4m3fn,
        **{name: getattr(torch, name) for name in (*names, *types)},
    )


def _store_to_global(
    at: EmulatedPointer, value: Tensor, mask: Tensor | None = None
) -> Request[Agent]:
    return Request("a store to global memory", lambda agent: store_global(at, value, mask))


def _full(shape: Sequence[int], value: float, dtype: torch.dtype, layout: str) -> Tensor:
    return torch.full([*shape], value, dtype=dtype)


def _reduce(x: Tensor, axis: int, function: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return what a function makes of all elements along an axis, whose number is a power of 2."""
    while x.shape[axis] > 1:
        x = function(*x.chunk(2, axis))
    return x.squeeze(axis)


def _where(condition: Tensor | bool, a: Tensor | float, b: Tensor | float) -> Tensor:
    return torch.where(
        torch.as_tensor(condition),
        torch.as_tensor(a, dtype=torch.float32),
        torch.as_tensor(b, dtype=torch.float32),
    )
