"""The state of a worker: one version of a computation, and the workload it is prepared for."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import torch

from pypm.tools.problems.worker.calls import Calls, Hack, data_of
from pypm.tools.problems.worker.inputs import inputs_maker
from pypm.tools.problems.worker.integrity import Snapshot
from pypm.tools.problems.worker.versions import Compiled, Function, Wide, function_of, loaded

__all__ = ["Session"]

Fields = dict[str, object]
Answer = tuple[Fields, list[bytes]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prepared:
    """A version with its workload."""

    function: Function
    make: Callable[[int], list[object]]
    calls: Calls
    names: list[str]
    """Names of the inputs."""


class Session:
    """Answers requests. An answer is empty, or has what was found, or `failed` and `text`."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._requests: Mapping[str, Callable[[Fields], Answer]] = {
            "start": self._start,
            "prepare": self._prepare,
            "compile": self._compile,
            "bound": self._bound,
            "inputs": self._inputs,
            "call": self._call,
            "outputs": self._outputs,
        }
        self._flush = torch.empty(0, dtype=torch.uint8)
        self._started: Fields = {}
        self._run: Function | None = None
        self._custom: Function | None = None
        self._prepared: Prepared | None = None
        self._has_called = False
        self._late: BaseException | None = None

    def answer(self, request: Fields) -> Answer:
        """Do what a request asks for. Errors of the version are in the answer."""
        what = str(request["do"])
        try:
            if self._late is not None:
                raise self._late
            return self._requests[what](request)
        except BaseException as error:  # also of `sys.exit` in a solution
            self._late = None
            return _failure(error, what), []

    def settle(self) -> None:
        """Look at the outputs of a call. The answer was sent before, so that it is not late."""
        if self._has_called:
            self._has_called = False
            try:
                _given(self._prepared).calls.settle()
            except BaseException as error:
                self._late = error

    def _start(self, request: Fields) -> Answer:
        """Import the sources."""
        self._started = request
        torch.set_num_threads(_as(int, request["threads"]))
        self._flush = torch.empty(_as(int, request["flush"]), dtype=torch.uint8)
        if request["reference"] is not None:
            defined = loaded(Path(_as(str, request["reference"])), "sol_reference")
            custom = request["custom"]
            self._custom = function_of(defined, _as(str, custom)) if custom else None
            self._run = function_of(defined, "run")
        if request["solution"] is not None:
            defined = loaded(Path(_as(str, request["solution"])), "sol_solution")
            self._run = function_of(defined, _as(str, request["function"]))
        return self._intact({})

    def _prepare(self, request: Fields) -> Answer:
        """Get ready for a workload."""
        function = _given(self._run)
        if self._started["compiled"]:
            rules = self._started["rules"]
            function = Compiled(function, None if rules is None else _as(list, rules))
        if self._started["wide"]:
            function = Wide(function, [each["dtype"] for each in _as(list, request["outputs"])])
        specs = _as(list, request["inputs"])
        make = inputs_maker(specs, _as(dict, request["axes"]), self._custom)
        has_destinations = _as(bool, self._started["destinations"])
        calls = Calls(function, make, _as(list, request["outputs"]), has_destinations, self._flush)
        self._prepared = Prepared(function, make, calls, [each["name"] for each in specs])
        return {}, []

    def _compile(self, request: Fields) -> Answer:
        """Call a compiled version for the first time; the answer has the rules that applied."""
        prepared = _given(self._prepared)
        compiled = _as(Compiled, prepared.function)
        with torch.no_grad():
            return {"rules": compiled.first(*prepared.make(_as(int, request["seed"])))}, []

    def _bound(self, request: Fields) -> Answer:
        """The answer has the least seconds that the reference takes on some hardware."""
        from pypm.cost import bound
        from pypm.cost.execution import traced
        from pypm.cost.machines import hardware_of

        prepared = _given(self._prepared)
        graph = traced(prepared.function, prepared.make(_as(int, request["seed"])))
        hardware = hardware_of(_as(dict, request["hardware"]), "the harness")
        return {"seconds": bound(graph, hardware).seconds}, []

    def _inputs(self, request: Fields) -> Answer:
        _given(self._prepared).calls.prepare(_as(int, request["seed"]))
        return {}, []

    def _call(self, request: Fields) -> Answer:
        self._has_called = False
        seconds = _given(self._prepared).calls.run()
        self._has_called = True
        return {"seconds": seconds}, []

    def _outputs(self, request: Fields) -> Answer:
        """The answer has the outputs of the last call, and the inputs that it wrote to.

        Outputs of other shapes or types than asked for are described alone.
        """
        prepared = _given(self._prepared)
        taken = prepared.calls.outputs()
        described = [{"shape": each.shape, "dtype": each.dtype} for each in taken]
        written = prepared.calls.written(prepared.names)
        blocks = [data_of(each) for each in taken if prepared.calls.fit()]
        return self._intact({"outputs": described, "written": written}, *blocks)

    def _intact(self, fields: Fields, *blocks: bytes) -> Answer:
        """Return an answer. Raises Hack if functions were replaced by which it was made."""
        replaced = self._snapshot.replaced()
        if replaced:
            raise Hack(f"replaced: {', '.join(f'`{name}`' for name in replaced[:5])}")
        return fields, [*blocks]


_STATUS: Final = {"start": "COMPILE_ERROR", "compile": "COMPILE_ERROR"}
"""The status of errors by the request; that of all others is RUNTIME_ERROR."""


def _failure(error: BaseException, request: str) -> Fields:
    if isinstance(error, Hack):
        return {"failed": "REWARD_HACK", "text": str(error)}
    lines = traceback.format_exception(error, limit=-3)
    return {"failed": _STATUS.get(request, "RUNTIME_ERROR"), "text": "".join(lines)[-10_000:]}


def _given(value: T | None) -> T:
    assert value is not None, "the request comes too early"
    return value


def _as(kind: type[T], value: object) -> T:
    assert isinstance(value, kind), f"{value!r} is not a {kind.__name__}"
    return value
