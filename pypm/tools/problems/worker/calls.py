"""Calls of a version: on copies of fresh inputs, with cold caches, timed and looked through."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

__all__ = ["Calls", "Hack", "Output"]


class Hack(Exception):
    """A call that did something else than compute its outputs."""


@dataclass(frozen=True, slots=True)
class Output:
    """An output as it was when the call returned."""

    shape: tuple[int, ...] | None
    """None for a Python number."""
    dtype: str
    data: Tensor


class Calls:
    """Calls of one function for one workload: `prepare`, `run`, `settle`, then `outputs`."""

    def __init__(
        self,
        function: Callable[..., object],
        make: Callable[[int], list[object]],
        outputs: Sequence[Mapping[str, object]],
        has_destinations: bool,
        flush: Tensor,
    ) -> None:
        """Take a function and its workload.

        Arguments:
            function: takes the inputs, and the outputs too if `has_destinations`.
            make: makes inputs from a seed.
            outputs: name, shape and dtype of each.
            has_destinations: the function fills its last arguments, instead of returning outputs.
            flush: memory of the size of the last cache, which is written before each call.
        """
        self._function = function
        self._make = make
        self._specs = outputs
        self._has_destinations = has_destinations
        self._flush = flush
        self._inputs: list[object] = []
        self._arguments: list[object] = []
        self._results: list[object] = []
        self._held: list[Tensor] = []
        self._taken: list[Output] = []

    def prepare(self, seed: int) -> None:
        """Make the arguments of the next call, and write memory until caches hold nothing else.

        Raises what making inputs raises.
        """
        self._inputs = self._make(seed)
        self._arguments = [x.clone() if isinstance(x, Tensor) else x for x in self._inputs]
        if self._has_destinations:
            self._results = [_unwritten(spec) for spec in self._specs]
        self._flush.zero_()

    def run(self) -> float:
        """Call the function, and return the seconds that it took. Raises what it raises."""
        function, arguments = self._function, [*self._arguments]
        if self._has_destinations:
            arguments += self._results
        with torch.no_grad():
            start = perf_counter()
            result = function(*arguments)
            stop = perf_counter()
        if not self._has_destinations:
            self._results = _listed(result, [str(spec["name"]) for spec in self._specs])
        return stop - start

    def settle(self) -> None:
        """Copy the outputs as they are now. Raises Hack if they are not computed tensors."""
        self._taken = [
            _output(value, str(spec["name"]), str(spec["dtype"]))
            for value, spec in zip(self._results, self._specs, strict=True)
        ]
        tensors = [value for value in self._results if isinstance(value, Tensor)]
        places = {held.data_ptr() for held in self._held if held.numel()}
        for value, spec in zip(self._results, self._specs, strict=True):
            if isinstance(value, Tensor) and value.data_ptr() in places:
                raise Hack(
                    f"the output `{spec['name']}` is the memory that an earlier call returned"
                )
        self._held = tensors  # alive until the next call, so that no memory is returned twice

    def outputs(self) -> list[Output]:
        """Return the outputs of the last call. Raises Hack if they changed since it returned."""
        for taken, value, spec in zip(self._taken, self._results, self._specs, strict=True):
            if isinstance(value, Tensor) and not _same(value, taken.data):
                raise Hack(f"the output `{spec['name']}` changed after the call had returned")
        return self._taken

    def fit(self) -> bool:
        """Return whether shapes and types of the outputs are those that were asked for."""
        pairs = zip(self._taken, self._specs, strict=True)
        return all(
            [*(each.shape or ())] == (spec["shape"] or []) and each.dtype == spec["dtype"]
            for each, spec in pairs
        )

    def written(self, names: Sequence[str]) -> list[str]:
        """Return the names of inputs that the last call changed, of the names of all."""
        return [
            name
            for name, before, now in zip(names, self._inputs, self._arguments, strict=True)
            if isinstance(before, Tensor) and not (isinstance(now, Tensor) and _same(before, now))
        ]


def _unwritten(spec: Mapping[str, object]) -> Tensor:
    """Return memory for an output, filled so that leaving it is a wrong result."""
    shape = spec["shape"]
    assert isinstance(shape, list)
    dtype: torch.dtype = getattr(torch, str(spec["dtype"]))
    found = torch.empty(shape, dtype=dtype)
    if dtype.is_floating_point and dtype.itemsize > 1:
        return found.fill_(torch.nan)
    return found.random_(0, 2) if not dtype.is_floating_point else found.zero_()


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


def _output(value: object, name: str, dtype: str) -> Output:
    if isinstance(value, (bool, int, float)):
        return Output(None, dtype, torch.tensor(value, dtype=getattr(torch, dtype)))
    if not isinstance(value, Tensor):
        raise TypeError(f"the output `{name}` is a {type(value).__name__}")
    if type(value) is not Tensor:
        raise Hack(f"the output `{name}` is a {type(value).__name__}, which may compute later")
    if value.layout != torch.strided or value.device.type != "cpu":
        raise Hack(f"the output `{name}` is {value.layout} on {value.device}, not computed memory")
    if value.is_conj() or value.is_neg():
        raise Hack(f"the output `{name}` is still to be negated or conjugated")
    data = value.detach().clone(memory_format=torch.contiguous_format)
    return Output(tuple(value.shape), str(value.dtype).removeprefix("torch."), data)


def _same(one: Tensor, other: Tensor) -> bool:
    """Return whether shapes, types and all bits are equal."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(_bits(one), _bits(other))


def _bits(value: Tensor) -> Tensor:
    return value.detach().contiguous().reshape(-1).view(torch.uint8)


def data_of(output: Output) -> bytes:
    """Return the memory of an output."""
    data = output.data
    return ctypes.string_at(data.data_ptr(), data.nbytes)
