"""Products with one of several matrices for each row by Triton: interpreted, built, on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from pypm.kernels.grouped_linear import (
    compute,
    grouped_linear,
    grouped_outer,
    kernel,
    launch,
    launch_outer,
    outer,
    outer_kernel,
    reference,
    tile_of,
)
from pypm.kernels.support.product_tiles import GROUP, tile
from tests.axes import axes
from tests.kernels.triton_checks import agree, built, launches, needs_triton, spilled

torch.set_num_threads(1)

TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}
IDS = {
    "all matrices": [2, 0, 2, 2, 3, 0, 2],
    "from the end": [-1, 0, 3, -4, 1, -2, 2],
    "the last alone": [3] * 40,
    "many": [i * i % 7 % 4 for i in range(150)],
    "one row": [1],
    "no rows": [],
}


def normal(*shape: int, dtype: torch.dtype, device: str) -> Tensor:
    made = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=made).to(device, dtype)


def operands(device: str) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Rows, matrices and ids. The interpreter's products of bfloat16 are wrong."""
    for dtype in TOLERANCES if device != "cpu" else (torch.float32, torch.float16):
        for ids in IDS.values():
            count, chosen = len(ids), torch.tensor(ids, dtype=torch.int64, device=device)
            x = normal(count, 40, dtype=dtype, device=device)
            w = normal(4, 40, 70, dtype=dtype, device=device) / 40**0.5
            yield x, w, chosen
            yield x.t().contiguous().t(), w.mT.contiguous().mT, chosen.int()
            yield x[:, 1::2], w[:, ::2, :5], chosen
        yield x.new_ones(3, 0), w[:, :0], torch.tensor([1, 0, 1], device=device)
    yield x.double(), w.double(), chosen


def products(device: str) -> Iterator[tuple[Any, ...]]:
    return operands(device)


def sums(device: str) -> Iterator[tuple[Any, ...]]:
    """Arguments of `launch_outer`."""
    for x, w, ids in operands(device):
        yield x, normal(len(x), w.shape[2], dtype=x.dtype, device=device), ids, len(w)


def check_products(device: str) -> None:
    for x, w, ids in products(device):
        tolerance = TOLERANCES.get(x.dtype, 1e-12)
        agree(launch(x, w, ids), reference(x.double(), w.double(), ids), x.dtype, tolerance)


def check_sums(device: str) -> None:
    for x, y, ids, count in sums(device):
        found = launch_outer(x, y, ids, count)
        exact = outer(x.double(), y.double(), ids, count)
        scale = max(1.0, exact.abs().max().item() if exact.numel() else 0.0)
        agree(found / scale, exact / scale, x.dtype, TOLERANCES.get(x.dtype, 1e-12))


test_products_in_the_interpreter, test_products_on_a_gpu = launches(
    check_products, products, grouped_linear, launch
)
test_sums_in_the_interpreter, test_sums_on_a_gpu = launches(
    check_sums, sums, grouped_outer, launch_outer
)


@needs_triton
@axes(dtype=["*fp16", "*fp32", "*bf16"], rows=[4096, 48, 24, 1])
def test_built_for_hopper(dtype: str, rows: int) -> None:
    size = 4 if dtype == "*fp32" else 2
    of_all = {
        **dict.fromkeys(("x", "out"), dtype), **dict.fromkeys(("n", "x_row"), "i32"),
        "order": "*i64", "x_column": 1,
    }  # fmt: skip
    of_products = {
        "weights": dtype, "groups": "*i64", **dict.fromkeys(("count", "k", "w_matrix"), "i32"),
        "together": GROUP,
    }  # fmt: skip
    of_sums = {"y": dtype, "starts": "*i64", "m": "i32", "y_row": "i32", "y_column": 1}
    for each, at, others in (
        (kernel, tile_of(rows, 4096, size), of_products | {"w_row": "i32", "w_column": 1}),
        (kernel, tile_of(rows, 4096, size), of_products | {"w_row": 1, "w_column": "i32"}),
        (outer_kernel, tile(rows, 4096, size), of_sums),
    ):
        given = of_all | others | {"tile_m": at.m, "tile_n": at.n, "tile_k": at.k}
        ptx = built(each, given, at.warps, stages=at.stages, aligned=True, precision="ieee")
        assert (spilled(ptx), "mma" in ptx) == (0, dtype != "*fp32")


@needs_triton
def test_types_that_disagree_raise_as_without_the_kernel() -> None:
    x, w, ids = next(operands("cpu"))
    for function in (compute, launch):
        with pytest.raises(RuntimeError, match="dtype"):
            function(x.half(), w, ids)
