"""Grouped experts as tile programs: values, ids that count from the end, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm import RuleSet
from pypm.fx import rewrite
from pypm.rules.tiles.experts import called_tiled_experts, tiled_experts
from pypm.tiles.operator import emulated
from tests.rules.capture import WAYS, fired, hooked, whole_operators

torch.set_num_threads(1)

RULES: Final = RuleSet(
    tuple(replace(rule, pays="always") for rule in (tiled_experts, called_tiled_experts))
)
DTYPES: Final = {"bf16": torch.bfloat16, "fp16": torch.float16}
ROWS, WIDTH, OUT, EXPERTS = 40, 64, 48, 5
Function = Callable[..., Any]


def inputs(dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
    """Rows, matrices in both orders, ids of which some count from the end, and ends of groups."""
    x = torch.randn(ROWS, WIDTH).to(dtype)
    w, turned = (torch.randn(EXPERTS, *n).to(dtype) / 8 for n in ((WIDTH, OUT), (OUT, WIDTH)))
    ids = torch.randint(-EXPERTS, EXPERTS, (ROWS,))
    ids[ids % EXPERTS == 2] = 0  # one has no rows
    ends = torch.tensor([3, 3, 20, 21, ROWS], dtype=torch.int32)
    return [x, w, turned, ids, ends]


def gathered(x: Tensor, w: Tensor, turned: Tensor, ids: Tensor, ends: Tensor) -> Tensor:
    return torch.bmm(x[:, None], w[ids])[:, 0]


def gathered_turned(x: Tensor, w: Tensor, turned: Tensor, ids: Tensor, ends: Tensor) -> Tensor:
    return (x[:, None] @ turned[ids].mT)[:, 0]


def columns(x: Tensor, w: Tensor, turned: Tensor, ids: Tensor, ends: Tensor) -> Tensor:
    return (turned[ids] @ x[..., None])[..., 0]


def two_of_each(x: Tensor, w: Tensor, turned: Tensor, ids: Tensor, ends: Tensor) -> Tensor:
    pairs = ids.view(-1, 2)
    return (x[: ROWS // 2, None, None] @ w[pairs])[..., 0, :]


def grouped(x: Tensor, w: Tensor, turned: Tensor, ids: Tensor, ends: Tensor) -> Tensor:
    return in_groups(x, w, ends)


def grouped_turned(x: Tensor, w: Tensor, turned: Tensor, ids: Tensor, ends: Tensor) -> Tensor:
    return in_groups(x, turned.transpose(-2, -1), ends)


def in_groups(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    """Torch's product, which has no float64."""
    if x.dtype != torch.float64:
        return torch._grouped_mm(x, w, offs=ends)
    parts = torch.tensor_split(x, ends[:-1].cpu().long())
    return torch.cat([part @ each for part, each in zip(parts, w, strict=True)])


FIRES: Final[dict[str, tuple[Function, str]]] = {
    "gathered": (gathered, "tiled_experts"),
    "gathered, turned": (gathered_turned, "tiled_experts"),
    "columns": (columns, "tiled_experts"),
    "two of each row": (two_of_each, "tiled_experts"),
    "in groups": (grouped, "called_tiled_experts"),
    "in groups, turned": (grouped_turned, "called_tiled_experts"),
}


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", FIRES)
def test_values(name: str, dtype: str) -> None:
    function, rule = FIRES[name]
    args = inputs(DTYPES[dtype])
    if rule == "called_tiled_experts" and dtype == "fp16":
        args[:3] = (x.bfloat16() for x in args[:3])  # torch's product in groups is of bf16
    way = WAYS["export" if dtype == "bf16" else "decomposed"]
    report, by_torch = way(function, args, RULES)
    assert fired(report) == [rule], str(report)
    with emulated() as runs:
        _, by_text = way(function, args, RULES)
    assert [run.digest for _, run in runs] == [kernel.digest for kernel, _ in runs] != []
    exact = function(*(x.double() if x.is_floating_point() else x for x in args))
    tolerance = 2e-2 if args[0].dtype == torch.bfloat16 else 2e-3
    for found in (by_torch, by_text):
        torch.testing.assert_close(found.double(), exact, rtol=tolerance, atol=tolerance)


# --- near misses ---------------------------------------------------------------------------------


def reasons(function: Function, args: list[Tensor]) -> set[str]:
    """Why nothing was rewritten."""
    report = rewrite(whole_operators(function, args), RULES)
    assert not report.rewrites, str(report)
    return {refusal.reason for refusal in report.refusals}


def matrices_are_used(x: Tensor, w: Tensor, t: Tensor, ids: Tensor, ends: Tensor) -> Tensor:
    matrices = w[ids]
    return torch.bmm(x[:, None], matrices)[:, 0] + matrices.sum()


MISSES: Final[dict[str, tuple[Function, str | None]]] = {
    "float32": (
        lambda x, w, t, i, e: gathered(x.float(), w.float(), t, i, e),
        "the operands are torch.float32",
    ),
    "rows of other bytes": (
        lambda x, w, t, i, e: gathered(x[:, :60], w[:, :60], t, i, e),
        None,
    ),
    "matrices of other bytes": (
        lambda x, w, t, i, e: gathered(x, w[:, :, :44].contiguous(), t, i, e),
        "of `w` are 88 bytes apart",
    ),
    "matrices in groups of columns": (
        lambda x, w, t, i, e: torch._grouped_mm(x[:, :40].T.contiguous().T, w[:, :40], e),
        "of a row of `x` are not behind one another",
    ),
    "groups of columns": (
        lambda x, w, t, i, e: torch._grouped_mm(x.T.contiguous(), w[0, :ROWS], e),
        None,
    ),
    "batches": (lambda x, w, t, i, e: torch._grouped_mm(x.view(5, 8, WIDTH), w), None),
    "a type is given": (
        lambda x, w, t, i, e: torch._grouped_mm(x, w, e, out_dtype=torch.bfloat16), None
    ),
    "the matrices are used": (matrices_are_used, "is also used by"),
}  # fmt: skip


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("name", MISSES)
def test_near_misses(name: str) -> None:
    function, reason = MISSES[name]
    found = reasons(function, inputs())
    assert reason is None or any(reason in each for each in found), found


def test_not_on_a_cpu() -> None:
    assert reasons(gathered, inputs()) == reasons(grouped, inputs()) == {"the kernel is for GPUs"}


@pytest.mark.usefixtures("gpu")
def test_not_where_the_gpu_is_not_filled() -> None:
    (reason,) = reasons(grouped, inputs())
    assert reason == "0.117 full tiles leave some of 132 multiprocessors without work"


@pytest.mark.usefixtures("hopper")
def test_not_in_training() -> None:
    args = inputs()
    args[1].requires_grad_()
    report, _ = hooked(gathered, args, RULES, "pre_grad")
    assert not report.rewrites
    assert {r.reason for r in report.refusals} == {"the kernel has no gradients of its own"}


@pytest.mark.usefixtures("hopper")
def test_sizes_that_are_not_known() -> None:
    for function in (gathered, lambda x, w, t, i, e: torch._grouped_mm(x, w, e)):
        assert not rewrite(fx.symbolic_trace(function), RULES).rewrites
        module = make_fx(function, tracing_mode="symbolic", pre_dispatch=True)(*inputs())
        assert {r.reason for r in rewrite(module, RULES).refusals} == {"the sizes are not known"}
