"""A version of a computation: its process, and the memory from which and to which it computes."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from pypm.problems.channel import Message
from pypm.problems.formats.definition import ProblemDefinition
from pypm.problems.formats.solution import ProblemSolution
from pypm.problems.formats.workload import Custom, Random, Safetensors, Scalar, Workload
from pypm.problems.jail import Jail
from pypm.problems.memory import Memory, Spec, bits_equal
from pypm.problems.process import ContenderFailed, Process
from pypm.problems.traces import Status

__all__ = ["Contender", "Entrant", "Inputs", "ProcessLimits", "input_of"]

_LOOKED_AT: Final = 64
"""Elements of each output that are read as soon as a call returns."""


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """The resources of a process."""

    threads: int
    """The threads that it computes on."""
    seconds: float
    """The time for one request."""
    flush: Tensor
    """Memory that is written before each call, so that caches hold none of its inputs."""
    jail: Jail
    """Limits of processes that run solutions."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """The function that a version calls: the definition's reference, or a solution's."""

    name: str
    solution: ProblemSolution | None = None
    is_compiled: bool = False
    rules: Sequence[str] | None = None
    """Names of rules by which the compiled reference is rewritten."""
    is_wide: bool = False
    """The reference computes in float64, and rounds its outputs once."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a call."""

    tensors: Sequence[Tensor]
    """A tensor for each input; what it holds for a number is not used."""
    numbers: Mapping[str, object]


class Contender:
    """A version, in a process that is started when it is needed, and anew after it ended."""

    def __init__(self, kind: Entrant, definition: ProblemDefinition, limits: ProcessLimits) -> None:
        self.kind = kind
        self.rules: tuple[str, ...] = ()
        """The rules that were applied for the current workload."""
        self.outputs: list[Tensor] = []
        """The outputs of the last call, in memory of their own."""
        self.places: list[Tensor] = []
        """The elements of each output that were looked at as soon as the last call returned."""
        self._definition = definition
        self._limits = limits
        self._process: Process | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._failure: ContenderFailed | None = None
        self._draws = torch.Generator().manual_seed(secrets.randbits(60))

    def prepare(self, workload: Workload) -> None:
        """Get ready for a workload.

        Raises Failed if the version does not start. What cannot be imported is not tried again.
        """
        if self._failure is not None:
            raise self._failure
        if self._process is None:
            self._start()
        definition, sizes = self._definition, workload.sizes
        inputs = [input_of(name, workload, definition) for name in definition.inputs]
        outputs = [
            {"name": name, "shape": spec.sizes(sizes), "dtype": spec.dtype}
            for name, spec in definition.outputs.items()
        ]
        self._given, self._made = Memory(inputs), Memory(outputs)
        files = self._given.descriptor, self._made.descriptor
        self._ask("prepare", files, axes=sizes, inputs=inputs, outputs=outputs)
        for each in (self._given, self._made):
            each.close()

    def compile(self, given: Inputs) -> None:
        """Compile what is to be compiled, by a first call. Raises Failed."""
        if self.kind.is_compiled:
            rules = self._asked_with(given, "compile").get("rules")
            assert isinstance(rules, list)
            self.rules = tuple(map(str, rules))

    def inputs(self, seed: int) -> Inputs:
        """Return inputs of a seed, which the reference's process makes. Raises Failed."""
        numbers = self._ask("inputs", seed=seed)["numbers"]
        assert isinstance(numbers, dict)
        return Inputs([each.clone() for each in self._given.tensors], numbers)

    def bound(self, given: Inputs, hardware: Message) -> float:
        """Return the least seconds that the reference takes on some hardware. Raises Failed."""
        seconds = self._asked_with(given, "bound", hardware=hardware)["seconds"]
        assert isinstance(seconds, float)
        return seconds

    def call(self, given: Inputs, is_empty: bool = False) -> float:
        """Return the seconds from when a process gets inputs until its outputs are in memory.

        If `is_empty`, the process does all of that but compute. Copying what a function returns
        counts for solutions alone: they can avoid it, and could compute meanwhile. Raises Failed
        for whatever the call does wrong, and if the outputs change afterwards.
        """
        self._ask("wake")  # each version has just been on a core, as the one that made the inputs
        self._write(given)
        self._made.spoil()
        flat = [each.reshape(-1) for each in self._made.tensors]
        self.places = [
            torch.randint(max(len(x), 1), (min(len(x), _LOOKED_AT),), generator=self._draws)
            for x in flat
        ]
        self._limits.flush.zero_()
        request, fields = "empty" if is_empty else "call", {"numbers": given.numbers}
        answer, seconds = self._process_of().ask(request, fields, self._limits.seconds)
        seen = [x[at] for x, at in zip(flat, self.places, strict=True)]
        self._process_of().hold()
        self.outputs = [each.clone() for each in self._made.tensors]
        for name, x, at, before in zip(
            self._definition.outputs, self.outputs, self.places, seen, strict=True
        ):
            if not bits_equal(x.reshape(-1)[at], before):
                problem = f"the output `{name}` changed after the call had returned"
                raise ContenderFailed(Status.REWARD_HACK, problem)
        if self.kind.solution is None:
            copied = answer["copied"]
            assert isinstance(copied, float)
            seconds -= copied
        return seconds

    def written(self, given: Inputs) -> set[str]:
        """Return the names of inputs that the last call, which got these, wrote to."""
        triples = zip(self._definition.inputs, given.tensors, self._given.tensors, strict=True)
        return {name for name, before, now in triples if not bits_equal(before, now)}

    def log(self) -> str:
        """Return the end of what the process printed."""
        return self._process.log() if self._process is not None else ""

    def end(self) -> None:
        """End the process, and remove its files. The next workload gets another."""
        if self._process is not None:
            self._process.end()
            self._process = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _start(self) -> None:
        """Start the process, in a folder that no other one could write to."""
        limits, solution = self._limits, self.kind.solution
        self._folder = tempfile.TemporaryDirectory(prefix="pypm-")
        folder = Path(self._folder.name)
        if solution is None:
            (folder / "reference.py").write_text(self._definition.reference, encoding="utf-8")
        place = folder / "solution"
        try:
            _write_sources(place, solution.sources if solution else {})
            jail = limits.jail if solution is not None else None
            self._process = Process(folder, limits.threads, solution is not None, jail)
            self._ask(
                "start",
                reference=None if solution else str(folder / "reference.py"),
                custom=self._definition.custom_inputs,
                solution=str(place / solution.file) if solution else None,
                function=solution.function if solution else None,
                destinations=solution is not None and solution.has_destinations,
                compiled=self.kind.is_compiled,
                wide=self.kind.is_wide,
                rules=None if self.kind.rules is None else [*self.kind.rules],
                threads=limits.threads,
            )
        except ContenderFailed as failure:
            self._failure = failure
            raise

    def _write(self, given: Inputs) -> None:
        for place, value in zip(self._given.tensors, given.tensors, strict=True):
            place.copy_(value)

    def _asked_with(self, given: Inputs, request: str, **fields: object) -> Message:
        self._write(given)
        return self._ask(request, numbers=given.numbers, **fields)

    def _ask(self, request: str, files: Sequence[int] = (), /, **fields: object) -> Message:
        answer, _ = self._process_of().ask(request, fields, self._limits.seconds, files)
        self._process_of().hold()
        return answer

    def _process_of(self) -> Process:
        assert self._process is not None
        return self._process


def _write_sources(folder: Path, sources: Mapping[str, str]) -> None:
    """Write the files of a solution. Raises Failed if no file can have such a name or content."""
    for name, text in sources.items():
        try:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        except (OSError, ValueError) as error:
            problem = f"the source {name[:80]!a} cannot be written: {error}"
            raise ContenderFailed(Status.COMPILE_ERROR, problem) from None


def input_of(name: str, workload: Workload, definition: ProblemDefinition) -> Spec:
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
