"""Simulated times: the known bubbles, memory, traffic and the timelines."""

from __future__ import annotations

from xml.etree import ElementTree

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
    Schedule,
    Simulation,
    StageCost,
    Std1F1B,
    plan,
    simulate,
    timeline,
    timeline_svg,
)

SIZES = [(ranks, microbatches) for ranks in (4, 8, 16) for microbatches in (8, 16, 32, 64)]


def simulated(schedule: Schedule, microbatches: int) -> Simulation:
    stages = schedule.stages  # type: ignore[attr-defined]
    return simulate(plan(schedule, stages=stages, microbatches=microbatches))


@pytest.mark.parametrize(("ranks", "microbatches"), SIZES)
def test_the_bubble_of_one_forward_one_backward(ranks: int, microbatches: int) -> None:
    for schedule in (GPipe(ranks), Std1F1B(ranks), Eager1F1B(ranks)):
        bubble = simulated(schedule, microbatches).bubble
        assert bubble == pytest.approx((ranks - 1) / (microbatches + ranks - 1))


@pytest.mark.parametrize(("ranks", "microbatches"), [s for s in SIZES if s[0] <= s[1]])
@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_interleaving_divides_the_idle_time(ranks: int, microbatches: int, chunks: int) -> None:
    plain = simulated(Std1F1B(ranks), microbatches).overhead
    for kind in (Interleaved1F1B, InterleavedGPipe):
        found = simulated(kind(chunks * ranks, ranks), microbatches)
        assert found.overhead == pytest.approx(plain / chunks)


@pytest.mark.parametrize(("ranks", "microbatches"), SIZES)
def test_zero_bubble_is_below_both(ranks: int, microbatches: int) -> None:
    """ZB-H1 has a third of the idle time of 1F1B; both stay below two interleaved stages."""
    plain = simulated(Std1F1B(ranks), microbatches)
    found = simulated(ZBH1(ranks), microbatches)
    interleaved = simulated(Interleaved1F1B(2 * ranks, ranks), microbatches)
    assert found.overhead <= plain.overhead / 3 + 1e-9 or microbatches < ranks
    assert found.bubble < interleaved.bubble < plain.bubble
    assert max(found.peaks) <= max(plain.peaks)
    v = simulated(ZBV(2 * ranks), microbatches)
    assert v.bubble <= found.bubble
    assert max(v.peaks) / 2 <= max(plain.peaks)
    if microbatches >= 2 * ranks:
        assert simulated(DualPipeV(2 * ranks), microbatches).bubble == pytest.approx(v.bubble)


def test_memory_and_traffic() -> None:
    costs = [StageCost(activations=10 * (s + 1), sent=100, returned=10) for s in range(4)]
    gpipe = simulate(plan(GPipe(4), stages=4, microbatches=8), costs)
    assert gpipe.peaks == (80, 160, 240, 320)
    assert gpipe.sent == (800, 880, 880, 80)
    assert simulate(plan(Std1F1B(4), stages=4, microbatches=8), costs).peaks == (40, 60, 60, 40)
    v = simulate(plan(ZBV(4), stages=4, microbatches=8), costs)
    assert v.sent == (880, 880)


def test_transfers_take_time() -> None:
    costs = [StageCost(sent=2, returned=3)] * 2
    found = simulate(plan(GPipe(2), stages=2, microbatches=1), costs, bandwidth=2)
    assert found.makespan == 1 + 1 + 1 + 2 + 1.5 + 2


def test_eager_forwards_hide_transfers() -> None:
    costs = [StageCost(sent=1, returned=1)] * 4

    def time(schedule: Schedule) -> float:
        return simulate(plan(schedule, stages=4, microbatches=16), costs, bandwidth=1).makespan

    assert time(Eager1F1B(4)) < time(Std1F1B(4))


def test_costs_are_of_all_stages() -> None:
    with pytest.raises(PyPMError, match="there are 2 stages, and costs of 1"):
        simulate(plan(GPipe(2), stages=2, microbatches=1), [StageCost()])


def test_the_timeline_as_text() -> None:
    assert timeline(simulated(Std1F1B(2), 3)) == (
        "rank 0 F0 F1 ......B0----F2 B1----...B2----\nrank 1 ...F0 B0----F1 B1----F2 B2----......"
    )
    assert timeline(simulated(Interleaved1F1B(4, 2), 2)) == (
        "rank 0 0F0 0F1 2F0 2F1 ........2B0-----....2B1-----0B0-----0B1-----\n"
        "rank 1 ....1F0 1F1 3F0 3B0-----3F1 3B1-----1B0-----1B1-----........"
    )


def test_a_timeline_that_is_too_long_has_shorter_labels() -> None:
    line, *_ = timeline(simulated(Std1F1B(2), 3), width=10).splitlines()
    assert line.startswith("rank 0 FF")
    assert len(line) <= 17


def test_the_timeline_as_a_picture() -> None:
    found = simulated(ZBV(4), 6)
    root = ElementTree.fromstring(timeline_svg(found))
    titles = [each.text for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == sum(map(len, found.plan.ranks))
    assert titles[0] == "forward of microbatch 0 in stage 0, 0 to 1"


def test_the_report() -> None:
    assert str(simulated(Interleaved1F1B(4, 2), 2)) == (
        "time 15, bubble 20.0%\n"
        "rank 0: stages 0, 2; computes 80.0%, activations at most 4, sends 0 bytes\n"
        "rank 1: stages 1, 3; computes 80.0%, activations at most 3, sends 0 bytes"
    )
