"""Emulation of a persistent kernel on a CPU: its programs run at the same time.

The text is the one that Triton compiles. Programs take turns at every access of memory, in an order
drawn from a seed. Vector clocks find accesses that nothing orders: an arrival with `release` tells
what its program did before its last barrier, and a look with `acquire` learns it. A program is one
agent, whose threads are not told apart, except that a barrier has to stand before a release.
"""

from __future__ import annotations

import ast
import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import cast

from torch import Tensor

from pypm.emulation.clocks import Fault
from pypm.emulation.generators import Yielding, dotted
from pypm.emulation.pointers import EmulatedPointer
from pypm.emulation.requests import Body
from pypm.events.triton.language import OPERATIONS, scope_of
from pypm.events.triton.memory import SharedMemory
from pypm.events.triton.programs import ProgramAgent, Programs
from pypm.events.triton.tables import BoundStep

__all__ = ["Fault", "ProgramsRun", "emulate"]


@dataclass(frozen=True, slots=True)
class ProgramsRun:
    """A launch without a fault."""

    digest: str
    """The SHA-256 of the text that was executed."""
    turns: tuple[int, ...]
    """The program that had each turn."""


def emulate(
    step: BoundStep, *, launches: int = 1, seed: int = 0, resident: int | None = None,
    text: str | None = None,
) -> list[ProgramsRun]:  # fmt: skip
    """Launch a kernel, which computes into the buffers of a step.

    Arguments:
        step: the step, on a CPU.
        launches: the number of launches, one after the other.
        seed: draws the order of turns.
        resident: the most programs that run at the same time, by default all; another begins when
            one ends.
        text: the text to execute instead of the kernel's own.

    Returns the runs of the launches. Raises Fault for a deadlock, a race, a read of what this
    launch has not written, an access beyond the end of a tensor, or an error in the text.
    """
    text = step.kernel.text if text is None else text
    found = []
    for launch in range(launches):
        memory = SharedMemory(step)
        machine = Programs(random.Random(seed * 1009 + launch))
        bodies = []
        for program in range(step.programs):
            scope = scope_of(memory, program, step.programs)
            exec(_code(text), scope)
            made = cast("Callable[..., Body[ProgramAgent]]", scope["kernel"])
            bodies.append(made(*map(_value, step.arguments.values())))
        machine.run(bodies, resident or step.programs)
        found.append(ProgramsRun(hashlib.sha256(text.encode()).hexdigest(), tuple(machine.turns)))
    return found


def _value(argument: Tensor | int) -> EmulatedPointer | int:
    return EmulatedPointer(argument) if isinstance(argument, Tensor) else argument


@lru_cache(maxsize=64)
def _code(text: str) -> CodeType:
    tree = ast.parse(text)
    yielding = Yielding(OPERATIONS, _with_operations(tree))
    return compile(yielding.visit(tree), "<emulated kernel>", "exec")


def _with_operations(tree: ast.Module) -> frozenset[str]:
    """Return the functions of a text that perform operations, by themselves or by another."""
    calls = {
        function.name: {dotted(n.func) for n in ast.walk(function) if isinstance(n, ast.Call)}
        for function in tree.body
        if isinstance(function, ast.FunctionDef)
    }
    found: frozenset[str] = frozenset()
    while more := {n for n, called in calls.items() if called & (OPERATIONS | found)} - found:
        found |= more
    return found
