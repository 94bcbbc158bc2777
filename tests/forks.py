"""Functions in processes of their own, which are forks: these need not import torch again."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["at_once", "exit_code"]

T = TypeVar("T")
_FORK: Any = multiprocessing.get_context("fork")


def at_once(function: Callable[[int], T], count: int) -> list[T]:
    """Return what a function gives for the numbers below `count`, each in a process."""
    found = _FORK.SimpleQueue()
    running = [_FORK.Process(target=lambda i=i: found.put(function(i))) for i in range(count)]
    for process in running:
        process.start()
    for process in running:
        process.join()
    assert [process.exitcode for process in running] == [0] * count
    return [found.get() for _ in running]


def exit_code(function: Callable[[], object]) -> int:
    """Return the exit code of a process that calls a function."""
    process = _FORK.Process(target=function)
    process.start()
    process.join()
    code: int = process.exitcode
    return code
