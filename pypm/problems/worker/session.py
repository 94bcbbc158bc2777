"""The state of a worker: one version of a computation, and the workload it is prepared for."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import torch
from torch import Tensor

from pypm.problems.channel import Message
from pypm.problems.memory import Input, Memory, Spec
from pypm.problems.worker.calls import WrongOutput, call
from pypm.problems.worker.inputs import inputs_maker
from pypm.problems.worker.versions import Compiled, Function, WideFunction, function_of, loaded

__all__ = ["Session"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A version with its workload, and the memory that the harness sees."""

    function: Function
    make: Callable[[int], list[Input]]
    inputs: Sequence[Spec]
    outputs: Sequence[Spec]
    given: Sequence[Tensor]
    made: Sequence[Tensor]

    def arguments(self, request: Message) -> list[Input]:
        """Return the inputs: tensors in memory, and the numbers of a request."""
        numbers = _as(dict, request["numbers"])
        pairs = zip(self.inputs, self.given, strict=True)
        return [numbers.get(spec["name"], tensor) for spec, tensor in pairs]


class Session:
    """Answers requests. An answer has what was found, or `failed` and `text`."""

    def __init__(self) -> None:
        self._requests: Mapping[str, Callable[[Message], Message]] = {
            "start": self._start,
            "wake": lambda _: {},
            "inputs": self._inputs,
            "compile": self._compile,
            "bound": self._bound,
            "call": self._call,
            "empty": self._empty,
        }
        self._started: Message = {}
        self._run: Function | None = None
        self._custom: Function | None = None
        self._prepared: Prepared | None = None

    def answer(self, request: Message, files: Sequence[int]) -> Message:
        """Do what a request asks for. Errors of the version are in the answer."""
        what = str(request["do"])
        try:
            if what == "prepare":
                return self._prepare(request, *files)
            return self._requests[what](request)
        except BaseException as error:  # also of `sys.exit` in a solution
            return _failure(error, what)

    def _start(self, request: Message) -> Message:
        """Import the sources."""
        self._started = request
        torch.set_num_threads(_as(int, request["threads"]))
        if request["reference"] is not None:
            defined = loaded(Path(_as(str, request["reference"])), "sol_reference")
            custom = request["custom"]
            self._custom = function_of(defined, _as(str, custom)) if custom else None
            self._run = function_of(defined, "run")
        if request["solution"] is not None:
            defined = loaded(Path(_as(str, request["solution"])), "sol_solution")
            self._run = function_of(defined, _as(str, request["function"]))
        return {}

    def _prepare(self, request: Message, given: int, made: int) -> Message:
        """Get ready for a workload, with the memory of two descriptors."""
        function = _given(self._run)
        inputs, outputs = _as(list, request["inputs"]), _as(list, request["outputs"])
        if self._started["compiled"]:
            rules = self._started["rules"]
            function = Compiled(function, None if rules is None else _as(list, rules))
        if self._started["wide"]:
            function = WideFunction(function, [each["dtype"] for each in outputs])
        make = inputs_maker(inputs, _as(dict, request["axes"]), self._custom)
        memory = Memory(inputs, given).tensors, Memory(outputs, made).tensors
        self._prepared = Prepared(function, make, inputs, outputs, *memory)
        return {}

    def _inputs(self, request: Message) -> Message:
        """Make inputs from a seed, in the memory; the answer has the numbers."""
        prepared = _given(self._prepared)
        numbers = {}
        made = prepared.make(_as(int, request["seed"]))
        for value, place, spec in zip(made, prepared.given, prepared.inputs, strict=True):
            if isinstance(value, Tensor):
                place.copy_(value)
            else:
                numbers[str(spec["name"])] = value
        return {"numbers": numbers}

    def _compile(self, request: Message) -> Message:
        """Call a compiled version for the first time; the answer has the rules that applied."""
        prepared = _given(self._prepared)
        with torch.no_grad():
            arguments = prepared.arguments(request)
            return {"rules": _as(Compiled, prepared.function).first(*arguments)}

    def _bound(self, request: Message) -> Message:
        """The answer has the least seconds that the reference takes on some hardware."""
        from pypm.choice.execution import traced
        from pypm.roofline import bound
        from pypm.roofline.machines import hardware_of

        prepared = _given(self._prepared)
        graph = traced(prepared.function, prepared.arguments(request))
        hardware = hardware_of(_as(dict, request["hardware"]), "the harness")
        return {"seconds": bound(graph, hardware).seconds}

    def _call(self, request: Message) -> Message:
        prepared, given = _given(self._prepared), _as(bool, self._started["destinations"])
        return self._called(request, prepared.function, given)

    def _empty(self, request: Message) -> Message:
        """Call a function that computes nothing."""
        return self._called(request, lambda *_: None, True)

    def _called(self, request: Message, function: Function, has_destinations: bool) -> Message:
        prepared = _given(self._prepared)
        arguments = prepared.arguments(request)
        memory = prepared.made, prepared.outputs
        return {"copied": call(function, arguments, *memory, has_destinations)}


_STATUS: Final = {"start": "COMPILE_ERROR", "compile": "COMPILE_ERROR"}
"""The status of errors by the request; that of all others is RUNTIME_ERROR."""


def _failure(error: BaseException, request: str) -> Message:
    if isinstance(error, WrongOutput):
        return {"failed": error.status, "text": str(error)}
    lines = traceback.format_exception(error, limit=-3)
    return {"failed": _STATUS.get(request, "RUNTIME_ERROR"), "text": "".join(lines)[-10_000:]}


def _given(value: T | None) -> T:
    assert value is not None, "the request comes too early"
    return value


def _as(kind: type[T], value: object) -> T:
    assert isinstance(value, kind), f"{value!r} is not a {kind.__name__}"
    return value
