"""Loops as on a GPU: which operator computes them in which types, and why some stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from pypm.integrations import export
from pypm.kernels import linear_attention_gpu
from pypm.kernels.support import triton
from pypm.rules import loops
from tests.axes import axes
from tests.rules.loops import L, normal
from tests.rules.test_delta_rule import by_sums
from tests.rules.test_matrix_states import READS, STEPS, loop, values

torch.set_num_threads(1)

pytestmark = pytest.mark.usefixtures("gpu", "short_loops")

NARROW: Final = (torch.float16, torch.bfloat16, torch.float32)
Function = Callable[..., Any]


def scanned(a: Tensor, b: Tensor, c: Tensor, h: Tensor) -> Tensor:
    """Mamba's loop."""
    results = []
    for t in range(L):
        h = a[:, :, t] * h + b[:, :, t]
        results.append((h @ c[:, t, :, None])[..., 0])
    return torch.stack(results, -1)


def operands(dtype: torch.dtype) -> list[Tensor]:
    found = [normal(2, 5, L, 4).sigmoid(), normal(2, 5, L, 4), normal(2, L, 4), normal(2, 5, 4)]
    return [x.to(dtype) for x in found]


Rewritten = tuple[Any, list[str], Any]


def rewritten(function: Function, args: list[Tensor], **options: bool) -> Rewritten:
    """The report, the operators of PyPM in the graph, and the results."""

    class Model(torch.nn.Module):
        def forward(self, *args: Tensor) -> Any:
            return function(*args)

    program = torch.export.export(Model(), tuple(args))
    report = export.rewrite(program, loops.RULES, **options)
    targets = [str(node.target).split(".") for node in program.graph.nodes]
    found = [target[1] for target in targets if target[0] == "pypm"]
    return report, found, program.module()(*args)


LOOPS: Final[dict[str, tuple[Function, Function, str]]] = {
    "linear attention": (loop(STEPS["index"], READS["einsum"]), values, "linear_attention"),
    "the delta rule": (loop(by_sums, READS["sum of rows"]), values, "linear_attention"),
    "states": (loop(STEPS["index"], READS["state"]), values, "linear_recurrence"),
}


@axes(name=[*LOOPS, "scan"], dtype=NARROW)
def test_operators(name: str, dtype: torch.dtype) -> None:
    if name == "scan":
        function, args, operator = scanned, operands(dtype), "scan"
    else:
        function, made, operator = LOOPS[name]
        args = [x.to(dtype) for x in made()]
    _, found, results = rewritten(function, args)
    assert found == [operator]
    tolerance = 64 * torch.finfo(dtype).eps
    torch.testing.assert_close(results, function(*args), rtol=tolerance, atol=tolerance)


def test_long_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear_attention_gpu, "LARGEST_KEY", 3)
    assert rewritten(LOOPS["linear attention"][0], values())[1] == ["linear_recurrence"]
    report, found, _ = rewritten(LOOPS["the delta rule"][0], values())
    assert not found
    assert "the delta rule needs keys of up to 256 elements" in str(report)


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "triton", None)
    report, found, _ = rewritten(LOOPS["states"][0], values())
    assert not found
    assert "Triton is not installed" in str(report)


def cast_in_each_step(dtype: torch.dtype) -> Function:
    def function(a: Tensor, b: Tensor) -> Tensor:
        h, results = torch.zeros(3, dtype=dtype), []
        for t in range(L):
            h = a[t].to(dtype) * h + b[t].to(dtype)
            results.append(h)
        return torch.stack(results)

    return function


@pytest.mark.parametrize(
    ("given", "dtype", "reason"),
    [
        (torch.float32, torch.float16, ""),
        (torch.float32, torch.bfloat16, ""),
        (torch.float32, torch.float64, "not in torch.float64"),
        (torch.float16, torch.float32, ""),
    ],
)
def test_the_type_of_states_counts_and_not_that_of_what_is_cast(
    given: torch.dtype, dtype: torch.dtype, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triton, "computes_in", lambda kind: kind != torch.float64)
    args = [normal(L, 3).sigmoid().to(given), normal(L, 3).to(given)]
    report, found, _ = rewritten(cast_in_each_step(dtype), args)
    assert found == ([] if reason else ["linear_recurrence"]), str(report)
    assert reason in str(report)
