"""Schedules of a mixture of experts, where rows choose any expert and where all choose the same.

Queues are made as if each expert had rows; tickets are taken as tasks end.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from benchmarks.results import Results
from pypm.events.decoder import (
    DecoderLayer,
    DecoderStep,
    ExpertChoice,
    MatrixOperand,
    NormOperands,
)
from pypm.events.operator import compute
from pypm.events.program import SCHEDULES, printed
from pypm.timing import interleave

WIDTH, HIDDEN, SIZE = 256, 512, 64
EXPERTS, BATCH = 8, 8
CAPACITY, FILLED = 256, 100


def mixture() -> tuple[DecoderStep, list[Tensor]]:
    """Return a decoder layer with experts, and its operands in order, without the rows.

    The last operand is added to the scores of experts.
    """
    tensors: list[Tensor] = []

    def add(*shape: int) -> int:
        tensors.append(torch.randn(shape) * shape[-1] ** -0.5)
        return len(tensors)

    def matrix(rows: int, columns: int) -> MatrixOperand:
        return MatrixOperand(add(columns, rows), None, True, rows, columns)

    groups, heads = 2, WIDTH // SIZE // 2
    norms = [NormOperands("rms", None, None, 1e-6, 0.0) for _ in range(2)]
    both, last = add(EXPERTS, 2 * HIDDEN, WIDTH), add(EXPERTS, WIDTH, HIDDEN)
    gate, up = (MatrixOperand(both, None, True, WIDTH, HIDDEN, n) for n in (0, HIDDEN))
    tensors += [
        torch.where(torch.arange(CAPACITY) <= FILLED, 0.0, -torch.inf)[None, None, None],
        torch.tensor([FILLED]),
    ]
    mask, position = len(tensors) - 1, len(tensors)
    router = matrix(WIDTH, EXPERTS)
    layer = DecoderLayer(
        before=norms[0], q=matrix(WIDTH, WIDTH), k=matrix(WIDTH, groups * SIZE),
        v=matrix(WIDTH, groups * SIZE), angles=None, keys=add(BATCH, groups, CAPACITY, SIZE),
        values=add(BATCH, groups, CAPACITY, SIZE), mask=mask, position=position, scale=SIZE**-0.5,
        out=matrix(WIDTH, WIDTH), after=norms[1], gate=gate, up=up, activation="silu",
        down=MatrixOperand(last, None, True, HIDDEN, WIDTH),
        experts=ExpertChoice(replace(router, bias=add(EXPERTS)), 1, True),
    )  # fmt: skip
    return DecoderStep(WIDTH, groups, heads, SIZE, (layer,)), tensors


def skews(results: Results, threads: int, seconds: float) -> None:
    """Add a table of microseconds by tickets, and of the speed of other schedules over them."""
    torch.manual_seed(0)
    step, tensors = mixture()
    tickets, *others = SCHEDULES
    caption = f"{BATCH} rows by {EXPERTS} experts on {threads} threads; speeds over tickets."
    results.table("rows choose", f"{tickets}, us", *others, name="experts", caption=caption)
    x, scores = torch.randn(BATCH, 1, WIDTH), torch.zeros(EXPERTS)
    for name, first in (("any expert", 0.0), ("the same expert", 1e3)):
        given = [*tensors[:-1], scores.index_fill(0, torch.tensor([0]), first)]
        calls = {each: partial(compute, x, given, printed(step, each)) for each in SCHEDULES}
        expected = calls[tickets]()
        for call in calls.values():
            assert all(map(torch.equal, call(), expected))
        times = interleave(calls, seconds=seconds, rounds=2000, threads=threads)
        speeds = (times.speedup(tickets, each) for each in others)
        results.row(name, 1e6 * times.median(tickets), *speeds)
