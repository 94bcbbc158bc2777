"""The arguments of a persistent kernel: tables of its tasks, and addresses of its tensors.

A step is bound once to its operands, as a CUDA graph is: it reads and writes these memories from
launch to launch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import torch
from torch import Tensor

from pypm.events.checks import checked
from pypm.events.decoder import ROWS as BATCH
from pypm.events.decoder import AttentionBody, MatrixOperand, ProductBody
from pypm.events.grids import Grid, refuse
from pypm.events.tasks import TaskTable
from pypm.events.triton.attention import news_of
from pypm.events.triton.numbers import ALIGNMENT, GridNumber, SizeOf, StrideOf, TensorAddress
from pypm.events.triton.products import ROWS
from pypm.events.triton.text import ARGUMENTS, PersistentKernel

__all__ = ["BoundStep", "bound", "written_by"]


@dataclass(frozen=True)
class BoundStep:
    """A kernel with the memory that it computes in."""

    kernel: PersistentKernel
    programs: int
    """The programs of each launch: its tickets are as many as these and the tasks."""
    table: TaskTable
    operands: Sequence[Tensor]
    """Operand 0 is x, [batch, width]."""
    buffers: Mapping[str, Tensor]
    """Tensors that grids write, by the names of the graph: [batch, columns]."""
    arguments: Mapping[str, Tensor | int]
    """Those of the kernel, by their names, in their order."""

    @property
    def out(self) -> Tensor:
        """Return the result, [batch, width]."""
        return self.buffers["out"]

    def news(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the new keys and values of each layer, [batch, groups * size]."""
        bodies = [grid.body for grid in self.kernel.graph.grids]
        names = [news_of(body) for body in bodies if isinstance(body, AttentionBody)]
        keys, values = ([self.buffers[of[n]] for of in names] for n in ("new_key", "new_value"))
        return keys, values


def bound(kernel: PersistentKernel, operands: Sequence[Tensor], programs: int) -> BoundStep:
    """Return a kernel with tables for the batch of its operands, on their device.

    Arguments:
        kernel: the kernel.
        operands: x, [batch, width], and the others, in the order of their places.
        programs: the programs of each launch.

    Raises EventError if the batch has more rows than a tile, an operand has another type or other
    strides than the kernel takes, or checks refuse the table.
    """
    x = operands[0]
    batch = x.shape[0]
    if not 0 < batch <= ROWS:
        raise refuse(f"the Triton kernel takes 1 to {ROWS} rows, and these are {batch}")
    table = checked(kernel.graph, {BATCH: batch})
    buffers: dict[str, Tensor] = {}
    for grid in kernel.graph.grids:
        for name, width in written_by(grid):
            buffers[name] = x.new_full((batch, width), float("nan"))
    memory = _Memory(kernel.dtype, operands, {"x": x, **buffers})
    for grid in kernel.graph.grids:
        memory.check(grid)
    numbers = [
        [body, *map(memory.number, values.values())] for body, values in kernel.rows.values()
    ]
    rows = [[*row, *[0] * (kernel.row - len(row))] for row in numbers]
    made = {
        name: (torch.tensor(values, device=x.device)) for name, values in _tables(table).items()
    }
    made |= {
        "tickets": torch.zeros(1, dtype=torch.int64, device=x.device),
        "counters": torch.zeros(len(table.events), dtype=torch.int32, device=x.device),
        "grids": torch.tensor(rows, dtype=torch.int64, device=x.device),
    }
    typed = {n: each.to(_TYPES[ARGUMENTS[n]]) for n, each in made.items()}
    arguments: dict[str, Tensor | int] = {**typed, "batch": batch, "count": len(table.tasks)}
    return BoundStep(
        kernel, programs, table, operands, buffers, {name: arguments[name] for name in ARGUMENTS}
    )


_TYPES: Final = {"*i32": torch.int32, "*i64": torch.int64}


def _tables(table: TaskTable) -> dict[str, list[list[int]] | list[int]]:
    """Return the tables of tasks, waits and notes."""
    places = {grid.name: n for n, grid in enumerate(table.graph.grids)}
    waits = [0, *accumulate(map(len, table.waits))]
    notes = [0, *accumulate(map(len, table.notes))]
    tasks = [
        [places[task.grid.name], *(0, 0, *task.at)[-2:], *waits[n : n + 2], *notes[n : n + 2]]
        for n, task in enumerate(table.tasks)
    ]
    return {
        "tasks": tasks,
        "waits": [[*wait] for each in table.waits for wait in each],
        "notes": [note for each in table.notes for note in each],
    }


def written_by(grid: Grid) -> list[tuple[str, int]]:
    """Return the names of what a body writes, with the columns of each."""
    body = grid.body
    if isinstance(body, ProductBody):
        return [(body.out, body.weight.columns)]
    assert isinstance(body, AttentionBody)
    step = body.step
    new = step.groups * step.size
    return [(body.out, new * step.heads), *((name, new) for name in news_of(body).values())]


class _Memory:
    """The tensors of a step, by their places in it."""

    def __init__(
        self, dtype: torch.dtype, operands: Sequence[Tensor], named: Mapping[str, Tensor]
    ) -> None:
        self.dtype, self.operands, self.named = dtype, operands, named

    def number(self, given: GridNumber) -> int:
        match given:
            case int():
                return given
            case SizeOf(operand, dim):
                return self.operands[operand].shape[dim]
            case StrideOf(operand, dim, multiple):
                x = self.operands[operand]
                stride = 0 if x.shape[dim] == 1 else x.stride(dim)
                if stride % multiple:
                    raise refuse(f"operand {operand} has a stride that {multiple} does not divide")
                return stride // multiple
            case TensorAddress(of, offset, dtype):
                x = self.named[of] if isinstance(of, str) else self.operands[of]
                wanted = getattr(torch, dtype) if dtype else self.dtype
                if x.dtype != wanted:
                    raise refuse(f"operand {of} is {x.dtype}, and the kernel reads {wanted}")
                if not dtype and x.data_ptr() % ALIGNMENT:
                    raise refuse(
                        f"operand {of} begins at an address that {ALIGNMENT} does not divide"
                    )
                return x.data_ptr() + offset * x.element_size()

    def check(self, grid: Grid) -> None:
        """Raise EventError for operands of a body with strides or sizes that it does not take."""
        body = grid.body
        if isinstance(body, ProductBody):
            for matrix in (body.weight, body.gate):
                if matrix is not None:
                    self._matrix(matrix)
        elif isinstance(body, AttentionBody):
            self._attention(body)

    def _attention(self, body: AttentionBody) -> None:
        step, layer, batch = body.step, body.layer, self.operands[0].shape[0]
        keys, values, mask = (self.operands[n] for n in (layer.keys, layer.values, layer.mask))
        if keys.dim() != 4 or keys.shape != (batch, step.groups, keys.shape[2], step.size):
            raise refuse(f"operand {layer.keys} is no cache of this step")
        whole = batch, step.groups * step.heads, 1, keys.shape[2]
        if keys.shape != values.shape or not _broadcasts(mask, whole):
            raise refuse("keys, values and mask are not of one cache")
        angles = [self.operands[place] for place in layer.angles or ()]
        if not all(_broadcasts(x, (batch, *(1 for _ in x.shape[2:]), step.size)) for x in angles):
            raise refuse("angles are not those of whole heads")
        if any(x.stride(-1) != 1 and x.shape[-1] > 1 for x in (keys, values, mask, *angles)):
            raise refuse("elements of a row of the cache, the mask or angles are not side by side")

    def _matrix(self, matrix: MatrixOperand) -> None:
        x = self.operands[matrix.matrix]
        size = x.shape[1 if matrix.turned else 0]
        columns = x.shape[0 if matrix.turned else 1]
        fits = size == matrix.size and matrix.first + matrix.columns <= columns
        if not (x.is_contiguous() and fits):
            raise refuse(f"operand {matrix.matrix} is not the weight that the step describes")


def _broadcasts(x: Tensor, shape: Sequence[int]) -> bool:
    """Return whether a tensor has this shape, but for leading dimensions of 1."""
    fits = zip(x.shape, shape, strict=False)
    return x.dim() == len(shape) and x.shape[-1] == shape[-1] and all(n in (1, m) for n, m in fits)
