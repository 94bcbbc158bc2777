"""Threads that rewrite graphs of their own at once, outside of `torch.compile` and inside."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, TypeVar

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.core.patterns import Op, Var
from pypm.core.rules import Rule
from pypm.fx import INDUCTOR, PRE_GRAD, Dialect, aten, rewrite, suggest_function

THREADS = 5
X = Var("x")
RULES = [
    Rule("relu", ("x",), (Op(aten.relu, (X,)),), lambda x: torch.clamp(x, min=0) * 1.0),
    Rule("exp", ("x",), (Op(aten.exp, (X,)),), lambda x: torch.pow(torch.tensor(2.0), x)),
]
T = TypeVar("T")


class Layers(torch.nn.Module):
    """Rows that shrink, so that every layer is traced anew."""

    def forward(self, x):
        for _ in range(4):
            x = (x.relu() * 2).exp()[..., :-1] + 1
        return x


@pytest.fixture(autouse=True)
def _hasty() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def at_once(function: Callable[[T], object], given: list[T]) -> list[Any]:
    """What a function gives, called by as many threads as there are things to give it."""
    barrier = Barrier(len(given))

    def call(one: T) -> object:
        barrier.wait()
        return function(one)

    with ThreadPoolExecutor(len(given)) as threads:
        return [*threads.map(call, given)]


def traced() -> fx.GraphModule:
    return make_fx(Layers(), tracing_mode="fake")(torch.ones(3, 9))


@pytest.mark.parametrize(
    ("make", "dialect"),
    [
        (traced, None),
        (traced, INDUCTOR),
        (lambda: fx.symbolic_trace(Layers()), None),
        (lambda: fx.symbolic_trace(Layers()), PRE_GRAD),
    ],
)
def test_each_thread_rewrites_all_of_its_graph(
    make: Callable[[], fx.GraphModule], dialect: Dialect | None
) -> None:
    def rewritten(gm: fx.GraphModule) -> int:
        return len(rewrite(gm, RULES, dialect=dialect))

    for _ in range(4):
        graphs = [make() for _ in range(THREADS)]
        assert at_once(rewritten, graphs) == [8] * THREADS
        for gm in graphs:
            gm.graph.lint()


def test_each_thread_gets_its_pattern() -> None:
    def source(x: torch.Tensor) -> str:
        return str(suggest_function(torch.nn.Softmax(-1), x))

    found = at_once(source, [torch.ones(3, 9) for _ in range(THREADS)])
    assert found == [source(torch.ones(3, 9))] * THREADS
