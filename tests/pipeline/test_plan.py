"""Checks of schedules: what is refused, with which message, and that a runtime agrees."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from pypm import PyPMError
from pypm.pipeline import (
    ZBH1,
    ZBV,
    DualPipeV,
    Eager1F1B,
    GPipe,
    Interleaved1F1B,
    InterleavedGPipe,
    Kind,
    Schedule,
    Std1F1B,
    Task,
    plan,
)
from tests.pipeline.runtime_model import Listed, changed, outcome, random_lists

F, B = Kind.FORWARD, Kind.BACKWARD
BI, BW = Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT


def refusal(lists: Sequence[Sequence[Task]], stages: int = 2, microbatches: int = 1) -> str:
    with pytest.raises(PyPMError) as error:
        plan(Listed(lists), stages=stages, microbatches=microbatches)
    return str(error.value)


LEGAL = [[Task(0, 0, F), Task(0, 0, B)], [Task(1, 0, F), Task(1, 0, B)]]


def test_a_schedule_of_ones_own() -> None:
    found = plan(Listed(LEGAL), stages=2, microbatches=1)
    assert found.rank_of == (0, 1)
    assert outcome(LEGAL, 2, 1) == "ends"


def test_a_deadlock_names_ranks_tasks_and_what_they_wait_for() -> None:
    one, other = LEGAL
    assert refusal([one[::-1], other]) == (
        "error: the schedule deadlocks: no rank can go on\n"
        "  = note: rank 0, task 0: the backward of microbatch 0 in stage 0 waits for the forward "
        "of microbatch 0 in stage 0, which is task 1 of the same rank\n"
        "  = note: rank 1, task 0: the forward of microbatch 0 in stage 1 waits for the forward "
        "of microbatch 0 in stage 0, which is task 1 of rank 0\n"
        "  = help: a rank runs its tasks in order; move a task before those that wait for it"
    )


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([LEGAL[0]], "no rank has a task of stage 1"),
        ([LEGAL[0], LEGAL[1][:1]], "rank 1 has no task for the backward for inputs of microbatch"),
        ([LEGAL[0], [*LEGAL[1], LEGAL[1][1]]], "the backward of microbatch 0 in stage 1 is there"),
        ([LEGAL[0], [*LEGAL[1], Task(1, 0, BW)]], "repeats a part of the backward of microbatch 0"),
        ([LEGAL[0], [*LEGAL[1], Task(1, 1, F)]], "rank 1 has a task for the forward of microbatch"),
        ([LEGAL[0], [*LEGAL[1], Task(2, 0, F)]], "stage 2, which does not exist"),
        ([[*LEGAL[0], LEGAL[1][1]], LEGAL[1][:1]], "stage 1 is on rank 0 and on rank 1"),
    ],
)
def test_refusals(lists: list[list[Task]], message: str) -> None:
    assert message in refusal(lists)
    assert outcome(lists, 2, 1) != "ends"


def test_there_is_at_least_one_stage_and_one_microbatch() -> None:
    with pytest.raises(PyPMError, match="1 stages and 0 microbatches are no pipeline"):
        plan(GPipe(1), stages=1, microbatches=0)


def test_a_plan_has_a_size_that_can_be_computed() -> None:
    message = "2 stages of 32,769 microbatches are too many to plan"
    with pytest.raises(PyPMError, match=message):
        plan(GPipe(2), stages=2, microbatches=32_769)


def test_random_schedules_are_legal_where_a_runtime_ends() -> None:
    """Legal ones are accepted; of changed ones, those for which the model of a runtime ends."""
    draw = random.Random(0)
    seen = {"ends": 0, "deadlock": 0, "missing": 0, "wrong passes": 0}
    for _ in range(400):
        lists, stages, microbatches = random_lists(draw)
        assert outcome(lists, stages, microbatches) == "ends"
        plan(Listed(lists), stages=stages, microbatches=microbatches)
        lists = changed(draw, lists)
        found = outcome(lists, stages, microbatches)
        seen[found.partition(":")[0]] += 1
        if found == "ends":
            plan(Listed(lists), stages=stages, microbatches=microbatches)
        else:
            refusal(lists, stages, microbatches)
    assert min(seen.values()) >= 20, seen


@pytest.mark.parametrize(
    "schedule",
    [
        *(GPipe(4), Std1F1B(4), Eager1F1B(4), ZBH1(4)),
        *(InterleavedGPipe(8, 4), Interleaved1F1B(8, 4), Interleaved1F1B(4, 4), ZBV(8), ZBV(2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("microbatches", [1, 2, 4, 8, 12])
def test_shipped_schedules_end(schedule: Schedule, microbatches: int) -> None:
    stages = schedule.stages  # type: ignore[attr-defined]
    found = plan(schedule, stages=stages, microbatches=microbatches)
    assert outcome(found.ranks, stages, microbatches) == "ends"


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_dual_pipe_ends(ranks: int) -> None:
    for microbatches in range(2 * ranks, 3 * ranks):
        found = plan(DualPipeV(2 * ranks), stages=2 * ranks, microbatches=microbatches)
        assert outcome(found.ranks, 2 * ranks, microbatches) == "ends"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Interleaved1F1B(6, 4), "6 stages cannot be shared evenly by 4 ranks"),
        (lambda: InterleavedGPipe(6, 4), "6 stages cannot be shared evenly by 4 ranks"),
        (lambda: ZBV(3), "3 stages make no V"),
        (lambda: DualPipeV(8).tasks(7), "DualPipeV cannot run 7 microbatches in 8 stages"),
        (lambda: Interleaved1F1B(8, 4).tasks(9), "9 microbatches do not make 2 rounds"),
    ],
)
def test_what_a_schedule_cannot_do(make: object, message: str) -> None:
    with pytest.raises(PyPMError, match=message):
        make()  # type: ignore[operator]
