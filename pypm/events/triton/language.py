"""Triton's language as persistent kernels use it, with effects on emulated memory.

Accesses of memory return requests, which a program yields; all else computes at once, with torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Final, TypeAlias

import torch
from torch import Tensor

from pypm.emulation.clocks import Fault
from pypm.emulation.pointers import EmulatedPointer
from pypm.emulation.requests import Request
from pypm.events.triton.memory import SharedMemory
from pypm.events.triton.programs import ProgramAgent

__all__ = ["OPERATIONS", "scope_of"]

OPERATIONS: Final = frozenset({"tl.load", "tl.store", "tl.atomic_add", "tl.debug_barrier"})
"""Functions that return a request."""

Number: TypeAlias = Tensor | int | float


@dataclass(frozen=True, slots=True)
class PointerType:
    """The type of pointers to elements of a type."""

    of: torch.dtype


def scope_of(memory: SharedMemory, program: int, programs: int) -> dict[str, SimpleNamespace]:
    """Return the names that the text of a kernel reads, for one of `programs` programs."""
    names = ("erf", "exp", "rsqrt", "sigmoid", "bfloat16", "float32", "int32", "int64")
    tl = SimpleNamespace(
        program_id=lambda axis: program,
        num_programs=lambda axis: programs,
        load=partial(_load, memory),
        store=partial(_store, memory),
        atomic_add=partial(_atomic_add, memory),
        debug_barrier=lambda: _request("its threads", ProgramAgent.fence),
        pointer_type=PointerType,
        cast=partial(_cast, memory),
        multiple_of=_multiple_of,
        arange=torch.arange,
        zeros=lambda shape, dtype: torch.zeros(shape, dtype=dtype),
        full=lambda shape, value, dtype: torch.full(shape, value, dtype=dtype),
        sum=torch.sum,
        max=torch.amax,
        maximum=torch.maximum,
        trans=torch.t,
        dot=_dot,
        where=_where,
        **{name: getattr(torch, name) for name in names},
    )
    return {"tl": tl, "triton": SimpleNamespace(jit=lambda function: function)}


def _request(label: str, act: Callable[[ProgramAgent], object]) -> Request[ProgramAgent]:
    """Return an operation that is no look at a counter."""

    def acted(agent: ProgramAgent) -> object:
        agent.looked = None
        return act(agent)

    return Request(label, acted)


def _load(
    memory: SharedMemory, at: EmulatedPointer, mask: Tensor | None = None, other: float = 0.0
) -> Request[ProgramAgent]:
    def act(agent: ProgramAgent) -> Number:
        found = memory.load(agent, at, mask, other)
        return found if found.dim() else found.item()

    return _request("a load", act)


def _store(
    memory: SharedMemory, at: EmulatedPointer, value: Tensor, mask: Tensor | None = None
) -> Request[ProgramAgent]:
    return _request("a store", lambda agent: memory.store(agent, at, value, mask))


def _atomic_add(
    memory: SharedMemory, at: EmulatedPointer, value: int, *, sem: str, scope: str
) -> Request[ProgramAgent]:
    """Return the operation; one that adds nothing is a look, as which Triton compiles it."""
    order = sem if scope == "gpu" else "relaxed"  # others order nothing between programs
    place = at.tensor.data_ptr(), int(at.offset)

    def act(agent: ProgramAgent) -> int:
        found = memory.add(agent, at, value, order)
        agent.looked = (place, found) if value == 0 else None
        return found

    def is_ready(agent: ProgramAgent) -> bool:
        return value != 0 or agent.looked != (place, memory.value(at))

    return Request(memory.name(at), act, is_ready)


def _cast(memory: SharedMemory, x: int, dtype: PointerType | torch.dtype) -> EmulatedPointer | int:
    return memory.pointer(x, dtype.of) if isinstance(dtype, PointerType) else x


def _multiple_of(x: EmulatedPointer | int, of: int) -> EmulatedPointer | int:
    if (x if isinstance(x, int) else x.address) % of:
        raise Fault(f"{x} is no multiple of {of}, as the text promises")
    return x


def _where(condition: Tensor | bool, a: Number, b: Number) -> Number:
    if isinstance(condition, bool):
        return a if condition else b
    found: Tensor = torch.where(condition, a, b)
    return found


def _dot(a: Tensor, b: Tensor, onto: Tensor | None = None, *, input_precision: str) -> Tensor:
    found = a.float() @ b.float()
    return found if onto is None else onto + found
