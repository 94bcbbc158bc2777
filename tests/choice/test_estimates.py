"""Estimates of times: what moves bytes, what computes, and what products take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from pypm.choice import estimates
from pypm.choice.estimates import fused_seconds, graph_seconds, has_products
from pypm.choice.execution import concrete


@pytest.fixture(autouse=True)
def rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte takes a second, a byte of new memory 10 more, an exponential 100, and so on."""
    monkeypatch.setattr(estimates, "_copied", lambda power, threads: 1 << power)
    monkeypatch.setattr(estimates, "_to_clear", lambda threads: 10.0)
    monkeypatch.setattr(estimates, "_of_an_element", lambda is_slow, threads: 100.0**is_slow)
    monkeypatch.setattr(estimates, "_products_per_second", lambda dtype, threads: 0.5)
    monkeypatch.setattr(estimates, "CALL", 0.0)


def calls_of(function: Callable[..., object], *inputs: Tensor) -> fx.Graph:
    return concrete(function, inputs).graph  # type: ignore[arg-type]


def fused(function: Callable[..., object], *inputs: Tensor) -> float:
    graph = calls_of(function, *inputs)
    return fused_seconds([node for node in graph.nodes if node.op == "call_function"])


ROW = torch.ones(8)


@pytest.mark.parametrize(
    ("function", "seconds"),
    [
        (lambda x: x.neg(), 64 + 8),
        (lambda x: x.neg().neg(), 64 + 16),
        (lambda x: x.exp(), 64 + 800),
        (lambda x: x.sum(), 36 + 8),
        (lambda x: x.view(2, 4).t().neg(), 64 + 8),
        (lambda x: x.expand(5, 8).neg(), 32 + 160 + 40),
        (lambda x: x.bfloat16(), 32 + 16 + 8),
    ],
)
def test_what_is_fused(function: Callable[..., object], seconds: float) -> None:
    assert fused(function, ROW) == seconds


def test_a_large_result_is_in_new_memory() -> None:
    x = torch.ones(2**20)
    assert fused(lambda x: x.neg(), x) == 2 * x.nbytes + 10 * x.nbytes + x.numel()


def test_products_take_their_flops_and_the_rest_its_bytes() -> None:
    x = torch.ones(4, 4)
    assert graph_seconds(calls_of(lambda x: x @ x, x)) == 4 * 4**3
    assert graph_seconds(calls_of(lambda x: (x @ x).neg(), x)) == 4 * 4**3 + 2 * x.nbytes + 16


@pytest.mark.parametrize(
    ("function", "has"),
    [(lambda x: x @ x, True), (lambda x: x.exp(), False), (lambda x: (x.exp() @ x).exp(), True)],
)
def test_products(function: Callable[..., object], has: bool) -> None:
    nodes: Any = calls_of(function, torch.ones(4, 4)).nodes
    assert has_products([node for node in nodes if node.op == "call_function"]) is has


def test_rates_are_those_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    graph = calls_of(lambda x: (x @ x).exp(), torch.ones(256, 256))
    assert 1e-6 < graph_seconds(graph) < 1.0
