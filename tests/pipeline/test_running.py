"""Pipelines train as the whole model does, on one process and on two, and end where one fails."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import set_forkserver_preload
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pypm import PyPMError
from pypm.fx import rewrite
from pypm.pipeline import (
    ZBH1,
    ZBV,
    DualPipeV,
    Eager1F1B,
    GPipe,
    Interleaved1F1B,
    InterleavedGPipe,
    Pipeline,
    Std1F1B,
    launch,
    stages,
)
from pypm.pipeline.exchange import exchanges, stage_costs
from pypm.pipeline.stalls import Progress
from pypm.torch_internals import Computation, PipelineAction
from tests.pipeline.training import (
    TARGET,
    Case,
    Listed,
    Model,
    X,
    all_in_stages,
    check,
    clamped,
    cut_model,
    dies,
    failing,
    hangs,
    in_stages,
    pipeline,
    raises,
    random_cases,
)
from tests.process_group import process_group_of_one

ONE = [
    Case(GPipe(1), 1),
    Case(InterleavedGPipe(3, 1), 3),
    Case(Interleaved1F1B(3, 1), 3),
    Case(ZBV(2), 2),
    Case(DualPipeV(2), 2),
]
TWO = [
    *(Case(each, 2) for each in (GPipe(2), Std1F1B(2), Eager1F1B(2), ZBH1(2))),
    *(Case(each, 4) for each in (InterleavedGPipe(4, 2), Interleaved1F1B(4, 2))),
    *(Case(each, 4) for each in (ZBV(4), DualPipeV(4))),
    *random_cases(2, 6),
]


set_forkserver_preload(["tests.pipeline.training"])  # imported once for all launches


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    with process_group_of_one():
        yield


# --- the same as the whole ----------------------------------------------------------------------


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("case", [*ONE, *random_cases(1, 3)], ids=str)
def test_one_process(case: Case) -> None:
    check([in_stages(case)], case.stages)


def test_two_processes() -> None:
    found = launch(all_in_stages, TWO, ranks=2, timeout=100, start_method="forkserver")
    for number, case in enumerate(TWO):
        check([each[number] for each in found], case.stages)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("schedule", [Interleaved1F1B(2, 1), ZBV(2)])
def test_activations_are_computed_again(schedule: Any) -> None:
    check([in_stages(Case(schedule, 2), recompute=[0, 1])], 2)


@pytest.mark.usefixtures("group")
def test_what_cannot_be_computed_again() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    cut = stages(torch.export.export(model, (torch.ones(2, 4),), strict=False), count=1)
    message = "stage 0 cannot be computed again: it writes `1.num_batches_tracked`"
    for recompute, expected in (([0], message), ([1], "there is no stage 1")):
        with pytest.raises(PyPMError, match=expected):
            Pipeline(cut, GPipe(1), microbatches=1, recompute=recompute)


class Counting(nn.Module):
    """A row of a buffer, or of the input, is written."""

    def __init__(self, writes_input: bool) -> None:
        super().__init__()
        self.writes_input = writes_input
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (x if self.writes_input else self.count)[0].add_(1)  # type: ignore[index]
        result: torch.Tensor = self.linear(x)
        return result


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(("writes_input", "written"), [(False, "0.count"), (True, "input_1")])
def test_what_is_written_through_a_view(writes_input: bool, written: str) -> None:
    model = nn.Sequential(Counting(writes_input))
    cut = stages(torch.export.export(model, (torch.ones(2, 4),), strict=False), count=1)
    with pytest.raises(PyPMError, match=f"stage 0 cannot be computed again: it writes `{written}`"):
        Pipeline(cut, GPipe(1), microbatches=1, recompute=[0])


@pytest.mark.usefixtures("group")
def test_weights_that_are_trained_later() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    cut = stages(torch.export.export(model, (torch.ones(2, 4),), strict=False), count=2)
    own = Pipeline(cut, InterleavedGPipe(2, 1), microbatches=2, loss=lambda y: y.sum())
    for frozen in (True, False, True):
        for weight in own.parameters():
            weight.grad = None
        for weight in cut.stages[0].parameters():
            weight.requires_grad_(not frozen)
        own.step(torch.ones(4, 4))
        for weight in own.parameters():
            assert (weight.grad is not None) == weight.requires_grad


@pytest.mark.usefixtures("group")
def test_microbatches_in_another_order() -> None:
    """Losses and results are those of the batch, in its order."""
    case = Case(GPipe(1), 1, 2)
    (tasks,) = case.schedule.tasks(2)
    turned = [replace(task, microbatch=1 - task.microbatch) for task in tasks]
    check([in_stages(replace(case, schedule=Listed([turned])))], 1)


@pytest.mark.usefixtures("group")
def test_gradients_add_up() -> None:
    own = pipeline(Case(ZBV(2), 2))
    for _ in range(2):
        own.step(X, target=TARGET)
    once = pipeline(Case(ZBV(2), 2))
    once.step(X, target=TARGET)
    for one, two in zip(once.parameters(), own.parameters(), strict=True):
        torch.testing.assert_close(2 * one.grad, two.grad)  # type: ignore[operator]


@pytest.mark.usefixtures("group")
def test_the_sum_of_losses() -> None:
    mean, total = (pipeline(Case(GPipe(1), 1), reduction=r) for r in ("mean", "sum"))
    one, other = mean.step(X, target=TARGET).loss, total.step(X, target=TARGET).loss
    assert one is not None
    torch.testing.assert_close(4 * one, other)


@pytest.mark.usefixtures("group")
def test_rules_inside_of_stages() -> None:
    """A stage is rewritten before it runs, and trains as before."""

    fired = []

    def prepare(module: nn.Module) -> nn.Module:
        assert isinstance(module, torch.fx.GraphModule)
        fired.append(rewrite(module, clamped).count("clamped"))
        return module

    check([in_stages(Case(ZBV(2), 2), prepare=prepare)], 2)
    assert fired == [1, 1]


@pytest.mark.usefixtures("group")
def test_one_process_with_other_sizes() -> None:
    """The second step has other sizes than the first."""
    batch = torch.export.Dim("batch")
    program = torch.export.export(Model(2), (X[:3],), strict=False, dynamic_shapes=({0: batch},))
    own = Pipeline(
        stages(program, count=2), Interleaved1F1B(2, 1), microbatches=2, loss=lambda y: y.sum()
    )
    for rows in (8, 4):
        found = own.step(X[:rows], outputs=True).outputs
        assert found is not None
        torch.testing.assert_close(found[0], Model(2)(X[:rows]))


# --- what stages exchange -----------------------------------------------------------------------


def test_a_backward_that_cannot_be_divided() -> None:
    """The second stage sends a bias that depends on its weights alone; torch would lose it."""
    cut = cut_model(3)
    found = exchanges(cut, {"x": X})
    assert [each.is_divisible for each in found] == [False, False, True]
    assert [len(each.sent) for each in found] == [2, 3, 1]
    assert found[0].sent[0].shape == (8, 6, 8)
    costs = stage_costs(cut, X)
    assert [cost.sent for cost in costs] == [2 * 8 * 6 * 8 * 8, (2 * 8 * 6 * 8 + 8) * 8, 0]
    assert [cost.returned for cost in costs] == [cost.sent for cost in costs]


def test_a_run_on_fake_tensors_changes_no_buffer() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    cut = stages(torch.export.export(model, (torch.ones(2, 4),), strict=False), count=1)
    exchanges(cut, {"input_1": torch.ones(2, 4)})
    assert cut.stages[0].module.get_buffer("1.num_batches_tracked") == 0


# --- mistakes -----------------------------------------------------------------------------------


def test_there_is_no_process_group() -> None:
    with pytest.raises(PyPMError, match="in a process group, and there is none"):
        pipeline(Case(GPipe(1), 1))


@pytest.mark.usefixtures("group")
def test_mistakes() -> None:
    with pytest.raises(PyPMError, match="the schedule has 2 ranks, and there are 1 processes"):
        pipeline(Case(GPipe(2), 2))
    own = pipeline(Case(GPipe(1), 1))
    with pytest.raises(PyPMError, match="`x` has 7 rows, which make no 4 equal parts"):
        own.step(X[:7], target=TARGET)
    with pytest.raises(PyPMError, match="`x` requires gradients"):
        own.step(X.double().requires_grad_(), target=TARGET)


@pytest.mark.usefixtures("group")
def test_a_stage_that_raises() -> None:
    def fail(*values: object) -> object:
        raise ValueError("no such word")

    class Bad(nn.Module):
        forward = fail

    own = pipeline(Case(GPipe(1), 1), prepare=lambda module: Bad())
    with pytest.raises(PyPMError) as error:
        own.step(X, target=TARGET)
    assert str(error.value) == (
        "error: rank 0 failed in the forward of microbatch 0 in stage 0\n"
        "  = note: ValueError: no such word"
    )


@pytest.mark.usefixtures("group")
def test_a_loss_that_raises() -> None:
    own = pipeline(Case(GPipe(1), 1))
    with pytest.raises(PyPMError) as error:
        own.step(X, target=TARGET[:, :1])
    assert str(error.value).startswith(
        "error: rank 0 failed in the forward of microbatch 0 in stage 0\n  = note: ValueError: "
    )


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        (raises, "rank 1 failed in the forward of microbatch 2 in stage 1"),
        (dies, "rank 1"),
        (hangs, "rank 0 waits for rank 1, which does not finish the forward of microbatch 2 in "),
    ],
)
def test_a_rank_that_fails(fail: Callable[[], None], message: str, tmp_path: Path) -> None:
    """The others end, with an error that names it, and no process is left."""
    start = time.monotonic()
    case = Case(Std1F1B(2), 2)
    with pytest.raises(PyPMError) as error:
        launch(
            *(failing, case, 1, fail, str(tmp_path)),
            ranks=2,
            timeout=10 if fail is hangs else 100,
            start_method="forkserver",
        )
    assert message in str(error.value)
    assert time.monotonic() - start < 90
    processes = [int(path.name) for path in tmp_path.iterdir()]
    assert len(processes) == 2
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


def test_a_stage_that_raises_before_the_sender_went_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage's own error is its own, though the sender's place is still that of the sending."""
    monkeypatch.delenv("MASTER_PORT", raising=False)
    orders = {
        0: [PipelineAction(0, Computation.FORWARD, 0), PipelineAction(0, Computation.SEND_F, 0)],
        1: [PipelineAction(1, Computation.RECV_F, 0), PipelineAction(1, Computation.FORWARD, 0)],
    }
    found = Progress(orders, 1)
    found.begin()
    found.store.set("pipeline_0", "1 1")
    found.note(1)
    raised = RuntimeError("the stage failed")
    raised.__cause__ = ValueError("no such word")
    for error, message in (
        (raised, "rank 1 failed in the forward of microbatch 0 in stage 1"),
        (
            RuntimeError("closed by peer"),
            "rank 1 waits for rank 0, which does not finish `0SEND_F0`",
        ),
    ):
        assert found.blame(error).diagnostic.message == message
