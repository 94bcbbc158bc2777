"""A matrix product and its epilogue in one kernel, whose epilogue is generated.

The epilogue is a program of `pypm.kernels.support.pointwise`, applied to the accumulator in
registers: the product itself is neither rounded nor stored. On CPUs `reference` runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import torch
from torch import Tensor

from pypm.kernels.support.pointwise import evaluate, generated, parse
from pypm.kernels.support.registration import Gradients, InputGradients, custom_operator
from pypm.kernels.support.triton import jit, missing, precision, tl

__all__ = [
    "GROUP",
    "ProductTile",
    "fitting",
    "gemm_epilogue",
    "kernel",
    "launch",
    "ordered",
    "reference",
    "tile",
    "unsupported",
]


def unsupported(a: Tensor, b: Tensor, sides: Sequence[Tensor]) -> str | None:
    """Return why the kernel does not take these operands, or None."""
    if any(x.device != a.device for x in sides):
        return "the operands are on several devices"
    return missing(a, b, *(x for x in sides if x.dtype != torch.bool))


# --- on GPUs -------------------------------------------------------------------------------------


class ProductTile(NamedTuple):
    """Shape of the tile that one program computes, its warps and its pipelined loads."""

    m: int
    n: int
    k: int
    warps: int
    stages: int


GROUP: Final = 8
"""Number of consecutive tiles in a column, which share columns of b in the cache."""


def tile(m: int, n: int, size: int) -> ProductTile:
    """Return the tile for a product [m, n] of elements of `size` bytes."""
    if size == 4:
        return ProductTile(64, 64, 32, 4, 3) if m > 32 else ProductTile(16, 64, 64, 4, 3)
    if m <= 32:
        return ProductTile(16 if m <= 16 else 32, 64, 128, 4, 4)
    if m <= 64 or m * n <= 2048 * 2048:
        return ProductTile(64, 128, 64, 4, 4)
    return ProductTile(128, 128, 64, 8, 4)


def fitting(at: ProductTile, x: Tensor) -> ProductTile:
    """Return the tile with as many pipelined loads of elements of x as its device has room for."""
    if x.device.type != "cuda":
        return at
    known = torch.cuda.get_device_properties(x.device)
    room = known.shared_memory_per_block_optin  # type: ignore[attr-defined]
    loaded = (at.m + at.n) * at.k * x.element_size()
    return at._replace(stages=max(1, min(at.stages, room // loaded)))


@jit
def ordered(program, rows, columns, together):
    """Return the row and column of a tile: `together` of a column, then those to their right."""
    first = program // (together * columns) * together
    height = min(rows - first, together)
    inside = program % (together * columns)
    return first + inside % height, inside // height


@jit
def kernel(
    a, b, out, sides, steps, m, n, k, a_row, a_column, b_row, b_column, epilogue: tl.constexpr,
    precision: tl.constexpr, tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr,
    group: tl.constexpr,
):  # fmt: skip
    """Compute one tile for each program; `group` tiles in a column, then those to their right."""
    row, column = ordered(tl.program_id(0), tl.cdiv(m, tile_m), tl.cdiv(n, tile_n), group)
    row, column = row * tile_m, column * tile_n
    rows = row + tl.arange(0, tile_m).to(tl.int64)[:, None]
    columns = column + tl.arange(0, tile_n).to(tl.int64)[None, :]
    in_rows, in_columns = rows < m, columns < n
    acc = tl.zeros((tile_m, tile_n), dtype=tl.float32)
    for start in range(0, k, tile_k):
        depth = start + tl.arange(0, tile_k).to(tl.int64)
        down, across = depth[:, None], depth[None, :]
        x = tl.load(a + rows * a_row + across * a_column, in_rows & (across < k), 0.0)
        y = tl.load(b + down * b_row + columns * b_column, in_columns & (down < k), 0.0)
        acc = tl.dot(x, y, acc, input_precision=precision)
    result = epilogue(acc, rows, columns, in_rows, in_columns, sides, steps)
    tl.store(out + rows * n + columns, result, mask=in_rows & in_columns)


def launch(
    a: Tensor, b: Tensor, sides: Sequence[Tensor], program: str, dtype: torch.dtype
) -> Tensor:
    """Return what `reference` returns, by the kernel.

    Raises ValueError if a side input has another shape.
    """
    (m, k), (_, n), out = a.shape, b.shape, empty(a, b, dtype)
    if not out.numel():
        return out
    epilogue = generated(program, tuple(_form(side, m, n) for side in sides))
    steps = tuple(stride for side in sides for stride in side.stride())
    at = fitting(tile(m, n, a.element_size()), a)
    kernel[(-(-m // at.m) * -(-n // at.n),)](
        a, b, out, tuple(sides), steps, m, n, k, *a.stride(), *b.stride(), epilogue, precision(),
        at.m, at.n, at.k, GROUP, num_warps=at.warps, num_stages=at.stages,
    )  # fmt: skip
    return out


def _form(side: Tensor, m: int, n: int) -> str:
    rows, columns = side.shape
    if rows not in (1, m) or columns not in (1, n):
        raise ValueError(f"a side input {rows} x {columns} of a product {m} x {n}")
    if rows > 1:
        return "full" if columns > 1 else "column"
    return "row" if columns > 1 else "one"


# --- the operator --------------------------------------------------------------------------------


def reference(
    a: Tensor, b: Tensor, sides: Sequence[Tensor], program: str, dtype: torch.dtype
) -> Tensor:
    """Return a [M, K] times b [K, N], after the epilogue `program`, as [M, N] of type `dtype`.

    The product and the epilogue are computed in float32 or wider and rounded once. The side inputs
    are [M, N], [1, N], [M, 1] or [1, 1]. Raises ValueError if `program` does not parse.
    """
    wide = torch.promote_types(a.dtype, torch.float32)
    return evaluate(program, a.to(wide) @ b.to(wide), sides).to(dtype).contiguous()


def empty(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty((a.shape[0], b.shape[1]), dtype=dtype, device=a.device)


def backward(
    a: Tensor, b: Tensor, sides: list[Tensor], program: str, dtype: torch.dtype, grad: Tensor
) -> InputGradients:
    """Return the gradients; the epilogue is computed again and differentiated by torch."""
    wide = torch.promote_types(a.dtype, torch.float32)
    floats = [i for i, side in enumerate(sides) if side.is_floating_point()]

    def follow(acc: Tensor, *given: Tensor) -> Tensor:
        found = dict(zip(floats, given, strict=True))
        return evaluate(program, acc, [found.get(i, side) for i, side in enumerate(sides)])

    leaves = [(a @ b).to(wide), *(sides[i].to(wide) for i in floats)]
    _, pull = torch.func.vjp(follow, *leaves)  # type: ignore[misc]
    to_acc, *rest = pull(grad.to(wide))
    to_sides: list[Tensor | None] = [None] * len(sides)
    for i, found in zip(floats, rest, strict=True):
        to_sides[i] = found.to(sides[i].dtype)
    to_acc = to_acc.to(a.dtype)
    return to_acc @ b.t(), a.t() @ to_acc, to_sides, None, None


def flops(
    a: Sequence[int], b: Sequence[int], *rest: object, out_shape: Sequence[int] | None = None
) -> int:
    """Return the FLOPs of the product, from the shapes of its operands."""
    return 2 * a[0] * a[1] * b[1]


def misfit(sides: Sequence[Tensor], program: str) -> str | None:
    """Return which side input `program` reads that there is not; None if there are all.

    Raises ValueError if `program` does not parse.
    """
    read = {a for step in parse(program) for a in step.arguments if isinstance(a, str)}
    missing = sorted(a for a in read if a[0] in "sm" and int(a[1:]) >= len(sides))
    needed = f"it must have {int(missing[0][1:]) + 1} or more" if missing else ""
    return needed and f"`program` reads {missing[0]}, and `sides` has {len(sides)}; {needed}"


gemm_epilogue = custom_operator(
    "pypm::gemm_epilogue",
    reference,
    outputs=empty,
    operands={"a": "[m, k] T", "b": "[k, n] T", "sides": "[m|1, n|1] any..."},
    requires=misfit,
    launch=launch,
    gradients=Gradients(backward),
    flops=flops,
)
