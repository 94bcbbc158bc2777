"""A version of a computation: its process, the calls in it, and the checks around them."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from torch import Tensor

from pypm.evolve.jail import Jail
from pypm.tools.problems.channel import Broken
from pypm.tools.problems.formats.definition import Definition
from pypm.tools.problems.formats.solution import Solution
from pypm.tools.problems.formats.workload import Custom, Random, Safetensors, Scalar, Workload
from pypm.tools.problems.judging import Expected, bytes_of, tensors_of
from pypm.tools.problems.process import Failed, Process
from pypm.tools.problems.traces import Status

__all__ = ["Kind", "Limits", "Version", "input_of"]

_REST: Final = 0.02
"""Seconds after a call in which threads of a pool may still wait on a core for more work."""
_WATCH: Final = 0.1
"""Seconds for which a process that was not asked for anything is watched."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources of a process."""

    threads: int
    """The threads that it computes on."""
    seconds: float
    """The time for one request."""
    flush: int
    """Bytes that are written before each call, so that caches hold none of its inputs."""
    jail: Jail | None = None
    """Limits of processes that run solutions."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The function that a version calls: the definition's reference, or a solution's."""

    name: str
    solution: Solution | None = None
    is_compiled: bool = False
    rules: Sequence[str] | None = None
    """Names of rules by which the compiled reference is rewritten."""
    is_wide: bool = False
    """The reference computes in float64, and rounds its outputs once."""


class Version:
    """A version, in a process that is started when it is needed, and anew after it ended."""

    def __init__(self, kind: Kind, definition: Definition, limits: Limits) -> None:
        self.kind = kind
        self.rules: tuple[str, ...] = ()
        """The rules that were applied for the current workload."""
        self._definition = definition
        self._limits = limits
        self._process: Process | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="pypm-")
        self._failure: Failed | None = None
        self._outputs: list[Expected] = []
        self._excess: list[tuple[float, float]] = []
        self._threads = 0

    def prepare(self, workload: Workload, seed: int) -> None:
        """Get ready for a workload; `seed` is for the inputs of a first call.

        Raises Failed if the version does not start, or does not compile. What cannot be imported
        is not tried again.
        """
        if self._failure is not None:
            raise self._failure
        if self._process is None:
            self._start()
        definition, sizes = self._definition, workload.sizes
        self._outputs = [
            Expected.of(name, spec, sizes) for name, spec in definition.outputs.items()
        ]
        self._excess = []
        self._ask(
            "prepare",
            axes=sizes,
            inputs=[input_of(name, workload, definition) for name in definition.inputs],
            outputs=[
                {"name": name, "shape": spec.sizes(sizes), "dtype": spec.dtype}
                for name, spec in definition.outputs.items()
            ],
        )
        if self.kind.is_compiled:
            rules = self._ask("compile", seed=seed).get("rules")
            assert isinstance(rules, list)
            self.rules = tuple(map(str, rules))

    def bound(self, hardware: dict[str, object], seed: int) -> float:
        """Return the least seconds that the reference takes on some hardware. Raises Failed."""
        return _number(self._ask("bound", hardware=hardware, seed=seed).get("seconds"))

    def call(self, seed: int, is_watched: bool) -> float:
        """Return the seconds of a call on inputs of a seed.

        If `is_watched`, the process is watched between two requests. Raises Failed if it works
        then, and for whatever the call does wrong.
        """
        self._ask("inputs", seed=seed)
        if is_watched and self.kind.solution:
            self._watch()
        start = time.perf_counter()
        answer = self._ask("call")
        elapsed = time.perf_counter() - start
        seconds = _number(answer.get("seconds"))
        self._excess.append((elapsed - seconds, elapsed))
        return seconds

    def outputs(self) -> tuple[list[Tensor], set[str]]:
        """Return the outputs of the last call, and the names of inputs that it wrote to.

        Raises Failed if they are not as the definition says.
        """
        most = bytes_of(self._outputs)
        answer = self._process_of().ask("outputs", {}, self._limits.seconds, most)
        written = answer.fields.get("written")
        names = set(map(str, written)) if isinstance(written, list) else set()
        try:
            return tensors_of(answer, self._outputs), names
        except (Broken, TypeError, AttributeError) as error:
            raise Failed(Status.RUNTIME_ERROR, f"the outputs cannot be read: {error}") from None

    def warmed_up(self) -> None:
        """Count the threads: those that begin from now on were not needed to get ready."""
        self._threads = self._process_of().threads()
        self._excess = []

    @property
    def overhead(self) -> float:
        """Return the usual seconds of a call beside those that the worker counted."""
        return statistics.median(excess for excess, _ in self._excess)

    def finish(self, usual: float) -> None:
        """Check a solution's calls since `warmed_up`.

        Arguments:
            usual: the overhead of the reference, which grows with the load of the machine.

        Raises Failed if there are more threads, or the worker's clock went slower than this one.
        """
        if self.kind.solution is None:
            return
        now = self._process_of().threads()
        if now > self._threads > 0:
            problem = f"calls left {now - self._threads} more threads behind"
            raise Failed(Status.REWARD_HACK, problem)
        excess, elapsed = min(self._excess)
        # The harness's clock runs longer: by a message, and by waiting for a core. The least of
        # all calls is near to the message alone.
        if excess > 1e-3 + elapsed / 4 + 2 * usual:
            raise Failed(
                Status.REWARD_HACK,
                f"each call took at least {excess:.2g} s longer by the harness's clock",
            )

    def log(self) -> str:
        """Return the end of what the process printed."""
        return self._process.log() if self._process is not None else ""

    def end(self) -> None:
        """End the process. The next workload gets another."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def close(self) -> None:
        """End the process, and remove its files."""
        self.end()
        self._folder.cleanup()

    def _start(self) -> None:
        folder, limits, solution = Path(self._folder.name), self._limits, self.kind.solution
        needs_reference = solution is None or self._definition.custom_inputs is not None
        sources = {"reference.py": self._definition.reference} if needs_reference else {}
        for name, text in sources.items():
            (folder / name).write_text(text, encoding="utf-8")
        place = folder / "solution"
        for name, text in (solution.sources if solution else {}).items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text, encoding="utf-8")
        jail = limits.jail if solution is not None else None
        self._process = Process(folder, limits.threads, is_inside=solution is not None, jail=jail)
        try:
            self._ask(
                "start",
                reference=str(folder / "reference.py") if needs_reference else None,
                custom=self._definition.custom_inputs,
                solution=str(place / solution.file) if solution else None,
                function=solution.function if solution else None,
                destinations=solution is not None and solution.has_destinations,
                compiled=self.kind.is_compiled,
                wide=self.kind.is_wide,
                rules=None if self.kind.rules is None else [*self.kind.rules],
                threads=limits.threads,
                flush=limits.flush,
            )
        except Failed as failure:
            self._failure = failure
            raise

    def _ask(self, request: str, **fields: object) -> dict[str, object]:
        return dict(self._process_of().ask(request, fields, self._limits.seconds).fields)

    def _watch(self) -> None:
        time.sleep(_REST)
        spent = self._process_of().busy(_WATCH)
        if spent > _WATCH / 20:
            problem = f"it computed for {spent:.2g} of {_WATCH} s between two calls"
            raise Failed(Status.REWARD_HACK, problem)

    def _process_of(self) -> Process:
        assert self._process is not None
        return self._process


def input_of(name: str, workload: Workload, definition: Definition) -> dict[str, object]:
    """Return the description of an input by which a worker makes it."""
    spec = definition.inputs[name]
    found = {"name": name, "shape": spec.sizes(workload.sizes), "dtype": spec.dtype}
    match workload.inputs[name]:
        case Random():
            return {**found, "type": "random"}
        case Custom():
            return {**found, "type": "custom"}
        case Scalar(value):
            return {**found, "type": "scalar", "value": value}
        case Safetensors(path, key):
            return {**found, "type": "safetensors", "path": str(path.resolve()), "key": key}


def _number(value: object) -> float:
    if not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise Failed(Status.RUNTIME_ERROR, f"the process answered with {value!r} seconds")
    return float(value)
