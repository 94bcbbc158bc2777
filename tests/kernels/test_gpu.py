"""Acting as on a GPU: one switch, which every rule and kernel for GPUs asks when it is called."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pypm.kernels.support.triton import as_on_a_gpu
from pypm.rules import activation, gemm, quantization, rotary
from tests.rules.capture import exported

FP8: Final = torch.float8_e4m3fn


def normed(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    s = x + y * 2
    return s * torch.rsqrt(s.pow(2).mean(-1, keepdim=True) + 1e-5) * w


def scaled(n: Tensor, s: Tensor) -> Tensor:
    return (n / s).clamp(-448, 448).to(FP8)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def doubles(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.rand(*shape, dtype=torch.float64) + 0.5 for shape in shapes]


SCALE: Final = torch.tensor(0.02)
ROWS: Final = (4, 8)
OF_FLOAT64: Final[dict[str, tuple[Any, Callable[..., Tensor], list[Tensor]]]] = {
    "gemm": (gemm, lambda x, w, r: F.gelu(F.linear(x, w)) + r, doubles(ROWS, (6, 8), (4, 6))),
    "gated": (activation, lambda x, y: F.silu(x) * y, doubles(ROWS, ROWS)),
    "rotary": (rotary, turned, doubles((1, 2, 4, 8), (4, 8), (4, 8))),
    "norm, quantized": (
        quantization,
        lambda x, y, w, s: scaled(normed(x, y, w), s),
        [*doubles(ROWS, ROWS, (8,)), SCALE],
    ),
    "activation, quantized": (
        quantization,
        lambda x, y, s: scaled(F.silu(x) * y, s),
        [*doubles(ROWS, ROWS), SCALE],
    ),
}


@pytest.mark.parametrize("name", OF_FLOAT64)
def test_rules_for_gpus_apply_to_float64_within_it_alone(name: str) -> None:
    rules, function, args = OF_FLOAT64[name]
    for context, count in ((nullcontext(), 0), (as_on_a_gpu(), 1), (nullcontext(), 0)):
        with context:
            report, result = exported(function, args, rules.RULES)
            assert len(report) == count, str(report)
        expected = function(*args)
        assert result.dtype == expected.dtype
        torch.testing.assert_close(result.double(), expected.double(), rtol=1e-12, atol=1e-12)


UNFIT: Final[dict[str, tuple[torch.dtype, Callable[[Tensor], Tensor], str]]] = {
    "wider than the product": (torch.float32, lambda y: y.double().exp(), "torch.float64"),
    "rounded to float32": (torch.float64, lambda y: y.float().exp(), "rounded to float32"),
}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", UNFIT)
def test_one_type_is_computed_in(name: str) -> None:
    dtype, follow, reason = UNFIT[name]
    args = [x.to(dtype) for x in doubles((4, 8), (8, 6))]
    report, _ = exported(lambda x, w: follow(torch.mm(x, w)), args, gemm.RULES)
    assert len(report) == 0
    assert any(reason in refusal.reason for refusal in report.refusals), str(report)


@pytest.mark.usefixtures("gpu")
def test_a_float64_is_rounded_where_eager_rounds_it() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return torch.mm(x, w).half().double() * 3

    args = doubles((4, 8), (8, 6))
    report, result = exported(function, args, gemm.RULES)
    assert len(report) == 1, str(report)
    torch.testing.assert_close(result, function(*args), rtol=1e-12, atol=1e-12)
