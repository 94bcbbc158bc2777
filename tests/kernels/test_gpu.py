"""Acting as on a GPU: one switch, which every rule and kernel for GPUs asks when it is called."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pypm.kernels.support.devices import as_on_a_gpu
from pypm.rules import gemm
from tests.rules.capture import exported


def doubles(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.rand(*shape, dtype=torch.float64) + 0.5 for shape in shapes]


def test_rules_for_gpus_apply_to_float64_within_it_alone() -> None:
    def function(x: Tensor, w: Tensor, r: Tensor) -> Tensor:
        return F.gelu(F.linear(x, w)) + r

    args = doubles((4, 8), (6, 8), (4, 6))
    for context, count in ((nullcontext(), 0), (as_on_a_gpu(), 1), (nullcontext(), 0)):
        with context:
            report, result = exported(function, args, gemm.RULES)
            assert len(report) == count, str(report)
        torch.testing.assert_close(result, function(*args), rtol=1e-12, atol=1e-12)


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
