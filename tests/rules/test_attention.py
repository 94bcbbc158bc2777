"""Attention: every spelling is fused once and computes what it did."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from pypm.rules import attention
from tests.axes import axes
from tests.rules.capture import (
    HOOKS,
    WAYS,
    WAYS_AND_HOOKS,
    Result,
    compile_to_graphs,
    decomposed,
    hooked,
    traced,
)
from tests.rules.near_misses import NEAR_MISSES
from tests.rules.spellings import TABLE, S, Spelling, T

torch.set_num_threads(1)

LOWEST = 0.0
"""Stands for the lowest number of a type."""

TOLERANCES = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-2}


def run(way: str, function: Callable[..., Any], args: Sequence[Tensor]) -> Result:
    return WAYS_AND_HOOKS[way](function, args, attention.RULES)


def assert_agrees(ours: Tensor, eager: Tensor, tolerance: float | None = None) -> None:
    assert ours.dtype == eager.dtype
    tolerance = TOLERANCES[eager.dtype] if tolerance is None else tolerance
    torch.testing.assert_close(ours, eager, atol=tolerance, rtol=tolerance)


def alone(cases: Sequence[Spelling]) -> pytest.MarkDecorator:
    """Each by itself, decomposed, and whole or else traced; `make soak` also traces the others."""
    found = []
    for case in cases:
        for way in [way for way in WAYS if way in case.ways]:
            is_traced_too = way == "symbolic_trace" and "export" in case.ways
            marks = pytest.mark.soak if is_traced_too else ()
            found.append(pytest.param(case, way, marks=marks))
    return pytest.mark.parametrize(("spelling", "way"), found, ids=str)


@alone(TABLE)
def test_every_spelling(spelling: Spelling, way: str) -> None:
    args = spelling.inputs(torch.float64)
    report, result = WAYS[way](spelling.function, args, attention.RULES)
    tolerance = TOLERANCES[torch.float32] if spelling.rounded else None
    assert_agrees(result, spelling.function(*args), tolerance)
    assert (report.count("sdpa"), report.unchecked) == (1, 0), report


def _together(cases: Sequence[Spelling]) -> Callable[..., list[Any]]:
    """One function that computes every case: compiled once, it meets the hook in one graph."""
    functions = [case.function for case in cases]

    def all_of_them(inputs: list[tuple[Tensor, ...]]) -> list[Any]:
        return [f(*args) for f, args in zip(functions, inputs, strict=True)]

    return all_of_them


EACH: Final = [5, pytest.param(1, marks=pytest.mark.soak)]
"""At the hooks each fifth; `make soak` tries all."""


@pytest.mark.parametrize("each", EACH)
@pytest.mark.parametrize(
    ("stage", "dtype"),
    [("pre_grad", torch.float32), ("joint", torch.bfloat16)],
)
def test_every_spelling_at_a_hook(stage: str, dtype: torch.dtype, each: int) -> None:
    """Rounded results are about as far from float64 as eager's."""
    cases = [spelling for spelling in TABLE if stage in spelling.ways][::each]
    inputs = [spelling.inputs(dtype) for spelling in cases]
    report, results = hooked(_together(cases), [inputs], attention.RULES, stage)
    for spelling, args, result in zip(cases, inputs, results, strict=True):
        fired = sum(f"in {spelling.function.__name__} " in r.source for r in report.rewrites)
        alike = sum(spelling.function is other.function for other in cases)
        assert fired == alike, (spelling.name, str(report))
        eager = spelling.function(*args)
        rounded = spelling.rounded and dtype == torch.float64
        assert_agrees(result, eager, TOLERANCES[torch.float32] if rounded else None)
        if dtype == torch.float64:
            continue
        wide = spelling.function(*(x.double() if x.is_floating_point() else x for x in args))
        ours, theirs = ((y.double() - wide).abs().max().item() for y in (result, eager))
        assert ours <= 3 * theirs + 2 * torch.finfo(dtype).eps, spelling.name
    assert (report.count("sdpa"), report.unchecked) == (len(cases), 0)


def test_no_rule_no_rewrite() -> None:
    spelling = TABLE[0]
    args = spelling.inputs(torch.float64)
    report, result = hooked(spelling.function, args, [])
    assert len(report) == 0
    assert_agrees(result, spelling.function(*args))


# --- near misses ---------------------------------------------------------------------------------


@alone(NEAR_MISSES)
def test_near_misses_do_not_fire(spelling: Spelling, way: str) -> None:
    args = spelling.inputs(torch.float64)
    eager = spelling.function(*(x.clone() for x in args))
    report, result = WAYS[way](spelling.function, [x.clone() for x in args], attention.RULES)
    assert len(report) == 0, report
    torch.testing.assert_close(result, eager, atol=1e-12, rtol=1e-12, equal_nan=True)


@pytest.mark.parametrize("each", EACH)
@pytest.mark.parametrize("stage", HOOKS)
def test_near_misses_do_not_fire_at_a_hook(stage: str, each: int) -> None:
    cases = [miss for miss in NEAR_MISSES if stage in miss.ways][::each]
    inputs = [miss.inputs(torch.float64) for miss in cases]
    function = _together(cases)
    eager = function([tuple(x.clone() for x in args) for args in inputs])
    report, results = hooked(function, [inputs], attention.RULES, stage)
    assert len(report) == 0, report
    for miss, ours, theirs in zip(cases, results, eager, strict=True):
        torch.testing.assert_close(
            ours, theirs, atol=1e-12, rtol=1e-12, equal_nan=True, msg=miss.name
        )


@axes(shape=[(0, 3, 4, 8), (2, 0, 4, 8), (0, 4, 8)], way=["export", "decomposed"])
def test_attention_of_nothing(way: str, shape: tuple[int, ...]) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-2, -1), -1) @ v

    args = [torch.randn(shape, dtype=torch.float64) for _ in range(3)]
    _, result = run(way, attend, args)
    assert result.shape == shape


@axes(dtype=[torch.float32, torch.float16], way=["export", "decomposed"])
def test_a_narrower_mask_of_float64_scores(way: str, dtype: torch.dtype) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-2, -1) + m, -1) @ v

    args = [*TABLE[0].inputs(torch.float64)[:3], torch.randn(S, T).to(dtype)]
    report, result = run(way, attend, args)
    assert len(report) == 1, report
    torch.testing.assert_close(result, attend(*args), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("way", ["export", "decomposed"])
def test_a_softmax_in_float32_between_products_of_float64(way: str) -> None:
    """All is computed in float64, so the result is nearer to the exact one than eager's."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-2, -1), -1, dtype=torch.float32).to(q.dtype) @ v

    q, k, v = TABLE[0].inputs(torch.float64)[:3]
    report, result = run(way, attend, (q, k, v))
    assert len(report) == 1, report
    exact = torch.softmax(q @ k.transpose(-2, -1), -1) @ v
    torch.testing.assert_close(result, exact, atol=1e-12, rtol=1e-12)
    assert (attend(q, k, v) - exact).abs().max() > 1e-9


@axes(dtype=[torch.bfloat16, torch.float16], way=["export", "pre_grad", "joint"])
def test_scores_in_float32_beside_narrower_values(way: str, dtype: torch.dtype) -> None:
    """All is computed in float32: as near to float64 as eager, or nearer."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        unread = torch.empty(4, 9, 33)
        scores = torch.baddbmm(unread, q.float(), k.float().transpose(-2, -1), beta=0, alpha=0.5)
        return torch.bmm(scores.softmax(-1).to(v.dtype), v)

    made = torch.Generator().manual_seed(0)
    args = [torch.randn(4, n, 16, generator=made).to(dtype) for n in (9, 33, 33)]
    report, ours = run(way, attend, args)
    assert report.count("sdpa") == 1 and ours.dtype == dtype, report
    q, k, v = (x.double() for x in args)
    wide = (q @ k.mT * 0.5).softmax(-1) @ v
    error = (attend(*args) - wide).abs().max()
    assert (ours - wide).abs().max() <= 1.2 * error < 0.1


@pytest.mark.parametrize("way", ["export", "symbolic_trace", "pre_grad", "joint"])
def test_keys_transposed_by_an_attribute(way: str) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT * 0.5).softmax(-1) @ v

    made = torch.Generator().manual_seed(0)
    args = [torch.randn(2, 3, 7, 8, generator=made, dtype=torch.float64) for _ in range(3)]
    report, ours = run(way, attend, args)
    assert report.count("sdpa") == 1, report
    torch.testing.assert_close(ours, attend(*args), atol=1e-12, rtol=1e-12)


def test_gradients_of_scores_in_float32() -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q.float() @ k.float().transpose(-2, -1)).softmax(-1).to(v.dtype) @ v

    made = torch.Generator().manual_seed(0)
    args = [torch.randn(2, 3, n, 8, generator=made).bfloat16() for n in (5, 7, 7)]
    grads = []
    compiled, hook = compile_to_graphs(attend, attention.RULES, "pre_grad")
    for call in (compiled, attend):
        leaves = [x.clone().requires_grad_(True) for x in args]
        grads.append(torch.autograd.grad(call(*leaves).float().square().sum(), leaves))
    assert hook.report().count("sdpa") == 1
    torch.testing.assert_close(*grads, atol=5e-2, rtol=5e-2)


@pytest.mark.parametrize("way", WAYS_AND_HOOKS)
def test_dropout_in_training(way: str) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.dropout(torch.softmax(q @ k.transpose(-2, -1), -1), 0.5, True) @ v

    args = TABLE[0].inputs(torch.float64)
    report, _ = run(way, attend, args)
    assert len(report) == 0, report


# --- rows that are masked everywhere -------------------------------------------------------------


def _rows_masked(value: float, kind: str) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """Attention whose first row is masked everywhere, and its inputs; scores are large."""
    q, k, v = (100 * x for x in TABLE[0].inputs(torch.float64)[:3])
    bits = torch.zeros(S, T, dtype=torch.bool)
    bits[0] = True
    bits[1, 1:4] = True

    def fill(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Tensor:
        return torch.softmax((q @ k.transpose(-2, -1)).masked_fill(b, value), -1) @ v

    def add(q: Tensor, k: Tensor, v: Tensor, m: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-2, -1) + m, -1) @ v

    if kind == "fill":
        return fill, [q, k, v, bits]
    return add, [q, k, v, torch.zeros(S, T, dtype=q.dtype).masked_fill(bits, value)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("way", ["export", "decomposed"])
@pytest.mark.parametrize(
    ("kind", "value"),
    [("add", LOWEST), ("fill", LOWEST), ("fill", -1e9), ("fill", -1e30), ("add", -1e4)],
)
def test_finite_masks_agree_in_every_row(
    kind: str, value: float, way: str, dtype: torch.dtype
) -> None:
    if value == LOWEST:
        value = torch.finfo(dtype).min
    function, args = _rows_masked(value, kind)
    args = [x.to(dtype) if x.is_floating_point() else x for x in args]
    report, result = run(way, function, args)
    assert len(report) == 1
    tolerance = 1e-10 if dtype == torch.float64 else 1e-2  # of values around 100
    torch.testing.assert_close(result, function(*args), atol=tolerance, rtol=tolerance)


@axes(
    shape=[(), (2, 1, 1)],
    kind=[torch.float16, torch.int64, torch.float32, torch.bfloat16],
    dtype=[torch.float64, torch.float32],
)
def test_a_divisor_is_no_rounded_factor(
    shape: tuple[int, ...], kind: torch.dtype, dtype: torch.dtype
) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, c: Tensor) -> Tensor:
        return torch.softmax(q @ k.transpose(-2, -1) / c, -1) @ v

    args = [torch.randn(1, 2, 5, 8, dtype=dtype) for _ in "qkv"]
    args.append(torch.full(shape, 3).to(kind))
    for way in ("export", "decomposed"):
        report, result = run(way, function, args)
        assert len(report) == 1, str(report)
        assert_agrees(result, function(*args))


@pytest.mark.parametrize("kind", [torch.float32, torch.float16])
def test_a_tensor_times_narrow_queries_may_be_infinite(kind: torch.dtype) -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, c: Tensor) -> Tensor:
        return (torch.softmax((q @ k.transpose(-2, -1)).to(kind) * c, -1)).half() @ v

    q, k, v = (torch.randn(1, 2, 5, 8) for _ in "qkv")
    args = [(q * 1000).half(), (k / 1000).half(), v.half(), torch.full((2, 1, 1), 100.0).to(kind)]
    report, result = run("export", function, args)
    assert len(report) == 0
    assert result.isfinite().all()


@pytest.mark.parametrize("kind", ["add", "fill"])
def test_rows_masked_by_infinity_are_the_exception(kind: str) -> None:
    function, args = _rows_masked(-math.inf, kind)
    report, result = decomposed(function, args, attention.RULES)
    assert len(report) == 1
    eager = function(*args)
    assert eager[:, :, 0].isnan().all()
    assert (result[:, :, 0] == 0).all()
    torch.testing.assert_close(result[:, :, 1:], eager[:, :, 1:])


def test_a_mask_that_enlarges_the_scores_is_declined() -> None:
    def model(q: Tensor, k: Tensor, v: Tensor, where: Tensor) -> Tensor:
        scores = q @ k.transpose(0, -1) / 2.0  # one key for each of four batches
        return torch.softmax(scores.masked_fill(where, -math.inf), -1) @ v

    q, k, v = torch.randn(3, 1, 2, 4, 4, dtype=torch.float64)
    where = torch.eye(4, dtype=torch.bool)
    report, result = traced(model, (q, k, v, where), attention.RULES)
    assert not len(report)
    torch.testing.assert_close(result, model(q, k, v, where))
