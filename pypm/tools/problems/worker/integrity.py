"""Functions of the clock, of torch and of this worker, as before a solution was imported."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Final

import torch

__all__ = ["Snapshot"]

_TORCH: Final = ("Tensor", "equal", "no_grad")
_TENSOR: Final = (
    "clone",
    "contiguous",
    "data_ptr",
    "is_conj",
    "is_neg",
    "reshape",
    "view",
    "zero_",
)

State = tuple[object, object]
"""A function, and its code if it has some."""


class Snapshot:
    """The functions of some modules at one time, to find what was replaced since."""

    def __init__(self, modules: Sequence[ModuleType]) -> None:
        """Take modules of the worker; clocks, and what it uses of torch, are added."""
        self._modules = modules
        self._before = dict(self._states())

    def replaced(self) -> list[str]:
        """Return the dotted names of functions that are others now, or have other code."""
        now = dict(self._states())
        return [name for name, before in self._before.items() if not _is(before, now.get(name))]

    def _states(self) -> Iterator[tuple[str, State]]:
        for module in self._modules:
            for name, value in [*vars(module).items()]:
                yield from _functions(f"{module.__name__}.{name}", value, module.__name__)
        for name, value in [*vars(time).items()]:
            yield from _functions(f"time.{name}", value, "time")
        for name in _TORCH:
            yield f"torch.{name}", (getattr(torch, name, None), None)
        for name in _TENSOR:
            yield f"torch.Tensor.{name}", (getattr(torch.Tensor, name, None), None)


def _functions(name: str, value: object, module: str) -> Iterator[tuple[str, State]]:
    """Yield a function, or a class of a module with its methods."""
    if callable(value):
        yield name, (value, getattr(value, "__code__", None))
    if isinstance(value, type) and value.__module__ == module:
        for inner, method in [*vars(value).items()]:
            yield from _functions(f"{name}.{inner}", method, module)


def _is(before: State, now: State | None) -> bool:
    return now is not None and all(a is b for a, b in zip(before, now, strict=True))
