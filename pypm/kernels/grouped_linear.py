"""Products of rows with one of several matrices each: the linear layers of experts.

Gathering a matrix for every row copies far more than the product reads. This operator sorts the
rows by their matrix, multiplies each group by its matrix, and puts the results back in order. On
GPUs, one kernel computes all groups, and nothing waits for their sizes.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pypm.kernels.support.product_tiles import GROUP, ProductTile, fitting, ordered, tile
from pypm.kernels.support.registration import Gradients, custom_operator
from pypm.kernels.support.triton import computes_in, jit, precision, tl, triton

__all__ = [
    "compute",
    "grouped_linear",
    "grouped_outer",
    "kernel",
    "launch",
    "launch_outer",
    "outer",
    "outer_kernel",
    "reference",
]


def reference(x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    """Return x[i] @ weights[ids[i]] for each row i, [rows, out].

    Arguments:
        x: the rows, [rows, in].
        weights: the matrices, [matrices, in, out].
        ids: the matrix of each row, [rows]; integers, negative ones count from the end.
    """
    return torch.bmm(x[:, None], weights[ids])[:, 0]


def reference_of_outer(x: Tensor, y: Tensor, ids: Tensor, count: int) -> Tensor:
    """Return what `outer` returns, from the product of each row."""
    places = torch.where(ids < 0, ids + count, ids)
    return sums_of(x, y, count).zero_().index_add(0, places, x[:, :, None] * y[:, None])


def compute(x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    """Return what `reference` returns. Raises IndexError if a matrix does not exist."""
    order, groups = grouped(ids, len(weights))
    products = products_of(x, weights)
    for n, part in groups:
        rows = order[part]
        products.index_copy_(0, rows, torch.mm(x.index_select(0, rows), weights[n]))
    return products


def products_of(x: Tensor, weights: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weights.shape[2])


def outer(x: Tensor, y: Tensor, ids: Tensor, count: int) -> Tensor:
    """Return, for each of `count` matrices, the sum of the outer products of its rows.

    Arguments:
        x, y: the rows, [rows, in] and [rows, out].
        ids: as in `reference`.
        count: the number of matrices; the result is [count, in, out].
    """
    order, groups = grouped(ids, count)
    left, right = x.index_select(0, order).t(), y.index_select(0, order)
    sums = sums_of(x, y, count).zero_()
    for n, part in groups:
        torch.mm(left[:, part], right[part], out=sums[n])
    return sums


def sums_of(x: Tensor, y: Tensor, count: int) -> Tensor:
    return x.new_empty(count, x.shape[1], y.shape[1])


def grouped(ids: Tensor, count: int) -> tuple[Tensor, Iterator[tuple[int, slice]]]:
    """Return the order of rows by matrix, and each matrix that has rows, with its part of them.

    Raises IndexError if one of `ids` is none of `count` matrices.
    """
    places = torch.where(ids < 0, ids + count, ids)
    ordered, order = places.sort(stable=True)
    if len(ids) and not 0 <= ordered[0] <= ordered[-1] < count:
        wrong = ids[(places < 0) | (places >= count)][0]
        raise IndexError(f"index {wrong} is out of bounds for dimension 0 with size {count}")
    sizes = torch.bincount(places, minlength=count).tolist()

    def groups() -> Iterator[tuple[int, slice]]:
        start = 0
        for n, size in enumerate(sizes):
            if size:
                yield n, slice(start, start + size)
            start += size

    return order, groups()


# --- on GPUs -------------------------------------------------------------------------------------


@jit
def kernel(
    x, weights, out, order, groups, count, k, n, x_row, x_column, w_matrix, w_row, w_column,
    precision: tl.constexpr, tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr,
    together: tl.constexpr,
):  # fmt: skip
    """Compute up to `tile_m` rows of one matrix, of the `count` that `groups` names, in one tile of
    columns; `together` of them, then those to their right.
    """
    row, column = ordered(tl.program_id(0), count, tl.cdiv(n, tile_n), together)
    group = groups + row * 3
    matrix, begin, end = tl.load(group), tl.load(group + 1), tl.load(group + 2)
    if begin < end:
        place = begin + tl.arange(0, tile_m)
        rows = tl.load(order + place, place < end, 0)[:, None]
        in_rows = (place < end)[:, None]
        columns = column.to(tl.int64) * tile_n + tl.arange(0, tile_n)[None, :]
        in_columns = columns < n
        acc = tl.zeros((tile_m, tile_n), tl.float32)
        for start in range(0, k, tile_k):
            depth = start + tl.arange(0, tile_k).to(tl.int64)
            down, across = depth[:, None], depth[None, :]
            left = tl.load(x + rows * x_row + across * x_column, in_rows & (across < k), 0.0)
            right = tl.load(
                weights + matrix * w_matrix + down * w_row + columns * w_column,
                in_columns & (down < k), 0.0,
            )  # fmt: skip
            acc = tl.dot(left, right, acc, input_precision=precision)
        tl.store(out + rows * n + columns, acc, in_rows & in_columns)


@jit
def outer_kernel(
    x, y, out, order, starts, m, n, x_row, x_column, y_row, y_column,
    precision: tl.constexpr, tile_m: tl.constexpr, tile_n: tl.constexpr, tile_k: tl.constexpr,
):  # fmt: skip
    """Compute one tile of the sum of one matrix, `tile_k` of its rows at a time."""
    matrix = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(starts + matrix), tl.load(starts + matrix + 1)
    down = tl.program_id(1).to(tl.int64) * tile_m + tl.arange(0, tile_m)[:, None]
    columns = tl.program_id(2).to(tl.int64) * tile_n + tl.arange(0, tile_n)[None, :]
    in_down, in_columns = down < m, columns < n
    acc = tl.zeros((tile_m, tile_n), tl.float32)
    for start in range(begin, end, tile_k):
        place = start + tl.arange(0, tile_k)
        known = place < end
        rows = tl.load(order + place, known, 0)
        left = tl.load(x + rows[None, :] * x_row + down * x_column, in_down & known[None, :], 0.0)
        right = tl.load(
            y + rows[:, None] * y_row + columns * y_column, in_columns & known[:, None], 0.0
        )
        acc = tl.dot(left, right, acc, input_precision=precision)
    tl.store(out + (matrix * m + down) * n + columns, acc, in_down & in_columns)


def tile_of(rows: int, n: int, size: int) -> ProductTile:
    """Return the tile for matrices of n columns, each of which `rows` rows have in the mean.

    A matrix is read again for each tile of its rows, so that most have no more than one.
    """
    if size == 4:
        return tile(rows, n, size)
    if rows <= 10:
        return ProductTile(16, 128, 128, 4, 4)
    if rows <= 21:
        return ProductTile(32, 128, 128, 4, 3)
    if rows <= 42:
        return ProductTile(64, 128, 64, 4, 4)
    return ProductTile(128, 256, 64, 8, 4)


def launch(x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    """Return what `reference` returns, by the kernel; in other types than its own, by `compute`."""
    out = products_of(x, weights)
    if not fits(x, weights) or not out.numel():
        return compute(x, weights, ids)
    (rows, k), (count, _, n) = x.shape, weights.shape
    at = fitting(tile_of(-(-rows // count), n, x.element_size()), x)
    order, starts = places_of(ids, count)
    blocks = (starts.diff() + at.m - 1) // at.m
    ends = blocks.cumsum(0)
    number = torch.arange(rows // at.m + min(rows, count), device=x.device)
    matrix = torch.searchsorted(ends, number, right=True).clamp_(max=count - 1)
    begin = starts[matrix] + (number - (ends - blocks)[matrix]) * at.m  # behind its end: none left
    groups = torch.stack([matrix, begin, starts[matrix + 1]], 1)
    kernel[(len(groups) * -(-n // at.n),)](
        x, weights, out, order, groups, len(groups), k, n, *x.stride(), *weights.stride(),
        precision(), at.m, at.n, at.k, GROUP, num_warps=at.warps, num_stages=at.stages,
    )  # fmt: skip
    return out


def launch_outer(x: Tensor, y: Tensor, ids: Tensor, count: int) -> Tensor:
    """Return what `outer` returns, by the kernel; in other types than its own, by `outer`."""
    out = sums_of(x, y, count)
    if not fits(x, y) or not out.numel():
        return outer(x, y, ids, count)
    (_, m), n = x.shape, y.shape[1]
    at = fitting(tile(m, n, x.element_size()), x)
    order, starts = places_of(ids, count)
    outer_kernel[count, -(-m // at.m), -(-n // at.n)](
        x, y, out, order, starts, m, n, *x.stride(), *y.stride(), precision(),
        at.m, at.n, at.k, num_warps=at.warps, num_stages=at.stages,
    )  # fmt: skip
    return out


def fits(x: Tensor, y: Tensor) -> bool:
    return triton is not None and x.dtype == y.dtype and computes_in(x.dtype)


def places_of(ids: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the order of rows by matrix; where each matrix begins there, and the end.

    Indexing raises where a matrix does not exist: on GPUs at the next wait for the device.
    """
    numbers = torch.arange(count + 1, device=ids.device)
    ordered, order = numbers[:count][ids].sort(stable=True)
    return order, torch.searchsorted(ordered, numbers)


# --- the operators -------------------------------------------------------------------------------


def backward(x: Tensor, weights: Tensor, ids: Tensor, grad: Tensor) -> tuple[Tensor | None, ...]:
    of_weights = grouped_outer(x, grad, ids, weights.shape[0])
    return grouped_linear(grad, weights.mT, ids), of_weights, None


def outer_backward(
    x: Tensor, y: Tensor, ids: Tensor, count: int, grad: Tensor
) -> tuple[Tensor | None, ...]:
    return grouped_linear(y, grad.mT, ids), grouped_linear(x, grad, ids), None, None


def flops(x: torch.Size, weights: torch.Size, ids: torch.Size, *, out_shape: torch.Size) -> int:
    return 2 * weights[1] * out_shape.numel()


def outer_flops(
    x: torch.Size, y: torch.Size, ids: torch.Size, count: int, *, out_shape: torch.Size
) -> int:
    return 2 * x[1] * y.numel()


grouped_linear = custom_operator(
    "pypm::grouped_linear",
    compute,
    outputs=products_of,
    operands={"x": "[rows, in] T", "weights": "[matrices, in, out] T", "ids": "[rows] index"},
    launch=launch,
    reference=reference,
    gradients=Gradients(backward),
    flops=flops,
)
grouped_outer = custom_operator(
    "pypm::grouped_outer",
    outer,
    outputs=sums_of,
    operands={"x": "[rows, in] T", "y": "[rows, out] T", "ids": "[rows] index"},
    launch=launch_outer,
    reference=reference_of_outer,
    gradients=Gradients(outer_backward),
    flops=outer_flops,
)
