"""Random graphs and the shipped rules: outputs, and what is written, are as before.

PYPM_RANDOM_GRAPHS says how many more graphs to try.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

from pypm.rules import inference
from tests.fx.small_rules import TIDY
from tests.rules.capture import decomposed, traced
from tests.rules.random_graphs import NAMES, Program, inputs

torch.set_num_threads(1)

RULES = [inference.RULES, TIDY]
FEW = 25
MORE = int(os.environ.get("PYPM_RANDOM_GRAPHS", "0"))
FIRST_OF_MORE = 10_000


def named(program: Program) -> Any:
    """`symbolic_trace` takes no star."""
    names = ", ".join(NAMES)
    return eval(f"lambda {names}: program({names})", {"program": program})


def copies(args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(x.clone() for x in args)


def check(seed: int) -> int:
    """One program, seen in both ways; gives the number of rewrites."""
    program, args = Program(seed), inputs(seed)
    expected = copies(args)
    try:
        results = program(*expected)
    except RuntimeError:  # a write through an expanded view
        return 0
    fired = 0
    for way in (traced, decomposed):
        given = copies(args)
        report, found = way(named(program), given, RULES)
        fired += len(report)
        assert report.unchecked == 0
        for ours, theirs in zip((*found, *given), (*results, *expected), strict=True):
            torch.testing.assert_close(
                ours, theirs, atol=1e-8, rtol=1e-8, equal_nan=True, msg=lambda m: f"{program}\n{m}"
            )
    return fired


@pytest.mark.parametrize("first", [0, pytest.param(FEW, marks=pytest.mark.soak)])
def test_few_random_graphs(first: int) -> None:
    assert sum(check(seed) for seed in range(first, first + FEW)) > FEW // 4


@pytest.mark.skipif(not MORE, reason="PYPM_RANDOM_GRAPHS is not set")
def test_more_random_graphs() -> None:
    assert sum(check(seed) for seed in range(FIRST_OF_MORE, FIRST_OF_MORE + MORE)) > MORE // 3
