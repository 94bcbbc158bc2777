"""Products of rows with one of several matrices each: the linear layers of experts.

Gathering a matrix for every row copies far more than the product reads. This operator sorts the
rows by their matrix, multiplies each group by its matrix, and puts the results back in order.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pypm.kernels.support.registration import Gradients, custom_operator

__all__ = ["compute", "grouped_linear", "grouped_outer", "reference"]


def reference(x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    """Return x[i] @ weights[ids[i]] for each row i, [rows, out].

    Arguments:
        x: the rows, [rows, in].
        weights: the matrices, [matrices, in, out].
        ids: the matrix of each row, [rows]; integers, negative ones count from the end.
    """
    return torch.bmm(x[:, None], weights[ids])[:, 0]


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


def backward(x: Tensor, weights: Tensor, ids: Tensor, grad: Tensor) -> tuple[Tensor | None, ...]:
    of_weights = grouped_outer(x, grad, ids, weights.shape[0])
    return grouped_linear(grad, weights.mT, ids), of_weights, None


def outer_backward(
    x: Tensor, y: Tensor, ids: Tensor, count: int, grad: Tensor
) -> tuple[Tensor | None, ...]:
    return grouped_linear(y, grad.mT, ids), grouped_linear(x, grad, ids), None, None


def flops(x: torch.Size, weights: torch.Size, ids: object, *, out_shape: torch.Size) -> int:
    return 2 * weights[1] * out_shape.numel()


def outer_flops(
    x: torch.Size, y: torch.Size, ids: object, count: int, *, out_shape: torch.Size
) -> int:
    return 2 * x[1] * y.numel()


grouped_linear = custom_operator(
    "pypm::grouped_linear",
    compute,
    outputs=products_of,
    gradients=Gradients(backward),
    flops=flops,
)
grouped_outer = custom_operator(
    "pypm::grouped_outer",
    outer,
    outputs=sums_of,
    gradients=Gradients(outer_backward),
    flops=outer_flops,
)
