"""The text of a graph's persistent kernel: one for any rows of a batch, up to a tile of them.

Each program takes a ticket, the number of a task in a topological order; waits for the events of
that task; runs its body, and notifies its events; until tickets run out. Nothing is set to zero
between launches: each launch takes as many tickets as there are tasks and programs, so a ticket
tells the number of its launch, by which the counts that tasks wait for are multiplied.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch

from pypm.events.decoder import AttentionBody, ProductBody
from pypm.events.grids import Grid, TileGraph, refuse
from pypm.events.triton.attention import attention_numbers, attention_text
from pypm.events.triton.numbers import BODY, DTYPES, GridNumber, loaded
from pypm.events.triton.products import product_numbers, product_text

__all__ = ["ARGUMENTS", "TASK", "PersistentKernel", "emitted"]

TASK: Final = 7
"""Numbers of a task: its grid, two coordinates, its first wait and their end, its notes'."""
ARGUMENTS: Final[Mapping[str, str]] = {
    "tickets": "*i64", "counters": "*i32", "tasks": "*i32", "waits": "*i32", "notes": "*i32",
    "grids": "*i64", "batch": "i32", "count": "i32",
}  # fmt: skip
"""The arguments of the kernel, with Triton's types; `count` is the number of tasks."""

PRELUDE: Final = """\
import triton
import triton.language as tl


# Until the events from `first` to `last` have counted what this launch adds to those before.
@triton.jit
def await_events(counters, waits, first, last, launch):
    for n in range(first, last):
        counter = counters + tl.load(waits + 2 * n)
        wanted = tl.load(waits + 2 * n + 1) * launch
        while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") - wanted < 0:
            pass


@triton.jit
def notify_events(counters, notes, first, last):
    tl.debug_barrier()
    for n in range(first, last):
        tl.atomic_add(counters + tl.load(notes + n), 1, sem="release", scope="gpu")
"""
KERNEL: Final = """\
@triton.jit
def kernel({arguments}):
    tickets_of_launch = count + tl.num_programs(0)
    ticket = tl.atomic_add(tickets, 1, sem="relaxed", scope="gpu")
    while ticket % tickets_of_launch < count:
        launch = tl.cast(ticket // tickets_of_launch, tl.int32) + 1
        task = tasks + ticket % tickets_of_launch * {task}
        row = grids + tl.load(task) * {row}
        await_events(counters, waits, tl.load(task + 3), tl.load(task + 4), launch)
        run(tl.load(row), row, tl.load(task + 1), tl.load(task + 2), batch)
        notify_events(counters, notes, tl.load(task + 5), tl.load(task + 6))
        ticket = tl.atomic_add(tickets, 1, sem="relaxed", scope="gpu")
"""


@dataclass(frozen=True)
class PersistentKernel:
    """The text of a kernel, and what the rows of its grids hold."""

    graph: TileGraph
    dtype: torch.dtype
    text: str
    rows: Mapping[str, tuple[int, Mapping[str, GridNumber]]]
    """For each grid the number of its body, and the numbers that this reads, by their names."""
    row: int
    """The numbers of a row."""

    @cached_property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def emitted(graph: TileGraph, dtype: torch.dtype) -> PersistentKernel:
    """Return the kernel of a graph whose grids are products and attention.

    Arguments:
        graph: the graph.
        dtype: bfloat16 or float32, of all tensors; sums are float32.

    Raises EventError for another type, and for a grid with another body.
    """
    if dtype not in DTYPES:
        raise refuse(f"the Triton kernel has no elements of {dtype}")
    element = DTYPES[dtype]
    bodies: dict[str, int] = {}
    rows: dict[str, tuple[int, Mapping[str, GridNumber]]] = {}
    for grid in graph.grids:
        found = _function(grid, element)
        if found is None:
            raise refuse(f"grid `{grid.name}` has a body that the Triton kernel does not have")
        text, numbers = found
        number = bodies.setdefault(text, len(bodies))
        rows[grid.name] = number, numbers
    row = 1 + max(len(numbers) for _, numbers in rows.values())
    functions = [text.replace(BODY, f"{BODY.lower()}{n}") for text, n in bodies.items()]
    kernel = KERNEL.format(arguments=", ".join(ARGUMENTS), task=TASK, row=row)
    text = "\n\n".join([PRELUDE, *functions, "\n".join(_run(len(bodies))), kernel])
    return PersistentKernel(graph, dtype, text, rows, row)


def _function(grid: Grid, element: str) -> tuple[str, Mapping[str, GridNumber]] | None:
    """Return the functions of a grid's body, of which the last computes a task, and its numbers; or
    None for a body that there is no text of.
    """
    body = grid.body
    if isinstance(body, ProductBody):
        product, numbers = product_text(body, element), product_numbers(body)
        before, lines = product.functions(), product.lines()
    elif isinstance(body, AttentionBody):
        numbers = attention_numbers(body)
        before, lines = iter(()), attention_text(body, element).lines()
    else:
        return None
    head = f"@triton.jit\ndef {BODY}(row, i, j, batch):"
    inside = (f"    {line}" for line in (*loaded(numbers, element), *lines))
    return "\n".join([*before, head, *inside]) + "\n", numbers


def _run(bodies: int) -> Iterator[str]:
    """Yield the function that calls the body of this number."""
    yield "@triton.jit\ndef run(body, row, i, j, batch):"
    for n in range(bodies):
        head = "if" if not n else "elif"
        yield f"    {head} body == {n}:"
        yield f"        {BODY.lower()}{n}(row, i, j, batch)"
    yield ""
