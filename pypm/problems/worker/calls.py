"""Calls of a version: from inputs in shared memory to outputs in shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import torch
from torch import Tensor

from pypm.problems.memory import Input, Spec, dtype_of, sizes_of
from pypm.problems.worker.versions import Function

__all__ = ["WrongOutput", "call"]


class WrongOutput(Exception):
    """An output of another shape or type than is asked for."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status


def call(
    function: Function,
    arguments: Sequence[Input],
    outputs: Sequence[Tensor],
    specs: Sequence[Spec],
    has_destinations: bool,
) -> float:
    """Call a function, have its results in memory, and return the seconds of copying them there.

    Arguments:
        function: takes the arguments, and the outputs too if `has_destinations`.
        arguments: the inputs.
        outputs: the memory of the outputs.
        specs: name, shape and type of each output.
        has_destinations: the function fills its last arguments, instead of returning outputs.

    Raises Wrong for a result of another shape or type, TypeError for one that is no output, and
    what the function raises.
    """
    with torch.no_grad():
        if has_destinations:
            function(*arguments, *outputs)
            return 0.0
        result = function(*arguments)
        start = perf_counter()
        names = [str(spec["name"]) for spec in specs]
        for value, place, spec in zip(_listed(result, names), outputs, specs, strict=True):
            _copy(value, place, spec)
        return perf_counter() - start


def _listed(result: object, names: Sequence[str]) -> list[object]:
    """Return results in the order of the outputs. Raises TypeError for another number of them."""
    if isinstance(result, dict):
        missing = [name for name in names if name not in result]
        if missing:
            raise TypeError(f"the result lacks the outputs {missing}")
        return [result[name] for name in names]
    found = [*result] if isinstance(result, (tuple, list)) else [result]
    if len(found) != len(names):
        raise TypeError(f"there are {len(found)} results for {len(names)} outputs")
    return found


def _copy(value: object, place: Tensor, spec: Spec) -> None:
    name, sizes = spec["name"], sizes_of(spec)
    if isinstance(value, (bool, int, float)):
        value = torch.tensor(value, dtype=dtype_of(spec))
    if not isinstance(value, Tensor):
        raise TypeError(f"the output `{name}` is a {type(value).__name__}")
    if value.shape != sizes:
        problem = f"has the shape {[*value.shape]}, not {[*sizes]}"
        raise WrongOutput("INCORRECT_SHAPE", f"the output `{name}` {problem}")
    if value.dtype != place.dtype:
        dtype = str(value.dtype).removeprefix("torch.")
        problem = f"has the type {dtype}, not {place.dtype}"
        raise WrongOutput("INCORRECT_DTYPE", f"the output `{name}` {problem}")
    place.copy_(value)
