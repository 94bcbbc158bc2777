"""Triton's interpreter, which tests of several kernels share."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest


def _take_numbers_as_masks() -> None:
    """Make masks truths: comparisons of numbers are int32 in Triton 3.9, and then refused."""
    if importlib.util.find_spec("triton") is None:
        return
    from triton.runtime import interpreter

    accesses = interpreter._interpreter

    def truths(access: Callable[..., Any], place: int) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            return access(*args[:place], args[place].astype(bool), *args[place + 1 :])

        return run

    accesses.load, accesses.store = truths(accesses.load, 1), truths(accesses.store, 2)


@pytest.fixture(scope="session")
def interpreter() -> Iterator[Executor]:
    """A process whose kernels are interpreted on the CPU: Triton decides when it is imported.

    What bfloat16 the interpreter makes is cut off, not rounded, its `tl.dot` of bfloat16 is wrong,
    and so is its float8.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "1")
            process.submit(_take_numbers_as_masks).result()
        yield process
