"""The operator `pypm::tile_kernel`: the result of a tile program, from its text and operands.

On a Hopper GPU `pypm.tiles.launch` runs the kernel. Elsewhere torch computes the result, or, within
`emulated`, the emulator executes the kernel's text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Final

import torch
from torch import Tensor

from pypm.kernels.support.registration import Gradients, InputGradients, custom_operator
from pypm.kernels.support.transforms import backward_of
from pypm.tiles.emit import Emitted, emitted
from pypm.tiles.emulator import Emulation, emulate
from pypm.tiles.launch import launched
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


def reference(operands: Sequence[Tensor], program: str, rings: Sequence[int]) -> Tensor:
    """Return the result of a tile program, [rows, columns].

    Arguments:
        operands: a matrix for each operand of the program but the result, in its order.
        program: the text of the program, which has one result.
        rings: the numbers of `pypm.tiles.partition.Rings`, in its order.

    It is computed in float32, or the widest type of the operands if that is wider, and rounded
    once. Raises ValueError if `program` is no program, or the operands are not those of it.
    """
    types = (x.dtype for x in operands if x.is_floating_point())
    wide = torch.float32
    for dtype in types:
        wide = torch.promote_types(wide, dtype)
    return _in(wide, operands, program)


def _in(dtype: torch.dtype, operands: Sequence[Tensor], text: str) -> Tensor:
    program = _parsed(text)
    result = program.operand(program.results[0])
    found = whole(program, _named(program, operands), dtype)[result.name]
    return found.to(DTYPES[result.dtype]).contiguous()


def compute(operands: Sequence[Tensor], program: str, rings: Sequence[int]) -> Tensor:
    """Return what `reference` returns; within `emulated`, by the kernel's text."""
    runs = _EMULATED.get()
    if runs is None or operands[0].device.type != "cpu":
        return reference(operands, program, rings)
    kernel = kernel_for(program, (*rings,))
    made, out = kernel.source.program, empty(operands, program)
    given = {**_named(made, operands), made.results[0]: out.fill_(float("nan"))}
    runs.append((kernel, emulate(kernel, given, programs=2)))
    return out


def launch(operands: Sequence[Tensor], program: str, rings: Sequence[int]) -> Tensor:
    """Return what `reference` returns, by the kernel. Raises ValueError if it does not take these
    operands, with the reason.
    """
    kernel = kernel_for(program, (*rings,))
    made, out = kernel.source.program, empty(operands, program)
    launched(kernel, {**_named(made, operands), made.results[0]: out})
    return out


def empty(operands: Sequence[Tensor], program: str) -> Tensor:
    """Return an empty result."""
    made = _parsed(program)
    result, sizes = made.operand(made.results[0]), {"1": 1}
    for operand, x in zip(inputs_of(made), operands, strict=True):
        sizes.update(zip(operand.sizes, x.shape, strict=True))
    shape = [sizes[name] for name in result.sizes]
    return operands[0].new_empty(shape, dtype=DTYPES[result.dtype])


def _named(program: TileProgram, operands: Sequence[Tensor]) -> Mapping[str, Tensor]:
    names = (operand.name for operand in inputs_of(program))
    return dict(zip(names, operands, strict=True))


def misfit(operands: Sequence[Tensor], program: str) -> str | None:
    """Return why a program has no result with these operands; None if it has one."""
    try:
        made = _parsed(program)
    except TileError as error:
        return error.diagnostic.message
    inputs = inputs_of(made)
    if len(made.results) != 1:
        return f"the program has {len(made.results)} results, and must have one"
    if len(inputs) != len(operands):
        return f"the program has {len(inputs)} operands, and {len(operands)} are given"
    known = {size for operand in inputs for size in operand.sizes}
    for name in made.operand(made.results[0]).sizes:
        if name not in known:
            return f"no operand has the size {name} of the result"
    try:
        sizes_of(replace(made, operands=inputs), _named(made, operands))
    except ValueError as error:
        return str(error)
    return None


def flops(
    operands: Sequence[Sequence[int]], program: str, rings: Sequence[int],
    out_shape: Sequence[int] | None = None,
) -> int:  # fmt: skip
    """Return the FLOPs of the products, from the shapes of the operands."""
    made = _parsed(program)
    dims, sizes = meaning(made), {"1": 1}
    for operand, shape in zip(inputs_of(made), operands, strict=True):
        sizes.update(zip(operand.sizes, shape, strict=True))
    total = 0
    for statement in made.statements:
        if isinstance(statement, DotTiles):
            names = {*dims[statement.left], *dims[statement.right]} - {"1"}
            total += 2 * prod(sizes[made.axes[name].of] for name in names)
    return total


def backward(
    operands: Sequence[Tensor], program: str, rings: Sequence[int], grad: Tensor
) -> InputGradients:
    """Return the gradients, of the program computed by torch in the type of the first operand.

    Products of bfloat16 or float16 stay so, as those of torch's own backward pass.
    """

    def in_its_type(operands: Sequence[Tensor], program: str) -> Tensor:
        return _in(operands[0].dtype, operands, program)

    return (*backward_of(in_its_type)(operands, program, grad), None)


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
