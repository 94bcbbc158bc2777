"""Candidates judged: against the reference in float64, and in time beside the incumbent."""

from __future__ import annotations

import runpy
import secrets
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from torch.func import functionalize

from pypm.choice import every
from pypm.choice.execution import traced
from pypm.core.rules import RuleSet
from pypm.diagnostics import Diagnostic, PyPMError
from pypm.evolve import Candidate, ConfigurationVerdict, Jail, SearchTask, Verdict
from pypm.evolve.candidate import write_files
from pypm.evolve.task import HERE, HOPPER
from pypm.evolve.verdicts import LAW, RIGHT, may_be_better
from pypm.evolve.workloads import problem_of
from pypm.fx import INDUCTOR, rewrite
from pypm.integrations.rule_files import load_rules
from pypm.laws.prove import prove
from pypm.laws.verdicts import Proved
from pypm.problems.contender import Entrant
from pypm.problems.formats.solution import ProblemSolution
from pypm.problems.formats.workload import Workload
from pypm.problems.harness import COMPILED, Harness, Seconds, Settings
from pypm.problems.traces import Status, Trace
from pypm.roofline import Hardware, score
from pypm.tools.verification.verify import verify
from pypm.torch_internals import select_decomp_table

__all__ = ["CandidateJudge"]

Files = Mapping[str, bytes]
NearMiss = tuple[Callable[..., object], Sequence[object]]
"""A function and its inputs."""
PROOF_SECONDS: Final = 20
"""CPU time for the proofs of a candidate's rules."""
_EAGER: Final = "eager"
_INCUMBENT: Final = "incumbent"
_WARM_UPS: Final = 3
_NOT_MEASURED: Final = "NOT_MEASURED"
_LEAST: Final = 3
"""The least timed rounds of a configuration, by which it is scored."""
_TRIES: Final = 2
"""Measurements of a candidate, if the incumbent or the baseline fails beside it."""


class CandidateJudge:
    """Judges candidates of a task in this process; their code runs in jails, in others."""

    def __init__(self, task: SearchTask, jail: Jail) -> None:
        """Read the task's files.

        Arguments:
            task: the task.
            jail: the limits of candidates.

        Raises PyPMError if a file of the task is wrong.
        """
        self._task = task
        self._definition, self._workloads = problem_of(task)
        is_here = task.hardware == HERE
        settings = Settings(
            warm_ups=_WARM_UPS,
            runs=task.rounds,
            threads=task.threads,
            timeout=task.timeout,
            hardware=None if is_here else Hardware.from_file(task.folder / task.hardware),
            is_wide=True,
            jail=jail,
        )
        self._bench = Harness(self._definition, settings)

    def judge(
        self, candidate: Files, incumbent: Files | None, known: Verdict | None, is_final: bool
    ) -> Verdict:
        """Return the verdict of a candidate, as `pypm.evolve.Judge` has it."""
        for _ in range(_TRIES):
            [verdict] = self.verdicts({"candidate": candidate}, incumbent, known, is_final)
            if not any(each.status == _NOT_MEASURED for each in verdict.configurations):
                break
        return verdict

    def verdicts(
        self,
        candidates: Mapping[str, Files],
        incumbent: Files | None,
        known: Verdict | None,
        is_final: bool,
    ) -> list[Verdict]:
        """Return the verdicts of several candidates, all of them timed in the same rounds.

        Arguments:
            candidates: their files by a name.
            incumbent: the files of the incumbent; None if there is none.
            known: the verdict of the incumbent.
            is_final: baselines are measured as well.
        """
        with tempfile.TemporaryDirectory(prefix="pypm-rules-") as folder:
            kinds: dict[str, Entrant] = {}
            notes: dict[str, Mapping[str, str]] = {}
            reasons: dict[str, str] = {}
            for name, files in candidates.items():
                try:
                    kinds[name], notes[name] = self._kind(name, files, Path(folder))
                except PyPMError as error:
                    reasons[name] = str(error)
            if incumbent is not None:
                kinds[_INCUMBENT], _ = self._kind(_INCUMBENT, incumbent, Path(folder))
            if is_final:
                kinds |= {COMPILED: Entrant(COMPILED, is_compiled=True), _EAGER: Entrant(_EAGER)}
            traces = self._traces([*kinds.values()], {*candidates} - reasons.keys())
        made = []
        for name in candidates:
            found = [self._configuration(*each, name, known) for each in traces if name in each[0]]
            is_short = any(0 < len(each.gains) < self._task.rounds for each in found)
            reason = reasons.get(name, "")
            said = notes.get(name, {})
            made.append(Verdict(found, reason, self._task.margin, said, is_cut_short=is_short))
        return made

    def close(self) -> None:
        """End all processes."""
        self._bench.close()

    def _traces(
        self, kinds: Sequence[Entrant], judged: set[str]
    ) -> list[tuple[dict[str, Trace], bool]]:
        """Run versions on all configurations, until all candidates were wrong on one.

        Timing ends when no candidate can be better any more.
        """
        found: list[tuple[dict[str, Trace], bool]] = []
        known: dict[str, dict[str, Sequence[float]]] = {}
        held_out = {workload.uuid: is_held_out for workload, is_held_out in self._workloads}
        wrong: set[str] = set()

        def is_over(workload: Workload, seconds: Seconds) -> bool:
            left = judged - wrong
            if left and len(seconds.get(_INCUMBENT, ())) < _LEAST:
                return False
            each = {**known, workload.uuid: seconds}
            return not any(self._may_be_better(name, each) for name in left)

        running = self._bench.run([each for each, _ in self._workloads], kinds, is_over=is_over)
        for trace in running if judged else ():
            uuid = _name(trace)
            if uuid not in known:
                if wrong >= judged:
                    break
                found.append(({}, held_out[uuid]))
            found[-1][0][trace.solution] = trace
            known.setdefault(uuid, {})[trace.solution] = trace.seconds
            if trace.status is not Status.PASSED:
                wrong.add(trace.solution)
        running.close()
        return found

    def _may_be_better(self, name: str, known: Mapping[str, Seconds]) -> bool:
        """Return whether a candidate may be better, by the seconds for each configuration."""
        each = [
            ConfigurationVerdict(
                w.uuid, is_held_out, RIGHT, gains=_gains(known.get(w.uuid, {}), name)
            )
            for w, is_held_out in self._workloads
        ]
        return may_be_better(each, self._task.margin, self._task.rounds)

    def _configuration(
        self, traces: Mapping[str, Trace], is_held_out: bool, name: str, known: Verdict | None
    ) -> ConfigurationVerdict:
        """Return the figures of a candidate on one configuration."""
        trace = traces[name]
        where = _name(trace)
        incumbent, compiled = traces.get(_INCUMBENT), traces.get(COMPILED)
        for other in (incumbent, compiled):
            if other is not None and other.performance is None and trace.performance is not None:
                reason = f"`{other.solution}` failed beside it: {_last(other)}"
                return ConfigurationVerdict(where, is_held_out, _NOT_MEASURED, reason)
        if trace.performance is None:
            return ConfigurationVerdict(where, is_held_out, trace.status.value, _last(trace))
        gains: tuple[float, ...] = ()
        over = _ratio(compiled, trace)
        if incumbent is not None:
            gains = _gains({each.solution: each.seconds for each in (incumbent, trace)}, name)
            before = {each.name: each.compiled for each in known.configurations} if known else {}
            ratio = before.get(where)
            if over is None and ratio is not None:
                over = ratio * statistics.median(gains)
        milliseconds = trace.performance.latency_ms
        value, flags = _score(milliseconds, over, trace.bound_ms)
        return ConfigurationVerdict(
            where,
            is_held_out,
            RIGHT,
            "; ".join(flags),
            value,
            milliseconds,
            over,
            _ratio(traces.get(_EAGER), trace),
            gains,
        )

    # --- candidates ------------------------------------------------------------------------------

    def _kind(self, name: str, files: Files, folder: Path) -> tuple[Entrant, Mapping[str, str]]:
        """Return a candidate as a version for the harness, with notes; rules are verified before.

        Raises PyPMError if it cannot be run, or the rules are wrong.
        """
        candidate = Candidate.of(files)
        if candidate.rules is not None:
            place = folder / name
            write_files(files, place)
            path = str(place / candidate.rules)
            notes = {} if name == _INCUMBENT else self._check(load_rules([path]))
            return Entrant(name, is_compiled=True, rules=[path]), notes
        if candidate.entry is None:
            help = f'tasks with `hardware = "{HOPPER}"` have such candidates'
            raise PyPMError(Diagnostic("the candidate is a tile program", help=help))
        try:
            sources = {path: content.decode() for path, content in files.items()}
        except UnicodeDecodeError:
            help = "a candidate is compiled here, from its sources"
            raise PyPMError(Diagnostic("a file of the candidate is not text", help=help)) from None
        file, function = candidate.entry
        solution = ProblemSolution(name, sources, file, function, candidate.has_destinations)
        return Entrant(name, solution), {}

    def _check(self, rules: RuleSet) -> Mapping[str, str]:
        """Return a note that says how many rules are proved for all sizes.

        Raises PyPMError if rules match a near miss, are wrong on graphs of their patterns, or
        are refuted.

        Rules see what `torch.compile` makes of the reference, so near misses are also tried in
        Inductor's operators.
        """
        for number, (function, inputs) in enumerate(self._near_misses()):
            inductor = traced(functionalize(function), inputs, select_decomp_table())
            for graph, dialect, form in (
                (traced(function, inputs), None, "as it is captured"),
                (inductor, INDUCTOR, "in Inductor's operators"),
            ):
                report = rewrite(graph, rules, dialect=dialect, choose=every)
                if report.rewrites:
                    name = report.rewrites[0].rule
                    what = f"the rule `{name}` matches near miss {number} of the task, {form}"
                    raise PyPMError(Diagnostic(what, help="no rule may fire there"))
        found = verify(
            rules,
            samples=self._task.samples,
            seed=secrets.randbits(32),
            gradients=self._task.gradients,
        )
        if not found.ok:
            raise PyPMError(Diagnostic(f"the rules are wrong:\n{found}"))
        laws = prove(rules, seconds=PROOF_SECONDS)
        if laws.refuted:
            raise PyPMError(Diagnostic(f"the rules are wrong:\n{laws}"))
        proved = sum(isinstance(law, Proved) for law in laws.verdicts)
        return {LAW: f"{proved} of {len(rules)} rules proved"}

    def _near_misses(self) -> Sequence[NearMiss]:
        path = self._task.folder / "near_misses.py"
        if not path.exists():
            return ()
        found: Sequence[NearMiss] = runpy.run_path(str(path))["NEAR_MISSES"]
        return found


def _gains(seconds: Seconds, name: str) -> tuple[float, ...]:
    """Return the time of the incumbent over that of a candidate, for each round of both."""
    pairs = zip(seconds.get(_INCUMBENT, ()), seconds.get(name, ()), strict=False)
    return tuple(a / b for a, b in pairs)


def _name(trace: Trace) -> str:
    return str(trace.workload["uuid"])


def _last(trace: Trace) -> str:
    """Return the last line of what is known of a failure."""
    lines = [line for line in trace.log.splitlines() if line.strip()]
    if trace.status in (Status.COMPILE_ERROR, Status.RUNTIME_ERROR):
        return "\n".join(lines[-8:])
    return lines[0] if lines else str(trace.status)


def _ratio(slow: Trace | None, fast: Trace) -> float | None:
    """Return the median over rounds of the time of a version over that of another."""
    if slow is None or slow.performance is None:
        return None
    return statistics.median(a / b for a, b in zip(slow.seconds, fast.seconds, strict=True))


def _score(
    milliseconds: float, over: float | None, bound: float | None
) -> tuple[float, tuple[str, ...]]:
    """Return the speed-of-light score, and reasons to distrust it.

    Without a bound, or with one that the baseline reaches, it is that of a bound of zero: 0.5 for
    the baseline still, and less than 1 always.
    """
    if over is None:
        return 0.0, ("there is no time of the compiled reference",)
    baseline = over * milliseconds
    found = score(milliseconds, baseline, bound or 0.0)
    if found.value is None:
        return 1 / (1 + milliseconds / baseline), found.flags
    return found.value, found.flags
