"""Simulation of a plan: its time, the idle time of its ranks, its memory and its traffic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.pipeline.plan import Kind, Plan, Task, run

__all__ = ["Simulation", "StageCost", "simulate"]


@dataclass(frozen=True, slots=True)
class StageCost:
    """Costs of one microbatch in one stage: times in any one unit, sizes in bytes.

    Without figures of the model, a forward takes one unit and a backward two, and the activations
    of a stage count as one.
    """

    forward: float = 1.0
    backward_input: float = 1.0
    backward_weight: float = 1.0
    activations: float = 1.0
    """Memory from the forward until the gradients of weights."""
    sent: float = 0.0
    """Bytes of the values for the next stage."""
    returned: float = 0.0
    """Bytes of the gradients of these values."""

    def latency(self, task: Task) -> float:
        """Return how long a task of this stage takes."""
        if task.latency is not None:
            return task.latency
        match task.kind:
            case Kind.FORWARD:
                return self.forward
            case Kind.BACKWARD:
                return self.backward_input + self.backward_weight
            case Kind.BACKWARD_INPUT:
                return self.backward_input
            case Kind.BACKWARD_WEIGHT:
                return self.backward_weight


@dataclass(frozen=True, slots=True)
class Simulation:
    """A run of a plan on a clock. Each task starts as early as its rank and its inputs allow."""

    plan: Plan
    spans: tuple[tuple[tuple[float, float], ...], ...] = field(repr=False)
    """The start and the end of each task of each rank."""
    makespan: float
    """The time from the first start to the last end."""
    busy: tuple[float, ...]
    """The time that each rank computes."""
    peaks: tuple[float, ...]
    """The most memory that activations take on each rank."""
    sent: tuple[float, ...]
    """The bytes that each rank sends to others: values and gradients."""

    @property
    def bubble(self) -> float:
        """Return the share of time in which ranks are idle, from 0 to 1."""
        return 1.0 - sum(self.busy) / (len(self.busy) * self.makespan)

    @property
    def overhead(self) -> float:
        """Return idle time divided by computing time: 0.25 is a quarter more than without idling.

        Interleaving with `v` stages on a rank divides this figure by `v`.
        """
        return self.bubble / (1.0 - self.bubble)

    def __str__(self) -> str:
        lines = [f"time {self.makespan:.6g}, bubble {self.bubble:.1%}"]
        rows = zip(self.busy, self.peaks, self.sent, strict=True)
        for rank, (busy, peak, sent) in enumerate(rows):
            stages = [str(s) for s, r in enumerate(self.plan.rank_of) if r == rank]
            lines.append(
                f"rank {rank}: stage{'s' * (len(stages) > 1)} {', '.join(stages)}; "
                f"computes {busy / self.makespan:.1%}, activations at most {peak:.6g}, "
                f"sends {sent:.6g} bytes"
            )
        return "\n".join(lines)


def simulate(
    plan: Plan, costs: Sequence[StageCost] | None = None, *, bandwidth: float = math.inf
) -> Simulation:
    """Run a plan on a clock.

    Arguments:
        plan: what `plan` returned.
        costs: the costs of each stage; without them, all stages are equal.
        bandwidth: bytes in a unit of time from one rank to another. Transfers overlap with tasks
            and with each other.

    Raises PyPMError if the number of costs is not that of stages.
    """
    each = [StageCost()] * plan.stages if costs is None else [*costs]
    if len(each) != plan.stages:
        raise PyPMError(Diagnostic(f"there are {plan.stages} stages, and costs of {len(each)}"))

    def delay(stage: int, kind: Kind) -> float:
        if kind is Kind.FORWARD:
            return each[stage].sent / bandwidth
        return each[stage - 1].returned / bandwidth

    done = run(plan, lambda task: each[task.stage].latency(task), delay)
    busy = tuple(sum(end - start for start, end in spans) for spans in done.spans)
    makespan = max(end for spans in done.spans for _, end in spans)
    peaks = tuple(_peak(tasks, each) for tasks in plan.ranks)
    return Simulation(plan, done.spans, makespan, busy, peaks, _sent(plan, each))


def _peak(tasks: Sequence[Task], costs: Sequence[StageCost]) -> float:
    """Return the most memory of activations while a rank runs its tasks."""
    live = peak = 0.0
    for task in tasks:
        if task.kind is Kind.FORWARD:
            live += costs[task.stage].activations
            peak = max(peak, live)
        elif task.kind is not Kind.BACKWARD_INPUT:
            live -= costs[task.stage].activations
    return peak


def _sent(plan: Plan, costs: Sequence[StageCost]) -> tuple[float, ...]:
    """Return the bytes that each rank sends: values to the next stage, gradients to the last."""
    total = [0.0] * len(plan.ranks)
    for cost, here, there in zip(costs, plan.rank_of, plan.rank_of[1:], strict=False):
        if here != there:
            total[here] += cost.sent * plan.microbatches
            total[there] += cost.returned * plan.microbatches
    return tuple(total)
