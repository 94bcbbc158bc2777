"""The operator `pypm::tile_kernel`: the results of a tile program, from its text and operands.

On a Hopper GPU `pypm.tiles.launch` runs the kernel. Elsewhere torch computes the results; within
`emulated`, the emulator executes the kernel's text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from math import ceil, prod
from typing import Final

import torch
from torch import Tensor

from pypm.kernels.support.registration import Gradients, InputGradients, custom_operator
from pypm.kernels.support.transforms import backward_of
from pypm.tiles.emit import Emitted, emitted
from pypm.tiles.emulator import Emulation, emulate
from pypm.tiles.launch import launched, placed
from pypm.tiles.meaning import meaning
from pypm.tiles.partition import Rings, partitioned
from pypm.tiles.program import DTYPES, DotTiles, TileError, TileOperand, TileProgram
from pypm.tiles.reading import parsed
from pypm.tiles.reference import sizes_of, whole

__all__ = ["emulated", "inputs_of", "kernel_for", "tile_kernel"]

_EMULATED: Final[ContextVar[list[tuple[Emitted, Emulation]] | None]] = ContextVar(
    "emulated", default=None
)


@contextmanager
def emulated() -> Iterator[list[tuple[Emitted, Emulation]]]:
    """Let calls on CPUs execute the kernel's text in the emulator; yield kernels and their runs.

    Two programs share the tiles of a call. Within the block a call raises what `emulate` does.
    """
    runs: list[tuple[Emitted, Emulation]] = []
    before = _EMULATED.set(runs)
    try:
        yield runs
    finally:
        _EMULATED.reset(before)


_parsed: Final = lru_cache(maxsize=256)(parsed)


@lru_cache(maxsize=256)
def kernel_for(program: str, rings: tuple[int, ...]) -> Emitted:
    """Return the kernel of a program, given as text, with rings, as the numbers of `Rings`.

    Raises TileError if the text is no program, or cannot be placed with these rings.
    """
    return emitted(partitioned(_parsed(program), Rings(*rings)))


def inputs_of(program: TileProgram) -> tuple[TileOperand, ...]:
    """Return the operands of a program that it does not store to."""
    return tuple(o for o in program.operands if o.name not in program.results)


# --- the operator --------------------------------------------------------------------------------


def reference(operands: Sequence[Tensor], program: str, rings: Sequence[int]) -> list[Tensor]:
    """Return the results of a tile program, in the order in which it stores them.

    Arguments:
        operands: a tensor for each operand of the program that is no result, in its order.
        program: the text of the program.
        rings: the numbers of `pypm.tiles.partition.Rings`, in its order.

    They are computed in float32, or the widest type of the operands if that is wider, and rounded
    once. Rows that no tile stores are zeros. Raises ValueError if `program` is no program, or the
    operands are not those of it.
    """
    types = (x.dtype for x in operands if x.is_floating_point() and x.itemsize > 1)
    wide = torch.float32
    for dtype in types:
        wide = torch.promote_types(wide, dtype)
    return _in(wide, operands, program)


def _in(dtype: torch.dtype, operands: Sequence[Tensor], text: str) -> list[Tensor]:
    program = _parsed(text)
    found = whole(program, _named(program, operands), dtype)
    orders = [_order(program, name, operands) for name in program.results]
    return [
        _ordered(found[name].to(DTYPES[program.operand(name).dtype]), order)
        for name, order in zip(program.results, orders, strict=True)
    ]


def compute(operands: Sequence[Tensor], program: str, rings: Sequence[int]) -> list[Tensor]:
    """Return what `reference` returns; within `emulated`, by the kernel's text."""
    runs = _EMULATED.get()
    if runs is None or operands[0].device.type != "cpu":
        return reference(operands, program, rings)
    kernel = kernel_for(program, (*rings,))
    made, results = kernel.source.program, empty(operands, program)
    for x in results:
        x.view(torch.uint8).fill_(0xFF)  # NaN in types that have it
    given = _named(made, operands) | dict(zip(made.results, results, strict=True))
    runs.append((kernel, emulate(kernel, placed(kernel, given), programs=2)))
    return results


def launch(operands: Sequence[Tensor], program: str, rings: Sequence[int]) -> list[Tensor]:
    """Return what `reference` returns, by the kernel; rows that no tile stores are uninitialized.

    Raises ValueError if the kernel does not take these operands, with the reason.
    """
    kernel = kernel_for(program, (*rings,))
    made, results = kernel.source.program, empty(operands, program)
    launched(kernel, _named(made, operands) | dict(zip(made.results, results, strict=True)))
    return results


def empty(operands: Sequence[Tensor], program: str) -> list[Tensor]:
    """Return empty results.

    One that has the sizes of an operand has its dimensions in the same order in memory.
    """
    made = _parsed(program)
    sizes = _sizes(made, operands)
    found = []
    for name in made.results:
        result, order = made.operand(name), _order(made, name, operands)
        shape = [sizes[made.operand(name).sizes[dim]] for dim in order]
        x = operands[0].new_empty(shape, dtype=DTYPES[result.dtype])
        found.append(x.permute([order.index(dim) for dim in range(len(order))]))
    return found


def _sizes(program: TileProgram, operands: Sequence[Tensor]) -> dict[str, int]:
    inputs = replace(program, operands=inputs_of(program))
    return sizes_of(inputs, _named(program, operands))


def _order(program: TileProgram, name: str, operands: Sequence[Tensor]) -> list[int]:
    """Return the dimensions of a result from the outermost to the innermost one in memory."""
    sizes = program.operand(name).sizes
    dims = [*range(len(sizes))]
    for operand, x in zip(inputs_of(program), operands, strict=True):
        if operand.sizes == sizes and len(sizes) > 2:
            return [*sorted(dims[:-1], key=lambda dim: -x.stride()[dim]), dims[-1]]
    return dims


def _ordered(x: Tensor, order: Sequence[int]) -> Tensor:
    """Return a tensor whose dimensions have this order in memory."""
    back = [order.index(dim) for dim in range(len(order))]
    return x.permute([*order]).contiguous().permute(back)


def _named(program: TileProgram, operands: Sequence[Tensor]) -> dict[str, Tensor]:
    names = (operand.name for operand in inputs_of(program))
    return dict(zip(names, operands, strict=True))


def misfit(operands: Sequence[Tensor], program: str) -> str | None:
    """Return why a program has no results with these operands; None if it has them."""
    try:
        made = _parsed(program)
    except TileError as error:
        return error.diagnostic.message
    inputs = inputs_of(made)
    if len(inputs) != len(operands):
        return f"the program has {len(inputs)} operands, and {len(operands)} are given"
    known = {size for operand in inputs for size in operand.sizes}
    for name in made.results:
        for size in made.operand(name).sizes:
            if size not in known and not size.isdigit():
                return f"no operand has the size {size} of the result"
    try:
        _sizes(made, operands)
    except ValueError as error:
        return str(error)
    return None


def flops(
    operands: Sequence[Sequence[int]], program: str, rings: Sequence[int],
    out_shape: Sequence[Sequence[int]] | None = None,
) -> int:  # fmt: skip
    """Return the FLOPs of the products in all tiles, from the shapes of the operands.

    Blocks that the loop does not visit, and rows of other segments, are not counted.
    """
    made = _parsed(program)
    dims, sizes = meaning(made), {"1": 1}
    for operand, shape in zip(inputs_of(made), operands, strict=True):
        sizes.update(zip(operand.sizes, shape, strict=True))
    sizes.update((axis.of, int(axis.of)) for axis in made.axes.values() if axis.of.isdigit())
    total = 0.0
    for statement in made.statements:
        if isinstance(statement, DotTiles):
            names = {*dims[statement.left], *dims[statement.right]} - {"1"}
            others = (axis for axis in made.grid if axis.name not in names)
            tiles = prod(ceil(sizes[axis.of] / axis.block) for axis in others)
            total += 2 * tiles * prod(sizes[made.axes[name].of] for name in names)
    return round(total * _visited(made, sizes))


def _visited(program: TileProgram, sizes: Mapping[str, int]) -> float:
    """Return the share of the loop's blocks that tiles visit."""
    loop, visits = program.loop, program.visits
    if loop is None or visits is None:
        return 1.0
    rows, size = program.axes[visits.axis], sizes[loop.of]
    starts = range(0, sizes[rows.of], rows.block)
    count = len(starts) * ceil(size / loop.block)
    return sum(len(visits.turns(at, loop.block, size)) for at in starts) / count if count else 1.0


def backward(
    operands: Sequence[Tensor], program: str, rings: Sequence[int], grads: Sequence[Tensor]
) -> InputGradients:
    """Return the gradients, of the program computed by torch in the type of the first operand.

    Products of bfloat16 or float16 stay so, as those of torch's own backward pass.
    """

    def in_its_type(operands: Sequence[Tensor], program: str) -> list[Tensor]:
        return _in(operands[0].dtype, operands, program)

    return (*backward_of(in_its_type)(operands, program, grads), None)


tile_kernel = custom_operator(
    "pypm::tile_kernel",
    compute,
    outputs=empty,
    operands={"operands": "[*] any..."},
    requires=misfit,
    launch=launch,
    reference=reference,
    gradients=Gradients(backward),
    flops=flops,
)
