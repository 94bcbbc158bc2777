"""Collectives between two processes: results and order are as before where rules are applied."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pypm.core.rules import Rule
from pypm.fx import rewrite
from pypm.torch_internals import TorchDispatchMode
from tests.fx import sequence_parallel as sp

RANKS = 2
WAIT = 600
"""Seconds that a process waits for the other, which a loaded machine may be slow to start."""
COUNTS = {"fused": 3, "in sequence": 5, "fused products": 10}
COMMUNICATING = ("_c10d_functional", "pypm_collectives", "symm_mem")


class _Calls(TorchDispatchMode):
    """Names the collectives that are issued, with the shapes that are sent."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, list[int]]] = []

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None):
        name = func._schema.name.partition("::")[2]
        if func.namespace in COMMUNICATING and name != "wait_tensor":
            self.found.append((name, [*args[0].shape]))
        return func(*args, **(kwargs or {}))


def case(rank: int) -> tuple[Tensor, ...]:
    """Rows that all processes have, and this one's parts of three layers' matrices."""
    torch.manual_seed(0)
    x, w = torch.randn(4, 6, dtype=torch.float64), torch.rand(6, dtype=torch.float64)
    matrices: list[Tensor] = []
    for _ in range(3):
        up, down = torch.randn(6, 8, dtype=torch.float64), torch.randn(8, 6, dtype=torch.float64)
        matrices += [up.chunk(RANKS, 1)[rank].clone(), down.chunk(RANKS, 0)[rank].clone()]
    return x, *matrices, w


def run(gm: fx.GraphModule, inputs: tuple[Tensor, ...]) -> dict[str, Any]:
    with _Calls() as calls:
        result = gm(*inputs)
    return {"result": result.tolist(), "calls": calls.found}


def on_rank(rank: int, store: str) -> dict[str, Any]:
    """All that one process does, in one group."""
    torch.set_num_threads(1)
    limit = timedelta(seconds=WAIT)
    file = dist.FileStore(store, RANKS)
    dist.init_process_group("gloo", store=file, rank=rank, world_size=RANKS, timeout=limit)
    alone = Rule("r", sp.fused.parameters, sp.fused.roots, _again, communicates=True)
    inputs = case(rank)
    found: dict[str, Any] = {}
    for name, rules in {
        "as it is": [],
        "fused": [sp.fused],
        "in sequence": sp.SEQUENCE,
        "fused products": [*sp.SEQUENCE, *sp.FUSED_PRODUCTS],
        "on one alone": [alone] if rank else [],
    }.items():
        gm = make_fx(sp.layers, tracing_mode="fake")(*inputs)
        count = len(rewrite(gm, rules))
        found[name] = run(gm, inputs) | {"rewrites": count}
    odd = (inputs[0][:3], *inputs[1:])
    gm = make_fx(sp.layers, tracing_mode="fake")(*odd)
    found["odd"] = {"refusals": [r.reason for r in rewrite(gm, sp.SEQUENCE).refusals]}
    dist.destroy_process_group()
    return found


def _again(x, r, w, op, group):
    y = sp.reduced(x, op, group) + r
    return y, torch.nn.functional.rms_norm(y, w.shape, w, sp.EPS)


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    store = str(Path(tmp_path_factory.mktemp("store"), "file"))
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        other = pool.submit(on_rank, 1, store)  # this process is the first
        return [on_rank(0, store), other.result(timeout=WAIT)]


@pytest.mark.parametrize("name", ["fused", "in sequence", "fused products", "on one alone"])
def test_both_processes_give_what_they_gave(processes: list[dict[str, Any]], name: str) -> None:
    torch.testing.assert_close(
        *(processes[rank]["as it is"]["result"] for rank in range(RANKS)), atol=0, rtol=0
    )
    for rank, found in enumerate(processes):
        assert found[name]["rewrites"] == COUNTS.get(name, 3 * rank)
        torch.testing.assert_close(found[name]["result"], found["as it is"]["result"])


def test_both_processes_issue_the_same_in_the_same_order(processes: list[dict[str, Any]]) -> None:
    reduced = [("all_reduce", [4, 6])] * 3
    in_parts = [("reduce_scatter_tensor", [4, 6]), ("all_gather_into_tensor", [2, 6])] * 3
    products = [("fused_matmul_reduce_scatter", [4, 4]), ("fused_all_gather_matmul", [2, 6])]
    for found in processes:
        assert found["as it is"]["calls"] == reduced
        assert found["on one alone"]["calls"] == reduced
        assert found["fused"]["calls"] == [("add_and_norm", [4, 6])] * 3
        assert found["in sequence"]["calls"] == in_parts
        assert found["fused products"]["calls"] == [*products, *products, products[0], in_parts[1]]


def test_rows_that_cannot_be_divided_stay(processes: list[dict[str, Any]]) -> None:
    for found in processes:
        assert found["odd"]["refusals"] == ["the rows cannot be divided among the processes"]
