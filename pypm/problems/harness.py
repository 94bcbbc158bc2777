"""The harness: versions of a computation, each in its process, called in turn and judged."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import torch
from torch import Tensor

from pypm.diagnostics import Diagnostic, PyPMError
from pypm.integrations.rule_files import load_rules
from pypm.problems.channel import Message
from pypm.problems.contender import Contender, Entrant, Inputs, ProcessLimits
from pypm.problems.formats.definition import ProblemDefinition
from pypm.problems.formats.solution import ProblemSolution
from pypm.problems.formats.workload import Workload, read_workloads
from pypm.problems.freshness import FreshInputs
from pypm.problems.jail import Jail
from pypm.problems.judging import compare
from pypm.problems.process import ContenderFailed
from pypm.problems.traces import Correctness, Performance, Status, Trace
from pypm.roofline import Hardware, score, this_machine

__all__ = [
    "BASELINES",
    "COMPILED",
    "REFERENCE",
    "REWRITTEN",
    "Harness",
    "Seconds",
    "Settings",
    "SolProblem",
    "run",
]

REFERENCE: Final = "reference"
COMPILED: Final = "torch.compile"
REWRITTEN: Final = "pypm"
BASELINES: Final = (REFERENCE, COMPILED, REWRITTEN)

Seconds: TypeAlias = Mapping[str, Sequence[float]]
"""The seconds of the timed calls so far, by the name of the version."""

_FIRST: Final = 3
"""The first calls whose outputs are all compared."""
_LATER: Final = 5
"""Calls among the timed ones whose outputs are compared; a version cannot know which."""
_LEAST: Final = 1e-9
"""The seconds of a call that took no longer than an empty one."""


@dataclass(frozen=True, slots=True)
class SolProblem:
    """A definition with its workloads, and solutions for it."""

    definition: ProblemDefinition
    workloads: Sequence[Workload]
    solutions: Sequence[ProblemSolution] = ()

    @staticmethod
    def from_files(folder: Path, solutions: Sequence[Path] = ()) -> SolProblem:
        """Return the problem in `definition.json` and `workload.jsonl` of a folder.

        Arguments:
            folder: the folder.
            solutions: files of solutions.

        Raises PyPMError if a file cannot be read, or a field of one is missing or wrong.
        """
        if not folder.is_dir():
            raise PyPMError(Diagnostic(f"there is no folder `{folder}`"))
        definition = ProblemDefinition.from_file(folder / "definition.json")
        workloads = read_workloads(folder / "workload.jsonl", definition)
        read = [ProblemSolution.from_file(path, definition) for path in solutions]
        names = [*BASELINES, *(each.name for each in read)]
        for name in names:
            if names.count(name) > 1:
                help = "traces tell versions by their names: give each solution its own"
                raise PyPMError(Diagnostic(f"two versions have the name `{name}`", help=help))
        return SolProblem(definition, workloads, read)


@dataclass(frozen=True, slots=True)
class Settings:
    """The way to run a problem."""

    rules: Sequence[str] = ("pypm.rules.inference",)
    """Rules that rewrite the reference, by the names that the command takes."""
    warm_ups: int = 10
    runs: int = 50
    """Timed calls of each version, at least one."""
    threads: int = 1
    timeout: float = 300.0
    """Seconds for importing, compiling, or one call."""
    hardware: Hardware | None = None
    """The machine that bounds are for; this one, measured once, if it is None."""
    versions: Sequence[str] = BASELINES
    """The versions beside the solutions; the reference is always one."""
    is_wide: bool = False
    """The reference computes in float64, so that it is no baseline, but nearer to what is right."""
    jail: Jail = field(
        default_factory=lambda: Jail(is_open=True, memory=1e4, file=1e3, processes=4096)
    )
    """Limits of solutions."""


class Harness:
    """A definition, its reference in a process that is kept, and the machine."""

    def __init__(self, definition: ProblemDefinition, settings: Settings) -> None:
        self._definition = definition
        self._settings = settings
        self._hardware = settings.hardware or this_machine(settings.threads)
        flush = torch.empty(2 * int(self._hardware.cache), dtype=torch.uint8)
        self._limits = ProcessLimits(settings.threads, settings.timeout, flush, settings.jail)
        kind = Entrant(REFERENCE, is_wide=settings.is_wide)
        self._reference = Contender(kind, definition, self._limits)

    def run(
        self,
        workloads: Sequence[Workload],
        kinds: Sequence[Entrant],
        say: Callable[[str], None] = lambda _: None,
        is_over: Callable[[Workload, Seconds], bool] = lambda *_: False,
    ) -> Generator[Trace, None, None]:
        """Run other versions beside the reference, and yield a trace for each and workload.

        Arguments:
            workloads: the workloads.
            kinds: the functions of the versions.
            say: called with a line of progress.
            is_over: called after each round with the workload, and the seconds of the versions that
                have not failed. True ends the timing of this workload; outputs are still compared
                as often as without it.
        """
        others = [Contender(kind, self._definition, self._limits) for kind in kinds]
        versions = [self._reference, *others]
        try:
            for workload in workloads:
                say(f"{self._definition.name}, workload {workload.uuid}")
                trial = _WorkloadTrial(
                    self._definition, workload, versions, self._settings, self._hardware
                )
                yield from trial.run(partial(is_over, workload))
        finally:
            for version in others:
                version.end()

    def close(self) -> None:
        """End the process of the reference."""
        self._reference.end()


def run(
    problem: SolProblem,
    settings: Settings | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[Trace]:
    """Run a problem, and yield a trace for each version and workload as soon as it is known.

    Arguments:
        problem: the problem. Its reference and its solutions are run with the user's rights.
        settings: the way to run it.
        say: called with a line of progress.

    Raises PyPMError if the rules cannot be loaded. A version that fails, hangs or ends its process
    gets a trace that says so, and the others go on.
    """
    settings = settings or Settings()
    solutions = [Entrant(each.name, each) for each in problem.solutions]
    wanted = {REFERENCE, *settings.versions, *(each.name for each in solutions)}
    if REWRITTEN in wanted:
        load_rules(settings.rules)  # a mistake in their names is the user's, not the version's
    kinds = [
        Entrant(COMPILED, is_compiled=True),
        Entrant(REWRITTEN, is_compiled=True, rules=settings.rules),
        *solutions,
    ]
    bench = Harness(problem.definition, settings)
    try:
        yield from bench.run(problem.workloads, [k for k in kinds if k.name in wanted], say)
    finally:
        bench.close()


@dataclass(slots=True)
class _Figures:
    """Figures of one version for a workload."""

    correctness: Correctness = field(default_factory=Correctness)
    elapsed: list[float] = field(default_factory=list)
    """Seconds of the timed calls by the harness's clock."""
    outputs: list[Tensor] = field(default_factory=list)
    """The outputs that were compared last."""


class _WorkloadTrial:
    """All versions on one workload. An error that leaves its methods is the reference's."""

    def __init__(
        self,
        definition: ProblemDefinition,
        workload: Workload,
        versions: Sequence[Contender],
        settings: Settings,
        hardware: Hardware,
    ) -> None:
        self._definition = definition
        self._workload = workload
        self._reference, *self._active = versions
        self._settings = settings
        self._hardware = hardware
        self._figures = {version: _Figures() for version in versions}
        self._written: set[str] = set()
        self._empty: list[float] = []
        """The seconds of calls that compute nothing."""
        self._inputs = FreshInputs(self._reference, definition)
        self._bound: float | None = None
        self._notes: list[str] = []

    def run(self, is_over: Callable[[Seconds], bool]) -> Iterator[Trace]:
        """Yield the trace of each version. Timing ends when `is_over` returns True."""
        try:
            self._reference.prepare(self._workload)
            first = self._inputs.first()
            self._notes.append(self._inputs.note)
            yield from self._each(lambda version: self._ready(version, first))
            yield from self._calls(first, is_over)
            self._find_bound(first)
        except ContenderFailed as failure:
            invalid = ContenderFailed(Status.INVALID_REFERENCE, failure.text)
            for version in (self._reference, *self._active):
                yield self._failed(version, invalid)
        else:
            yield from self._each(self._check_bound)
            for version in (self._reference, *self._active):
                yield self._passed(version)

    def _ready(self, version: Contender, first: Inputs) -> None:
        version.prepare(self._workload)
        version.compile(first)

    def _each(self, action: Callable[[Contender], object], turn: int = 0) -> Iterator[Trace]:
        """Do something with each version but the reference; yield traces of those that fail.

        The order alternates with the turn.
        """
        for version in self._active[:: -1 if turn % 2 else 1]:
            try:
                action(version)
            except ContenderFailed as failure:
                self._active.remove(version)
                yield self._failed(version, failure)

    def _find_bound(self, given: Inputs) -> None:
        """Find the bound; one that a version which cannot cheat is below is none."""
        hardware: Message = asdict(self._hardware)
        try:
            found = self._reference.bound(given, hardware)
        except ContenderFailed as failure:
            self._reference.end()
            reason = failure.text.strip().rpartition("\n")[2]
            self._notes.append(f"no bound is known: {reason}")
            return
        for version in (self._reference, *self._active):
            if version.kind.solution is None and self._latency(version) < found:
                text = f"{version.kind.name} is below what was found, {found:.3g} s"
                self._notes.append(f"no bound is known: {text}")
                return
        self._bound = found

    def _check_bound(self, version: Contender) -> None:
        latency = self._latency(version)
        if self._bound is not None and latency < self._bound:
            problem = f"the time {latency:.3g} s is below the bound {self._bound:.3g} s"
            raise ContenderFailed(
                Status.REWARD_HACK, f"{problem}: it did not compute all in the call"
            )

    def _calls(self, given: Inputs, is_over: Callable[[Seconds], bool]) -> Iterator[Trace]:
        """Call all versions in turn, on inputs that no call had before."""
        first = self._settings.warm_ups
        count = first + self._settings.runs
        later = random.SystemRandom().sample(range(first, count), min(_LATER, count - first))
        compared = {*range(min(_FIRST, count)), *later}
        has_ended = False
        for number in range(count):
            if has_ended and number not in compared:
                continue
            inputs = self._inputs.draw() if number else given
            self._empty.append(self._reference.call(inputs, is_empty=True))
            is_timed = number >= first and not has_ended

            def call(
                version: Contender,
                inputs: Inputs = inputs,
                is_timed: bool = is_timed,
                is_whole: bool = number in compared,
            ) -> None:
                seconds = version.call(inputs)
                if is_timed:
                    self._figures[version].elapsed.append(seconds)
                if is_whole or not self._is_near(version):
                    self._compare(version, inputs)

            call(self._reference)
            yield from self._each(call, number)
            has_ended = has_ended or (is_timed and is_over(self._seconds()))

    def _seconds(self) -> Seconds:
        return {version.kind.name: self._seconds_of(version) for version in self._active}

    def _seconds_of(self, version: Contender) -> list[float]:
        """Return the seconds of timed calls beyond those that an empty call takes at least."""
        least = min(self._empty)
        return [max(each - least, _LEAST) for each in self._figures[version].elapsed]

    def _is_near(self, version: Contender) -> bool:
        """Return whether those elements of the last outputs that were looked at are right."""
        triples = zip(version.outputs, self._reference.outputs, version.places, strict=True)
        for ours, expected, at in triples:
            sample, right = ours.reshape(-1)[at], expected.reshape(-1)[at]
            if not compare(sample, right, self._workload.tolerance)[1]:
                return False
        return True

    def _compare(self, version: Contender, inputs: Inputs) -> None:
        """Compare the outputs of the last call with those of the reference, which comes first."""
        found, written = version.outputs, version.written(inputs)
        figures = self._figures[version]
        if version is self._reference:
            self._written |= written
        elif written - self._written:
            names = ", ".join(f"`{name}`" for name in sorted(written - self._written))
            raise ContenderFailed(Status.REWARD_HACK, f"the call wrote to its inputs {names}")
        else:
            pairs = zip(found, self._reference.outputs, strict=True)
            is_right = True
            for ours, expected in pairs:
                errors, is_near = compare(ours, expected, self._workload.tolerance)
                figures.correctness = figures.correctness.worse(errors)
                is_right = is_right and is_near
            if not is_right:
                raise self._wrong(found, figures)
        figures.outputs = found

    def _wrong(self, found: Sequence[Tensor], figures: _Figures) -> ContenderFailed:
        """Return the error of outputs that are wrong."""
        if figures.outputs and all(map(torch.equal, found, figures.outputs)):
            text = "the outputs are those of an earlier call with other inputs"
            return ContenderFailed(Status.REWARD_HACK, text)
        tolerance = self._workload.tolerance
        return ContenderFailed(
            Status.INCORRECT_NUMERICAL,
            f"outputs differ by {figures.correctness.max_absolute_error:.3g}, where "
            f"{tolerance.absolute:.3g} + {tolerance.relative:.3g} of the value is allowed",
        )

    def _failed(self, version: Contender, failure: ContenderFailed) -> Trace:
        """Return the trace of a version that failed, and end its process."""
        log = "\n".join(filter(None, (failure.text.strip(), version.log().strip())))
        version.end()
        is_numerical = failure.status is Status.INCORRECT_NUMERICAL
        return Trace(
            self._definition.name,
            self._workload.given,
            version.kind.name,
            failure.status,
            log,
            self._figures[version].correctness if is_numerical else None,
            bound_ms=_milliseconds(self._bound),
            rules=version.rules,
        )

    def _passed(self, version: Contender) -> Trace:
        latency, reference = self._latency(version), self._latency(self._reference)
        compiled = next((v for v in self._active if v.kind.name == COMPILED), None)
        baseline = self._latency(compiled) if compiled else None
        known = None if baseline is None or self._bound is None else (baseline, self._bound)
        return Trace(
            self._definition.name,
            self._workload.given,
            version.kind.name,
            Status.PASSED,
            "\n".join(filter(None, self._notes)),
            self._figures[version].correctness,
            Performance(1e3 * latency, 1e3 * reference, reference / latency),
            score(latency, *known) if known else None,
            _milliseconds(self._bound),
            _milliseconds(baseline),
            self._speedup(compiled, version) if compiled else None,
            version.rules,
            self._seconds_of(version),
        )

    def _speedup(self, slow: Contender, fast: Contender) -> float:
        """Return the median of the ratios within a turn, which drift of the machine hits alike."""
        pairs = zip(self._seconds_of(slow), self._seconds_of(fast), strict=True)
        return statistics.median(a / b for a, b in pairs)

    def _latency(self, version: Contender) -> float:
        """Return the median seconds of the timed calls."""
        return statistics.median(self._seconds_of(version))


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds
