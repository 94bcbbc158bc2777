"""Harnesses without processes: one with seconds that are given, one that counts operations."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.func import functionalize
from torch.utils.flop_counter import FlopCounterMode

from pypm.choice.execution import traced
from pypm.fx import INDUCTOR, rewrite
from pypm.integrations.rule_files import load_rules
from pypm.problems.contender import Entrant
from pypm.problems.formats.definition import ProblemDefinition
from pypm.problems.formats.workload import Workload
from pypm.problems.harness import Seconds
from pypm.problems.traces import Performance, Status, Trace
from pypm.torch_internals import select_decomp_table

IsOver = Callable[[Workload, Seconds], bool]


def timed(workload: Workload, seconds: Seconds, is_over: IsOver) -> Iterator[Trace]:
    """Yield the traces of versions that take these seconds, until `is_over` ends their timing."""
    rounds = range(1, min(map(len, seconds.values())) + 1)
    ends = (n for n in rounds if is_over(workload, {k: v[:n] for k, v in seconds.items()}))
    made = next(ends, rounds[-1])
    for name, each in seconds.items():
        yield Trace(
            "",
            workload.given,
            name,
            Status.PASSED,
            performance=Performance(1e3 * statistics.median(each[:made]), 1.0, 1.0),
            seconds=each[:made],
        )


class Given:
    """Seconds of the candidate by configuration, and 1 s for the other versions."""

    def __init__(self, seconds: Mapping[str, Sequence[float]], wrong: str, ends: bool) -> None:
        self.seconds = seconds
        self.wrong = wrong
        """The configuration on which the candidate is wrong; empty if there is none."""
        self.ends = ends
        """Timing may end early."""

    def run(
        self, workloads: Sequence[Workload], kinds: Sequence[Entrant], is_over: IsOver
    ) -> Generator[Trace, None, None]:
        for workload in workloads:
            ours = self.seconds[workload.uuid]
            seconds = {k.name: ours if k.name == "candidate" else [1.0] * len(ours) for k in kinds}
            if workload.uuid == self.wrong:
                del seconds["candidate"]
                yield Trace("", workload.given, "candidate", Status.TIMEOUT)
            yield from timed(workload, seconds, is_over if self.ends else lambda *_: False)

    def close(self) -> None: ...


class Counting:
    """Rewrites the reference in Inductor's operators; 10^9 operations count as a second."""

    def __init__(self, definition: ProblemDefinition, rounds: int) -> None:
        self.definition = definition
        self.rounds = rounds
        namespace: dict[str, Callable[..., Tensor]] = {}
        exec(definition.reference, namespace)
        self.reference = namespace["run"]

    def run(
        self, workloads: Sequence[Workload], kinds: Sequence[Entrant], is_over: IsOver
    ) -> Generator[Trace, None, None]:
        for workload in workloads:
            inputs = [
                torch.randn(*spec.sizes(workload.sizes) or ())
                for spec in self.definition.inputs.values()
            ]
            seconds = {kind.name: [self._counted(kind, inputs)] * self.rounds for kind in kinds}
            yield from timed(workload, seconds, is_over)

    def _counted(self, kind: Entrant, inputs: Sequence[Tensor]) -> float:
        graph = traced(functionalize(self.reference), inputs, select_decomp_table())
        rewrite(graph, load_rules(kind.rules or []), dialect=INDUCTOR)
        with FlopCounterMode(display=False) as counter:
            found = graph(*inputs)
        torch.testing.assert_close(found, self.reference(*inputs), rtol=1e-4, atol=1e-3)
        return counter.get_total_flops() / 1e9

    def close(self) -> None: ...
