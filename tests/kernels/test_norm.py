"""The norm kernel: in Triton's interpreter, built for Hopper, on a GPU; its operators."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pypm.kernels import norm
from pypm.kernels.support import triton
from tests.kernels.triton_checks import agree, built, launches, needs_triton

torch.set_num_threads(1)

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 3e-2}


def inputs(columns: int, dtype: torch.dtype, device: str = "cpu") -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(columns)
    shapes = {"x": (2, 2, columns), "y": (2, 2, columns), "weight": (columns,), "bias": (columns,)}
    return {n: torch.randn(*s, generator=made).to(device, dtype) for n, s in shapes.items()}


def cases(device: str) -> Iterator[tuple[Any, ...]]:
    """Arguments of `launch` and `reference`, over shapes, types and what is left out."""
    for columns, dtype in product((1, 7, 100), TOLERANCES):
        x, y, w, b = inputs(columns, dtype, device).values()
        yield x, None, None, None, 1e-5, 0.0, False, dtype
        yield x, None, w, b, 1e-5, 1.0, True, dtype
        yield x, y, w, None, 1e-5, 1.0, False, dtype
        yield x, y.float(), w.float(), None, 1e-5, 0.0, False, torch.float32
        yield x.transpose(0, 1), y.transpose(0, 1), w, b, 1e-5, 0.0, True, dtype


def check(device: str) -> None:
    for args in cases(device):
        wide = [a.double() if isinstance(a, Tensor) else a for a in args[:-1]]
        found = norm.launch(*args), norm.reference(*args), norm.reference(*wide, torch.float64)
        for ours, theirs, exact in zip(*found, strict=True):
            agree(ours, exact, theirs.dtype, TOLERANCES[args[-1]])


def operator(x: Tensor, y: Tensor | None, *rest: Any) -> Any:
    return norm.norm(x, *rest) if y is None else norm.add_norm(x, y, *rest)


def launch(x: Tensor, y: Tensor | None, *rest: Any) -> Any:
    found = norm.launch(x, y, *rest)
    return found[0] if y is None else found


test_in_the_interpreter, test_on_a_gpu = launches(check, cases, operator, launch)


@needs_triton
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize(("columns", "bias"), [(768, "*bf16"), (8192, None)])
def test_builds_for_hopper(columns: int, bias: str | None, centered: bool) -> None:
    blocks = triton.blocks(columns)
    types = {**dict.fromkeys(("x", "y", "weight", "out", "total"), "*bf16"), "bias": bias}
    numbers = {"columns": "i32", "eps": "fp32", "offset": "fp32"}
    constants = {"centered": centered, "block": blocks["block"]}
    arguments = {**types, **numbers, **constants}
    built(norm.kernel, arguments, blocks["num_warps"], in_registers=True)


# --- the operators -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_the_reference_is_torchs(dtype: torch.dtype) -> None:
    x, y, w, b = inputs(9, dtype).values()
    tolerance = TOLERANCES.get(dtype, 1e-12)
    close = {"atol": tolerance, "rtol": tolerance}
    ours, total = norm.add_norm(x, y, w, None, 1e-5, 0.0, False, dtype)
    torch.testing.assert_close(total, x + y, atol=0, rtol=0)
    torch.testing.assert_close(ours, F.rms_norm(total, (9,), w, 1e-5), **close)
    ours = norm.norm(x, w, b, 1e-5, 0.0, True, dtype)
    torch.testing.assert_close(ours, F.layer_norm(x, (9,), w, b, 1e-5), **close)


OPTIONS = list(product((False, True), ((), ("weight",), ("weight", "bias")), (False, True)))


@pytest.mark.parametrize(("centered", "given", "of_sum"), OPTIONS)
def test_they_are_proper_operators(centered: bool, given: tuple[str, ...], of_sum: bool) -> None:
    found = inputs(5, torch.float64)
    tensors = {n: t.requires_grad_() for n, t in found.items() if n in ("x", *given)}
    if of_sum:
        tensors["y"] = found["y"].requires_grad_()
    operator = norm.add_norm if of_sum else norm.norm

    def call(*leaves: Tensor) -> Any:
        named = dict(zip(tensors, leaves, strict=True))
        summands = [named["x"], named["y"]] if of_sum else [named["x"]]
        weight, bias = named.get("weight"), named.get("bias")
        return operator(*summands, weight, bias, 1e-3, 1.0, centered, torch.float64)

    summands = [found["x"], found["y"]] if of_sum else [found["x"]]
    args = (*summands, *(tensors.get(n) for n in ("weight", "bias")))
    torch.library.opcheck(operator, (*args, 1e-3, 1.0, centered, torch.float64))
    assert torch.autograd.gradcheck(call, tuple(tensors.values()))


@pytest.mark.parametrize("shape", [(5,), (0, 5), (2, 5)])
def test_gradients_of_few_rows(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    w, b = (torch.randn(5, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def call(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return norm.norm(x, w, b, 1e-3, 0.0, True, torch.float64)

    assert torch.autograd.gradcheck(call, (x, w, b))


@pytest.mark.parametrize(
    ("shape", "dtype", "reason"),
    [
        ((2, 8), torch.float32, "for GPUs"),
        ((2, 8), torch.bfloat16, "for GPUs"),
        ((2, 8), torch.float64, "not in torch.float64"),
        ((2, 8), torch.int32, "not in torch.int32"),
        ((2, 0), torch.float32, "up to 32768"),
        ((2, 32769), torch.float32, "up to 32768"),
    ],
)
def test_where_it_applies(shape: tuple[int, ...], dtype: torch.dtype, reason: str) -> None:
    found = triton.unsupported(torch.empty(shape, dtype=dtype))
    assert found is not None
    assert reason in found
