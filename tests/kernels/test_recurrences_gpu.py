"""Loops over states by Triton: interpreted, built for Hopper, and on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.torch_version import TorchVersion

from pypm.kernels import linear_attention, linear_attention_gpu, recurrence, scan, wkv
from tests.axes import axes
from tests.kernels.triton_checks import agree, built, launches, needs_triton, spilled

torch.set_num_threads(1)

TOLERANCES = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}
TYPES = ["*fp32", "*fp16", "*bf16"]


def normal(*shape: int) -> Tensor:
    made = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=made, dtype=torch.float64)


def types(device: str) -> list[torch.dtype]:
    """Types of the kernels. What the interpreter makes of bfloat16 is cut off."""
    return [x for x in TOLERANCES if device != "cpu" or x != torch.bfloat16]


def on(device: str, dtype: torch.dtype, case: tuple[Any, ...]) -> tuple[Any, ...]:
    """The tensors of a case in a type and on a device, in their strides."""
    return tuple(x.to(device, dtype) if isinstance(x, Tensor) else x for x in case)


def of_all_types(device: str, cases: Any) -> Iterator[tuple[Any, ...]]:
    for dtype in types(device):
        yield from (on(device, dtype, case) for case in cases())
    yield on(device, torch.float64, next(cases()))


def exact(function: Any, case: tuple[Any, ...]) -> Any:
    return function(*(x.double() if isinstance(x, Tensor) else x for x in case))


# --- recurrences ---------------------------------------------------------------------------------


def recurrences_of() -> Iterator[tuple[Tensor, Tensor, Tensor, bool]]:
    shapes = ((5, 3, 4), (35, 37), (2, 2, 3, 2, 3), (3,), (1, 1, 1), (1, 40), (0, 2), (2, 0))
    for i, shape in enumerate(shapes):
        yield normal(*shape).sigmoid(), normal(*shape), normal(*shape[1:]), i % 2 == 0
    a, b, h = normal(2, 3, 6, 4).sigmoid(), normal(2, 6, 3, 4), normal(2, 3, 4)
    yield a.movedim(2, 0), b.movedim(1, 0), h, False
    yield a.movedim(2, 0)[..., :1].expand(6, 2, 3, 4), b.movedim(1, 0).flip(-1), h, True
    yield a[0, 0, 0, 0].expand(6, 2, 3, 4), b.mT.movedim(1, 0).mT, h.mT.contiguous().mT, False
    yield a.movedim(2, 0)[::2], b.movedim(1, 0)[1::2], h, True
    five = normal(3, 5, 2, 3, 4).permute(2, 0, 4, 1, 3)
    yield five.sigmoid(), normal(2, 3, 4, 3, 5).mT, normal(3, 4, 5, 3), False


def recurrences_on(device: str) -> Iterator[tuple[Any, ...]]:
    return of_all_types(device, recurrences_of)


def check_recurrences(device: str) -> None:
    for case in recurrences_on(device):
        dtype = case[1].dtype
        found = recurrence.launch(*case)
        assert found.is_contiguous()
        agree(found, exact(recurrence.reference, case), dtype, TOLERANCES.get(dtype, 1e-12))


test_recurrences_in_the_interpreter, test_recurrences_on_a_gpu = launches(
    check_recurrences, recurrences_on, recurrence.linear_recurrence, recurrence.launch
)


@needs_triton
@axes(dtype=TYPES, programs=[1, 4096])
def test_recurrences_built_for_hopper(dtype: str, programs: int) -> None:
    given = {
        **dict.fromkeys(recurrence.kernel.arg_names, "i32"),
        **dict.fromkeys(("a", "b", "h", "out"), dtype), "reverse": True,
        "block": recurrence.BLOCK, "unroll": recurrence.unroll(programs),
    }  # fmt: skip
    assert spilled(built(recurrence.kernel, given, 1, aligned=True)) == 0


# --- scans ---------------------------------------------------------------------------------------


def scans_of() -> Iterator[tuple[Tensor, ...]]:
    for steps, batch, rows, n in (
        (5, 2, 6, 4), (19, 1, 37, 16), (1, 3, 1, 1), (2, 2, 3, 100), (0, 2, 3, 4), (2, 0, 3, 4),
    ):  # fmt: skip
        a, b = normal(steps, batch, rows, n).sigmoid(), normal(steps, batch, rows, n)
        yield a, b, normal(steps, batch, n), normal(batch, rows, n)
    a, b = normal(2, 6, 3, 4).sigmoid(), normal(3, 6, 2, 5)
    c, h = normal(2, 5, 6), normal(2, 5, 3)
    yield a[:, :, :, :1].movedim(1, 0).expand(6, 2, 3, 5), b.movedim(0, 2), c.movedim(2, 0), h.mT
    yield (
        normal(2, 3, 300).sigmoid().expand(4, 2, 3, 300),
        normal(4, 2, 3, 300),
        normal(4, 2, 300),
        normal(2, 3, 300),
    )


def scans_on(device: str) -> Iterator[tuple[Any, ...]]:
    return of_all_types(device, scans_of)


def check_scans(device: str) -> None:
    for case in scans_on(device):
        dtype = case[1].dtype
        pairs = zip(scan.launch(*case), exact(scan.reference, case), strict=True)
        for found, expected in pairs:
            assert found.is_contiguous()
            agree(found, expected, dtype, 4 * TOLERANCES.get(dtype, 1e-12))


test_scans_in_the_interpreter, test_scans_on_a_gpu = launches(
    check_scans, scans_on, scan.scan, scan.launch
)


@needs_triton
@axes(dtype=TYPES, n=[128, 64, 16, 1])
def test_scans_built_for_hopper(dtype: str, n: int) -> None:
    at = scan.block(2048, n)
    given = {
        **dict.fromkeys(scan.kernel.arg_names, "i32"),
        **dict.fromkeys(("a", "b", "c", "h", "results", "last"), dtype),
        "block": at.rows, "width": at.width, "unroll": at.unroll,
    }  # fmt: skip
    assert spilled(built(scan.kernel, given, 1, aligned=True)) == 0


# --- linear attention ----------------------------------------------------------------------------

KINDS = list(product([True, False], ["plain", "delta", "rates"]))


def attentions_of() -> Iterator[tuple[Tensor | None, ...]]:
    for read, kind in KINDS:
        for steps, rows, n, m in (
            (5, 3, 4, 6), (9, 1, 37, 40), (1, 1, 1, 1), (0, 2, 3, 4), (2, 0, 3, 4), (2, 1, 300, 2),
        ):  # fmt: skip
            keyed, valued = (steps, rows, n), (steps, rows, m)
            yield (
                normal(*keyed).sigmoid(),
                normal(*keyed),
                normal(*valued),
                normal(*keyed) / n**0.5 if read else None,
                normal(*keyed) / (2 * n) if kind != "plain" else None,
                normal(*valued).sigmoid() if kind == "rates" else None,
                normal(rows, n, m),
            )
    x = normal(2, 3, 6, 4)
    a, k = x.sigmoid()[..., :1].expand(2, 3, 6, 4), x.movedim(2, 0).flatten(1, 2)
    v = normal(6, 5, 8)[:, :, ::2].mT
    yield (
        a.movedim(2, 0).flatten(1, 2)[:, :4], k[:, :4], v, k[:, 1:5], k[:, 2:] / 8,
        v.sigmoid(), normal(4, 5, 4).mT,
    )  # fmt: skip


def attentions_on(device: str) -> Iterator[tuple[Any, ...]]:
    return of_all_types(device, attentions_of)


def check_attentions(device: str) -> None:
    for case in attentions_on(device):
        dtype = case[-1].dtype
        pairs = zip(
            linear_attention.launch(*case), exact(linear_attention.reference, case), strict=True
        )
        for found, expected in pairs:
            assert found.is_contiguous()
            agree(found, expected, dtype, 4 * TOLERANCES.get(dtype, 1e-12))


test_attentions_in_the_interpreter, test_attentions_on_a_gpu = launches(
    check_attentions, attentions_on, linear_attention.linear_attention, linear_attention.launch
)


@needs_triton
@axes(dtype=TYPES, n=[256, 128, 64, 16], kind=["rates", "plain"])
def test_attentions_built_for_hopper(dtype: str, n: int, kind: str) -> None:
    at = linear_attention_gpu.block(n, 128)
    given: dict[str, Any] = {
        **dict.fromkeys(linear_attention_gpu.kernel.arg_names, "i32"),
        **dict.fromkeys(("decay", "keys", "values", "queries", "removed", "rates"), dtype),
        **dict.fromkeys(("state", "results", "last"), dtype),
        "wide": at.rows, "block": at.columns, "unroll": at.unroll,
    }  # fmt: skip
    if kind == "plain":
        given |= {"removed": None, "rates": None}
    ptx = built(linear_attention_gpu.kernel, given, 1, aligned=True)
    newer = TorchVersion(version("triton")) >= "3.9"  # spills 16 bytes of keys of 256 elements
    assert spilled(ptx) <= (16 if newer and (n, kind) == (256, "rates") else 0)


# --- averages ------------------------------------------------------------------------------------


def averages_of() -> Iterator[tuple[Tensor, ...]]:
    for rows, steps, size in ((2, 5, 4), (3, 19, 37), (1, 1, 1), (2, 0, 3), (0, 2, 3)):
        keys, states = normal(rows, steps, size), normal(rows, size)
        decay, boost = -normal(size).exp(), normal(size)
        yield decay, boost, keys, keys.cos(), states, states.exp(), states.sin()
    keys = normal(6, 4, 10)[:, :, ::2].transpose(0, 1)
    none = torch.zeros(4, 5, dtype=torch.float64)
    decay = -normal(1).exp().expand(5)
    yield decay, normal(10)[::2], keys, keys.mT.contiguous().mT, none, none, none - 1e4


def averages_on(device: str) -> Iterator[tuple[Any, ...]]:
    return of_all_types(device, averages_of)


def check_averages(device: str) -> None:
    for case in averages_on(device):
        dtype = case[2].dtype
        for found, expected in zip(wkv.launch(*case), exact(wkv.reference, case), strict=True):
            assert found.is_contiguous()
            agree(found, expected, dtype, 4 * TOLERANCES.get(dtype, 1e-12))


test_averages_in_the_interpreter, test_averages_on_a_gpu = launches(
    check_averages, averages_on, wkv.wkv, wkv.launch
)


@needs_triton
@pytest.mark.parametrize("dtype", TYPES)
def test_averages_built_for_hopper(dtype: str) -> None:
    names = wkv.kernel.arg_names
    tensors = names[: names.index("steps")]
    given: dict[str, Any] = {
        **dict.fromkeys(names, "i32"), **dict.fromkeys(tensors, dtype),
        "block": wkv.BLOCK, "unroll": wkv.UNROLL,
    }  # fmt: skip
    assert spilled(built(wkv.kernel, given, 1)) == 0
