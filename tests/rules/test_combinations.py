"""Attention in all combinations of its parts: each fused once, or left alone for a reason.

PYPM_COMBINATIONS=all tries all of them instead of some.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from pypm.fx import Report
from pypm.integrations import export
from pypm.rules import attention
from tests.axes import axes
from tests.rules.capture import as_exported, compile_to_graphs
from tests.rules.combinations import Combination, combinations, near_misses

torch.set_num_threads(1)

ALL = os.environ.get("PYPM_COMBINATIONS") == "all"
SOME, AT_ONCE = 32, 16
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 5e-2}


class _Together(torch.nn.Module):
    """Several functions, captured as one graph."""

    def __init__(self, cases: Sequence[Combination]) -> None:
        super().__init__()
        self.cases = cases

    def forward(self, inputs: list[tuple[Tensor, ...]]) -> list[Any]:
        return [case(*args) for case, args in zip(self.cases, inputs, strict=True)]


def exported(module: _Together, inputs: Any) -> tuple[Report, Any]:
    return as_exported(module, [inputs], attention.RULES)


def core(module: _Together, inputs: Any) -> tuple[Report, Any]:
    program = torch.export.export(module, (inputs,)).run_decompositions()
    report = export.rewrite(program, attention.RULES)
    return report, program.module()(inputs)


def joint(module: _Together, inputs: Any) -> tuple[Report, Any]:
    compiled, rewritten = compile_to_graphs(module, attention.RULES)
    with torch.no_grad():
        result = compiled(inputs)
    return rewritten.reports[-1], result


WAYS: dict[str, Callable[..., tuple[Report, Any]]] = {
    "export": exported,
    "core": core,
    "joint": joint,
}


def chosen(cases: Sequence[Combination], seed: int, some: int = SOME) -> list[list[Combination]]:
    """All of them, or some, in batches."""
    if not ALL:
        cases = random.Random(seed).sample(cases, min(some, len(cases)))
    return [list(cases[i : i + AT_ONCE]) for i in range(0, len(cases), AT_ONCE)]


def check(way: str, cases: Sequence[Combination], dtype: torch.dtype) -> list[str]:
    """What is wrong, by case; the results agree with eager's or this fails."""
    module, inputs = _Together(cases), [case.inputs(dtype) for case in cases]
    expected = module(inputs)
    report, results = WAYS[way](module, inputs)
    for case, ours, theirs in zip(cases, results, expected, strict=True):
        rounded = case.softmax in ("upcast", "float") and dtype == torch.float64
        tolerance = TOLERANCES[torch.float32 if rounded else dtype]
        torch.testing.assert_close(
            ours, theirs, atol=tolerance, rtol=tolerance, msg=lambda m, c=case: f"{c}: {m}"
        )
    if len(report) == sum(not case.why_not for case in cases):
        return []
    if len(cases) == 1:
        return [f"{cases[0]} ({cases[0].why_not or 'not fused'}): {report}"]
    half = len(cases) // 2
    return [*check(way, cases[:half], dtype), *check(way, cases[half:], dtype)]


FUSED = chosen(list(combinations()), 0)
MISSES = chosen(list(near_misses()), 1)


@axes(cases=FUSED, way=WAYS)
def test_all_are_fused(way: str, cases: list[Combination]) -> None:
    assert check(way, cases, torch.float64) == []


@pytest.mark.parametrize("cases", FUSED[: None if ALL else 1], ids=lambda cases: str(cases[0]))
def test_all_are_fused_in_bfloat16(cases: list[Combination]) -> None:
    assert check("joint", cases, torch.bfloat16) == []


@axes(cases=MISSES, way=WAYS)
def test_near_misses_are_left_alone(way: str, cases: list[Combination]) -> None:
    assert check(way, cases, torch.float64) == []


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
def test_more_of_them(way: str) -> None:
    for cases in (*chosen([*combinations()], 0, 48), *chosen([*near_misses()], 1, 48)):
        assert check(way, cases, torch.float64) == []


def test_there_are_several_hundred() -> None:
    assert len(set(combinations())) == len(list(combinations())) > 500
    assert len(set(near_misses())) == len(list(near_misses())) > 200
